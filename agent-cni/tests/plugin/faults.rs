//! An ADD that fails at each of its steps, or dies at any instant, leaves nothing.

use std::{process::Stdio, thread, time::Duration};

use serde_json::json;

use crate::support::{Node, address, answer};

/// Runs an ADD that must fail; the node must look as before, and the next ADD must work.
#[track_caller]
fn fails_and_leaves_nothing(node: &Node, spoil: &str, mend: &str, says: &str) {
    node.pod("c1");
    node.added("c0");
    let before = node.traces();
    node.sh(spoil);
    let (code, message) = node.add("c1").error();
    assert!(message.contains(says), "{spoil}: {code} {message}");
    assert_eq!(node.traces(), before, "{spoil}");
    node.sh(mend);
    let result = node.add("c1").ok();
    assert_eq!(
        address(&result),
        "169.254.9.3",
        "{spoil}: the failed ADD kept an address"
    );
    node.check("c1", &result).ok();
}

#[test]
fn a_taken_name_in_the_pod() {
    let node = Node::new();
    fails_and_leaves_nothing(
        &node,
        "nsenter --net=/run/netns/c1 ip link add eth0 type veth peer name x",
        "nsenter --net=/run/netns/c1 ip link del eth0",
        "File exists",
    );
}

#[test]
fn a_default_route_that_is_there_already() {
    let node = Node::new();
    fails_and_leaves_nothing(
        &node,
        "nsenter --net=/run/netns/c1 sh -c 'ip link add dum0 type veth peer name dum1; ip link set dum0 up; ip link set dum1 up; ip route add default dev dum0'",
        "nsenter --net=/run/netns/c1 ip link del dum0",
        "route to everything else",
    );
}

#[test]
fn a_full_disk_when_the_state_is_written() {
    let node = Node::new();
    let state = node.state();
    let state = state.display();
    node.sh(&format!(
        "mkdir -p {state}; mount -t tmpfs -o size=64k tmpfs {state}"
    ));
    node.pod("c1");
    node.call("ADD", "c1", &node.conf).ok();
    node.del("c1").ok();
    // tmpfs keeps pages: what is left holds a reservation, not an attachment
    let fill = format!("cat /dev/zero > {state}/fill 2>/dev/null || true");
    node.sh(&fill);
    let before = node.sh("ip -o link; ip neigh");
    let (code, message) = node.add("c1").error();
    assert_eq!(code, 5, "{message}");
    assert_eq!(node.sh("ip -o link; ip neigh"), before);
    node.sh(&format!("rm {state}/fill"));
    let result = node.add("c1").ok();
    node.check("c1", &result).ok();
}

#[test]
fn a_read_only_state_directory() {
    let node = Node::new();
    let state = node.state();
    let state = state.display();
    fails_and_leaves_nothing(
        &node,
        &format!("mount --bind {state} {state}; mount -o remount,ro,bind {state}"),
        &format!("umount {state}"),
        "Read-only file system",
    );
}

#[test]
fn an_attachment_file_that_cannot_be_written() {
    let node = Node::new();
    let file = node.state().join("c1_eth0.json.tmp");
    fails_and_leaves_nothing(
        &node,
        &format!("mkdir {}", file.display()),
        &format!("rmdir {}", file.display()),
        "c1_eth0.json",
    );
}

#[test]
fn a_pin_that_cannot_be_made() {
    let node = Node::in_ebpf();
    // the pod's pin is made in this directory; a read-only mount over it refuses that, and only that
    let links = node.files().join("bpf/agent-network/v1/links");
    let links = links.display();
    node.added("warm");
    node.del("warm").ok();
    node.pod("c1");
    node.sh(&format!(
        "mount --bind {links} {links}; mount -o remount,ro,bind {links}"
    ));
    let before = node.traces();
    let (code, message) = node.add("c1").error();
    assert_eq!(code, 102, "{message}");
    assert_eq!(node.traces(), before);
    node.sh(&format!("umount {links}"));
    let result = node.add("c1").ok();
    node.check("c1", &result).ok();
}

