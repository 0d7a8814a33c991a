//! The table `ip agent_network`: the masquerade for services, and a second lock behind what controls the pods, in both
//! modes (`bridge_filter` is the third); what only one mode needs is there in that mode, or while a node goes from one to the other.
//!
//! An `accept` here ends only our own chain; a `drop` is final. So whatever kube-proxy, a firewall or another agent
//! accept, what these rules refuse stays refused.

use agent_core::policy::address::BUILT_IN_SENSITIVE;
use ipnet::Ipv4Net;

mod expressions;

pub(crate) use expressions::interface;
use expressions::{
    destination_is, dns_to_the_node, from, from_pods, known_connection, mark, marked, not_by,
    not_out_by, not_to_gateway, not_within, port, protocol, refuse, rule, to, to_gateway, to_pods,
    translated, transparent_socket, unknown_connection,
};

use super::value::{Base, Chain, ChainKind, Expr, Family, Hook, Meta, Rule, Table};
use crate::{
    link::HOST_VETH_PREFIX,
    network::{NodeNetwork, WithoutProxy},
};

/// The table's name.
pub const TABLE: &str = "agent_network";

/// `NF_IP_PRI_RAW`: before connection tracking.
const PRIORITY_RAW: i32 = -300;
/// `NF_IP_PRI_MANGLE`: after connection tracking, before routing.
const PRIORITY_MANGLE: i32 = -150;
const PRIORITY_FILTER: i32 = 0;
/// `NF_IP_PRI_NAT_SRC`.
const PRIORITY_SOURCE_NAT: i32 = 100;
/// While a pod's packet still has the pod's address.
const PRIORITY_BEFORE_SOURCE_NAT: i32 = 99;
/// After IPVS, which takes a service's packets out of the input hook at 98 and 99 (`net/netfilter/ipvs/ip_vs_core.c`):
/// what it left is for the node itself.
const PRIORITY_AFTER_IPVS: i32 = 101;
/// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED) | NF_CT_STATE_BIT(IP_CT_RELATED)`.
const ESTABLISHED_OR_RELATED: u32 = 2 | 4;
/// Just before `NF_IP_PRI_NAT_DST`, where others translate.
const PRIORITY_BEFORE_DESTINATION_NAT: i32 = -101;
const TCP: u8 = 6;
const UDP: u8 = 17;
const DNS_PORT: u16 = 53;
/// `RTN_LOCAL`.
const LOCAL: u32 = 2;
/// `RTN_BROADCAST`.
const BROADCAST: u32 = 3;
/// `IPS_DST_NAT`.
const DESTINATION_TRANSLATED: u32 = 1 << 5;

/// What the table must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// What the eBPF mode needs.
    pub ebpf: bool,
    /// What the iptables-compat mode needs.
    pub compat: bool,
    /// With `compat`: redirect before the priority at which iptables does, because somebody else's chain translates
    /// at it as well, as that of kube-proxy in nftables mode; which of two is first depends on when they were made.
    pub early: bool,
}

/// The table for a node.
pub fn table(node: &NodeNetwork, parts: Parts) -> Table {
    let mut chains = vec![
        prerouting(node, parts),
        input(node, parts),
        forward(node),
        leaving(node),
        postrouting(node),
        marking(node, parts),
    ];
    if parts.ebpf {
        chains.push(past_ipvs(node));
    }
    if parts.compat && parts.early {
        chains.push(redirect(node));
    }
    Table {
        family: Family::Ip,
        name: TABLE,
        sets: Vec::new(),
        chains,
    }
}

fn base(name: &'static str, kind: ChainKind, hook: Hook, priority: i32, rules: Vec<Rule>) -> Chain {
    Chain {
        name: name.into(),
        base: Some(Base {
            kind,
            hook,
            priority,
        }),
        rules,
    }
}

fn prerouting(node: &NodeNetwork, parts: Parts) -> Chain {
    let mut rules = vec![
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
            [from_pods(node), destination_is(BROADCAST), refuse()],
        ),
    ];
    if parts.compat {
        // the table of the bridge sees only what comes by it: a port that was taken off, or a frame to one of the
        // addresses that a bridge hands up (IEEE 802.1D, 7.12.6), comes by the pod's own interface
        rules.push(rule(
            "nothing comes by a pod's interface itself",
            [
                vec![
                    Expr::Meta(Meta::InputName),
                    Expr::Equal(HOST_VETH_PREFIX.as_bytes().to_vec()),
                ],
                refuse(),
            ],
        ));
    }
    rules.extend(without_proxy(node, parts));
    if parts.ebpf {
        rules.extend([UDP, TCP].map(|number| {
            rule(
                "DNS to an address of the node is translated below",
                [
                    dns_to_the_node(node, number),
                    not_to_gateway(node),
                    vec![Expr::Accept],
                ],
            )
        }));
        rules.push(rule(
            "the proxy's packets keep their destination",
            [from_pods(node), marked(node.proxy), vec![Expr::Notrack]],
        ));
    }
    if parts.compat {
        let passed = |marked| {
            rule(
                "let through by the pod's chain",
                [from_pods(node), marked, vec![Expr::Accept]],
            )
        };
        // the marks are from the table of the bridge: without it, and by a port that it does not know, nothing comes
        rules.extend([
            passed(marked(node.proxy)),
            passed(marked(node.service)),
            rule(
                "answers to the node have no mark",
                [
                    from_pods(node),
                    to_gateway(node),
                    protocol(TCP),
                    vec![Expr::Accept],
                ],
            ),
            rule(
                "nothing that no pod's chain has let through",
                [from_pods(node), refuse()],
            ),
        ]);
    }
    base(
        "raw_prerouting",
        ChainKind::Filter,
        Hook::Prerouting,
        PRIORITY_RAW,
        rules,
    )
}

