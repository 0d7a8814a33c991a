//! A pod's own chains. Pure.
//!
//! The same order and the same reasons as `agent_ebpf_common::classify`, which is where the order is explained. One
//! thing nftables cannot see: a UDP length beyond its datagram's end. Such a packet is no part of any connection to
//! the kernel, so it is neither redirected nor translated, and the table `ip agent_network` drops it.

use agent_ebpf_common::{Reason, classify::Mark};

use super::table::{
    FAKE_CIDRS, GATEWAY, GATEWAY_MAC, NO_HOSTS, SCTP_LENGTHS, SERVICE_CIDRS, TCP_LENGTHS,
    UDP_LENGTHS, counted_drop, counted_pass,
};
use crate::{
    maps::PodEndpoint,
    nft::value::{Chain, Expr, Load, Meta, Rule},
};

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPES_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const DNS_PORT: u16 = 53;
const ARP_LENGTH: u32 = 28;
const SYN: u8 = 0x02;
const SYN_OR_ACK: u8 = 0x12;

/// What the first rule of a pod's chain begins with; the pod's addresses follow.
const TITLE: &str = "pod";

/// The names of a pod's chains, the one that the map leads to being first.
pub(super) fn names(ifname: &str) -> [String; 4] {
    ["", "_arp", "_ip", "_whole"].map(|part| format!("pod_{ifname}{part}"))
}

/// The interface of the pod that this is the first chain of.
pub(super) fn interface_of(chain: &str) -> Option<&str> {
    chain.strip_prefix("pod_")
}

/// The chains of a pod.
pub(super) fn chains(ifname: &str, ifindex: u32, pod: &PodEndpoint) -> [Chain; 4] {
    let [first, arp, ip, whole] = names(ifname);
    [
        chain(first, entry(&title(ifindex, pod), &arp, &ip)),
        chain(arp, arp_rules(pod)),
        chain(ip, ip_rules(&whole)),
        chain(whole, whole_rules(pod)),
    ]
}

/// The pod in a rule's comment, as nft shows it.
fn title(ifindex: u32, pod: &PodEndpoint) -> String {
    let mac = agent_core::mac::MacAddr(pod.mac);
    format!("{TITLE} {} {mac} by interface {ifindex}", pod.fake_ip)
}

/// Reads what [`title`] wrote.
pub(super) fn of_title(title: &str) -> Option<(u32, PodEndpoint)> {
    let mut words = title.split(' ');
    if words.next() != Some(TITLE) {
        return None;
    }
    let fake_ip = words.next()?.parse().ok()?;
    let mac: agent_core::mac::MacAddr = words.next()?.parse().ok()?;
    let ifindex = words.nth(2)?.parse().ok()?;
    Some((
        ifindex,
        PodEndpoint {
            fake_ip,
            mac: mac.octets(),
        },
    ))
}

fn chain(name: String, rules: Vec<Rule>) -> Chain {
    Chain {
        name: name.into(),
        base: None,
        rules,
    }
}

/// Every frame.
fn entry(title: &str, arp: &str, ip: &str) -> Vec<Rule> {
    let mut rules = vec![
        // the kernel knows the protocol of a packet whose IPv4 header holds together
        lead(
            title,
            ip,
            [
                ethertype(ETHERTYPE_IPV4),
                vec![Expr::Meta(Meta::Protocol), Expr::AtLeast(vec![0])],
            ],
        ),
        lead("ARP", arp, [ethertype(ETHERTYPE_ARP)]),
        counted_drop(Reason::Malformed, ethertype(ETHERTYPE_IPV4)),
        counted_drop(Reason::Ipv6, ethertype(ETHERTYPE_IPV6)),
    ];
    rules.extend(ETHERTYPES_VLAN.map(|tag| counted_drop(Reason::Vlan, ethertype(tag))));
    rules.push(counted_drop(Reason::NotIpv4, Vec::new()));
    rules
}

