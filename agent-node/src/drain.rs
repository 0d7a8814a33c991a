//! Whether this process is on its way out, and who waits for that.
//!
//! Owns the two signals of a shutdown. Doesn't close anything: listeners stop accepting, and
//! connections end after the request they are in, each by looking here.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

/// The shutdown signals of one process.
#[derive(Debug, Default)]
pub struct Drain {
    draining: AtomicBool,
    begun: CancellationToken,
}

impl Drain {
    /// Nothing is ending yet.
    pub fn new() -> Drain {
        Drain::default()
    }

    /// Begins the drain: no new connections, no keep-alive after the request in flight.
    pub fn begin(&self) {
        self.draining.store(true, Ordering::Release);
        self.begun.cancel();
    }

    /// Whether the drain has begun. One atomic load: fit to be asked on every request.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Waits until the drain begins; returns at once when it has.
    ///
    /// Cancel safe.
    pub async fn begun(&self) {
        self.begun.cancelled().await;
    }

    /// A token that is cancelled when the drain begins, for tasks that own nothing of ours.
    pub fn token(&self) -> CancellationToken {
        self.begun.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_drain_is_seen_by_those_who_ask_and_those_who_wait() {
        let drain = Drain::new();
        assert!(!drain.is_draining());
        drain.begin();
        assert!(drain.is_draining());
        drain.begun().await;
        assert!(drain.token().is_cancelled());
    }
}