/// What is for the proxy goes the Services' way while no proxy is there, if that is wanted. Its listeners and connections
/// are the only transparent sockets; the look-up asks the dispatch program, so it is right for every packet.
fn without_proxy(node: &NodeNetwork, parts: Parts) -> Vec<Rule> {
    let WithoutProxy::Out { away } = node.without_proxy else {
        return Vec::new();
    };
    let mut rules = Vec::new();
    if parts.ebpf {
        rules.extend([UDP, TCP].map(|number| {
            rule(
                "DNS to an address of the node, while the proxy is there",
                [
                    dns_to_the_node(node, number),
                    not_to_gateway(node),
                    transparent_socket(),
                    vec![Expr::Accept],
                ],
            )
        }));
        rules.push(rule(
            "what the proxy has a socket for",
            [
                from_pods(node),
                marked(node.proxy),
                transparent_socket(),
                vec![Expr::Notrack, Expr::Accept],
            ],
        ));
    }
    if away || parts.ebpf {
        rules.push(rule(
            "no proxy: out of the node past it",
            [
                from_pods(node),
                marked(node.proxy),
                not_within(Expr::DESTINATION_ADDRESS, node.bridge.address),
                vec![
                    Expr::COUNTER,
                    Expr::Meta(Meta::Mark),
                    Expr::MaskAndFlip(
                        (!(node.proxy.mask | node.service.mask))
                            .to_ne_bytes()
                            .to_vec(),
                        node.service.value.to_ne_bytes().to_vec(),
                    ),
                    Expr::SetMark,
                ],
            ],
        ));
    }
    rules
}

/// The program can't tell an answer to the node from what follows on a connection that the pod opened to the gateway, and
/// lets both pass unmarked. Connection tracking knows the former, translated ones too; it never saw the latter's first
/// packet, and their sockets are the proxy's, the only transparent ones.
///
/// Answers are marked for the bridge's filter, before their destination is translated back.
fn marking(node: &NodeNetwork, parts: Parts) -> Chain {
    let mut rules = vec![rule(
        "answers to the node",
        [
            from_pods(node),
            to_gateway(node),
            protocol(TCP),
            known_connection(),
            mark(node.answer()),
        ],
    )];
    if parts.ebpf {
        rules.push(rule(
            "what follows on a connection of the proxy's to the gateway",
            [
                from_pods(node),
                to_gateway(node),
                protocol(TCP),
                unknown_connection(),
                transparent_socket(),
                mark(node.proxy),
            ],
        ));
    }
    base(
        "mangle_prerouting",
        ChainKind::Filter,
        Hook::Prerouting,
        PRIORITY_MANGLE,
        rules,
    )
}

/// IPVS gives every Service's address to the node and takes its packets out of the input hook, before the socket look-up
/// where the dispatch program is: queries to the cluster's DNS Service would go to its servers. On the gateway, where no
/// Service is, they reach the proxy, and connection tracking gives the answers the address that was asked.
fn past_ipvs(node: &NodeNetwork) -> Chain {
    base(
        "past_ipvs",
        ChainKind::Nat,
        Hook::Prerouting,
        PRIORITY_BEFORE_DESTINATION_NAT,
        [UDP, TCP]
            .map(|number| {
                rule(
                    "DNS to an address of the node, to the proxy on the gateway",
                    [
                        dns_to_the_node(node, number),
                        vec![
                            Expr::COUNTER,
                            Expr::Put(DNS_PORT.to_be_bytes().to_vec()),
                            Expr::Redirect,
                        ],
                    ],
                )
            })
            .into(),
    )
}

