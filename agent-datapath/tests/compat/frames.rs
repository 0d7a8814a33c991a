//! The verdict and the reason of each frame, compared with what `classify` says.

use agent_ebpf_common::{
    Reason,
    classify::Verdict,
    packet::{Kind, parse},
    testing::*,
};
use proptest::{prelude::*, test_runner::TestRunner};

use crate::{
    bridge::{Bridge, expected, nft, passed, port, wait_until, watch_what_passes},
    support::{in_new_netns, send, settings},
};

#[test]
fn every_frame_gets_the_verdict_and_reason_of_classify() {
    in_new_netns(|| {
        let bridge = Bridge::new(&settings());
        watch_what_passes();
        let with_doff = |doff: u8, options: usize, payload: usize| {
            let mut tcp = tcp_header(443, SYN);
            tcp[12] = doff << 4;
            tcp.resize(payload, 1);
            ipv4(WORLD_IP, 6, options, &tcp)
        };
        let lengths = |total: u16, frame: Vec<u8>| {
            let [high, low] = total.to_be_bytes();
            changed(changed(frame, IP + 2, high), IP + 3, low)
        };
        let table = [
            (tcp(WORLD_IP, 443, SYN), Reason::Proxied),
            (tcp(WORLD_IP, 443, ACK), Reason::Proxied),
            (
                ipv4(WORLD_IP, 6, 40, &tcp_header(443, SYN)),
                Reason::Proxied,
            ),
            (tcp(OTHER_POD_IP, 80, SYN), Reason::Proxied),
            (tcp(OTHER_POD_IP, 80, ACK), Reason::Proxied),
            (tcp(GATEWAY_IP, 18_080, SYN), Reason::Proxied),
            (udp(WORLD_IP, 53), Reason::Dns),
            (udp(GATEWAY_IP, 53), Reason::Dns),
            (udp(SERVICE_IP, 53), Reason::Dns),
            (tcp(SERVICE_IP, 53, SYN), Reason::Dns),
            (tcp(OTHER_POD_IP, 53, SYN), Reason::Dns),
            (tcp(SERVICE_IP, 80, SYN), Reason::Service),
            (udp(SERVICE_IP, 8125), Reason::Service),
            (ipv4(SERVICE_IP, 132, 0, &[0; 12]), Reason::Service),
            (ipv4(SERVICE_IP, 132, 0, &[0; 11]), Reason::Malformed),
            (ipv4(SERVICE_IP, 1, 0, &[0; 8]), Reason::Icmp),
            (tcp(GATEWAY_IP, 40_000, SYN | ACK), Reason::HostReply),
            (tcp(GATEWAY_IP, 40_000, ACK), Reason::HostReply),
            (tcp(GATEWAY_IP, 40_000, 0), Reason::HostReply),
            (arp(GATEWAY_IP), Reason::Arp),
            (changed(tcp(WORLD_IP, 443, SYN), 11, 9), Reason::SpoofedMac),
            (
                changed(tcp(WORLD_IP, 443, SYN), IP + 15, 9),
                Reason::SpoofedIp,
            ),
            (
                changed(tcp(WORLD_IP, 443, SYN), 5, 9),
                Reason::WrongGatewayMac,
            ),
            (frame(0x88cc, &[0; 46]), Reason::NotIpv4),
            (frame(0x0040, &[0; 46]), Reason::NotIpv4),
            (frame(0x86dd, &[0x60; 60]), Reason::Ipv6),
            (frame(0x8100, &[0; 46]), Reason::Vlan),
            (frame(0x88a8, &[0; 46]), Reason::Vlan),
            (frame(0x9100, &[0; 46]), Reason::Vlan),
            (
                // a tag for VLAN 5 before a packet that would be fine without it
                frame(
                    0x8100,
                    &[&[0, 5, 8, 0], &tcp(WORLD_IP, 443, SYN)[14..]].concat(),
                ),
                Reason::Vlan,
            ),
            (
                frame(0x8100, &[&[0, 0, 8, 6], &arp(GATEWAY_IP)[14..]].concat()),
                Reason::Vlan,
            ),
            (arp(OTHER_POD_IP), Reason::ArpNotForGateway),
            (
                changed(arp(GATEWAY_IP), IP + 7, 2),
                Reason::ArpNotForGateway,
            ),
            (changed(arp(GATEWAY_IP), IP + 17, 9), Reason::SpoofedIp),
            (changed(arp(GATEWAY_IP), IP + 8, 9), Reason::SpoofedMac),
            (changed(arp(GATEWAY_IP), 11, 9), Reason::SpoofedMac),
            (changed(arp(GATEWAY_IP), 0, 2), Reason::WrongGatewayMac),
            (cut(arp(GATEWAY_IP), IP + 27), Reason::Malformed),
            (
                changed(tcp(WORLD_IP, 443, SYN), IP, 0x44),
                Reason::Malformed,
            ),
            (
                changed(tcp(WORLD_IP, 443, SYN), IP, 0x65),
                Reason::Malformed,
            ),
            (cut(tcp(WORLD_IP, 443, SYN), IP + 19), Reason::Malformed),
            (cut(tcp(WORLD_IP, 443, SYN), L4 + 19), Reason::Malformed),
            // the header goes on in what pads the frame
            (lengths(39, tcp(WORLD_IP, 443, SYN)), Reason::Malformed),
            (lengths(20, tcp(WORLD_IP, 443, SYN)), Reason::Malformed),
            (lengths(19, tcp(WORLD_IP, 443, SYN)), Reason::Malformed),
            (lengths(27, udp(WORLD_IP, 53)), Reason::Malformed),
            (with_doff(4, 0, 20), Reason::Malformed),
            (with_doff(6, 0, 20), Reason::Malformed),
            (with_doff(6, 0, 24), Reason::Proxied),
            (with_doff(15, 40, 59), Reason::Malformed),
            (with_doff(15, 40, 60), Reason::Proxied),
            (changed(udp(WORLD_IP, 53), L4 + 5, 7), Reason::Malformed),
            (changed(udp(WORLD_IP, 53), IP + 6, 0x20), Reason::Fragment),
            (changed(udp(WORLD_IP, 53), IP + 7, 1), Reason::Fragment),
            (
                // a fragment too short for its protocol
                changed(ipv4(WORLD_IP, 6, 0, &[0; 8]), IP + 6, 0x20),
                Reason::Fragment,
            ),
            // "don't fragment" is no fragment
            (changed(udp(WORLD_IP, 53), IP + 6, 0x40), Reason::Dns),
            (ipv4(WORLD_IP, 47, 0, &[0; 8]), Reason::Protocol),
            (ipv4(WORLD_IP, 132, 0, &[0; 12]), Reason::Protocol),
            (ipv4(WORLD_IP, 17, 0, &[0; 7]), Reason::Malformed),
            (udp(WORLD_IP, 443), Reason::Udp),
            (ipv4(WORLD_IP, 1, 0, &[8; 8]), Reason::Icmp),
            (udp(OTHER_POD_IP, 443), Reason::FakeCidr),
            (udp(GATEWAY_IP, 18_053), Reason::FakeCidr),
            (ipv4(GATEWAY_IP, 1, 0, &[8; 8]), Reason::FakeCidr),
            (udp([255; 4], 53), Reason::BadDestination),
            (tcp([127, 0, 0, 1], 80, SYN), Reason::BadDestination),
            (tcp([0, 1, 2, 3], 80, SYN), Reason::BadDestination),
            (udp([224, 0, 0, 251], 53), Reason::BadDestination),
        ];
        for (frame, reason) in table {
            assert_eq!(expected(&frame).reason(), reason, "{frame:02x?}");
            bridge.check(&frame);
        }
    });
}

