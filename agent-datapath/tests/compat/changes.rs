//! Pods that come and go, settings that change, tables that somebody spoils.

use std::{process::Command, thread};

use agent_datapath::{
    compat::{Compat, HostPod},
    load::DatapathConfig,
    maps::PodEndpoint,
};
use agent_ebpf_common::{Reason, testing::*};

use crate::{
    bridge::{Bridge, POD_PORT, nft, port, wait_until, watch_what_passes},
    support::{in_new_netns, index_of, pod, run_ip, send, settings},
};

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
