//! GC: keeps what is valid, removes the rest, and what nobody owns.

use serde_json::{Value, json};

use crate::support::Node;

fn valid(node: &Node, containers: &[&str]) -> Value {
    let list: Vec<Value> = containers
        .iter()
        .map(|container| json!({"containerID": container, "ifname": "eth0"}))
        .collect();
    node.with("cni.dev/valid-attachments", json!(list))
}

#[test]
fn gc_keeps_the_valid_and_removes_the_rest() {
    let node = Node::new();
    for container in ["c1", "c2", "c3"] {
        node.added(container);
    }
    let result = node.add("c2").ok();
    node.call("GC", "", &valid(&node, &["c2"])).ok();
    let state = node.state_files();
    assert!(state.contains(&"c2_eth0.json".to_owned()), "{state:?}");
    assert!(
        !state
            .iter()
            .any(|name| name.starts_with("c1") || name.starts_with("c3")),
        "{state:?}"
    );
    node.check("c2", &result).ok();
    node.call("GC", "", &valid(&node, &[])).ok();
    assert_eq!(node.traces(), "");
    node.call("GC", "", &valid(&node, &[])).ok();
}

#[test]
fn gc_without_a_list_is_an_error_and_removes_nothing() {
    let node = Node::new();
    node.added("c1");
    let before = node.traces();
    assert_eq!(node.call("GC", "", &node.conf).error().0, 7);
    assert_eq!(node.traces(), before);
}

#[test]
fn gc_removes_links_and_pins_without_an_attachment() {
    let node = Node::new();
    node.added("c1");
    node.added("c2");
    std::fs::remove_file(node.state().join("c1_eth0.json")).unwrap();
    node.sh("ip link add foreign type veth peer name f2; ip link set foreign master agentcni0");
    node.call("GC", "", &valid(&node, &["c2"])).ok();
    let traces = node.traces();
    assert_eq!(
        traces.lines().filter(|line| line.contains("agt")).count(),
        3,
        "{traces}"
    );
    node.sh("ip link show foreign");
    // a pod that died with its state: only its neighbour is left
    node.sh("ip neigh add 169.254.9.99 lladdr 0a:58:a9:fe:09:63 nud permanent dev agentcni0");
    node.call("GC", "", &valid(&node, &["c2"])).ok();
    assert_eq!(node.traces(), traces);
}

#[test]
fn gc_on_a_node_without_state_is_fine() {
    let node = Node::new();
    node.call("GC", "", &valid(&node, &["c1"])).ok();
    assert!(!node.state().exists());
}