#[test]
fn frames_to_the_addresses_that_a_bridge_hands_up_are_dropped_like_others() {
    in_new_netns(|| {
        let bridge = Bridge::new(&settings());
        watch_what_passes();
        for last in (0..16).filter(|last| *last != 1) {
            let mut frame = udp(WORLD_IP, 53);
            frame[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, last]);
            let verdict = bridge.check(&frame);
            assert_eq!(verdict, Verdict::Drop(Reason::WrongGatewayMac));
        }
    });
}

#[test]
fn kernel_and_host_agree_on_random_frames() {
    in_new_netns(|| {
        let bridge = Bridge::new(&settings());
        watch_what_passes();
        let frames = (
            prop_oneof![
                (any::<[u8; 4]>(), any::<u16>(), any::<u8>()).prop_map(|(d, p, f)| tcp(d, p, f)),
                (any::<u8>(), any::<u16>(), any::<u8>()).prop_map(|(d, p, f)| tcp(
                    [169, 254, 100, d],
                    p,
                    f
                )),
                (any::<[u8; 4]>(), any::<u16>()).prop_map(|(d, p)| udp(d, p)),
                (any::<u8>(), any::<u16>()).prop_map(|(d, p)| udp([10, 96, 0, d], p)),
                (any::<u8>(), 0..11usize).prop_map(|(p, o)| ipv4(
                    WORLD_IP,
                    p,
                    o * 4,
                    &tcp_header(443, SYN)
                )),
                any::<[u8; 4]>().prop_map(arp),
                prop::collection::vec(any::<u8>(), 15..120),
            ],
            prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        );
        let frames = frames.prop_map(|(mut frame, changes)| {
            for (index, value) in changes {
                let at = index.index(frame.len());
                frame[at] = value;
            }
            frame
        });
        let frames = frames.prop_filter("what nftables can't see", |frame| {
            !has_udp_length_beyond_its_datagram(frame) && !is_dropped_by_any_bridge(frame)
        });
        let mut runner = TestRunner::new(ProptestConfig {
            failure_persistence: None,
            max_shrink_iters: 200,
            ..ProptestConfig::with_cases(400)
        });
        let checked = runner.run(&frames, |frame| {
            bridge.check(&frame);
            Ok(())
        });
        checked.expect("kernel and host agree");
    });
}

