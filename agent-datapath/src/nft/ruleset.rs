//! The table `ip agent_network`: the connection-tracking exemption for the proxy's packets, the masquerade for
//! services, and a second lock behind the eBPF programs.
//!
//! An `accept` here ends only our own chain; a `drop` is final. So whatever kube-proxy, a firewall or another agent
//! accept, what these rules refuse stays refused.

use agent_core::policy::address::BUILT_IN_SENSITIVE;
use ipnet::Ipv4Net;

use super::value::{Chain, ChainKind, Ct, Expr, Hook, Meta, Rule, Table};
use crate::network::NodeNetwork;

/// The table's name.
pub const TABLE: &str = "agent_network";

/// `NF_IP_PRI_RAW`: before connection tracking.
const PRIORITY_RAW: i32 = -300;
const PRIORITY_FILTER: i32 = 0;
/// `NF_IP_PRI_NAT_SRC`.
const PRIORITY_SOURCE_NAT: i32 = 100;
/// After IPVS, which takes a service's packets out of the input hook at 98 and 99 (`net/netfilter/ipvs/ip_vs_core.c`):
/// what it left is for the node itself.
const PRIORITY_AFTER_IPVS: i32 = 101;
/// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED) | NF_CT_STATE_BIT(IP_CT_RELATED)`.
const ESTABLISHED_OR_RELATED: u32 = 2 | 4;
/// `RTN_BROADCAST`.
const BROADCAST: u32 = 3;
/// `IPS_DST_NAT`.
const DESTINATION_TRANSLATED: u32 = 1 << 5;

/// The table for a node.
pub fn table(node: &NodeNetwork) -> Table {
    Table {
        name: TABLE,
        chains: vec![
            prerouting(node),
            input(node),
            forward(node),
            postrouting(node),
        ],
    }
}

fn prerouting(node: &NodeNetwork) -> Chain {
    Chain {
        name: "raw_prerouting",
        kind: ChainKind::Filter,
        hook: Hook::Prerouting,
        priority: PRIORITY_RAW,
        rules: vec![
            // The dispatch program and the proxy know a pod by its address alone: only the bridge brings the pool's.
            rule(
                "nobody but a pod has a pod's address",
                [
                    from(node.bridge.address),
                    not_by(&node.bridge.name),
                    not_by("lo"),
                    refuse(),
                ],
            ),
            // The kernel hands a broadcast to every socket of its port, without asking the dispatch program; which
            // addresses are one depends on the node's networks, so the pod's program cannot know.
            rule(
                "no broadcast reaches the node's servers",
                [from_pods(node), to_broadcast(), refuse()],
            ),
            // The program can't tell an answer to the node from what follows on a connection that the pod opened to the
            // gateway, and lets both pass unmarked. The proxy's sockets are the transparent ones.
            rule(
                "what follows on a connection of the proxy's to the gateway",
                [
                    from_pods(node),
                    to(node.bridge.address.addr().into()),
                    transparent_socket(),
                    mark(node.proxy),
                ],
            ),
            rule(
                "the proxy's packets keep their destination",
                [from_pods(node), marked(node.proxy), vec![Expr::Notrack]],
            ),
        ],
    }
}

fn input(node: &NodeNetwork) -> Chain {
    Chain {
        name: "input",
        kind: ChainKind::Filter,
        hook: Hook::Input,
        priority: PRIORITY_AFTER_IPVS,
        rules: vec![
            rule(
                "no service is a way to the node itself",
                [from_pods(node), marked(node.service), refuse()],
            ),
            rule(
                "to the proxy",
                [from_pods(node), marked(node.proxy), vec![Expr::Accept]],
            ),
            rule(
                "answers to the node, as to kubelet's probes",
                [from_pods(node), known_connection(), vec![Expr::Accept]],
            ),
            rule(
                "nothing else from a pod to the node",
                [from_pods(node), refuse()],
            ),
        ],
    }
}

