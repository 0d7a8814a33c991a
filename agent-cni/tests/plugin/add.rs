//! ADD: what it makes, and saying it again.

use serde_json::{Value, json};

use crate::support::{Node, address};

#[test]
fn add_gives_the_pod_an_address_a_gateway_and_nothing_else() {
    let node = Node::new();
    let address = node.added("c1");
    assert_eq!(address, "169.254.9.2");
    let pod = node.in_pod(
        "c1",
        "ip -o -4 addr; ip route; ip neigh; cat /proc/net/if_inet6",
    );
    assert!(pod.contains("169.254.9.2/32 scope global eth0"), "{pod}");
    assert!(pod.contains("default via 169.254.9.1 dev eth0"), "{pod}");
    assert!(
        pod.contains("169.254.9.1 dev eth0 proto static scope link"),
        "{pod}"
    );
    assert!(
        pod.contains("169.254.9.1 dev eth0 lladdr 02:a9:a9:fe:09:01 PERMANENT"),
        "{pod}"
    );
    assert!(
        !pod.lines()
            .any(|line| line.starts_with("fe80") && line.contains("eth0")),
        "{pod}"
    );
    // the node can reach the pod: the kubelet's probes
    node.sh("ping -c1 -W2 169.254.9.2 || true; ip neigh show 169.254.9.2 | grep -q PERMANENT");
}

#[test]
fn the_pods_program_is_there_before_its_link_is_up() {
    let node = Node::in_ebpf();
    node.added("c1");
    let state: Value =
        serde_json::from_slice(&std::fs::read(node.state().join("c1_eth0.json")).unwrap()).unwrap();
    let veth = state["hostVeth"].as_str().unwrap();
    let shown = node.sh(&format!(
        "bpftool net show dev {veth}; bridge -d link show dev {veth}"
    ));
    assert!(shown.contains("pod_ingress"), "{shown}");
    assert!(
        shown.contains("isolated on") && shown.contains("learning off"),
        "{shown}"
    );
    let pins = node.files().join("bpf/agent-network/v1/links");
    assert!(node.succeeds(&format!("test -e {}/{veth}", pins.display())));
}

#[test]
fn the_state_file_says_whose_address_it_is() {
    let node = Node::new();
    node.added("c1");
    let state: Value =
        serde_json::from_slice(&std::fs::read(node.state().join("c1_eth0.json")).unwrap()).unwrap();
    assert_eq!(
        state["pod"],
        json!({"namespace": "agents", "name": "c1", "uid": "u-c1"})
    );
    assert_eq!(state["fakeIp"], "169.254.9.2");
    assert_eq!(state["netns"], "/run/netns/c1");
    assert!(state["ifindex"].as_u64().unwrap() > 0);
    let files = node.state_files();
    assert!(files.contains(&"node.json".to_owned()), "{files:?}");
    assert!(
        !files.iter().any(|name| name.ends_with(".tmp")),
        "{files:?}"
    );
}

#[test]
fn add_is_idempotent_for_the_same_netns() {
    let node = Node::new();
    node.pod("c1");
    let first = node.add("c1").ok();
    let before = node.sh("ip -o link; ip neigh; bridge fdb; bridge -d link");
    assert_eq!(node.add("c1").ok(), first);
    assert_eq!(
        node.sh("ip -o link; ip neigh; bridge fdb; bridge -d link"),
        before
    );
}

#[test]
fn add_for_another_netns_of_the_same_container_is_a_conflict() {
    let node = Node::new();
    node.added("c1");
    let other = node.pod("other");
    let (code, message) = node.call_in("ADD", "c1", &other, &node.conf).error();
    assert_eq!(code, 103);
    assert!(message.contains("call DEL before"), "{message}");
    assert_eq!(node.in_pod("other", "ip -br link").lines().count(), 1);
    node.check("c1", &node.add("c1").ok()).ok();
}

