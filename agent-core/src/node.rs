//! The node's own choices that outlive a process: `node.json` in the state directory, and the Fake IP CIDR derived from
//! the node's name. Owns the format and the derivation, not the files and not the routes.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::attachment::Mode;
use crate::mac::MacAddr;

/// The only schema version that this build writes and reads.
pub const SCHEMA_VERSION: u32 = 1;

/// Name of the bridge that agent pods hang on.
pub const BRIDGE: &str = "agentcni0";
/// Mark of packets that go to a Service CIDR; documented, and seen by kube-proxy's rules.
pub const SERVICE_MARK: u32 = 0x77;
/// The bits that [`SERVICE_MARK`] lives in.
pub const SERVICE_MARK_MASK: u32 = 0xff;
/// Mark of packets that are delivered to the proxy; bits 24 to 27 are neither kube-proxy's (0x4000, 0x8000) nor the ones
/// that Cilium (0x0f00) and Calico (0xffff0000, changeable) need on a node where they share the stack with us.
pub const PROXY_MARK: u32 = 0x0a00_0000;
/// The bits that [`PROXY_MARK`] lives in.
pub const PROXY_MARK_MASK: u32 = 0x0f00_0000;
/// Route table of the one `local` route that delivers to the proxy.
pub const ROUTE_TABLE: u32 = 18080;
/// Priority of the rule that leads to [`ROUTE_TABLE`].
pub const RULE_PREFERENCE: u32 = 100;
/// Priority of the rules that drop what may not be routed out of the node, just behind [`RULE_PREFERENCE`].
pub const DROP_RULE_PREFERENCE: u32 = 101;
/// Route table of what goes to pods: by the bridge, or nowhere.
pub const POOL_ROUTE_TABLE: u32 = 18081;
/// Priority of the rule that leads to [`POOL_ROUTE_TABLE`].
pub const POOL_RULE_PREFERENCE: u32 = 102;
/// Name of this document in the state directory.
pub const FILE_NAME: &str = "node.json";

/// The range that per-node CIDRs are derived from: IPv4 link-local (RFC 3927).
const DERIVED_FROM: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 0);
/// Third octets of /24s in 169.254.0.0/16 that hold well-known services: reserved by RFC 3927 (0 and 255), tunnel and
/// VPN inside addresses (7), node-local DNS (20, 25), metadata (169) and EKS pod identity (170).
const AVOIDED: [u8; 7] = [0, 7, 20, 25, 169, 170, 255];

/// The packet marks, each with the bits it may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Marks {
    /// Value for delivery to the proxy.
    pub proxy: u32,
    /// Bits of `proxy`.
    pub proxy_mask: u32,
    /// Value for the service bypass.
    pub service: u32,
    /// Bits of `service`.
    pub service_mask: u32,
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            proxy: PROXY_MARK,
            proxy_mask: PROXY_MARK_MASK,
            service: SERVICE_MARK,
            service_mask: SERVICE_MARK_MASK,
        }
    }
}

/// What the first `ADD` (or the installer) settled for the node, and what every later process keeps to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    /// Format of the file; [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The range that the node's pods get addresses from.
    pub fake_ip_cidr: Ipv4Net,
    /// First address of the range, on the bridge.
    pub gateway: Ipv4Addr,
    /// Ethernet address of the bridge.
    pub gateway_mac: MacAddr,
    /// Ranges that go to kube-proxy instead of the proxy.
    pub service_cidrs: Vec<Ipv4Net>,
    /// The packet marks.
    pub marks: Marks,
    /// How traffic is redirected.
    pub mode: Mode,
    /// Why this mode, in words, when the kernel was asked; `auto` says here why not eBPF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_reason: Option<String>,
    /// The kind of that reason, a fixed label for metrics: `requested`, `kept`, `ebpf_works` or `ebpf_fails`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_cause: Option<String>,
    /// What eBPF would need and the node lacks, by the labels of `agent-cni probe`; empty when it works or was not asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ebpf_missing: Vec<String>,
    /// Directory of pinned programs, maps and links.
    pub pin_dir: String,
    /// Name of the bridge.
    pub bridge: String,
}

