//! What this node is: its Fake IP CIDR and gateway from agent-cni's `node.json`, and its own
//! addresses from the kernel.
//!
//! Owns reading both and keeping them fresh behind one pointer. Doesn't decide; the policy engine
//! refuses these as destinations.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agent_core::attachment::Mode;
use agent_core::node::NodeState;
use agent_core::policy::NodeNets;
use arc_swap::{ArcSwap, Guard};
use ipnet::Ipv4Net;
use tokio_util::sync::CancellationToken;

use crate::file_watch::{FileWatch, Look};

/// The file in the state folder that says what this node is.
const NODE_FILE: &str = "node.json";
/// It holds one small object.
const MAX_NODE_BYTES: u64 = 1024 * 1024;
/// How often its content is compared although size and times are the same.
const COMPARE_EVERY: Duration = Duration::from_secs(5);
/// How often it is looked whether `node.json` changed: pods reach nothing until its gateway is listened on.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often the node's addresses are read again: they change with leases, not with requests.
const ADDRESSES_EVERY: Duration = Duration::from_secs(2);

/// The node's networks, behind one pointer.
pub struct NodeNetsCell {
    nets: ArcSwap<NodeNets>,
    known: AtomicBool,
    node: ArcSwap<Option<NodeState>>,
    stays: Stays,
}

/// For each mode a token that ends when the node leaves that mode.
#[derive(Default)]
struct Stays {
    ebpf: ArcSwap<CancellationToken>,
    compat: ArcSwap<CancellationToken>,
}

impl Stays {
    fn of(&self, mode: Mode) -> &ArcSwap<CancellationToken> {
        match mode {
            Mode::Ebpf => &self.ebpf,
            Mode::IptablesCompat => &self.compat,
        }
    }
}

/// Keeps a [`NodeNetsCell`] fresh; owned by one task.
pub struct NodeNetsReader {
    watch: FileWatch,
    extra_fake_cidrs: Vec<Ipv4Net>,
    state: Option<NodeState>,
    /// The node's addresses as of the last time that they could be read.
    own: Option<Vec<IpAddr>>,
    own_read: Option<Instant>,
    /// What the published networks were made of.
    published: Option<(Vec<Ipv4Net>, Vec<IpAddr>)>,
}

impl NodeNetsCell {
    /// Reads both sources once, and returns what keeps them fresh.
    pub fn new(state_dir: &Path, extra_fake_cidrs: &[Ipv4Net]) -> (NodeNetsCell, NodeNetsReader) {
        let (cell, mut reader) = NodeNetsCell::unread(state_dir, extra_fake_cidrs);
        reader.refresh(&cell);
        (cell, reader)
    }

    fn unread(state_dir: &Path, extra_fake_cidrs: &[Ipv4Net]) -> (NodeNetsCell, NodeNetsReader) {
        let cell = NodeNetsCell {
            nets: ArcSwap::from_pointee(NodeNets::default()),
            known: AtomicBool::new(false),
            node: ArcSwap::from_pointee(None),
            stays: Stays::default(),
        };
        let reader = NodeNetsReader {
            watch: FileWatch::new(&state_dir.join(NODE_FILE), MAX_NODE_BYTES, COMPARE_EVERY),
            extra_fake_cidrs: extra_fake_cidrs.to_vec(),
            state: None,
            own: None,
            own_read: None,
            published: None,
        };
        (cell, reader)
    }

    /// Whether both sources were read once. Until then [`NodeNetsCell::load`] knows nothing that
    /// must be refused, so nothing may be let through.
    pub fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire)
    }

    /// The node's networks as of now; empty until [`NodeNetsCell::is_known`].
    pub fn load(&self) -> Guard<Arc<NodeNets>> {
        self.nets.load()
    }

    /// Whether an address is the node's own, and no pod's: the gateway is in the pods' range, and the node's.
    pub fn is_node_itself(&self, ip: IpAddr) -> bool {
        let nets = self.load();
        let own = ip.is_loopback() || nets.is_node(ip);
        own && (!nets.is_fake(ip) || Some(ip) == self.gateway().map(IpAddr::V4))
    }

    /// What agent-cni wrote about this node; `None` before it has set the node up.
    pub fn node(&self) -> Arc<Option<NodeState>> {
        self.node.load_full()
    }

    /// Cancelled when the node leaves `mode`: what that mode brought here is then cut off. A connection of a mode that the
    /// node is only on its way to is not: it came before `node.json` was read again.
    pub fn stay(&self, mode: Mode) -> CancellationToken {
        CancellationToken::clone(&self.stays.of(mode).load())
    }

    /// The gateway address on the bridge, which pods have as their name server's and probes' peer.
    pub fn gateway(&self) -> Option<Ipv4Addr> {
        Option::as_ref(&self.node.load()).map(|node| node.gateway)
    }
}

