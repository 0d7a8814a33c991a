//! CHECK: finds each breakage, and says what it is.

use serde_json::json;

use crate::support::{Node, concerns_mode};

#[test]
fn check_is_silent_about_a_pod_that_is_right() {
    let node = Node::new();
    node.pod("c1");
    let result = node.add("c1").ok();
    assert!(node.check("c1", &result).ok().is_null());
}

#[test]
fn check_finds_whatever_was_changed() {
    for (change, says) in [
        ("ip link set VETH down", "is down"),
        ("ip link set VETH nomaster", "the bridge of"),
        ("bridge link set dev VETH isolated off", "Isolated"),
        ("bridge link set dev VETH learning on", "Learning"),
        ("bridge link set dev VETH flood on", "Flood"),
        (
            "bridge fdb del 0a:58:a9:fe:09:02 dev VETH master",
            "forwarding entry",
        ),
        (
            "ip neigh del 169.254.9.2 dev agentcni0",
            "permanent neighbour 169.254.9.2",
        ),
        ("rm PINS/links/VETH", "data path of VETH"),
        (
            "bpftool map delete pinned PINS/ENDPOINTS key $(printf '%d 0 0 0' $(cat /sys/class/net/VETH/ifindex 2>/dev/null || ip -o link show VETH | cut -d: -f1))",
            "data path of VETH",
        ),
        ("rm -r PINS", "data path"),
        (
            "ip addr del 169.254.9.1/24 dev agentcni0",
            "address of agentcni0",
        ),
        ("ip link set agentcni0 down", "state of agentcni0"),
        ("ip rule del pref 100", "policy rule"),
        ("ip route flush table 18080", "table 18080"),
        ("nft delete table ip agent_network", "nftables table"),
        (
            "echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter",
            "rp_filter",
        ),
        ("echo 0 > /proc/sys/net/ipv4/ip_forward", "ip_forward"),
        ("rm STATE/node.json", "node.json"),
        ("POD ip addr del 169.254.9.2/32 dev eth0", "address of eth0"),
        ("POD ip route del default", "default route"),
        (
            "POD ip neigh del 169.254.9.1 dev eth0",
            "permanent neighbour 169.254.9.1",
        ),
        (
            "POD ip link set eth0 address 02:00:00:00:00:05",
            "MAC of eth0",
        ),
        ("POD ip link del eth0", "no interface"),
        (
            "POD sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0",
            "disable_ipv6",
        ),
    ] {
        if !concerns_mode(change) {
            continue;
        }
        let node = Node::new();
        node.pod("c1");
        let result = node.add("c1").ok();
        let veth = result["interfaces"][1]["name"].as_str().unwrap().to_owned();
        let line = change
            .replace("VETH", &veth)
            .replace("POD", "nsenter --net=/run/netns/c1")
            .replace(
                "PINS",
                node.files().join("bpf/agent-network/v1").to_str().unwrap(),
            )
            .replace("STATE", node.state().to_str().unwrap());
        node.sh(&line);
        let (code, message) = node.check("c1", &result).error();
        assert_eq!(code, 104, "{change}: {message}");
        assert!(
            message.contains(&says.replace("VETH", &veth)),
            "{change}: {message}"
        );
        // and an ADD of the same makes it right again
        let again = node.add("c1").ok();
        assert_eq!(again["ips"], result["ips"], "{change}");
        node.check("c1", &again).ok();
    }
}

#[test]
fn check_of_a_container_that_is_not_ours_is_code_3() {
    let node = Node::new();
    node.pod("c1");
    let result = node.add("c1").ok();
    assert_eq!(node.check("other", &result).error().0, 3);
    node.del("c1").ok();
    assert_eq!(node.check("c1", &result).error().0, 3);
}

#[test]
fn check_compares_what_the_runtime_was_told() {
    let node = Node::new();
    node.pod("c1");
    let mut result = node.add("c1").ok();
    result["ips"][0]["address"] = json!("169.254.9.77/32");
    let (code, message) = node.check("c1", &result).error();
    assert_eq!(code, 104);
    assert!(message.contains("169.254.9.77"), "{message}");
    let (code, message) = node.call("CHECK", "c1", &node.conf).error();
    assert_eq!(code, 7, "{message}");
}

#[test]
fn check_notices_another_namespace() {
    let node = Node::new();
    node.pod("c1");
    let result = node.add("c1").ok();
    let mut conf = node.conf.clone();
    conf["prevResult"] = result;
    let other = node.pod("other");
    assert_eq!(node.call_in("CHECK", "c1", &other, &conf).error().0, 104);
    node.sh("ip netns del c1");
    assert_eq!(node.call("CHECK", "c1", &conf).error().0, 3);
}
