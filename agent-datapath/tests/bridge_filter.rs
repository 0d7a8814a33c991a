//! The bridge's filter on real frames, with nothing else in their way; and with filters of others.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::{
    net::Ipv4Addr,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use agent_core::attachment::Mode;
use agent_datapath::{
    bridge_filter,
    error::NetError,
    network::{NodeNetwork, check_node, ensure_node},
    rtnl::Rtnl,
};
use support::{in_new_netns, node_network, packet_socket, patience, send};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 1);
const WORLD: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);
const BRIDGE_MAC: [u8; 6] = [2, 0xa9, 169, 254, 9, 1];
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// A node's network in a namespace of its own.
fn on_a_node(
    mode: Mode,
    test: impl FnOnce(&NodeNetwork, &tokio::runtime::Runtime) + Send + 'static,
) {
    in_new_netns(move || {
        let directory = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        let node = node_network(mode, directory.path().join("sysctls"));
        runtime.block_on(ensure_node(&node)).unwrap();
        test(&node, &runtime);
    });
}

fn sh(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn frame(ethertype: u16, rest: &[u8]) -> Vec<u8> {
    let mut frame = BRIDGE_MAC.to_vec();
    frame.extend([0x0a, 0x58, 169, 254, 9, 2]);
    frame.extend(ethertype.to_be_bytes());
    frame.extend(rest);
    frame.resize(frame.len().max(60), 0);
    frame
}

fn ipv4(protocol: u8, to: Ipv4Addr, fragment: u16, transport: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + transport.len()).unwrap();
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0, 169, 254, 9, 2]);
    packet.extend(to.octets());
    packet.extend(transport);
    frame(0x0800, &packet)
}

fn tcp(to: Ipv4Addr, flags: u8) -> Vec<u8> {
    let mut header = [0; 20];
    header[..4].copy_from_slice(&[0x9c, 0x40, 0x27, 0x0f]);
    header[12] = 0x50;
    header[13] = flags;
    ipv4(6, to, 0, &header)
}