fn forward(node: &NodeNetwork) -> Chain {
    let mut rules = vec![rule(
        "no service is a way around the proxy to another pod",
        [from_pods(node), to_pods(node), refuse()],
    )];
    // whoever writes a service's endpoints chooses where kube-proxy sends its packets
    rules.extend(sensitive().map(|range| {
        rule(
            "no service is a way to a sensitive range",
            [from_pods(node), to(range), refuse()],
        )
    }));
    rules.extend([
        rule(
            "what kube-proxy gave a backend",
            [
                from_pods(node),
                marked(node.service),
                translated(),
                vec![Expr::Accept],
            ],
        ),
        rule(
            "nothing else from a pod through the node",
            [from_pods(node), refuse()],
        ),
        rule(
            "answers to a pod",
            [to_pods(node), known_connection(), vec![Expr::Accept]],
        ),
        rule(
            "nothing else through the node to a pod",
            [to_pods(node), refuse()],
        ),
    ]);
    Chain {
        name: "forward",
        kind: ChainKind::Filter,
        hook: Hook::Forward,
        priority: PRIORITY_FILTER,
        rules,
    }
}

fn postrouting(node: &NodeNetwork) -> Chain {
    Chain {
        name: "postrouting",
        kind: ChainKind::Nat,
        hook: Hook::Postrouting,
        priority: PRIORITY_SOURCE_NAT,
        rules: vec![rule(
            "to a service's backend with the node's address",
            [
                from(node.bridge.address),
                marked(node.service),
                vec![Expr::Counter, Expr::Masquerade],
            ],
        )],
    }
}

/// The built-in ranges that no policy can open, as far as they are IPv4.
fn sensitive() -> impl Iterator<Item = Ipv4Net> {
    BUILT_IN_SENSITIVE
        .iter()
        .filter_map(|text| text.parse().ok())
}

fn rule<const N: usize>(purpose: &'static str, parts: [Vec<Expr>; N]) -> Rule {
    Rule {
        purpose,
        expressions: parts.into_iter().flatten().collect(),
    }
}

fn from_pods(node: &NodeNetwork) -> Vec<Expr> {
    vec![
        Expr::Meta(Meta::InputName),
        Expr::Equal(interface(&node.bridge.name)),
    ]
}

fn to_pods(node: &NodeNetwork) -> Vec<Expr> {
    vec![
        Expr::Meta(Meta::OutputName),
        Expr::Equal(interface(&node.bridge.name)),
    ]
}

fn not_by(name: &str) -> Vec<Expr> {
    vec![Expr::Meta(Meta::InputName), Expr::NotEqual(interface(name))]
}

fn from(net: Ipv4Net) -> Vec<Expr> {
    within(Expr::SourceAddress, net)
}

fn to(net: Ipv4Net) -> Vec<Expr> {
    within(Expr::DestinationAddress, net)
}

fn within(address: Expr, net: Ipv4Net) -> Vec<Expr> {
    vec![
        address,
        Expr::Mask(net.netmask().octets()),
        Expr::Equal(net.network().octets().to_vec()),
    ]
}

fn marked(mark: crate::network::MaskedMark) -> Vec<Expr> {
    vec![
        Expr::Meta(Meta::Mark),
        Expr::Mask(mark.mask.to_ne_bytes()),
        Expr::Equal(mark.value.to_ne_bytes().to_vec()),
    ]
}

fn transparent_socket() -> Vec<Expr> {
    vec![Expr::SocketIsTransparent, Expr::Equal(vec![1])]
}

fn mark(mark: crate::network::MaskedMark) -> Vec<Expr> {
    vec![
        Expr::Meta(Meta::Mark),
        Expr::Replace {
            keep: (!mark.mask).to_ne_bytes(),
            with: mark.value.to_ne_bytes(),
        },
        Expr::SetMark,
    ]
}

fn to_broadcast() -> Vec<Expr> {
    vec![
        Expr::DestinationType,
        Expr::Equal(BROADCAST.to_ne_bytes().to_vec()),
    ]
}

fn known_connection() -> Vec<Expr> {
    any_bit(Ct::State, ESTABLISHED_OR_RELATED)
}

fn translated() -> Vec<Expr> {
    any_bit(Ct::Status, DESTINATION_TRANSLATED)
}

fn any_bit(key: Ct, bits: u32) -> Vec<Expr> {
    vec![
        Expr::Ct(key),
        Expr::Mask(bits.to_ne_bytes()),
        Expr::NotEqual(vec![0; 4]),
    ]
}

fn refuse() -> Vec<Expr> {
    vec![Expr::Counter, Expr::Drop]
}

/// An interface name as the register holds it: IFNAMSIZ bytes, so that it matches exactly.
fn interface(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(libc::IFNAMSIZ, 0);
    bytes
}