fn input(node: &NodeNetwork, parts: Parts) -> Chain {
    let mut rules = Vec::new();
    if parts.compat && node.without_proxy == (WithoutProxy::Out { away: true }) {
        // what is left of its connections has the other mark now
        rules.extend([node.ports.proxy, node.ports.dns].map(|number| {
            rule(
                "connections of a proxy that ends",
                [
                    from_pods(node),
                    to_gateway(node),
                    protocol(TCP),
                    port(number),
                    known_connection(),
                    translated(),
                    vec![Expr::Accept],
                ],
            )
        }));
    }
    rules.push(rule(
        "no service is a way to the node itself",
        [from_pods(node), marked(node.service), refuse()],
    ));
    if parts.ebpf {
        rules.push(rule(
            "to the proxy",
            [from_pods(node), marked(node.proxy), vec![Expr::Accept]],
        ));
    }
    if parts.compat {
        // a pod that asks for the proxy's own port is redirected to where it wanted to go, which is no translation
        rules.push(rule(
            "to the proxy by redirection",
            [
                from_pods(node),
                marked(node.proxy),
                to_gateway(node),
                protocol(TCP),
                port(node.ports.proxy),
                vec![Expr::Accept],
            ],
        ));
        rules.extend([TCP, UDP].map(|number| {
            rule(
                "to the DNS proxy by redirection",
                [
                    from_pods(node),
                    marked(node.proxy),
                    to_gateway(node),
                    protocol(number),
                    port(node.ports.dns),
                    translated(),
                    vec![Expr::Accept],
                ],
            )
        }));
    }
    rules.extend([
        rule(
            "answers to the node, as to kubelet's probes",
            [from_pods(node), known_connection(), vec![Expr::Accept]],
        ),
        rule(
            "nothing else from a pod to the node",
            [from_pods(node), refuse()],
        ),
    ]);
    base(
        "input",
        ChainKind::Filter,
        Hook::Input,
        PRIORITY_AFTER_IPVS,
        rules,
    )
}

/// The same as the rules of iptables say, a moment before they do.
fn redirect(node: &NodeNetwork) -> Chain {
    let to = |port: u16| {
        vec![
            Expr::COUNTER,
            Expr::Put(port.to_be_bytes().to_vec()),
            Expr::Redirect,
        ]
    };
    let mut rules = vec![rule(
        "services are kube-proxy's",
        [from_pods(node), marked(node.service), vec![Expr::Accept]],
    )];
    rules.extend([UDP, TCP].map(|number| {
        rule(
            "DNS to the proxy, before anybody translates it",
            [
                from_pods(node),
                protocol(number),
                port(DNS_PORT),
                to(node.ports.dns),
            ],
        )
    }));
    rules.push(rule(
        "TCP to the proxy, before anybody translates it",
        [from_pods(node), protocol(TCP), to(node.ports.proxy)],
    ));
    base(
        "redirect",
        ChainKind::Nat,
        Hook::Prerouting,
        PRIORITY_BEFORE_DESTINATION_NAT,
        rules,
    )
}

fn forward(node: &NodeNetwork) -> Chain {
    let mut rules = vec![rule(
        "no service is a way around the proxy to another pod",
        [from_pods(node), to_pods(node), refuse()],
    )];
    // whoever writes a service's endpoints chooses where kube-proxy sends its packets
    rules.extend(sensitive(node).map(|range| {
        rule(
            "no service is a way to a sensitive range",
            [from_pods(node), to(range), refuse()],
        )
    }));
    if node.without_proxy != WithoutProxy::Dropped {
        rules.push(rule(
            "what goes out for want of a proxy",
            [from_pods(node), marked(node.service), vec![Expr::Accept]],
        ));
    }
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
    base(
        "forward",
        ChainKind::Filter,
        Hook::Forward,
        PRIORITY_FILTER,
        rules,
    )
}

/// What is for a pod leaves by the bridge alone, whatever the node's routes say.
///
/// And what a pod may not be sent on to, once more where IPVS can't be past it: what it takes out of the input hook it sends
/// from the output hook, and nothing of that is forwarded. Its packets have no input interface on every kernel; they still
/// have the pod's address.
fn leaving(node: &NodeNetwork) -> Chain {
    let service = || [from(node.bridge.address), marked(node.service)].concat();
    let mut rules = vec![
        rule(
            "nothing for a pod leaves by another interface",
            [
                to(node.bridge.address),
                not_out_by(&node.bridge.name),
                not_out_by("lo"),
                refuse(),
            ],
        ),
        // a node port, an external address: virtual servers as well, and never past the proxy
        rule(
            "what is for the proxy goes nowhere else",
            [from(node.bridge.address), marked(node.proxy), refuse()],
        ),
        rule(
            "no service is a way around the proxy to another pod",
            [service(), to_pods(node), refuse()],
        ),
    ];
    rules.extend(sensitive(node).map(|range| {
        rule(
            "no service is a way to a sensitive range",
            [service(), to(range), refuse()],
        )
    }));
    base(
        "leaving",
        ChainKind::Filter,
        Hook::Postrouting,
        PRIORITY_BEFORE_SOURCE_NAT,
        rules,
    )
}

fn postrouting(node: &NodeNetwork) -> Chain {
    base(
        "postrouting",
        ChainKind::Nat,
        Hook::Postrouting,
        PRIORITY_SOURCE_NAT,
        vec![rule(
            "to a service's backend with the node's address",
            [
                from(node.bridge.address),
                marked(node.service),
                vec![Expr::COUNTER, Expr::Masquerade],
            ],
        )],
    )
}

/// The ranges that no policy can open, as far as they are IPv4: the built-in ones, and the operator's.
fn sensitive(node: &NodeNetwork) -> impl Iterator<Item = Ipv4Net> {
    let built_in = BUILT_IN_SENSITIVE
        .iter()
        .filter_map(|text| text.parse().ok());
    built_in.chain(node.sensitive.iter().copied())
}
