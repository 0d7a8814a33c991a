//! How long to wait for what must come. On an emulated machine (`cargo xtask kernel-matrix`) everything takes longer,
//! and `AGENT_NETWORK_TEST_SLOWDOWN` says how many times; waits for what must not come are not its business.

use std::sync::OnceLock;
use std::time::Duration;

/// `limit` on this machine.
pub fn patience(limit: Duration) -> Duration {
    limit * slowdown()
}

/// How many times slower than usual this machine may be; 1 when nobody says.
pub fn slowdown() -> u32 {
    static SLOWDOWN: OnceLock<u32> = OnceLock::new();
    *SLOWDOWN.get_or_init(|| {
        let said = std::env::var("AGENT_NETWORK_TEST_SLOWDOWN").ok();
        said.and_then(|text| text.parse().ok())
            .filter(|factor| (1..=100).contains(factor))
            .unwrap_or(1)
    })
}