/// Frames that came behind the filter.
fn behind() -> u64 {
    let listing = sh("nft list table netdev behind");
    let count = listing.split("packets ").nth(1).unwrap();
    count.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn only_what_has_a_mark_answers_to_the_node_and_arp_come_through_in_either_mode() {
    for mode in [Mode::Ebpf, Mode::IptablesCompat] {
        on_a_node(mode, move |_, _| {
            // br_netfilter would look at checksums, which these frames do not have
            sh(
                "for i in /proc/sys/net/bridge/bridge-nf-call-*; do test ! -e $i || echo 0 > $i; done",
            );
            // both other locks are open
            sh(
                "nft flush ruleset; iptables-legacy -F 2>/dev/null; iptables-legacy -t nat -F 2>/dev/null; true",
            );
            sh("ip link add p0 type veth peer name p1; \
                for i in p0 p1; do echo 1 > /proc/sys/net/ipv6/conf/$i/disable_ipv6; ip link set $i arp off; done; \
                ip link set p0 master agentcni0; ip link set p0 up; ip link set p1 up; \
                until bridge link show dev p0 | grep -q 'state forwarding'; do sleep 0.02; done; \
                nft 'add table netdev behind; \
                     add chain netdev behind c { type filter hook ingress device agentcni0 priority 0; }; \
                     add rule netdev behind c counter drop; \
                     add table bridge marking; \
                     add chain bridge marking c { type filter hook prerouting priority -300; }'");
            thread::sleep(Duration::from_millis(100));
            let socket = packet_socket();
            let udp = [0x9c, 0x40, 0, 53, 0, 8, 0, 0];
            let ping = [8, 0, 0, 0, 0, 1, 0, 1];
            let cases: Vec<(&str, Vec<u8>, u32, bool)> = vec![
                ("TCP to the world", tcp(WORLD, SYN), 0, false),
                ("TCP to the world, later", tcp(WORLD, ACK), 0, false),
                ("UDP to the world", ipv4(17, WORLD, 0, &udp), 0, false),
                ("ICMP to the world", ipv4(1, WORLD, 0, &ping), 0, false),
                ("a fragment", ipv4(17, WORLD, 0x2000, &udp), 0, false),
                ("IPv6", frame(0x86dd, &[0x60; 40]), 0, false),
                ("IPv6 with a mark", frame(0x86dd, &[0x60; 40]), 0x77, false),
                ("LLDP", frame(0x88cc, &[0; 40]), 0, false),
                (
                    "a VLAN tag",
                    frame(0x8100, &[0, 5, 8, 0, 0x45, 0, 0, 40]),
                    0x77,
                    false,
                ),
                ("ARP", frame(0x0806, &[0, 1, 8, 0, 6, 4, 0, 1]), 0, true),
                ("to the proxy", tcp(WORLD, SYN), 0x0a00_0000, true),
                (
                    "DNS to the proxy",
                    ipv4(17, WORLD, 0, &udp),
                    0x0a00_4000,
                    true,
                ),
                ("to a service", tcp(WORLD, SYN), 0x77, true),
                ("UDP to a service", ipv4(17, WORLD, 0, &udp), 0x8077, true),
                ("a translated answer", tcp(WORLD, ACK), 0x0b00_0000, true),
                ("others' marks", tcp(WORLD, SYN), 0x0000_c000, false),
                ("others' bits", tcp(WORLD, SYN), 0x0e00_0000, false),
                ("an answer to the node", tcp(GATEWAY, SYN | ACK), 0, true),
                ("an answer to the node, later", tcp(GATEWAY, ACK), 0, true),
                ("a connection to the node", tcp(GATEWAY, SYN), 0, false),
                ("UDP to the node", ipv4(17, GATEWAY, 0, &udp), 0, false),
                ("ICMP to the node", ipv4(1, GATEWAY, 0, &ping), 0, false),
                (
                    "a fragment to the node",
                    ipv4(6, GATEWAY, 0x2000, &udp),
                    0,
                    false,
                ),
                (
                    "TCP cut short",
                    ipv4(6, GATEWAY, 0, &[0; 4])[..38].to_vec(),
                    0,
                    false,
                ),
            ];
            for (what, frame, mark, passes) in cases {
                sh(&format!(
                    "nft 'flush chain bridge marking c; add rule bridge marking c meta mark set {mark}'"
                ));
                let before = behind();
                send(&socket, "p1", &frame);
                if passes {
                    let deadline = Instant::now() + patience(Duration::from_secs(5));
                    while behind() == before && Instant::now() < deadline {
                        thread::yield_now();
                    }
                } else {
                    thread::sleep(Duration::from_millis(20));
                }
                assert_eq!(behind() - before, u64::from(passes), "{mode:?}: {what}");
            }
        });
    }
}

#[test]
fn filters_of_others_stay_and_ours_is_first() {
    on_a_node(Mode::Ebpf, |node, runtime| {
        let theirs = "tc filter add dev agentcni0 ingress protocol all pref 1 handle 7 bpf da bytecode '1,6 0 0 0'; \
                      tc filter add dev agentcni0 ingress protocol ip pref 5 bpf da bytecode '1,6 0 0 0'; \
                      tc filter add dev agentcni0 egress protocol all pref 1 bpf da bytecode '1,6 0 0 0'";
        sh(theirs);
        let error = runtime.block_on(check_node(node)).unwrap_err();
        assert!(error.to_string().contains("behind another"), "{error}");
        runtime.block_on(ensure_node(node)).unwrap();
        runtime.block_on(check_node(node)).unwrap();
        let shown = sh("tc filter show dev agentcni0 ingress");
        let place = |what| {
            shown
                .find(what)
                .unwrap_or_else(|| panic!("{what}: {shown}"))
        };
        assert!(place("handle 0xa6e0002") < place("handle 0x7"), "{shown}");
        assert!(place("handle 0x7") < place("pref 5"), "{shown}");
        assert!(sh("tc filter show dev agentcni0 egress").contains("pref 1"));
        // and with the qdisc being theirs, of the older kind
        sh("tc qdisc del dev agentcni0 clsact; tc qdisc add dev agentcni0 ingress");
        runtime.block_on(ensure_node(node)).unwrap();
        runtime.block_on(check_node(node)).unwrap();
        assert!(sh("tc qdisc show dev agentcni0").contains("ingress"));
    });
}

#[test]
fn a_filter_of_another_kind_in_its_place_is_left_and_told() {
    on_a_node(Mode::Ebpf, |node, runtime| {
        sh("tc filter del dev agentcni0 ingress; \
            tc filter add dev agentcni0 ingress protocol ip pref 1 bpf da bytecode '1,6 0 0 0'");
        let error = runtime.block_on(ensure_node(node)).unwrap_err();
        assert!(matches!(error, NetError::Refused { .. }), "{error}");
        let said = error.to_string();
        assert!(
            said.contains("tc filter del dev agentcni0 ingress pref 1"),
            "{said}"
        );
        assert!(sh("tc filter show dev agentcni0 ingress").contains("protocol ip pref 1"));
    });
}

#[test]
fn the_filter_is_there_before_the_bridge_is_up() {
    on_a_node(Mode::Ebpf, |node, runtime| {
        sh("ip link del agentcni0; ip link add agentcni0 type bridge");
        let index = support::index_of("agentcni0");
        runtime.block_on(async {
            let rtnl = Rtnl::connect().unwrap();
            bridge_filter::ensure(&rtnl, node, index).await.unwrap();
            bridge_filter::check(&rtnl, node, index).await.unwrap();
        });
        assert!(sh("ip link show agentcni0").contains("state DOWN"));
        assert!(sh("tc filter show dev agentcni0 ingress").contains("0xa6e0002"));
    });
}
