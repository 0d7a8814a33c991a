//! The table `bridge agent_network` on real frames: a pod's veth on a bridge, and the verdict and reason of each frame
//! compared with what `classify` says.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use agent_core::attachment::Mode;
use agent_datapath::{
    compat::{Compat, HostPod},
    events::DropEvents,
    load::DatapathConfig,
    maps::{CounterRow, PodEndpoint},
    pins::Pins,
};
use agent_ebpf_common::{
    Reason,
    classify::{Verdict, classify},
    packet::{Kind, parse},
    testing::*,
};
use proptest::{prelude::*, test_runner::TestRunner};
use support::{in_new_netns, index_of, packet_socket, pod, run, run_ip, send, settings};

/// How long a frame may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
const POD_PORT: &str = "agt000000000001";

/// A bridge with a pod's port, whose other end is `eth0`, here too.
struct Bridge {
    compat: Compat,
    ifindex: u32,
    socket: std::os::fd::OwnedFd,
}

impl Bridge {
    fn new(config: &DatapathConfig) -> Self {
        let bridge = Self::without_pod(config);
        bridge
            .compat
            .attach_pod(POD_PORT, bridge.ifindex, &pod())
            .unwrap();
        bridge
    }

    fn without_pod(config: &DatapathConfig) -> Self {
        run_ip("link add agentcni0 type bridge");
        run_ip("link set agentcni0 address 02:00:00:00:00:01 up");
        let compat = Compat::ensure(config).unwrap();
        let ifindex = port(POD_PORT, "eth0");
        let socket = packet_socket();
        let bridge = Self {
            compat,
            ifindex,
            socket,
        };
        // what the kernel says by itself, to both ends, is over
        thread::sleep(Duration::from_millis(50));
        bridge
    }

    fn send(&self, frame: &[u8]) {
        send(&self.socket, "eth0", frame);
    }

    fn rows(&self) -> Vec<CounterRow> {
        self.compat.counters().unwrap()
    }

    /// Sends a frame, and checks that it was counted once, for the reason that `classify` gives, and dropped or passed
    /// as that says.
    fn check(&self, frame: &[u8]) -> Verdict {
        let verdict = expected(frame);
        let before = self.rows();
        let passed = passed();
        self.send(frame);
        let deadline = Instant::now() + PATIENCE;
        let rows = loop {
            let rows = self.rows();
            if rows != before || Instant::now() > deadline {
                break rows;
            }
            thread::yield_now();
        };
        let mut wanted = before;
        let reason = verdict.reason();
        match wanted
            .iter_mut()
            .find(|row| (row.ifindex, row.reason) == (self.ifindex, reason))
        {
            Some(row) => {
                row.packets += 1;
                row.bytes += frame.len() as u64;
            }
            None => wanted.push(CounterRow {
                ifindex: self.ifindex,
                reason,
                packets: 1,
                bytes: frame.len() as u64,
            }),
        }
        wanted.sort_by_key(|row| (row.ifindex, row.reason));
        // a tag that was taken off is not counted
        if reason == Reason::Vlan {
            let packets = |rows: &[CounterRow]| -> Vec<_> {
                rows.iter()
                    .map(|row| (row.ifindex, row.reason, row.packets))
                    .collect()
            };
            assert_eq!(packets(&rows), packets(&wanted), "{frame:02x?}");
        } else {
            assert_eq!(rows, wanted, "{frame:02x?}");
        }
        let mut wanted = passed;
        match verdict {
            Verdict::Pass { mark, .. } => wanted[mark as usize] += 1,
            Verdict::Drop(_) => {}
        }
        let deadline = Instant::now() + PATIENCE;
        while self::passed() != wanted && Instant::now() < deadline {
            thread::yield_now();
        }
        assert_eq!(self::passed(), wanted, "{frame:02x?}");
        verdict
    }
}

fn expected(frame: &[u8]) -> Verdict {
    classify(
        &parse(&Slice(frame)),
        Some(&endpoint()),
        Some(&config()),
        &TestCidrs,
    )
}

