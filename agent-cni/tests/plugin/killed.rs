//! SIGKILL at every step of ADD and DEL, in both modes: the next call of the same verb completes, and then nothing is left.

use std::{fs::File, process::Stdio};

use serde_json::json;

use crate::support::{
    Node, PLUGIN,
    strace::{self, CHANGES, PROGRAMS, stride, through_all},
};

const MODES: [&str; 2] = ["ebpf", "iptables-compat"];

/// A node with a pod that stays.
fn node_in(mode: &str) -> Node {
    let mut node = Node::new();
    node.conf["mode"] = json!(mode);
    node.added("stays");
    std::fs::write(node.files().join("conf"), node.conf.to_string()).unwrap();
    node
}

/// Calls a verb that is killed before its N-th call of a set; false when it came to its end before.
#[track_caller]
fn killed_at(node: &Node, verb: &str, container: &str, calls: &str, nth: usize) -> bool {
    let mut command = strace::kill_before(node, calls, nth, PLUGIN);
    command.envs([
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", container),
        ("CNI_IFNAME", "eth0"),
        ("CNI_NETNS", &format!("/run/netns/{container}")),
        ("CNI_PATH", "/opt/cni/bin"),
        (
            "CNI_ARGS",
            &format!("K8S_POD_NAMESPACE=agents;K8S_POD_NAME={container};K8S_POD_UID=u"),
        ),
    ]);
    let conf = File::open(node.files().join("conf")).unwrap();
    let output = command
        .stdin(Stdio::from(conf))
        .output()
        .expect("these tests need strace: apt-get install strace");
    let killed = strace::was_killed(output.status);
    assert!(killed || output.status.success(), "{nth}: {output:?}");
    killed
}

fn add(mode: &str, calls: &str, stride: usize) -> usize {
    let node = node_in(mode);
    let before = node.traces();
    through_all(stride, |nth| {
        let when = format!("{mode}, {calls}: ADD killed before call {nth}");
        let name = format!("k{nth}");
        node.pod(&name);
        let killed = killed_at(&node, "ADD", &name, calls, nth);
        if nth % 2 == 0 {
            let result = node.add(&name).ok();
            node.check(&name, &result).ok();
        }
        node.del(&name).ok();
        // what a killed one left that no state says of is removed by whoever comes next
        node.added(&format!("w{nth}"));
        node.del(&format!("w{nth}")).ok();
        assert_eq!(node.traces(), before, "{when}");
        killed
    })
}

fn del(mode: &str, calls: &str, stride: usize) -> usize {
    let node = node_in(mode);
    let before = node.traces();
    through_all(stride, |nth| {
        let when = format!("{mode}, {calls}: DEL killed before call {nth}");
        let name = format!("k{nth}");
        node.added(&name);
        let killed = killed_at(&node, "DEL", &name, calls, nth);
        node.del(&name).ok();
        assert_eq!(node.traces(), before, "{when}");
        killed
    })
}

#[test]
fn an_add_that_is_killed_before_any_change_of_it() {
    for mode in MODES {
        let killed = add(mode, CHANGES, 1);
        assert!(killed > 20, "{mode}: only {killed} rounds");
    }
}

#[test]
fn an_add_that_is_killed_while_it_attaches_its_program() {
    let killed = add("ebpf", PROGRAMS, stride(2));
    assert!(killed > 3, "only {killed} rounds");
}

#[test]
fn a_del_that_is_killed_before_any_change_of_it() {
    for mode in MODES {
        let killed = del(mode, CHANGES, 1);
        assert!(killed > 4, "{mode}: only {killed} rounds");
    }
    let killed = del("ebpf", PROGRAMS, 1);
    assert!(killed > 1, "only {killed} rounds");
}
