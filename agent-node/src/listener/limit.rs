//! How many connections one pod may have, over all workers, without a lock.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// One counter for each value of an address's last two octets. Two pods share one only where the
/// Fake IP CIDR is larger than a /16.
const COUNTERS: usize = 1 << 16;

/// The connections that each pod has now.
#[derive(Debug)]
pub struct PodLimits {
    counters: Box<[AtomicU32]>,
    limit: u32,
}

/// One connection's place; gives it back when dropped.
#[derive(Debug)]
pub struct PodSlot {
    limits: Arc<PodLimits>,
    index: usize,
}

impl PodLimits {
    /// At most `limit` connections for each pod.
    pub fn new(limit: u32) -> PodLimits {
        PodLimits {
            counters: (0..COUNTERS).map(|_| AtomicU32::new(0)).collect(),
            limit,
        }
    }

    /// A place for one more connection of the pod at `ip`; `None` when it has its share.
    pub fn take(self: &Arc<Self>, ip: Ipv4Addr) -> Option<PodSlot> {
        let [.., c, d] = ip.octets();
        let index = usize::from(u16::from_be_bytes([c, d]));
        let counter = &self.counters[index];
        if counter.fetch_add(1, Ordering::Relaxed) >= self.limit {
            counter.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(PodSlot {
            limits: self.clone(),
            index,
        })
    }
}

impl Drop for PodSlot {
    fn drop(&mut self) {
        self.limits.counters[self.index].fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pods_limit_is_not_anothers() {
        let limits = Arc::new(PodLimits::new(2));
        let a = Ipv4Addr::new(169, 254, 9, 2);
        let b = Ipv4Addr::new(169, 254, 9, 3);
        let first = limits.take(a).unwrap();
        let _second = limits.take(a).unwrap();
        assert!(limits.take(a).is_none());
        assert!(limits.take(b).is_some());
        drop(first);
        assert!(limits.take(a).is_some());
    }
}