/// A port of the bridge with its peer, and the port's index. Neither end says anything by itself.
fn port(name: &str, peer: &str) -> u32 {
    run_ip(&format!("link add {name} type veth peer name {peer}"));
    for end in [name, peer] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}/disable_ipv6"), "1").unwrap();
        run_ip(&format!("link set {end} arp off"));
    }
    run_ip(&format!("link set {name} master agentcni0"));
    run_ip(&format!(
        "link set {name} type bridge_slave isolated on group_fwd_mask 0xfffd"
    ));
    run_ip(&format!("link set {name} up"));
    run_ip(&format!("link set {peer} up"));
    // the kernel tells the bridge of the carrier when it comes to it; frames before that are lost
    wait_until("the port forwards", || {
        let mut show = Command::new("bridge");
        let shown = show.args(["link", "show", "dev", name]).output().unwrap();
        String::from_utf8_lossy(&shown.stdout).contains("state forwarding")
    });
    index_of(name)
}

/// Frames that a table behind ours has seen: without a mark of ours, with the proxy's, with the one of services.
fn passed() -> [u64; 3] {
    let listing = nft("list table bridge behind");
    let counted: Vec<u64> = listing
        .split("packets ")
        .skip(1)
        .filter_map(|rest| rest.split(' ').next()?.parse().ok())
        .collect();
    counted.try_into().unwrap()
}

fn watch_what_passes() {
    nft("add table bridge behind");
    nft("add chain bridge behind c { type filter hook prerouting priority -200; }");
    for mark in ["0", "0x0a000000", "0x77"] {
        nft(&format!(
            "add rule bridge behind c iifname {POD_PORT} meta mark {mark} counter"
        ));
    }
}

