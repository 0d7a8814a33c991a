//! The part of the table `bridge agent_network` that all pods share. Pure.
//!
//! A frame is looked up once by the name of the bridge port it came by, and goes to the chain of that pod; how many pods
//! there are makes no difference. A port whose name is not of ours is not dropped here, because it may be another
//! bridge's, and not every kernel can tell: but nothing of it has the mark that the table `ip agent_network` asks for
//! (`meta ibrname` needs CONFIG_NFT_BRIDGE_META). What depends on the node is in sets, so that a pod's chain is the same
//! on every node and no rule changes with the configuration.

use agent_core::node::Marks;
use agent_ebpf_common::{Reason, abi::MAX_ENDPOINTS, classify::Mark};
use ipnet::Ipv4Net;

use super::lengths;
use crate::{
    link::HOST_VETH_PREFIX,
    load::DatapathConfig,
    nft::{
        ruleset::TABLE,
        value::{
            Base, Chain, ChainKind, Element, Expr, Family, Hook, Key, Meta, Rule, Set, SetKind,
            Table,
        },
    },
};

/// NFLOG group of dropped packets.
pub const LOG_GROUP: u16 = 18_080;
/// How much of a dropped packet is logged: all headers that are read.
pub(crate) const LOG_BYTES: u32 = 128;
/// How long a pod's budget of log lines is remembered after its last drop.
const BUDGET_MS: u64 = 60_000;
/// Before `NF_BR_PRI_BRNF` (0), where br_netfilter shows a packet to iptables.
const PRIORITY: i32 = -300;

/// Map of the pods' interfaces to their chains.
pub(super) const PODS: &str = "pods";
/// The gateway's address.
pub(super) const GATEWAY: &str = "gateway";
/// The gateway's Ethernet address.
pub(super) const GATEWAY_MAC: &str = "gateway_mac";
/// The node's Fake IP CIDRs.
pub(super) const FAKE_CIDRS: &str = "fake_cidrs";
/// The Service CIDRs.
pub(super) const SERVICE_CIDRS: &str = "service_cidrs";
/// Destinations that are never one host's.
pub(super) const NO_HOSTS: &str = "no_hosts";
/// Lengths that go together, by protocol; see [`lengths`].
pub(super) const TCP_LENGTHS: &str = "tcp_lengths";
/// As [`TCP_LENGTHS`].
pub(super) const UDP_LENGTHS: &str = "udp_lengths";
/// As [`TCP_LENGTHS`].
pub(super) const SCTP_LENGTHS: &str = "sctp_lengths";
/// Log lines per pod.
const BUDGETS: &str = "log_budgets";
/// The chain that counts for pods that are gone.
pub(super) const RETIRED: &str = "retired";

/// The table of a node, without its pods, counting for pods that are gone from `retired` on.
pub(super) fn table(config: &DatapathConfig, retired: impl Fn(Reason) -> (u64, u64)) -> Table {
    let mut chains = vec![entry()];
    chains.extend(
        Reason::ALL
            .iter()
            .filter(|reason| reason.is_drop())
            .map(|reason| drop_chain(*reason, config.events_per_second)),
    );
    chains.extend(
        [Mark::None, Mark::Proxy, Mark::Service].map(|mark| pass_chain(mark, &config.marks)),
    );
    chains.push(self::retired(retired));
    Table {
        family: Family::Bridge,
        name: TABLE,
        sets: sets(config),
        chains,
    }
}

fn entry() -> Chain {
    Chain {
        name: "prerouting".into(),
        base: Some(Base {
            kind: ChainKind::Filter,
            hook: Hook::Prerouting,
            priority: PRIORITY,
        }),
        rules: vec![
            Rule {
                purpose: "each pod by its own chain".into(),
                expressions: vec![Expr::Meta(Meta::InputName), Expr::Verdict(PODS)],
            },
            counted_drop(
                Reason::NoEndpoint,
                vec![
                    Expr::Meta(Meta::InputName),
                    Expr::Equal(HOST_VETH_PREFIX.as_bytes().to_vec()),
                ],
            ),
        ],
    }
}

/// Where packets that are passed end: with the mark that tells the table `ip agent_network` that a pod's chain has let
/// them through.
fn pass_chain(mark: Mark, marks: &Marks) -> Chain {
    let ours = marks.proxy_mask | marks.service_mask;
    let value = match mark {
        Mark::None => 0,
        Mark::Proxy => marks.proxy,
        Mark::Service => marks.service,
    };
    Chain {
        name: pass_name(mark).into(),
        base: None,
        rules: vec![Rule {
            purpose: "marked and on".into(),
            expressions: vec![
                Expr::Meta(Meta::Mark),
                Expr::MaskAndFlip((!ours).to_ne_bytes().to_vec(), value.to_ne_bytes().to_vec()),
                Expr::SetMark,
                Expr::Accept,
            ],
        }],
    }
}

fn pass_name(mark: Mark) -> &'static str {
    match mark {
        Mark::None => "pass",
        Mark::Proxy => "pass_to_proxy",
        Mark::Service => "pass_to_service",
    }
}

/// A rule that counts what matches, and passes it with a mark, for a reason.
pub(super) fn counted_pass(reason: Reason, mark: Mark, mut matches: Vec<Expr>) -> Rule {
    matches.extend([Expr::COUNTER, Expr::Goto(pass_name(mark).into())]);
    Rule {
        purpose: reason.as_str().into(),
        expressions: matches,
    }
}