impl NodeNetsReader {
    /// Reads what has changed since the last time, the node's addresses not more often than they may change.
    pub fn refresh(&mut self, cell: &NodeNetsCell) {
        self.read_state();
        let now = Instant::now();
        if self
            .own_read
            .is_none_or(|last| now >= last + ADDRESSES_EVERY)
        {
            self.own_read = Some(now);
            self.take_addresses(own_addresses());
        }
        self.publish(cell);
    }

    fn take_addresses(&mut self, read: nix::Result<Vec<IpAddr>>) {
        match read {
            Ok(own) => self.own = Some(own),
            // The last known ones stay: without them the node would be open to its pods.
            Err(error) => tracing::error!(error = %error, "the node's addresses can't be read"),
        }
    }

    fn read_state(&mut self) {
        match self.watch.look(Instant::now()) {
            Look::Same => {}
            Look::Failed(error) => {
                // The last known node stays: the file is replaced by rename, so a failure is not
                // a change of address, and forgetting the Fake IP CIDR would be less safe.
                tracing::warn!(file = %self.watch.path().display(), error = %error, "node state can't be read");
            }
            Look::Changed(bytes) => match NodeState::parse(&bytes) {
                Ok(state) => {
                    tracing::info!(fake_cidr = %state.fake_ip_cidr, gateway = %state.gateway, "node state is read");
                    self.state = Some(state);
                }
                Err(error) => {
                    tracing::error!(file = %self.watch.path().display(), error = %crate::telemetry::chain(&error), "node state is not valid");
                }
            },
        }
    }

    /// Publishes what is known, if it is enough: an empty set of either kind would refuse nothing.
    fn publish(&mut self, cell: &NodeNetsCell) {
        let before = cell.node.load_full();
        if *before != self.state {
            cell.node.store(Arc::new(self.state.clone()));
            let mode = |state: &Option<NodeState>| state.as_ref().map(|state| state.mode);
            if let Some(left) = mode(&before).filter(|left| Some(*left) != mode(&self.state)) {
                let stay = cell.stays.of(left).swap(Arc::default());
                stay.cancel();
            }
        }
        let mut fake_cidrs = self.extra_fake_cidrs.clone();
        fake_cidrs.extend(self.state.iter().map(|state| state.fake_ip_cidr));
        let Some(mut node_addresses) = self.own.clone().filter(|_| !fake_cidrs.is_empty()) else {
            return;
        };
        node_addresses.extend(self.state.iter().map(|state| IpAddr::V4(state.gateway)));
        node_addresses.sort_unstable();
        node_addresses.dedup();
        let fresh = Some((fake_cidrs, node_addresses));
        if self.published != fresh {
            self.published = fresh;
            if let Some((fake_cidrs, node_addresses)) = &self.published {
                let nets =
                    NodeNets::new(fake_cidrs.iter().copied(), node_addresses.iter().copied());
                cell.nets.store(Arc::new(nets));
                cell.known.store(true, Ordering::Release);
            }
        }
    }
}

/// Every address of every interface of this network namespace.
fn own_addresses() -> nix::Result<Vec<IpAddr>> {
    let interfaces = nix::ifaddrs::getifaddrs()?;
    let addresses = interfaces
        .filter_map(|interface| interface.address)
        .filter_map(|address| {
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        });
    Ok(addresses.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_among_the_nodes_own_addresses() {
        let own = own_addresses().unwrap();
        assert!(own.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }

    #[test]
    fn without_fake_cidrs_nothing_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let (cell, mut reader) = NodeNetsCell::new(dir.path(), &[]);
        assert!(!cell.is_known());
        std::fs::write(dir.path().join(NODE_FILE), "{").unwrap();
        reader.refresh(&cell);
        assert!(!cell.is_known(), "node.json is not valid");
        let extra = "169.254.9.0/24".parse().unwrap();
        assert!(NodeNetsCell::new(dir.path(), &[extra]).0.is_known());
    }

    #[test]
    fn addresses_that_cannot_be_read_are_not_forgotten_and_never_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        let extra = "169.254.9.0/24".parse().unwrap();
        let (cell, mut reader) = NodeNetsCell::new(dir.path(), &[extra]);
        reader.take_addresses(Err(nix::errno::Errno::EMFILE));
        reader.publish(&cell);
        assert!(cell.load().is_node(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        let (cell, mut reader) = NodeNetsCell::unread(dir.path(), &[extra]);
        reader.take_addresses(Err(nix::errno::Errno::EMFILE));
        reader.publish(&cell);
        assert!(!cell.is_known());
    }
}
