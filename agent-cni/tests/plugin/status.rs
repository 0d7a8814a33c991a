//! STATUS: says whether an ADD can work now.

use serde_json::json;

use crate::support::{Node, concerns_mode};

#[test]
fn a_fresh_and_a_used_node_are_available() {
    let node = Node::new();
    node.call("STATUS", "", &node.conf).ok();
    node.added("c1");
    node.call("STATUS", "", &node.conf).ok();
}

#[test]
fn without_a_bpf_file_system_it_says_how_to_mount_one() {
    let node = Node::in_ebpf();
    let conf = node.with("pinDir", json!(node.files().join("nowhere")));
    let (code, message) = node.call("STATUS", "", &conf).error();
    assert_eq!(code, 50);
    assert!(message.contains("mount -t bpf"), "{message}");
}

#[test]
fn an_exhausted_pool_is_not_available() {
    let mut node = Node::new();
    node.conf["fakeIPCIDR"] = json!("169.254.9.0/30");
    node.added("c1");
    let (code, message) = node.call("STATUS", "", &node.conf).error();
    assert_eq!(code, 50);
    assert!(message.contains("169.254.9.0/30"), "{message}");
}

#[test]
fn pods_on_a_broken_node_have_limited_connectivity() {
    for change in ["ip link del agentcni0", "nft flush ruleset", "rm -r PINS"] {
        if !concerns_mode(change) {
            continue;
        }
        let node = Node::new();
        node.added("c1");
        node.sh(&change.replace(
            "PINS",
            node.files().join("bpf/agent-network/v1").to_str().unwrap(),
        ));
        let (code, message) = node.call("STATUS", "", &node.conf).error();
        assert_eq!(code, 51, "{message}");
        assert!(message.contains("agent-cni setup"), "{message}");
    }
}

#[test]
fn a_state_directory_that_cannot_be_written_is_not_available() {
    let node = Node::new();
    node.added("c1");
    node.sh(&format!(
        "mount -t tmpfs -o ro tmpfs {}",
        node.state().display()
    ));
    assert_eq!(node.call("STATUS", "", &node.conf).error().0, 50);
}
