//! What one pod may ask of one worker: queries per second, queries waiting, connections.
//!
//! A pod that floods pays with its own queries: past its rate they are dropped before anything is
//! looked up, and it never has more than its share of the sockets towards upstreams.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Queries per second that one pod may send to one worker for as long as it likes. A page load or
/// an `npm ci` asks some hundreds in all.
pub(crate) const QUERIES_PER_SECOND: u32 = 2000;
/// Queries that a pod may send at once after a quiet time.
pub(crate) const BURST: u32 = 4000;
/// Queries of one pod that may wait for an upstream or an identity at the same time.
pub(crate) const WAITING_PER_POD: u32 = 128;
/// Queries of all pods that may wait on one worker: each may hold a few sockets, and a process
/// has 20,000.
pub(crate) const WAITING_PER_WORKER: u32 = 2048;
/// TCP connections of one pod on one worker.
pub(crate) const CONNECTIONS_PER_POD: u32 = 32;
/// Pods past which the table is searched for those that have been quiet.
const SWEEP_ABOVE: usize = 1024;

/// One worker's table. Times are arguments.
#[derive(Default)]
pub(crate) struct Limits {
    pods: RefCell<HashMap<Ipv4Addr, Rc<PodUse>>>,
    waiting: Rc<Cell<u32>>,
}

struct PodUse {
    tokens: Cell<u32>,
    filled: Cell<Instant>,
    waiting: Cell<u32>,
    connections: Cell<u32>,
    /// When the last excess was reported, so that a flood makes one audit line a second.
    reported: Cell<Option<Instant>>,
}

/// Whether a query may go on.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Admission {
    /// It may.
    Admitted,
    /// Over the rate. `report`: the first one in this second.
    Excess {
        /// Whether an audit line is due.
        report: bool,
    },
}

/// A query that waits; the place is free again when this is dropped.
pub(crate) struct Waiting {
    pod: Rc<PodUse>,
    all: Rc<Cell<u32>>,
}

/// A connection; the place is free again when this is dropped.
pub(crate) struct Connected {
    pod: Rc<PodUse>,
}

impl Limits {
    /// Counts one query of `pod` against its rate.
    pub(crate) fn admit(&self, pod: Ipv4Addr, now: Instant) -> Admission {
        let pod = self.pod(pod, now);
        pod.refill(now);
        match pod.tokens.get().checked_sub(1) {
            Some(left) => {
                pod.tokens.set(left);
                Admission::Admitted
            }
            None => Admission::Excess {
                report: pod.report(now),
            },
        }
    }

    /// A place for a query of `pod` to wait in; `None` when all are taken.
    pub(crate) fn wait(&self, pod: Ipv4Addr, now: Instant) -> Option<Waiting> {
        let pod = self.pod(pod, now);
        if pod.waiting.get() >= WAITING_PER_POD || self.waiting.get() >= WAITING_PER_WORKER {
            return None;
        }
        pod.waiting.set(pod.waiting.get() + 1);
        self.waiting.set(self.waiting.get() + 1);
        Some(Waiting {
            pod,
            all: Rc::clone(&self.waiting),
        })
    }

    /// A place for a connection of `pod`; `None` when all are taken.
    pub(crate) fn connect(&self, pod: Ipv4Addr, now: Instant) -> Option<Connected> {
        let pod = self.pod(pod, now);
        if pod.connections.get() >= CONNECTIONS_PER_POD {
            return None;
        }
        pod.connections.set(pod.connections.get() + 1);
        Some(Connected { pod })
    }

    fn pod(&self, address: Ipv4Addr, now: Instant) -> Rc<PodUse> {
        let mut pods = self.pods.borrow_mut();
        if pods.len() > SWEEP_ABOVE && !pods.contains_key(&address) {
            pods.retain(|_, pod| !pod.is_idle(now));
        }
        Rc::clone(
            pods.entry(address)
                .or_insert_with(|| Rc::new(PodUse::new(now))),
        )
    }
}

impl PodUse {
    fn new(now: Instant) -> PodUse {
        PodUse {
            tokens: Cell::new(BURST),
            filled: Cell::new(now),
            waiting: Cell::new(0),
            connections: Cell::new(0),
            reported: Cell::new(None),
        }
    }

    fn refill(&self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled.get());
        let earned = passed.as_micros() * u128::from(QUERIES_PER_SECOND) / 1_000_000;
        // Less than one: time goes on counting from where it did.
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(BURST);
            self.tokens
                .set(self.tokens.get().saturating_add(earned).min(BURST));
            self.filled.set(now);
        }
    }

    fn report(&self, now: Instant) -> bool {
        let due = self
            .reported
            .get()
            .is_none_or(|last| now.saturating_duration_since(last) >= Duration::from_secs(1));
        if due {
            self.reported.set(Some(now));
        }
        due
    }

    fn is_idle(&self, now: Instant) -> bool {
        self.waiting.get() == 0
            && self.connections.get() == 0
            && now.saturating_duration_since(self.filled.get()) > Duration::from_secs(10)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.pod
            .waiting
            .set(self.pod.waiting.get().saturating_sub(1));
        self.all.set(self.all.get().saturating_sub(1));
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.pod
            .connections
            .set(self.pod.connections.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 2);
    const OTHER: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 3);

    #[test]
    fn a_flood_is_cut_to_the_rate_and_another_pod_is_not() {
        let limits = Limits::default();
        let start = Instant::now();
        let admitted = (0..100_000).filter(|_| limits.admit(POD, start) == Admission::Admitted);
        assert_eq!(admitted.count(), BURST as usize);
        assert_eq!(limits.admit(OTHER, start), Admission::Admitted);
        let later = start + Duration::from_secs(1);
        let admitted = (0..100_000).filter(|_| limits.admit(POD, later) == Admission::Admitted);
        assert_eq!(admitted.count(), QUERIES_PER_SECOND as usize);
    }

    #[test]
    fn a_flood_is_reported_once_a_second() {
        let limits = Limits::default();
        let start = Instant::now();
        let reports = (0..BURST + 1000)
            .filter(|_| limits.admit(POD, start) == Admission::Excess { report: true });
        assert_eq!(reports.count(), 1);
    }

    #[test]
    fn waiting_places_of_one_pod_run_out_before_those_of_others_and_come_back() {
        let limits = Limits::default();
        let now = Instant::now();
        let held: Vec<_> = (0..WAITING_PER_POD)
            .map(|_| limits.wait(POD, now).unwrap())
            .collect();
        assert!(limits.wait(POD, now).is_none());
        assert!(limits.wait(OTHER, now).is_some());
        drop(held);
        assert!(limits.wait(POD, now).is_some());
        assert_eq!(limits.waiting.get(), 0);
    }

    #[test]
    fn quiet_pods_are_forgotten_when_there_are_many() {
        let limits = Limits::default();
        let start = Instant::now();
        for n in 0..=SWEEP_ABOVE as u32 {
            limits.admit(Ipv4Addr::from_bits(0x0a00_0000 + n), start);
        }
        limits.admit(POD, start + Duration::from_secs(11));
        assert_eq!(limits.pods.borrow().len(), 1);
    }
}