#[test]
fn a_broken_attachment_is_made_anew_under_the_same_address() {
    let node = Node::new();
    let address_before = node.added("c1");
    node.added("c2");
    node.in_pod("c1", "ip link del eth0");
    let result = node.add("c1").ok();
    assert_eq!(address(&result), address_before);
    node.check("c1", &result).ok();
}

#[test]
fn what_a_dead_add_left_under_its_names_is_replaced() {
    let node = Node::new();
    node.added("c1");
    std::fs::remove_file(node.state().join("c1_eth0.json")).unwrap();
    let result = node.add("c1").ok();
    node.check("c1", &result).ok();
}

#[test]
fn every_version_gets_its_own_shape_and_the_same_address() {
    let node = Node::new();
    node.pod("c1");
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let result = node
            .call("ADD", "c1", &node.with("cniVersion", json!(version)))
            .ok();
        assert_eq!(result["cniVersion"], version);
        assert_eq!(address(&result), "169.254.9.2");
        assert_eq!(
            result["ips"][0].get("version").is_some(),
            version.starts_with("0.")
        );
        assert_eq!(result["interfaces"][2]["sandbox"], "/run/netns/c1");
    }
}

#[test]
fn a_link_in_front_of_us_in_the_list_is_refused() {
    let node = Node::new();
    node.pod("c1");
    let conf = node.with(
        "prevResult",
        json!({"cniVersion": "1.1.0", "interfaces": []}),
    );
    let (code, message) = node.call("ADD", "c1", &conf).error();
    assert_eq!(code, 7);
    assert!(message.contains("first plugin"), "{message}");
}

#[test]
fn the_mtu_is_the_configured_one_else_the_uplinks() {
    let node = Node::new();
    node.sh("ip link add u0 mtu 1400 type veth peer name u1; ip addr add 192.0.2.2/24 dev u0; ip link set u1 up; ip link set u0 up; ip route add default via 192.0.2.1");
    node.added("c1");
    assert!(node.in_pod("c1", "ip link show eth0").contains("mtu 1400"));
    node.pod("c2");
    let result = node.call("ADD", "c2", &node.with("mtu", json!(1300))).ok();
    assert_eq!(result["interfaces"][2]["mtu"], 1300);
    assert!(node.in_pod("c2", "ip link show eth0").contains("mtu 1300"));
}

#[test]
fn without_a_configured_range_the_node_name_decides_and_the_choice_is_kept() {
    let mut node = Node::new();
    node.conf.as_object_mut().unwrap().remove("fakeIPCIDR");
    let first = node.added("c1");
    assert!(first.starts_with("169.254."), "{first}");
    // a route that appears later does not move the node
    let net = first.rsplit_once('.').unwrap().0;
    node.sh(&format!("ip route add blackhole {net}.128/25"));
    let second = node.added("c2");
    assert!(second.starts_with(net), "{first} {second}");
    // another node of that name with that route goes elsewhere
    let mut other = Node::new();
    other.conf.as_object_mut().unwrap().remove("fakeIPCIDR");
    other.sh(&format!("ip route add blackhole {net}.128/25"));
    assert!(!other.added("c1").starts_with(net));
}

#[test]
fn a_range_that_the_node_routes_is_refused_with_what_it_overlaps() {
    let node = Node::new();
    node.sh("ip route add blackhole 169.254.9.128/25");
    node.pod("c1");
    let (code, message) = node.add("c1").error();
    assert_eq!(code, 105);
    assert!(message.contains("169.254.9.128/25"), "{message}");
}

#[test]
fn pods_keep_the_node_on_its_range() {
    let node = Node::new();
    node.added("c1");
    node.pod("c2");
    let moved = node.with("fakeIPCIDR", json!("10.77.0.0/16"));
    let (code, message) = node.call("ADD", "c2", &moved).error();
    assert_eq!(code, 105);
    assert!(
        message.contains("1 pod live on 169.254.9.0/24; drain"),
        "{message}"
    );
    node.del("c1").ok();
    assert_eq!(address(&node.call("ADD", "c2", &moved).ok()), "10.77.0.2");
}
