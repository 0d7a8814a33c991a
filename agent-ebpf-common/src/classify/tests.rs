extern crate std;

use std::vec::Vec;

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{packet::parse, testing::*};

const TO_PROXY: Verdict = pass(Mark::Proxy, Reason::Proxied);
const TO_DNS: Verdict = pass(Mark::Proxy, Reason::Dns);
const TO_SERVICE: Verdict = pass(Mark::Service, Reason::Service);
const HOST_REPLY: Verdict = pass(Mark::None, Reason::HostReply);

const fn pass(mark: Mark, reason: Reason) -> Verdict {
    Verdict::Pass { mark, reason }
}

fn verdict(packet: &[u8]) -> Verdict {
    classify(
        &parse(&Slice(packet)),
        Some(&endpoint()),
        Some(&config()),
        &TestCidrs,
    )
}

fn changed(mut packet: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    packet[at] = value;
    packet
}

#[test]
fn order_of_evaluation() {
    let drop = Verdict::Drop;
    let icmp = |dst| ipv4(dst, 1, 0, &[8, 0, 0, 0, 0, 0, 0, 0]);
    let sctp = |dst| ipv4(dst, 132, 0, &[0; 12]);
    let table = [
        ("TCP to the world", tcp(WORLD_IP, 443, SYN), TO_PROXY),
        (
            "TCP to the world, later packet",
            tcp(WORLD_IP, 443, ACK),
            TO_PROXY,
        ),
        (
            "TCP with IP options",
            ipv4(WORLD_IP, 6, 40, &tcp_header(443, SYN)),
            TO_PROXY,
        ),
        ("UDP/53 to the world", udp(WORLD_IP, 53), TO_DNS),
        (
            "UDP/53 to the cluster DNS, in the Service CIDR",
            udp(SERVICE_IP, 53),
            TO_DNS,
        ),
        ("UDP/53 to the gateway", udp(GATEWAY_IP, 53), TO_DNS),
        ("UDP/53 to another pod", udp(OTHER_POD_IP, 53), TO_DNS),
        (
            "TCP/53 to the cluster DNS",
            tcp(SERVICE_IP, 53, SYN),
            TO_DNS,
        ),
        (
            "TCP/53 to the gateway, later packet",
            tcp(GATEWAY_IP, 53, ACK),
            TO_DNS,
        ),
        (
            "TCP to another pod is a direct bypass, for the proxy to deny",
            tcp(OTHER_POD_IP, 80, SYN),
            TO_PROXY,
        ),
        (
            "TCP to another pod, later packet",
            tcp(OTHER_POD_IP, 80, ACK),
            TO_PROXY,
        ),
        ("SYN to the gateway", tcp(GATEWAY_IP, 18_080, SYN), TO_PROXY),
        (
            "SYN and FIN to the gateway",
            tcp(GATEWAY_IP, 22, SYN | 1),
            TO_PROXY,
        ),
        (
            "answer to a probe",
            tcp(GATEWAY_IP, 40_000, SYN | ACK),
            HOST_REPLY,
        ),
        ("data to a probe", tcp(GATEWAY_IP, 40_000, ACK), HOST_REPLY),
        (
            "reset to a probe",
            tcp(GATEWAY_IP, 40_000, 0x04),
            HOST_REPLY,
        ),
        (
            "UDP to another pod",
            udp(OTHER_POD_IP, 443),
            drop(Reason::FakeCidr),
        ),
        (
            "UDP to the gateway",
            udp(GATEWAY_IP, 443),
            drop(Reason::FakeCidr),
        ),
        (
            "ping of the gateway",
            icmp(GATEWAY_IP),
            drop(Reason::FakeCidr),
        ),
        ("TCP to a Service", tcp(SERVICE_IP, 80, SYN), TO_SERVICE),
        ("UDP to a Service", udp(SERVICE_IP, 8125), TO_SERVICE),
        ("SCTP to a Service", sctp(SERVICE_IP), TO_SERVICE),
        ("ping of a Service", icmp(SERVICE_IP), drop(Reason::Icmp)),
        ("QUIC", udp(WORLD_IP, 443), drop(Reason::Udp)),
        ("ping", icmp(WORLD_IP), drop(Reason::Icmp)),
        ("SCTP to the world", sctp(WORLD_IP), drop(Reason::Protocol)),
        (
            "GRE",
            ipv4(WORLD_IP, 47, 0, &[0; 8]),
            drop(Reason::Protocol),
        ),
        (
            "IP in IP",
            ipv4(WORLD_IP, 4, 0, &[0; 40]),
            drop(Reason::Protocol),
        ),
        (
            "UDP/53 to everybody",
            udp([255; 4], 53),
            drop(Reason::BadDestination),
        ),
        (
            "UDP/53 to a multicast group",
            udp([224, 0, 0, 251], 53),
            drop(Reason::BadDestination),
        ),
        (
            "TCP to loopback",
            tcp([127, 0, 0, 1], 18_080, SYN),
            drop(Reason::BadDestination),
        ),
        (
            "TCP to 0.0.0.0",
            tcp([0; 4], 80, SYN),
            drop(Reason::BadDestination),
        ),
        (
            "TCP to a reserved address",
            tcp([240, 0, 0, 1], 80, SYN),
            drop(Reason::BadDestination),
        ),
        (
            "ARP for the gateway",
            arp(GATEWAY_IP),
            pass(Mark::None, Reason::Arp),
        ),
        (
            "ARP for another pod",
            arp(OTHER_POD_IP),
            drop(Reason::ArpNotForGateway),
        ),
        (
            "gratuitous ARP",
            arp(POD_IP),
            drop(Reason::ArpNotForGateway),
        ),
        (
            "ARP answer",
            changed(arp(GATEWAY_IP), IP + 7, 2),
            drop(Reason::ArpNotForGateway),
        ),
        (
            "ARP with another sender MAC",
            changed(arp(GATEWAY_IP), IP + 8, 6),
            drop(Reason::SpoofedMac),
        ),
        (
            "ARP in a frame of another MAC",
            changed(arp(GATEWAY_IP), 11, 9),
            drop(Reason::SpoofedMac),
        ),
        (
            "ARP with another sender address",
            changed(arp(GATEWAY_IP), IP + 17, 9),
            drop(Reason::SpoofedIp),
        ),
        (
            "ARP probe with sender 0.0.0.0",
            {
                let mut p = arp(GATEWAY_IP);
                p[IP + 14..IP + 18].fill(0);
                p
            },
            drop(Reason::SpoofedIp),
        ),
        (
            "ARP to another MAC",
            changed(arp(GATEWAY_IP), 5, 9),
            drop(Reason::WrongGatewayMac),
        ),
        (
            "another source MAC",
            changed(tcp(WORLD_IP, 443, SYN), 11, 9),
            drop(Reason::SpoofedMac),
        ),
        (
            "another source address",
            changed(tcp(WORLD_IP, 443, SYN), IP + 15, 9),
            drop(Reason::SpoofedIp),
        ),
        (
            "a frame to another MAC",
            changed(tcp(WORLD_IP, 443, SYN), 5, 9),
            drop(Reason::WrongGatewayMac),
        ),
        (
            "a spoofed source also for DNS",
            changed(udp(SERVICE_IP, 53), IP + 15, 9),
            drop(Reason::SpoofedIp),
        ),
        (
            "first fragment",
            changed(udp(WORLD_IP, 53), IP + 6, 0x20),
            drop(Reason::Fragment),
        ),
        (
            "later fragment",
            changed(tcp(SERVICE_IP, 80, SYN), IP + 7, 9),
            drop(Reason::Fragment),
        ),
        (
            "fragment with a spoofed source",
            {
                let p = changed(udp(WORLD_IP, 53), IP + 6, 0x20);
                changed(p, IP + 15, 9)
            },
            drop(Reason::SpoofedIp),
        ),
        (
            "bad header length",
            changed(tcp(WORLD_IP, 443, SYN), IP, 0x44),
            drop(Reason::Malformed),
        ),
        ("VLAN", frame(0x8100, &[0; 46]), drop(Reason::Vlan)),
        ("IPv6", frame(0x86dd, &[0x60; 60]), drop(Reason::Ipv6)),
        ("LLDP", frame(0x88cc, &[0; 60]), drop(Reason::NotIpv4)),
        ("nothing", Vec::new(), drop(Reason::Malformed)),
    ];
    for (what, packet, expected) in table {
        assert_eq!(verdict(&packet), expected, "{what}");
    }
}