fn arp_rules(pod: &PodEndpoint) -> Vec<Rule> {
    /// Ethernet and IPv4, lengths 6 and 4, a request.
    const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
    vec![
        counted_drop(
            Reason::Malformed,
            vec![
                Expr::Meta(Meta::Length),
                Expr::ToNetworkOrder,
                Expr::Less(ARP_LENGTH.to_be_bytes().to_vec()),
            ],
        ),
        counted_drop(
            Reason::ArpNotForGateway,
            differs(Load::network(0, 8), &REQUEST),
        ),
        counted_drop(Reason::SpoofedMac, differs(SOURCE_MAC, &pod.mac)),
        counted_drop(Reason::SpoofedMac, differs(Load::network(8, 6), &pod.mac)),
        counted_drop(
            Reason::SpoofedIp,
            differs(Load::network(14, 4), &pod.fake_ip.octets()),
        ),
        counted_drop(
            Reason::ArpNotForGateway,
            vec![Expr::Load(Load::network(24, 4)), Expr::NotIn(GATEWAY)],
        ),
        pass(
            Reason::Arp,
            Mark::None,
            [vec![
                Expr::Load(DESTINATION_MAC),
                Expr::Equal(vec![0xff; 6]),
            ]],
        ),
        pass(
            Reason::Arp,
            Mark::None,
            [vec![Expr::Load(DESTINATION_MAC), Expr::In(GATEWAY_MAC)]],
        ),
        counted_drop(Reason::WrongGatewayMac, Vec::new()),
    ]
}

/// IPv4 with a header that holds together: on with what does so further in. Only what is said to be whole goes on.
fn ip_rules(whole: &str) -> Vec<Rule> {
    vec![
        lead("a fragment", whole, [is_fragment()]),
        lead(
            "TCP with lengths that go together",
            whole,
            [
                protocol(TCP),
                vec![
                    Expr::LoadAt(0, Load::transport(12, 4)),
                    Expr::LoadAt(1, Load::network(0, 4)),
                    Expr::Mask(vec![0xf0, 0, 0, 0, 0xff, 0, 0xff, 0xff]),
                    Expr::In(TCP_LENGTHS),
                ],
            ],
        ),
        lead(
            "UDP with lengths that go together",
            whole,
            [
                protocol(UDP),
                lengths(UDP_LENGTHS),
                vec![Expr::Load(Load::transport(4, 2)), Expr::AtLeast(vec![0, 8])],
            ],
        ),
        lead(
            "SCTP with lengths that go together",
            whole,
            [protocol(SCTP), lengths(SCTP_LENGTHS)],
        ),
        lead(
            "another protocol",
            whole,
            [vec![
                Expr::Meta(Meta::Protocol),
                Expr::NotEqual(vec![TCP]),
                Expr::NotEqual(vec![UDP]),
                Expr::NotEqual(vec![SCTP]),
            ]],
        ),
        counted_drop(Reason::Malformed, Vec::new()),
    ]
}