/// Why bytes are no node state.
#[derive(Debug, thiserror::Error)]
pub enum NodeStateError {
    /// The file is empty, as after a power cut.
    #[error("node.json is empty")]
    Empty,
    /// The bytes are not the JSON object that version 1 describes.
    #[error("node.json is not a version {SCHEMA_VERSION} node state")]
    NotANodeState(#[source] serde_json::Error),
    /// Another version of this software wrote it.
    #[error("node.json has schema version {0}, this build reads {SCHEMA_VERSION}")]
    SchemaVersion(u64),
    /// The fields contradict each other.
    #[error("node.json is inconsistent: {0}")]
    Inconsistent(String),
}

impl NodeStateError {
    /// A fixed label for logs and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::NotANodeState(_) => "not_a_node_state",
            Self::SchemaVersion(_) => "schema_version",
            Self::Inconsistent(_) => "inconsistent",
        }
    }
}

#[derive(Deserialize)]
struct Versioned {
    #[serde(rename = "schemaVersion")]
    schema_version: u64,
}

impl NodeState {
    /// The state of a node whose pods live in `fake_ip_cidr`, with every other choice at its default.
    ///
    /// # Errors
    /// A range with no room for a gateway and a pod.
    pub fn new(
        fake_ip_cidr: Ipv4Net,
        service_cidrs: Vec<Ipv4Net>,
        mode: Mode,
        pin_dir: &str,
    ) -> Result<Self, NodeStateError> {
        let fake_ip_cidr = fake_ip_cidr.trunc();
        let state = Self {
            schema_version: SCHEMA_VERSION,
            fake_ip_cidr,
            gateway: gateway_of(fake_ip_cidr),
            gateway_mac: gateway_mac(fake_ip_cidr),
            service_cidrs,
            marks: Marks::default(),
            mode,
            mode_reason: None,
            mode_cause: None,
            ebpf_missing: Vec::new(),
            pin_dir: pin_dir.to_owned(),
            bridge: BRIDGE.to_owned(),
        };
        state.validate()?;
        Ok(state)
    }

    /// Reads `node.json`.
    ///
    /// # Errors
    /// Empty, truncated or foreign bytes, another schema version, and fields that contradict each other.
    pub fn parse(bytes: &[u8]) -> Result<Self, NodeStateError> {
        if bytes.iter().all(|b| b.is_ascii_whitespace() || *b == 0) {
            return Err(NodeStateError::Empty);
        }
        let versioned: Versioned =
            serde_json::from_slice(bytes).map_err(NodeStateError::NotANodeState)?;
        if versioned.schema_version != u64::from(SCHEMA_VERSION) {
            return Err(NodeStateError::SchemaVersion(versioned.schema_version));
        }
        let state: Self = serde_json::from_slice(bytes).map_err(NodeStateError::NotANodeState)?;
        state.validate()?;
        Ok(state)
    }

    /// The file's content, ending with a newline.
    pub fn to_json(&self) -> String {
        // A struct of strings and numbers always serialises; an empty text would be refused by `parse`.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    fn validate(&self) -> Result<(), NodeStateError> {
        let fail = |text: String| Err(NodeStateError::Inconsistent(text));
        let cidr = self.fake_ip_cidr;
        if cidr.prefix_len() < 8 || cidr.prefix_len() > 30 {
            return fail(format!("fakeIpCidr {cidr} must be between a /8 and a /30"));
        }
        if self.gateway != gateway_of(cidr) {
            return fail(format!(
                "gateway {} is not the first address of {cidr}",
                self.gateway
            ));
        }
        if self.gateway_mac.is_unusable_as_source() {
            return fail(format!(
                "gatewayMac {} is no interface's address",
                self.gateway_mac
            ));
        }
        if let Some(service) = self.service_cidrs.iter().find(|net| overlap(**net, cidr)) {
            return fail(format!("service CIDR {service} overlaps fakeIpCidr {cidr}"));
        }
        let Marks {
            proxy,
            proxy_mask,
            service,
            service_mask,
        } = self.marks;
        if proxy & !proxy_mask != 0 || service & !service_mask != 0 {
            return fail("a mark has bits outside its mask".to_owned());
        }
        if proxy == 0 || service == 0 || proxy_mask & service_mask != 0 {
            return fail("the marks must be non-zero and their masks must not overlap".to_owned());
        }
        if !crate::attachment::is_interface_name(&self.bridge) {
            return fail(format!("`{}` is no interface name", self.bridge));
        }
        Ok(())
    }
}

