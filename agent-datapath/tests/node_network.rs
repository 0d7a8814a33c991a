//! The node's network and a pod's link in namespaces of the test's own: set up, compared, broken, mended, removed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on should say where"
)]

mod support;

use std::{fs, process::Command};

use agent_core::attachment::Mode;
use agent_datapath::{
    bridge,
    error::NetError,
    link::{self, PodLink, PodSide},
    netns::Netns,
    network::{NodeNetwork, check_node, ensure_node, remove_node},
    routing,
    rtnl::Rtnl,
};
use nix::sched::{CloneFlags, unshare};

/// Runs on a thread of its own in a network namespace of its own, which ends with the thread.
fn in_new_namespace<F: Future<Output = ()>>(test: impl FnOnce(NodeNetwork) -> F + Send + 'static) {
    std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET)
            .expect("these tests make network namespaces: run them as root");
        let directory = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        runtime.block_on(test(support::node_network(
            Mode::Ebpf,
            directory.path().join("sysctls"),
        )));
    })
    .join()
    .unwrap();
}

/// A command in the calling thread's namespace.
fn run(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_node_that_is_set_up_passes_its_check_and_setting_it_up_again_changes_nothing() {
    in_new_namespace(|node| async move {
        let index = ensure_node(&node).await.unwrap();
        assert_eq!(check_node(&node).await.unwrap(), index);
        let state = || {
            run(
                "ip -d addr show agentcni0 | grep -v timer; ip rule; ip route show table 18080; nft -s list ruleset",
            )
        };
        let before = state();
        assert!(
            before.contains("100:\tfrom all fwmark 0xa000000/0xf000000 iif agentcni0 lookup 18080")
        );
        assert!(before.contains("local default dev lo"));
        assert_eq!(ensure_node(&node).await.unwrap(), index);
        assert_eq!(state(), before);
    });
}

#[test]
fn whatever_is_broken_on_the_node_is_found_and_mended() {
    in_new_namespace(|node| async move {
        ensure_node(&node).await.unwrap();
        for breakage in [
            "ip addr del 169.254.9.1/24 dev agentcni0",
            "ip addr flush dev agentcni0",
            "ip addr add 192.0.2.1/24 dev agentcni0",
            "ip link set agentcni0 down",
            "ip link set agentcni0 address 02:00:00:00:00:99",
            "ip link del agentcni0",
            "ip rule del pref 100",
            "ip rule del pref 100; ip rule add pref 100 fwmark 0xa000000/0xf000000 lookup 18080",
            "ip route flush table 18080",
            "ip rule del pref 101",
            "ip rule del pref 101 to 10.96.0.0/12",
            "ip rule add pref 101 iif agentcni0 to 10.0.0.0/8 blackhole",
            "ip rule del pref 102",
            "ip rule del pref 102; ip rule add pref 102 to 169.254.9.0/24 iif lo lookup 18081",
            "ip rule add pref 102 to 10.0.0.0/8 lookup 18081",
            "ip route flush table 18081",
            "ip route del 169.254.9.0/24 table 18081",
            "ip route del blackhole default table 18081",
            "ip route add 169.254.9.7/32 dev lo table 18081",
            "ip route del 169.254.9.0/24 dev agentcni0",
            "ip route replace 169.254.9.0/24 dev lo",
            "ip link set agentcni0 down; ip link set agentcni0 up",
            "echo 0 > /proc/sys/net/ipv4/ip_forward",
            "echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter",
            "echo 2 > /proc/sys/net/ipv4/conf/agentcni0/rp_filter",
            "echo 0 > /proc/sys/net/ipv6/conf/agentcni0/disable_ipv6",
            "nft flush ruleset",
            "tc qdisc del dev agentcni0 clsact",
            "tc filter del dev agentcni0 ingress",
            // somebody's own in place of ours, and before ours
            "tc filter replace dev agentcni0 ingress protocol all pref 1 handle 0xa6e0002 bpf da bytecode '1,6 0 0 0'",
            "tc filter add dev agentcni0 ingress protocol all pref 1 handle 7 bpf da bytecode '1,6 0 0 0'",
        ] {
            run(breakage);
            assert!(check_node(&node).await.is_err(), "not found: {breakage}");
            ensure_node(&node).await.unwrap();
            if let Err(error) = check_node(&node).await {
                panic!("not mended: {breakage}: {error}");
            }
        }
        assert_eq!(run("ip rule | grep -c 18080").trim(), "1");
        assert_eq!(
            run(
                "{ ip rule | grep 18081; ip route show table 18081; ip route show dev agentcni0; } | sed s/linkdown.//"
            ),
            "102:\tfrom all to 169.254.9.0/24 lookup 18081\n\
             blackhole default proto static \n\
             169.254.9.0/24 dev agentcni0 proto static scope link src 169.254.9.1 \n\
             169.254.9.0/24 proto kernel scope link src 169.254.9.1 \n"
        );
        let drops = run("ip rule | grep ^101:");
        assert_eq!(
            drops
                .trim()
                .lines()
                .collect::<std::collections::BTreeSet<_>>(),
            std::collections::BTreeSet::from([
                "101:\tfrom all to 10.96.0.0/12 iif agentcni0 blackhole",
                "101:\tfrom all fwmark 0xa000000/0xf000000 iif agentcni0 blackhole",
            ])
        );
    });
}

#[test]
fn everything_that_differs_of_the_bridge_and_of_a_port_is_named() {
    in_new_namespace(|node| async move {
        let index = ensure_node(&node).await.unwrap();
        run("ip link add port type veth peer name end");
        let rtnl = Rtnl::connect().unwrap();
        let port = link::index_of(&rtnl, "port").await.unwrap().unwrap();
        bridge::add_port(&rtnl, index, port, "port").await.unwrap();
        bridge::check_port(&rtnl, index, "port").await.unwrap();
        run("bridge link set dev port isolated off learning on");
        let said = bridge::check_port(&rtnl, index, "port").await;
        let said = said.unwrap_err().to_string();
        for one in ["Isolated(true)", "Learning(false)"] {
            assert!(said.contains(one), "{one}: {said}");
        }
        run(
            "ip link set agentcni0 down; ip link set agentcni0 address 02:00:00:00:00:99; \
             ip addr add 192.0.2.1/24 dev agentcni0",
        );
        let error = bridge::check(&rtnl, &node.bridge).await.unwrap_err();
        assert!(error.is_difference(), "{error}");
        for one in [
            "the MAC of agentcni0",
            "the state of agentcni0 is down",
            "the address of agentcni0",
        ] {
            assert!(error.to_string().contains(one), "{one}: {error}");
        }
    });
}

#[test]
fn removing_the_node_puts_back_what_was_there_before() {
    in_new_namespace(|node| async move {
        run(
            "echo 0 > /proc/sys/net/ipv4/ip_forward; echo 2 > /proc/sys/net/ipv4/conf/all/rp_filter",
        );
        let state = || {
            run(
                "ip rule; ip route show table all | grep 1808; ip route; nft list ruleset; cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/*/rp_filter",
            )
        };
        let before = state();
        ensure_node(&node).await.unwrap();
        ensure_node(&node).await.unwrap();
        assert_ne!(state(), before);
        remove_node(&node).await.unwrap();
        assert_eq!(state(), before);
        assert!(!node.sysctl_record.exists());
        remove_node(&node).await.unwrap();
    });
}

#[test]
fn a_foreign_interface_of_the_bridges_name_is_left_alone() {
    in_new_namespace(|node| async move {
        run("ip link add agentcni0 type veth peer name other");
        let error = ensure_node(&node).await.unwrap_err();
        assert!(matches!(error, NetError::ForeignLink { .. }), "{error}");
        run("ip link show agentcni0");
    });
}

#[test]
fn no_sysctl_is_changed_that_cannot_be_recorded() {
    in_new_namespace(|mut node| async move {
        run("echo 0 > /proc/sys/net/ipv4/ip_forward");
        node.sysctl_record = "/nonexistent/sysctls".into();
        let error = ensure_node(&node).await.unwrap_err();
        assert!(
            error.to_string().contains("record sysctl values"),
            "{error}"
        );
        assert_eq!(
            fs::read_to_string("/proc/sys/net/ipv4/ip_forward")
                .unwrap()
                .trim(),
            "0"
        );
    });
}

#[test]
fn a_pods_link_comes_up_with_address_routes_and_neighbours_and_leaves_nothing() {
    in_new_namespace(|node| async move {
        let bridge = ensure_node(&node).await.unwrap();
        let pod = new_namespace();
        let rtnl = Rtnl::connect().unwrap();
        let mac = [0x0a, 0x58, 169, 254, 9, 2];
        let address = "169.254.9.2".parse().unwrap();
        let pair = PodLink {
            host_name: "agt0123456789ab",
            pod_name: "eth0",
            pod_mac: mac,
            mtu: 1400,
            netns: &pod,
        };
        let index = link::create_pod_link(&rtnl, &pair).await.unwrap();
        assert!(!link::is_up(&rtnl, pair.host_name).await.unwrap());
        bridge::add_port(&rtnl, bridge, index, pair.host_name)
            .await
            .unwrap();
        bridge::announce(&rtnl, bridge, index, address, mac)
            .await
            .unwrap();
        let side = PodSide {
            ifname: "eth0".into(),
            mac,
            address,
            gateway: "169.254.9.1".parse().unwrap(),
            gateway_mac: node.bridge.mac,
            mtu: 1400,
        };
        let configured = side.clone();
        pod.run_async(|| async move { link::configure_pod_side(&configured).await })
            .unwrap();
        link::set_up(&rtnl, index, pair.host_name).await.unwrap();

        bridge::check_port(&rtnl, bridge, pair.host_name)
            .await
            .unwrap();
        bridge::check_announced(&rtnl, bridge, index, address, mac)
            .await
            .unwrap();
        pod.run_async(|| async move { link::check_pod_side(&side).await })
            .unwrap();
        assert_eq!(
            link::ports_of(&rtnl, bridge).await.unwrap(),
            [pair.host_name]
        );
        // without a mark only TCP's answers come through the bridge's filter: the pod refuses
        run(
            "python3 -c 'import errno,socket; s=socket.socket(); s.settimeout(5); \
             assert s.connect_ex((\"169.254.9.2\", 9)) == errno.ECONNREFUSED'",
        );
        let ipv6 = pod
            .run(|| fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default())
            .unwrap();
        assert!(!ipv6.contains("eth0"), "{ipv6}");

        bridge::forget(&rtnl, bridge, address).await.unwrap();
        bridge::forget(&rtnl, bridge, address).await.unwrap();
        link::delete_link(&rtnl, pair.host_name).await.unwrap();
        link::delete_link(&rtnl, pair.host_name).await.unwrap();
        let left = run("ip -br link; ip neigh; bridge fdb");
        assert!(!left.contains("agt0") && !left.contains("0a:58"), "{left}");
    });
}

#[test]
fn a_name_that_is_taken_in_the_pod_makes_nothing() {
    in_new_namespace(|_| async move {
        let pod = new_namespace();
        pod.run(|| run("ip link add eth0 type veth peer name other"))
            .unwrap();
        let rtnl = Rtnl::connect().unwrap();
        let pair = PodLink {
            host_name: "agt0123456789ab",
            pod_name: "eth0",
            pod_mac: [0x0a, 0x58, 169, 254, 9, 2],
            mtu: 1500,
            netns: &pod,
        };
        let error = link::create_pod_link(&rtnl, &pair).await.unwrap_err();
        assert_eq!(error.errno(), Some(17), "{error}");
        assert_eq!(link::index_of(&rtnl, pair.host_name).await.unwrap(), None);
    });
}

#[test]
fn networks_in_use_are_routes_and_addresses_of_others() {
    in_new_namespace(|node| async move {
        ensure_node(&node).await.unwrap();
        run(
            "ip link add u0 type veth peer name u1; ip addr add 192.0.2.7/24 dev u0; ip link set u0 up; ip link set u1 up",
        );
        run(
            "ip route add 198.51.100.0/24 dev u0; ip route add default via 192.0.2.1 dev u0; ip link set u0 mtu 1400",
        );
        let rtnl = Rtnl::connect().unwrap();
        let used = routing::networks_in_use(&rtnl, "agentcni0").await.unwrap();
        let has = |net: &str| used.contains(&net.parse().unwrap());
        assert!(has("192.0.2.0/24") && has("198.51.100.0/24"), "{used:?}");
        assert!(!has("169.254.9.0/24") && !has("0.0.0.0/0"), "{used:?}");
        assert_eq!(link::uplink_mtu(&rtnl).await.unwrap(), Some(1400));
    });
}

#[test]
fn a_node_without_a_way_out_has_no_uplink() {
    in_new_namespace(|_| async move {
        let rtnl = Rtnl::connect().unwrap();
        assert_eq!(link::uplink_mtu(&rtnl).await.unwrap(), None);
    });
}

/// A namespace that lives as long as its handle.
fn new_namespace() -> Netns {
    std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        Netns::open("/proc/thread-self/ns/net".as_ref()).unwrap()
    })
    .join()
    .unwrap()
}