/// IPv4 that is well formed.
fn whole_rules(pod: &PodEndpoint) -> Vec<Rule> {
    let to = |set| vec![Expr::DESTINATION_ADDRESS, Expr::In(set)];
    let answers = vec![
        Expr::Load(Load::transport(13, 1)),
        Expr::Mask(vec![SYN_OR_ACK]),
        Expr::NotEqual(vec![SYN]),
    ];
    let mut rules = vec![
        counted_drop(Reason::SpoofedMac, differs(SOURCE_MAC, &pod.mac)),
        counted_drop(
            Reason::SpoofedIp,
            vec![
                Expr::SOURCE_ADDRESS,
                Expr::NotEqual(pod.fake_ip.octets().to_vec()),
            ],
        ),
        counted_drop(
            Reason::WrongGatewayMac,
            vec![Expr::Load(DESTINATION_MAC), Expr::NotIn(GATEWAY_MAC)],
        ),
        counted_drop(Reason::Fragment, is_fragment()),
        counted_drop(Reason::BadDestination, to(NO_HOSTS)),
        pass(Reason::Dns, Mark::Proxy, [protocol(UDP), port(DNS_PORT)]),
        pass(Reason::Dns, Mark::Proxy, [protocol(TCP), port(DNS_PORT)]),
        pass(
            Reason::HostReply,
            Mark::None,
            [to(GATEWAY), protocol(TCP), answers],
        ),
        pass(
            Reason::Proxied,
            Mark::Proxy,
            [to(FAKE_CIDRS), protocol(TCP)],
        ),
        // also when the sets contradict each other
        pass(Reason::Proxied, Mark::Proxy, [to(GATEWAY), protocol(TCP)]),
        counted_drop(Reason::FakeCidr, to(FAKE_CIDRS)),
        counted_drop(Reason::FakeCidr, to(GATEWAY)),
    ];
    rules.extend([TCP, UDP, SCTP].map(|number| {
        pass(
            Reason::Service,
            Mark::Service,
            [protocol(number), to(SERVICE_CIDRS)],
        )
    }));
    rules.extend([
        pass(Reason::Proxied, Mark::Proxy, [protocol(TCP)]),
        counted_drop(Reason::Udp, protocol(UDP)),
        counted_drop(Reason::Icmp, protocol(ICMP)),
        counted_drop(Reason::Protocol, Vec::new()),
    ]);
    rules
}

const DESTINATION_MAC: Load = Load::link(0, 6);
const SOURCE_MAC: Load = Load::link(6, 6);

fn lead<const N: usize>(purpose: &str, chain: &str, matches: [Vec<Expr>; N]) -> Rule {
    Rule {
        purpose: purpose.to_owned().into(),
        expressions: matches
            .into_iter()
            .flatten()
            .chain([Expr::Goto(chain.to_owned().into())])
            .collect(),
    }
}

/// The frame goes on to the bridge, and from there to the rules of iptables.
fn pass<const N: usize>(reason: Reason, mark: Mark, matches: [Vec<Expr>; N]) -> Rule {
    counted_pass(reason, mark, matches.into_iter().flatten().collect())
}

fn ethertype(number: u16) -> Vec<Expr> {
    vec![
        Expr::Load(Load::link(12, 2)),
        Expr::Equal(number.to_be_bytes().to_vec()),
    ]
}

fn protocol(number: u8) -> Vec<Expr> {
    vec![Expr::Meta(Meta::Protocol), Expr::Equal(vec![number])]
}

fn port(number: u16) -> Vec<Expr> {
    vec![
        Expr::Load(Load::transport(2, 2)),
        Expr::Equal(number.to_be_bytes().to_vec()),
    ]
}

fn differs(load: Load, from: &[u8]) -> Vec<Expr> {
    vec![Expr::Load(load), Expr::NotEqual(from.to_vec())]
}

fn is_fragment() -> Vec<Expr> {
    vec![
        Expr::Load(Load::network(6, 2)),
        Expr::Mask(vec![0x3f, 0xff]),
        Expr::NotEqual(vec![0, 0]),
    ]
}

fn lengths(set: &'static str) -> Vec<Expr> {
    vec![
        Expr::Load(Load::network(0, 4)),
        Expr::Mask(vec![0xff, 0, 0xff, 0xff]),
        Expr::In(set),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_read_back() {
        let pod = PodEndpoint {
            fake_ip: [169, 254, 9, 2].into(),
            mac: [0x0a, 0x58, 169, 254, 9, 2],
        };
        assert_eq!(of_title(&title(7, &pod)), Some((7, pod)));
        for foreign in ["", "pod", "ARP", "pod x y by interface 1", "udp"] {
            assert_eq!(of_title(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn every_chain_ends_with_a_drop_for_everything_else() {
        let pod = PodEndpoint {
            fake_ip: [169, 254, 9, 2].into(),
            mac: [2; 6],
        };
        for chain in chains("agt0", 7, &pod) {
            let last = chain.rules.last().map(|rule| rule.expressions.as_slice());
            assert!(
                matches!(last, Some([Expr::Counter { .. }, Expr::Goto(to)]) if to.starts_with("drop_")),
                "{}",
                chain.name
            );
        }
    }
}