#[test]
fn nothing_passes_without_endpoint_or_configuration() {
    for packet in [tcp(WORLD_IP, 443, SYN), udp(WORLD_IP, 53), arp(GATEWAY_IP)] {
        let h = parse(&Slice(&packet));
        let unset = Config::default();
        for (endpoint, config, reason) in [
            (None, Some(&config()), Reason::NoEndpoint),
            (Some(&endpoint()), None, Reason::NoConfig),
            (Some(&endpoint()), Some(&unset), Reason::NoConfig),
            (None, None, Reason::NoConfig),
        ] {
            assert_eq!(
                classify(&h, endpoint, config, &TestCidrs),
                Verdict::Drop(reason)
            );
        }
    }
}

#[test]
fn marks_replace_our_bits_and_keep_others() {
    let config = config();
    let theirs = 0xf0ff_ff00; // everything that is not ours, kube-proxy's 0x4000 and 0x8000 among it
    assert_eq!(Mark::Proxy.over(0xffff_ffff, &config), theirs | 0x0a00_0000);
    assert_eq!(Mark::Service.over(0xffff_ffff, &config), theirs | 0x77);
    assert_eq!(Mark::None.over(0xffff_ffff, &config), theirs);
    assert_eq!(Mark::None.over(0x0a00_0077, &config), 0);
}