fn nft(arguments: &str) -> String {
    let output = Command::new("nft").arg(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn changed(mut packet: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    packet[at] = value;
    packet
}

fn cut(mut packet: Vec<u8>, length: usize) -> Vec<u8> {
    packet.truncate(length);
    packet
}

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

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn pods_come_and_go_without_touching_each_other_and_sums_never_go_back() {
    in_new_netns(|| {
        let bridge = Bridge::new(&settings());
        let other = HostPod {
            ifname: "agt000000000002".into(),
            ifindex: port("agt000000000002", "eth1"),
            endpoint: PodEndpoint {
                fake_ip: OTHER_POD_IP.into(),
                mac: [2, 0, 0, 0, 0, 3],
            },
        };
        let sum = |reason| -> u64 {
            let rows = bridge.rows();
            let rows = rows.iter().filter(|row| row.reason == reason);
            rows.map(|row| row.packets).sum()
        };
        bridge.send(&udp(WORLD_IP, 443));
        wait_until("one drop", || sum(Reason::Udp) == 1);
        let chain = format!("list chain bridge agent_network pod_{POD_PORT}_whole");
        let handles = || {
            let output = Command::new("nft").args(["-a", &chain]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let before = handles();
        for _ in 0..3 {
            bridge
                .compat
                .attach_pod(&other.ifname, other.ifindex, &other.endpoint)
                .unwrap();
            bridge
                .compat
                .check_pod(&other.ifname, other.ifindex, &other.endpoint)
                .unwrap();
            assert_eq!(bridge.compat.endpoints().unwrap().len(), 2);
            let spoofed = tcp(WORLD_IP, 443, SYN);
            let spoofed_before = sum(Reason::SpoofedMac);
            send(&bridge.socket, "eth1", &spoofed);
            wait_until("one drop more", || {
                sum(Reason::SpoofedMac) == spoofed_before + 1
            });
            bridge.compat.detach_pod(&other.ifname).unwrap();
            bridge.compat.detach_pod(&other.ifname).unwrap();
            assert_eq!(sum(Reason::SpoofedMac), spoofed_before + 1);
            assert_eq!(
                bridge.compat.endpoints().unwrap(),
                [(bridge.ifindex, pod())]
            );
        }
        assert_eq!(handles(), before);
        bridge.compat.detach_pod(POD_PORT).unwrap();
        assert_eq!((sum(Reason::Udp), sum(Reason::SpoofedMac)), (1, 3));
        assert!(bridge.rows().iter().all(|row| row.ifindex == 0));
        assert!(!nft("list table bridge agent_network").contains("pod_"));
    });
}

#[test]
fn a_table_that_is_right_is_not_written_again_and_whatever_is_changed_is_mended_with_its_pods() {
    in_new_netns(|| {
        let config = settings();
        let bridge = Bridge::new(&config);
        let udp_drops = || -> u64 {
            let rows = bridge.rows();
            let rows = rows.iter().filter(|row| row.reason == Reason::Udp);
            rows.map(|row| row.packets).sum()
        };
        let listing = || {
            let output = Command::new("nft")
                .args(["-a", "list table bridge agent_network"])
                .output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        };
        let before = listing();
        Compat::ensure(&config).unwrap();
        bridge
            .compat
            .attach_pod(POD_PORT, bridge.ifindex, &pod())
            .unwrap();
        assert_eq!(listing(), before);
        bridge.send(&udp(WORLD_IP, 443));
        wait_until("one drop", || udp_drops() == 1);
        for change in [
            "flush chain bridge agent_network prerouting",
            "insert rule bridge agent_network prerouting accept",
            "flush set bridge agent_network gateway_mac",
            "add element bridge agent_network service_cidrs { 203.0.113.0/24 }",
            "flush chain bridge agent_network drop_udp",
            "add table bridge agent_network { flags dormant; }",
        ] {
            nft(change);
            assert!(Compat::check(&config).is_err(), "not found: {change}");
            Compat::ensure(&config).unwrap();
            Compat::check(&config).unwrap();
            bridge
                .compat
                .check_pod(POD_PORT, bridge.ifindex, &pod())
                .unwrap();
            assert_eq!(udp_drops(), 1, "{change}");
        }
        for change in [
            format!("flush chain bridge agent_network pod_{POD_PORT}_whole"),
            format!("insert rule bridge agent_network pod_{POD_PORT} accept"),
            format!("delete element bridge agent_network pods {{ \"{POD_PORT}\" }}"),
        ] {
            nft(&change);
            let check = || bridge.compat.check_pod(POD_PORT, bridge.ifindex, &pod());
            assert!(check().is_err(), "not found: {change}");
            bridge
                .compat
                .attach_pod(POD_PORT, bridge.ifindex, &pod())
                .unwrap();
            check().unwrap();
        }
        Compat::remove().unwrap();
        Compat::remove().unwrap();
        assert!(Compat::open().is_err() && !Compat::is_present().unwrap());
    });
}

#[test]
fn other_settings_change_sets_and_no_rule() {
    in_new_netns(|| {
        let bridge = Bridge::new(&settings());
        watch_what_passes();
        let changed = DatapathConfig {
            service_cidrs: (0..600)
                .map(|i| {
                    format!("10.{}.{}.0/25", 100 + i / 256, i % 256)
                        .parse()
                        .unwrap()
                })
                .collect(),
            ..settings()
        };
        let chain = "list chain bridge agent_network prerouting";
        let handles = || {
            Command::new("nft")
                .args(["-a", chain])
                .output()
                .unwrap()
                .stdout
        };
        let before = handles();
        Compat::ensure(&changed).unwrap();
        Compat::check(&changed).unwrap();
        assert_eq!(handles(), before);
        let count = |reason| -> u64 {
            let rows = bridge.rows();
            let rows = rows.iter().filter(|row| row.reason == reason);
            rows.map(|row| row.packets).sum()
        };
        bridge.send(&udp([10, 102, 7, 5], 80));
        wait_until("a service", || count(Reason::Service) == 1);
        bridge.send(&udp([10, 102, 7, 200], 80));
        wait_until("no service", || count(Reason::Udp) == 1);
    });
}

#[test]
fn two_hundred_pods_come_and_go_at_once() {
    in_new_netns(|| {
        let bridge = Bridge::new(&settings());
        let name = |i: u32| format!("agt0000000{i:05}");
        let namespace = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        let at_once = |what: &(dyn Fn(u32) + Sync)| {
            thread::scope(|scope| {
                for part in 0..8 {
                    let namespace = &namespace;
                    scope.spawn(move || {
                        nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
                        (0..25).for_each(|i| what(100 + part * 25 + i));
                    });
                }
            });
        };
        let compat = &bridge.compat;
        let endpoint = |i: u32| PodEndpoint {
            fake_ip: [10, 9, 0, i as u8].into(),
            mac: [2, 0, 0, 0, 0, i as u8],
        };
        for i in 100..300 {
            run_ip(&format!("link add {} type veth peer name p{i}", name(i)));
        }
        at_once(&|i| {
            let ifname = name(i);
            compat
                .attach_pod(&ifname, index_of(&ifname), &endpoint(i))
                .unwrap();
        });
        assert_eq!(compat.pods().unwrap().len(), 201);
        at_once(&|i| compat.detach_pod(&name(i)).unwrap());
        assert_eq!(compat.pods().unwrap().len(), 1);
        bridge.check_alive();
    });
}

impl Bridge {
    fn check_alive(&self) {
        self.send(&udp(WORLD_IP, 443));
        wait_until("a drop", || {
            self.rows().iter().any(|row| row.reason == Reason::Udp)
        });
    }
}

#[test]
fn drops_are_told_with_what_was_dropped_and_no_more_than_allowed() {
    in_new_netns(|| {
        let config = DatapathConfig {
            events_per_second: 5,
            ..settings()
        };
        let bridge = Bridge::new(&config);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let pins = Pins::new(std::path::Path::new("/nonexistent"));
            let mut events = DropEvents::open_mode(Mode::IptablesCompat, &pins).unwrap();
            // the group is taken
            assert!(DropEvents::open_mode(Mode::IptablesCompat, &pins).is_err());
            bridge.send(&udp(WORLD_IP, 443));
            let event = tokio::time::timeout(PATIENCE, events.next());
            let event = event.await.expect("an event").unwrap();
            assert_eq!(
                (event.ifindex, event.reason, event.src, event.dst),
                (
                    bridge.ifindex,
                    Reason::Udp,
                    Some(POD_IP.into()),
                    Some(WORLD_IP.into())
                )
            );
            assert_eq!((event.proto, event.sport, event.dport), (17, 40_000, 443));
            assert_eq!(event.len as usize, udp(WORLD_IP, 443).len());
            bridge.send(&frame(
                0x8100,
                &[&[0, 5, 8, 0], &udp(WORLD_IP, 443)[14..]].concat(),
            ));
            let event = tokio::time::timeout(PATIENCE, events.next());
            assert_eq!(event.await.expect("an event").unwrap().reason, Reason::Vlan);
            for _ in 0..200 {
                bridge.send(&frame(0x86dd, &[0x60; 60]));
            }
            let mut seen = 0;
            while let Ok(event) =
                tokio::time::timeout(Duration::from_millis(500), events.next()).await
            {
                assert_eq!(event.unwrap().reason, Reason::Ipv6);
                seen += 1;
            }
            assert!((1..60).contains(&seen), "{seen}");
        });
    });
}

#[test]
fn nft_shows_what_is_meant() {
    in_new_netns(|| {
        Bridge::new(&settings());
        let listing = nft("list table bridge agent_network");
        println!("{listing}");
        for line in [
            "type filter hook prerouting priority dstnat; policy accept;",
            "iifname vmap @pods",
            "iifname \"agt*\" counter packets 0 bytes 0 goto drop_no_endpoint",
            "meta mark set meta mark & 0xfaffff00 | 0x0a000000 accept",
            "elements = { \"agt000000000001\" : goto pod_agt000000000001 }",
            "ether saddr != 02:00:00:00:00:02 counter packets 0 bytes 0 goto drop_spoofed_mac",
            "@nh,96,32 != 0xa9fe6402 counter packets 0 bytes 0 goto drop_spoofed_ip",
            "meta l4proto tcp @nh,128,32 @service_cidrs counter packets 0 bytes 0 goto pass_to_service",
            "log prefix \"udp\" group 18080 snaplen 128",
        ] {
            assert!(listing.contains(line), "{line}");
        }
        run("nft", "list ruleset");
    });
}