#[test]
fn no_bpf_file_system() {
    let node = Node::in_ebpf();
    node.pod("c1");
    let conf = node.with("pinDir", json!(node.files().join("plain")));
    let (code, message) = node.call("ADD", "c1", &conf).error();
    assert_eq!(code, 102, "{message}");
    assert_eq!(node.in_pod("c1", "ip -br link").lines().count(), 1);
    assert_eq!(node.traces(), "");
}

#[test]
fn a_namespace_that_vanished() {
    let node = Node::new();
    node.pod("c1");
    node.sh("ip netns del c1");
    assert_eq!(node.add("c1").error().0, 3);
    assert!(!node.state().exists());
}

#[test]
fn an_add_that_is_killed_at_any_instant_is_cleaned_up_by_the_next_one() {
    let node = Node::new();
    node.added("c0");
    let mut died = 0;
    for (round, micros) in (0..40).map(|round| (round, 500 + round * 900)) {
        let name = format!("k{round}");
        node.pod(&name);
        let mut command = node.command(crate::support::PLUGIN);
        let netns = format!("/run/netns/{name}");
        command.envs([
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", name.as_str()),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", netns.as_str()),
            ("CNI_ARGS", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b"),
        ]);
        let conf = node.files().join("conf");
        std::fs::write(&conf, node.conf.to_string()).unwrap();
        let mut child = command
            .stdin(std::fs::File::open(&conf).unwrap())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_micros(micros));
        child.kill().unwrap();
        died += usize::from(!child.wait().unwrap().success());
        // another pod's ADD removes what is left; a complete attachment is its DEL's
        let witness = format!("w{round}");
        node.added(&witness);
        if !node.state().join(format!("{name}_eth0.json")).exists() {
            assert_eq!(
                node.in_pod(&name, "ip -br link").lines().count(),
                1,
                "after {micros} us"
            );
        }
        let result = node.add(&name).ok();
        node.check(&name, &result).ok();
        node.del(&name).ok();
        node.del(&witness).ok();
        let traces = node.traces();
        assert_eq!(
            traces.lines().filter(|line| line.contains("agt")).count(),
            3,
            "{traces}"
        );
    }
    assert!(died > 5, "only {died} were killed in time");
}

#[test]
fn garbage_in_the_state_directory_is_set_aside_and_stops_nobody() {
    let node = Node::new();
    node.added("c1");
    for (name, bytes) in [
        ("x_eth0.json", &b""[..]),
        ("y_eth0.json", b"{}"),
        ("z_eth0.json", &[0xff; 4096]),
        ("released", &[0xff; 64]),
    ] {
        std::fs::write(node.state().join(name), bytes).unwrap();
    }
    std::fs::write(node.state().join("pending").join("junk"), [0xff; 10]).unwrap();
    // a pipe is not waited for, a huge file not read, a link not followed
    let state = node.state();
    node.sh(&format!(
        "cd {}; mkfifo pipe_eth0.json pending/pipe; truncate -s 3G huge_eth0.json; ln -s loop_eth0.json loop_eth0.json",
        state.display()
    ));
    assert_eq!(node.added("c2"), "169.254.9.3");
    let aside = node
        .state_files()
        .iter()
        .filter(|name| name.contains(".corrupt-"))
        .count();
    assert_eq!(aside, 7, "{:?}", node.state_files());
    std::fs::write(node.state().join("node.json"), b"garbage").unwrap();
    assert_eq!(node.added("c3"), "169.254.9.4");
}

#[test]
fn a_stdin_that_never_ends_is_refused() {
    let node = Node::new();
    let huge = vec![b' '; 3 << 20];
    let mut command = node.command(crate::support::PLUGIN);
    command.envs([("CNI_COMMAND", "STATUS")]);
    assert_eq!(answer(command, &huge).error().0, 6);
}
