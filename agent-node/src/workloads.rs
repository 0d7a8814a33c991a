//! Who is asking: source Fake IP -> CNI state -> pod -> service account and labels.
//!
//! Owns the identity table: one immutable map behind one pointer, replaced when the CNI state or
//! the facts about a pod change. An address that no attachment claims, that two claim, or whose
//! pod nobody knows anything about, has no identity, and whoever asks must deny. When an
//! attachment goes its token is cancelled, so that an address reused is never an identity reused.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_core::identity::Workload;
use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

mod cluster;
mod facts_file;
mod follow;
mod source;
mod state_dir;
mod table;

pub use cluster::{Cluster, ClusterConfig, ClusterHealth, Origin, Watch};
pub use facts_file::FactsFile;
pub use follow::Follower;
pub use source::{PodFacts, PodRef, WorkloadSource};
pub use state_dir::StateDir;

/// Connections that may wait for an identity at the same time; the next ones are unknown at once.
const MAX_WAITING: usize = 1024;
/// Of these, connections from one address, so that no single one takes all the places.
const MAX_WAITING_PER_ADDRESS: usize = 32;

/// A pod that was found, as of one generation of what is known about it.
#[derive(Debug)]
pub struct Identified {
    /// The pod.
    pub workload: Workload,
    /// Grows when what is known about the pod changes.
    pub generation: u64,
    /// The host's side of the pod's veth pair.
    pub ifindex: u32,
    /// Cancelled when the pod's attachment is gone: close what it has open.
    pub gone: CancellationToken,
}

/// The identity table; clones share it.
#[derive(Clone)]
pub struct Workloads(Arc<Shared>);

struct Shared {
    table: ArcSwap<Table>,
    generation: AtomicU64,
    changes: watch::Sender<u64>,
    /// Asks the follower to look at the state folder now.
    missed: Notify,
    waiting: Waiting,
    wait: Duration,
}

type Table = HashMap<Ipv4Addr, Arc<Identified>, BuildHasherDefault<AddressHasher>>;

impl Workloads {
    /// An empty table, in which an unknown address waits up to `wait` for its state file.
    /// A [`Follower`] fills it.
    pub fn new(wait: Duration) -> Workloads {
        Workloads(Arc::new(Shared {
            table: ArcSwap::default(),
            generation: AtomicU64::new(0),
            changes: watch::Sender::new(0),
            missed: Notify::new(),
            waiting: Waiting::default(),
            wait,
        }))
    }

    /// The pod at `ip`. An address that isn't known yet waits for its state file, up to the
    /// configured time; after that it is unknown: deny.
    ///
    /// Cancel safe.
    pub async fn identify(&self, ip: Ipv4Addr) -> Option<Arc<Identified>> {
        match self.known(ip) {
            Some(found) => Some(found),
            None => self.wait_for(ip).await,
        }
    }

    /// The pod at `ip` as the table has it now, without waiting. One atomic load and one look-up.
    pub fn known(&self, ip: Ipv4Addr) -> Option<Arc<Identified>> {
        self.0.table.load().get(&ip).cloned()
    }

    /// Grows with every change of the table. One atomic load: a long-lived connection asks it, and
    /// looks itself up again only when it has changed.
    pub fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// The pod behind a host interface; a walk over all pods, for events and not for requests.
    pub fn at_interface(&self, ifindex: u32) -> Option<Arc<Identified>> {
        let table = self.0.table.load();
        table.values().find(|pod| pod.ifindex == ifindex).cloned()
    }

    /// How many addresses have an identity.
    pub fn len(&self) -> usize {
        self.0.table.load().len()
    }

    /// Whether no address has one.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    async fn wait_for(&self, ip: Ipv4Addr) -> Option<Arc<Identified>> {
        let shared = &*self.0;
        let _place = shared.waiting.take(ip)?;
        let mut changes = shared.changes.subscribe();
        let deadline = tokio::time::Instant::now() + shared.wait;
        shared.missed.notify_one();
        loop {
            // A change between the subscription and this look-up is still to come in `changed`.
            if let Some(found) = self.known(ip) {
                return Some(found);
            }
            let changed = tokio::time::timeout_at(deadline, changes.changed()).await;
            if !matches!(changed, Ok(Ok(()))) {
                return self.known(ip);
            }
        }
    }

    /// Has the follower look now at what is new, and not when its time comes.
    fn look_again(&self) {
        self.0.missed.notify_one();
    }

    fn publish(&self, table: Table) {
        let generation = self.generation() + 1;
        self.0.table.store(Arc::new(table));
        self.0.generation.store(generation, Ordering::Release);
        self.0.changes.send_replace(generation);
    }

    async fn missed(&self) {
        self.0.missed.notified().await;
    }
}

/// The places for those who wait. Locked briefly, and only for an address that isn't known.
#[derive(Default)]
struct Waiting(Mutex<Places>);

#[derive(Default)]
struct Places {
    all: usize,
    by_address: HashMap<Ipv4Addr, usize>,
}

impl Waiting {
    fn take(&self, ip: Ipv4Addr) -> Option<Place<'_>> {
        let mut places = self.lock();
        let of_address = places.by_address.get(&ip).copied().unwrap_or_default();
        if places.all >= MAX_WAITING || of_address >= MAX_WAITING_PER_ADDRESS {
            return None;
        }
        places.all += 1;
        places.by_address.insert(ip, of_address + 1);
        Some(Place { waiting: self, ip })
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the places.
struct Place<'a> {
    waiting: &'a Waiting,
    ip: Ipv4Addr,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut places = self.waiting.lock();
        places.all = places.all.saturating_sub(1);
        match places.by_address.get_mut(&self.ip) {
            Some(of_address) if *of_address > 1 => *of_address -= 1,
            _ => {
                places.by_address.remove(&self.ip);
            }
        }
    }
}

/// Spreads IPv4 addresses over buckets by one multiplication. Addresses come from agent-cni's
/// own allocator, so nobody can choose them to collide.
#[derive(Debug, Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) | u64::from(*byte);
        }
    }

    fn write_u32(&mut self, n: u32) {
        self.0 = (self.0 << 32) | u64::from(n);
    }

    fn finish(&self) -> u64 {
        // The 64-bit golden ratio: neighbours end far apart, also in the upper bits.
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26)
    }
}

#[cfg(test)]
mod tests;