/// The gateway of a Fake IP CIDR: its first address.
pub fn gateway_of(cidr: Ipv4Net) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(cidr.network()).wrapping_add(1))
}

/// The bridge's Ethernet address: locally administered, derived from the range, so that it is the same after a reboot.
pub fn gateway_mac(cidr: Ipv4Net) -> MacAddr {
    let [a, b, c, d] = gateway_of(cidr).octets();
    MacAddr([0x02, 0xa9, a, b, c, d])
}

/// Derives the node's Fake IP CIDR: a /24 of 169.254.0.0/16 picked by a stable hash of the node's name.
///
/// Ranges that hold well-known link-local services are never picked, nor one that overlaps `in_use` (the node's routes,
/// Pod and Service CIDRs): then the next candidate of the same node's fixed order is. `None` when none of the 249 is free.
/// A default route (`0.0.0.0/0`) is no use of a range and is left out of account.
pub fn derive_fake_cidr(node_name: &str, in_use: &[Ipv4Net]) -> Option<Ipv4Net> {
    let pool = Ipv4Net::new(DERIVED_FROM, 16).ok()?;
    derive_from_pool(node_name, pool, 24, in_use)
}

/// The same from another pool: the node's part has `prefix_length`. `None` when no part is free, or the pool has none of
/// that length.
pub fn derive_from_pool(
    node_name: &str,
    pool: Ipv4Net,
    prefix_length: u8,
    in_use: &[Ipv4Net],
) -> Option<Ipv4Net> {
    candidates(node_name, pool, prefix_length).find(|candidate| {
        let used = |net: &Ipv4Net| net.prefix_len() > 0 && overlap(*net, *candidate);
        !is_avoided(*candidate) && !in_use.iter().any(used)
    })
}

/// Whether a range overlaps one that holds well-known link-local services.
pub fn is_avoided(net: Ipv4Net) -> bool {
    let [a, b, _, _] = DERIVED_FROM.octets();
    AVOIDED.iter().any(|third| {
        Ipv4Net::new(Ipv4Addr::new(a, b, *third, 0), 24).is_ok_and(|avoided| overlap(avoided, net))
    })
}

/// All parts of the pool in the node's fixed order.
fn candidates(
    node_name: &str,
    pool: Ipv4Net,
    prefix_length: u8,
) -> impl Iterator<Item = Ipv4Net> + use<> {
    let digest = Sha256::digest(node_name.as_bytes());
    let bits = u32::from(prefix_length.saturating_sub(pool.prefix_len())).min(24);
    let count = if prefix_length < pool.prefix_len() || prefix_length > 32 {
        0
    } else {
        1u32 << bits
    };
    // An odd step is coprime with a power of two, so the walk visits every part once.
    let start = u32::from_be_bytes([0, digest[3], digest[2], digest[0]]);
    let step = u32::from_be_bytes([0, digest[5], digest[4], digest[1]]) | 1;
    let first = u32::from(pool.network());
    (0..count).filter_map(move |i| {
        let part = start.wrapping_add(step.wrapping_mul(i)) & (count - 1);
        let offset = part.checked_shl(32 - u32::from(prefix_length)).unwrap_or(0);
        Ipv4Net::new(Ipv4Addr::from(first | offset), prefix_length).ok()
    })
}

