//! The pool: its end, and what the runtime is told there.

use serde_json::json;

use crate::support::Node;

#[test]
fn the_last_address_is_given_and_the_next_add_says_what_to_do() {
    let mut node = Node::new();
    node.conf["fakeIPCIDR"] = json!("169.254.9.0/29");
    for n in 1..=5 {
        node.added(&format!("c{n}"));
    }
    node.pod("c6");
    let before = node.traces();
    let (code, message) = node.add("c6").error();
    // nothing rests: waiting would not help, somebody has to act
    assert_eq!(code, 100);
    assert!(
        message.contains("169.254.9.0/29") && message.contains("5 in use, 0 resting"),
        "{message}"
    );
    assert!(message.contains("fakeIPCIDR"), "{message}");
    assert_eq!(node.traces(), before);
    assert_eq!(node.in_pod("c6", "ip -br link").lines().count(), 1);
    node.del("c3").ok();
    let (code, message) = node.add("c6").error();
    assert_eq!(code, 11);
    assert!(message.contains("the next is free in"), "{message}");
}

#[test]
fn the_255th_of_a_24_gets_a_clear_error() {
    let node = Node::new();
    // state alone decides; a link for each of 253 pods would only take time
    node.added("c1");
    let text = std::fs::read_to_string(node.state().join("c1_eth0.json")).unwrap();
    for n in 3..=254 {
        let other = text
            .replace("\"c1\"", &format!("\"x{n}\""))
            .replace("169.254.9.2", &format!("169.254.9.{n}"));
        std::fs::write(node.state().join(format!("x{n}_eth0.json")), other).unwrap();
    }
    node.pod("c2");
    let (code, message) = node.add("c2").error();
    assert_eq!(code, 100);
    assert!(
        message.contains("no free address in 169.254.9.0/24: 253 in use"),
        "{message}"
    );
}