/// Where packets that are dropped for a reason end, whosesoever they are.
fn drop_chain(reason: Reason, per_second: u32) -> Chain {
    let logged = Rule {
        purpose: "so many lines per pod".into(),
        expressions: vec![
            Expr::Meta(Meta::InputName),
            Expr::Within {
                set: BUDGETS,
                per_second,
            },
            Expr::Log {
                group: LOG_GROUP,
                prefix: reason.as_str(),
                length: LOG_BYTES,
            },
        ],
    };
    let dropped = Rule {
        purpose: "end".into(),
        expressions: vec![Expr::Drop],
    };
    Chain {
        name: drop_name(reason).into(),
        base: None,
        rules: match per_second {
            0 => vec![dropped],
            _ => vec![logged, dropped],
        },
    }
}

fn drop_name(reason: Reason) -> String {
    format!("drop_{}", reason.as_str())
}

/// A rule that counts what matches, and drops it, for a reason.
pub(super) fn counted_drop(reason: Reason, mut matches: Vec<Expr>) -> Rule {
    matches.extend([Expr::COUNTER, Expr::Goto(drop_name(reason).into())]);
    Rule {
        purpose: reason.as_str().into(),
        expressions: matches,
    }
}

/// The chain that no packet meets. Its rules differ from its generation's in their counters only.
pub(super) fn retired(counted: impl Fn(Reason) -> (u64, u64)) -> Chain {
    Chain {
        name: RETIRED.into(),
        base: None,
        rules: Reason::ALL
            .iter()
            .map(|reason| {
                let (packets, bytes) = counted(*reason);
                Rule {
                    purpose: reason.as_str().into(),
                    expressions: vec![Expr::Counter { packets, bytes }],
                }
            })
            .collect(),
    }
}

fn sets(config: &DatapathConfig) -> Vec<Set> {
    let keys = |name, key, elements: Vec<Vec<u8>>| Set {
        name,
        key,
        kind: SetKind::Keys,
        elements: elements
            .into_iter()
            .map(|key| Element { key, end: false })
            .collect(),
    };
    let ranges = |name, key, elements| Set {
        name,
        key,
        kind: SetKind::Ranges,
        elements,
    };
    let no_hosts: Vec<Ipv4Net> = vec![
        Ipv4Net::new_assert([0, 0, 0, 0].into(), 8),
        Ipv4Net::new_assert([127, 0, 0, 0].into(), 8),
        Ipv4Net::new_assert([224, 0, 0, 0].into(), 3),
    ];
    vec![
        Set {
            name: PODS,
            key: Key::Interface,
            kind: SetKind::Verdicts,
            elements: Vec::new(),
        },
        Set {
            name: BUDGETS,
            key: Key::Interface,
            kind: SetKind::Dynamic {
                timeout_ms: BUDGET_MS,
                size: MAX_ENDPOINTS,
            },
            elements: Vec::new(),
        },
        keys(GATEWAY, Key::Ipv4, vec![config.gateway.octets().to_vec()]),
        keys(
            GATEWAY_MAC,
            Key::Ethernet,
            vec![config.gateway_mac.to_vec()],
        ),
        ranges(FAKE_CIDRS, Key::Ipv4, networks(&config.fake_cidrs)),
        ranges(SERVICE_CIDRS, Key::Ipv4, networks(&config.service_cidrs)),
        ranges(NO_HOSTS, Key::Ipv4, networks(&no_hosts)),
        ranges(TCP_LENGTHS, Key::Bytes8, lengths::tcp()),
        ranges(UDP_LENGTHS, Key::Ipv4, lengths::udp()),
        ranges(SCTP_LENGTHS, Key::Ipv4, lengths::sctp()),
    ]
}

/// Networks as ranges that neither overlap nor touch.
fn networks(networks: &[Ipv4Net]) -> Vec<Element> {
    let mut sorted: Vec<(u32, u32)> = networks
        .iter()
        .map(|net| (net.network().to_bits(), net.broadcast().to_bits()))
        .collect();
    sorted.sort_unstable();
    let mut merged: Vec<(u32, u32)> = Vec::new();
    for (first, last) in sorted {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
        .into_iter()
        .flat_map(|(first, last)| range(&first.to_be_bytes(), &last.to_be_bytes()))
        .collect()
}

/// A range's two elements: its first key, and the first key after it, which the greatest of all keys has not.
pub(super) fn range(first: &[u8], last: &[u8]) -> impl Iterator<Item = Element> + use<> {
    let mut after = last.to_vec();
    let overflows = after.iter_mut().rev().all(|byte| {
        *byte = byte.wrapping_add(1);
        *byte == 0
    });
    let begin = Element {
        key: first.to_vec(),
        end: false,
    };
    let end = Element {
        key: after,
        end: true,
    };
    [Some(begin), (!overflows).then_some(end)]
        .into_iter()
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    fn keys(elements: &[Element]) -> Vec<(std::net::Ipv4Addr, bool)> {
        elements
            .iter()
            .map(|element| {
                let key: [u8; 4] = element.key.as_slice().try_into().unwrap();
                (key.into(), element.end)
            })
            .collect()
    }

    #[test]
    fn networks_that_touch_or_overlap_become_one_range() {
        let ranges = networks(&[
            net("10.0.1.0/24"),
            net("10.0.0.0/24"),
            net("10.0.0.128/25"),
            net("10.0.3.0/24"),
        ]);
        let at = |a, b, c, d| std::net::Ipv4Addr::new(a, b, c, d);
        assert_eq!(
            keys(&ranges),
            [
                (at(10, 0, 0, 0), false),
                (at(10, 0, 2, 0), true),
                (at(10, 0, 3, 0), false),
                (at(10, 0, 4, 0), true),
            ]
        );
    }

    #[test]
    fn the_last_range_of_all_has_no_end() {
        let ranges = networks(&[net("224.0.0.0/3")]);
        assert_eq!(keys(&ranges), [([224, 0, 0, 0].into(), false)]);
    }
}