#[test]
fn a_port_of_ours_without_a_pod_is_closed_and_others_ports_are_not_ours() {
    in_new_netns(|| {
        let bridge = Bridge::without_pod(&settings());
        watch_what_passes();
        for frame in [tcp(WORLD_IP, 443, SYN), udp(WORLD_IP, 53), arp(GATEWAY_IP)] {
            bridge.send(&frame);
        }
        let counted = |bridge: &Bridge| -> u64 {
            let rows = bridge.rows();
            assert!(rows.iter().all(|row| row.reason == Reason::NoEndpoint));
            rows.iter().map(|row| row.packets).sum()
        };
        wait_until("three frames are dropped", || counted(&bridge) == 3);
        assert_eq!(passed(), [0; 3]);
        port("cni7", "eth7");
        nft("add rule bridge behind c iifname cni7 counter accept");
        send(&bridge.socket, "eth7", &tcp(WORLD_IP, 443, SYN));
        wait_until("the frame passes", || {
            nft("list table bridge behind").contains("iifname \"cni7\" counter packets 1 ")
        });
        assert_eq!(counted(&bridge), 3);
    });
}

fn changed(mut packet: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    packet[at] = value;
    packet
}

fn cut(mut packet: Vec<u8>, length: usize) -> Vec<u8> {
    packet.truncate(length);
    packet
}

/// The one difference that `compat::pod` names.
fn has_udp_length_beyond_its_datagram(frame: &[u8]) -> bool {
    let headers = parse(&Slice(frame));
    if headers.kind != Kind::Malformed || headers.protocol != 17 || headers.dport == 0 {
        return false;
    }
    let at = IP + usize::from(frame[IP] & 15) * 4;
    let mut mended = frame.to_vec();
    mended[at + 4..at + 6].copy_from_slice(&8u16.to_be_bytes());
    let told = u16::from_be_bytes([frame[at + 4], frame[at + 5]]);
    told >= 8 && parse(&Slice(&mended)).kind == Kind::Ipv4
}

/// A pause frame, or one from no single station: nobody sees it, and nobody counts it.
fn is_dropped_by_any_bridge(frame: &[u8]) -> bool {
    frame[..6] == [0x01, 0x80, 0xc2, 0, 0, 1] || frame[6] & 1 == 1 || frame[6..12] == [0; 6]
}
