use super::*;
use crate::testing::*;

fn kind(bytes: &[u8]) -> Kind {
    parse(&Slice(bytes)).kind
}

#[test]
fn tcp_is_read_with_and_without_options() {
    for options in [0, 4, 20, 40] {
        let bytes = ipv4(WORLD_IP, TCP, options, &tcp_header(443, SYN));
        let h = parse(&Slice(&bytes));
        assert_eq!(h.kind, Kind::Ipv4);
        assert_eq!((h.src, h.dst, h.protocol), (POD_IP, WORLD_IP, TCP));
        assert_eq!((h.sport, h.dport, h.tcp_flags), (40_000, 443, SYN));
        assert!(h.is_opening_syn());
    }
}

#[test]
fn only_a_syn_without_ack_opens() {
    for (flags, opens) in [
        (SYN, true),
        (SYN | 0x01, true),
        (SYN | ACK, false),
        (ACK, false),
        (0, false),
    ] {
        assert_eq!(
            parse(&Slice(&tcp(WORLD_IP, 80, flags))).is_opening_syn(),
            opens,
            "{flags:#x}"
        );
    }
    // byte 13 of something else is no flag
    assert!(!parse(&Slice(&udp(WORLD_IP, 80))).is_opening_syn());
}

#[test]
fn every_truncation_of_a_packet_is_malformed() {
    for packet in [tcp(WORLD_IP, 443, SYN), udp(WORLD_IP, 53), arp(GATEWAY_IP)] {
        for len in 0..packet.len() {
            assert_eq!(
                kind(&packet[..len]),
                Kind::Malformed,
                "{len} bytes of {packet:?}"
            );
        }
        assert_ne!(kind(&packet), Kind::Malformed);
    }
}

#[test]
fn padding_behind_the_datagram_is_ignored() {
    let mut packet = udp(WORLD_IP, 53);
    packet.resize(60, 0);
    assert_eq!(kind(&packet), Kind::Ipv4);
}

#[test]
fn contradictory_headers_are_malformed() {
    type Break = fn(&mut Vec<u8>);
    extern crate std;
    use std::vec::Vec;
    let tcp_cases: &[(&str, Break)] = &[
        ("version 6", |p| p[IP] = 0x65),
        ("header of 16 bytes", |p| p[IP] = 0x44),
        ("header longer than the datagram", |p| p[IP] = 0x4f),
        ("total length less than the header", |p| p[IP + 3] = 19),
        ("total length 0", |p| p[IP + 2..IP + 4].fill(0)),
        ("total length more than there is", |p| p[IP + 3] += 1),
        ("TCP header of 16 bytes", |p| p[L4 + 12] = 0x40),
        ("TCP header longer than the datagram", |p| p[L4 + 12] = 0x60),
        ("datagram shorter than a TCP header", |p| p[IP + 3] = 39),
    ];
    for (what, break_it) in tcp_cases {
        let mut packet = tcp(WORLD_IP, 443, SYN);
        break_it(&mut packet);
        assert_eq!(kind(&packet), Kind::Malformed, "{what}");
    }
    let udp_cases: &[(&str, Break)] = &[
        ("UDP length 7", |p| p[L4 + 5] = 7),
        ("UDP length more than there is", |p| p[L4 + 5] = 13),
        ("datagram shorter than a UDP header", |p| p[IP + 3] = 27),
    ];
    for (what, break_it) in udp_cases {
        let mut packet = udp(WORLD_IP, 53);
        break_it(&mut packet);
        assert_eq!(kind(&packet), Kind::Malformed, "{what}");
    }
    assert_eq!(kind(&ipv4(SERVICE_IP, SCTP, 0, &[0; 11])), Kind::Malformed);
    assert_eq!(kind(&ipv4(SERVICE_IP, SCTP, 0, &[0; 12])), Kind::Ipv4);
}

#[test]
fn first_middle_and_last_fragments_are_fragments() {
    for (bits, expected) in [
        (0x2000u16, Kind::Ipv4Fragment),
        (0x2001, Kind::Ipv4Fragment),
        (0x0001, Kind::Ipv4Fragment),
        (0x1fff, Kind::Ipv4Fragment),
        (0x4000, Kind::Ipv4), // don't fragment
        (0x8000, Kind::Ipv4), // reserved
    ] {
        let mut packet = udp(WORLD_IP, 53);
        packet[IP + 6..IP + 8].copy_from_slice(&bits.to_be_bytes());
        assert_eq!(kind(&packet), expected, "{bits:#x}");
    }
}

#[test]
fn a_gso_packet_too_long_for_the_length_field_is_whole() {
    extern crate std;
    use std::vec;
    let mut packet = tcp(WORLD_IP, 443, ACK);
    packet[IP + 2..IP + 4].fill(0);
    packet.extend(vec![0; 70_000]);
    assert_eq!(kind(&packet), Kind::Ipv4);
}

#[test]
fn ethertypes_are_told_apart() {
    for (ethertype, expected) in [
        (0x8100, Kind::Vlan),
        (0x88a8, Kind::Vlan),
        (0x9100, Kind::Vlan),
        (0x86dd, Kind::Ipv6),
        (0x88cc, Kind::Other),
        (0x0000, Kind::Other),
    ] {
        assert_eq!(
            kind(&frame(ethertype, &[0; 50])),
            expected,
            "{ethertype:#x}"
        );
    }
}

#[test]
fn a_tag_kept_beside_the_frame_is_seen() {
    struct Tagged<'a>(Slice<'a>);
    impl Packet for Tagged<'_> {
        fn length(&self) -> u32 {
            self.0.length()
        }
        fn has_vlan_tag(&self) -> bool {
            true
        }
        fn load<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
            self.0.load(offset)
        }
    }
    assert_eq!(
        parse(&Tagged(Slice(&tcp(WORLD_IP, 443, SYN)))).kind,
        Kind::Vlan
    );
}

#[test]
fn arp_is_a_request_only_for_ethernet_and_ipv4() {
    assert_eq!(kind(&arp(GATEWAY_IP)), Kind::ArpRequest);
    for (offset, value) in [(1, 6), (2, 0x86), (4, 8), (5, 16), (7, 2), (7, 3), (6, 1)] {
        let mut packet = arp(GATEWAY_IP);
        packet[IP + offset] = value;
        assert_eq!(kind(&packet), Kind::ArpOther, "byte {offset} is {value}");
    }
}