prop_compose! {
    /// Packets that are almost right: a well-formed one with some bytes changed and cut somewhere.
    fn packets()(
        base in prop_oneof![
            (any::<[u8; 4]>(), any::<u16>(), any::<u8>()).prop_map(|(d, p, f)| tcp(d, p, f)),
            (any::<[u8; 4]>(), any::<u16>()).prop_map(|(d, p)| udp(d, p)),
            (any::<[u8; 4]>(), any::<u8>()).prop_map(|(d, p)| ipv4(d, p, 0, &[0; 24])),
            any::<[u8; 4]>().prop_map(arp),
            vec(any::<u8>(), 0..120),
        ],
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) -> Vec<u8> {
        let mut packet = base;
        for (index, value) in changes.iter().filter(|_| !packet.is_empty()).collect::<Vec<_>>() {
            let at = index.index(packet.len());
            packet[at] = *value;
        }
        if let Some(cut) = cut {
            packet.truncate(cut.index(packet.len() + 1));
        }
        packet
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn whatever_passes_has_the_pods_source_and_goes_to_the_gateway(packet in packets()) {
        if let Verdict::Pass { mark, reason } = verdict(&packet) {
            let h = parse(&Slice(&packet));
            prop_assert_eq!(h.src, POD_IP);
            prop_assert_eq!(h.src_mac, POD_MAC);
            prop_assert!(!reason.is_drop());
            match (mark, reason) {
                (Mark::None, Reason::Arp) => prop_assert_eq!(h.dst, GATEWAY_IP),
                (Mark::None, Reason::HostReply) => {
                    prop_assert_eq!((h.dst, h.protocol), (GATEWAY_IP, TCP));
                    prop_assert!(!h.is_opening_syn());
                }
                (Mark::Proxy, Reason::Proxied) => prop_assert_eq!(h.protocol, TCP),
                (Mark::Proxy, Reason::Dns) => {
                    prop_assert_eq!(h.dport, 53);
                    prop_assert!(h.protocol == TCP || h.protocol == UDP);
                }
                (Mark::Service, Reason::Service) => {
                    prop_assert!(TestCidrs.is_service(h.dst) && h.dport != 53 || h.protocol == SCTP);
                }
                other => prop_assert!(false, "{:?}", other),
            }
            if reason != Reason::Arp {
                prop_assert_eq!(h.dst_mac, GATEWAY_MAC);
            }
        }
    }

    #[test]
    fn what_passes_unmarked_is_never_for_anything_but_the_gateway(dst in any::<[u8; 4]>(), flags in any::<u8>(), port in any::<u16>()) {
        if let Verdict::Pass { mark: Mark::None, .. } = verdict(&tcp(dst, port, flags)) {
            prop_assert_eq!(dst, GATEWAY_IP);
        }
    }
}