/// Whether two ranges have an address in common.
pub fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    fn state() -> NodeState {
        NodeState::new(
            net("169.254.9.0/24"),
            vec![net("10.96.0.0/12")],
            Mode::Ebpf,
            "/sys/fs/bpf/x",
        )
        .unwrap()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let text = state().to_json();
        assert_eq!(NodeState::parse(text.as_bytes()).unwrap(), state());
        assert!(text.contains("\"gateway\": \"169.254.9.1\""), "{text}");
        for end in 0..text.trim_end().len() {
            assert!(NodeState::parse(&text.as_bytes()[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn contradictions_are_named() {
        for (from, to, says) in [
            ("169.254.9.1", "169.254.9.7", "not the first address"),
            ("10.96.0.0/12", "169.254.0.0/16", "overlaps"),
            (
                "\"proxyMask\": 251658240",
                "\"proxyMask\": 255",
                "outside its mask",
            ),
            ("agentcni0", "a b", "no interface name"),
        ] {
            let error =
                NodeState::parse(state().to_json().replace(from, to).as_bytes()).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn the_same_name_always_gives_the_same_range() {
        let cidr = derive_fake_cidr("worker-1", &[]).unwrap();
        assert_eq!(derive_fake_cidr("worker-1", &[]), Some(cidr));
        assert_eq!(cidr.prefix_len(), 24);
        // Fixed for ever: a change of the derivation would move the ranges of nodes that lost their state.
        assert_eq!(cidr, net(DERIVED_FOR_WORKER_1));
    }
    const DERIVED_FOR_WORKER_1: &str = "169.254.19.0/24";

    #[test]
    fn every_free_range_is_a_candidate_exactly_once() {
        let all: Vec<_> = candidates("n", net("169.254.0.0/16"), 24)
            .filter(|candidate| !is_avoided(*candidate))
            .collect();
        assert_eq!(all.len(), 249);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 249);
    }

    #[test]
    fn nothing_is_derived_when_the_whole_range_is_in_use() {
        assert_eq!(derive_fake_cidr("n", &[net("169.254.0.0/16")]), None);
        assert!(derive_fake_cidr("n", &[net("0.0.0.0/0")]).is_some());
    }

    #[test]
    fn another_pool_has_all_its_parts_once() {
        for (pool, length, count) in [
            ("10.250.0.0/16", 26, 1024),
            ("10.0.0.0/8", 20, 4096),
            ("10.1.0.0/24", 24, 1),
            ("10.1.0.0/24", 16, 0),
        ] {
            let all: BTreeSet<_> = candidates("n", net(pool), length).collect();
            assert_eq!(all.len(), count, "{pool}");
            assert!(
                all.iter()
                    .all(|part| net(pool).contains(part) && part.prefix_len() == length)
            );
        }
        assert_eq!(
            derive_from_pool("n", net("169.254.20.0/23"), 24, &[]),
            Some(net("169.254.21.0/24"))
        );
    }

    proptest! {
        #[test]
        fn a_derived_range_is_never_avoided_and_never_overlaps(
            name in ".{0,40}",
            octets in proptest::collection::vec((any::<u8>(), 17u8..=32), 0..60),
        ) {
            let in_use: Vec<_> = octets
                .iter()
                .map(|(third, len)| Ipv4Net::new(Ipv4Addr::new(169, 254, *third, 3), *len).unwrap())
                .collect();
            if let Some(cidr) = derive_fake_cidr(&name, &in_use) {
                prop_assert!(!AVOIDED.contains(&cidr.network().octets()[2]));
                prop_assert!(net("169.254.0.0/16").contains(&cidr));
                prop_assert!(in_use.iter().all(|net| !overlap(*net, cidr)));
            }
        }

        #[test]
        fn parsing_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = NodeState::parse(&bytes);
        }
    }
}
