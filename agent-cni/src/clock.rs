//! The clock and the boot: the two facts about now that state needs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_core::time::Timestamp;

/// Seconds since 1970; zero for a clock before that.
pub(crate) fn now_seconds() -> u64 {
    since_epoch().as_secs()
}

/// Now, as state files have it.
pub(crate) fn timestamp() -> String {
    Timestamp::from_duration(since_epoch()).to_string()
}

fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// What names this boot; links and ifindexes of another one mean nothing. Empty where /proc is not mounted.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}
