//! DEL: says yes whatever is or is not left.

use serde_json::json;

use crate::support::Node;

#[test]
fn del_leaves_nothing_and_works_twice() {
    let node = Node::new();
    node.added("c1");
    assert!(!node.traces().is_empty());
    node.del("c1").ok();
    assert_eq!(node.traces(), "");
    node.del("c1").ok();
    assert_eq!(node.traces(), "");
}

#[test]
fn del_without_an_add_is_fine() {
    let node = Node::new();
    node.del("never").ok();
    assert!(!node.state().exists());
    node.added("c1");
    node.del("never").ok();
    assert_eq!(
        node.traces()
            .lines()
            .filter(|line| line.contains("agt"))
            .count(),
        3
    );
}

#[test]
fn del_works_when_parts_are_already_gone() {
    let bpf = "agent-network/v1";
    for gone in [
        "ip netns del c1",
        "ip link del agentcni0",
        "nsenter --net=/run/netns/c1 ip link del eth0",
        "rm -rf STATE/c1_eth0.json",
        "rm -rf STATE",
        "echo garbage > STATE/c1_eth0.json",
        ": > STATE/c1_eth0.json",
        "rm -rf BPF",
        "rm -rf BPF/links/agt*",
        "rm -f BPF/ENDPOINTS",
        "umount BPFROOT",
        "nft flush ruleset; ip rule del pref 100 || true",
    ] {
        let node = Node::new();
        node.added("c1");
        let root = node.files().join("bpf");
        let line = gone
            .replace("STATE", node.state().to_str().unwrap())
            .replace("BPFROOT", root.to_str().unwrap())
            .replace("BPF", root.join(bpf).to_str().unwrap());
        node.sh(&line);
        node.del("c1").ok();
        assert!(!node.sh("ip -o link").contains("agt"), "{gone}");
        assert!(
            !node.sh("bridge fdb; ip neigh").contains("0a:58:a9"),
            "{gone}"
        );
        node.del("c1").ok();
        if !gone.starts_with("umount") {
            node.added("c2");
        }
    }
}

#[test]
fn del_takes_no_namespace_and_any_prev_result() {
    let node = Node::new();
    node.added("c1");
    let conf = node.with("prevResult", json!({"whatever": [1]}));
    let answer = node.raw(
        &[
            ("CNI_COMMAND", "DEL"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_IFNAME", "eth0"),
        ],
        conf.to_string().as_bytes(),
    );
    answer.ok();
    assert_eq!(node.traces(), "");
}

#[test]
fn an_address_rests_after_del_and_the_longest_unused_comes_next() {
    let mut node = Node::new();
    node.conf["fakeIPCIDR"] = json!("169.254.9.0/29");
    node.conf["coolDownSeconds"] = json!(3600);
    let addresses: Vec<String> = (1..=5).map(|n| node.added(&format!("c{n}"))).collect();
    node.del("c4").ok();
    // releases are noted by the second
    std::thread::sleep(std::time::Duration::from_millis(1100));
    node.del("c2").ok();
    node.pod("c6");
    let (code, message) = node.add("c6").error();
    assert_eq!(code, 11, "{message}");
    assert!(message.contains("3 in use, 2 resting"), "{message}");
    node.conf["coolDownSeconds"] = json!(0);
    assert_eq!(super::support::address(&node.add("c6").ok()), addresses[3]);
    assert_eq!(node.added("c7"), addresses[1]);
}

#[test]
fn state_of_another_boot_is_dropped_and_touches_nobody() {
    let node = Node::new();
    let address = node.added("old");
    let file = node.state().join("old_eth0.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    std::fs::write(&file, text.replace(boot.trim(), "00000000-earlier")).unwrap();
    // a reboot takes links, bridge and programs
    node.sh("ip netns del old; ip link del agentcni0");
    let fresh = node.added("new");
    assert_eq!(fresh, address);
    assert!(!file.exists());
    node.del("old").ok();
    let result = node.add("new").ok();
    node.check("new", &result).ok();
}
