//! The plugin under a real containerd (crictl), and under cnitool.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;

use e2e::cni::STATE_DIR;
use e2e::containerd::Containerd;
use e2e::machine::can_run;
use e2e::{Node, PodSpec};
use serde_json::Value;

mod support;
use support::node;

#[test]
fn containerd_runs_two_sandboxes_whose_traffic_goes_through_the_proxy() {
    let Some(mut node) = node("containerd") else {
        return;
    };
    for name in ["one", "two"] {
        node.introduce(&PodSpec::named(name)).unwrap();
    }
    let containerd = Containerd::start(node.world()).unwrap();
    let info = containerd.crictl(&["info"]).unwrap().success().unwrap();
    let info: Value = serde_json::from_str(&info.stdout).unwrap();
    let ready = info["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|c| c["type"] == "NetworkReady")
        .unwrap();
    assert_eq!(ready["status"], true, "{ready}");

    let one = containerd.run_pod("agents", "one").unwrap();
    let two = containerd.run_pod("agents", "two").unwrap();
    let ip = |id: &str| {
        let shown = containerd
            .crictl(&["inspectp", id])
            .unwrap()
            .success()
            .unwrap();
        let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
        shown["status"]["network"]["ip"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_ne!(ip(&one.id), ip(&two.id));

    for pod in [&one, &two] {
        let done = containerd
            .exec(pod, &["probe", "get", "http://docs.example.com/"])
            .unwrap();
        assert!(done.stdout.contains("hello from docs"), "{done}");
        let done = containerd
            .exec(pod, &["probe", "get", "http://api.example.com/"])
            .unwrap();
        assert!(done.stdout.contains("the token is right"), "{done}");
        let done = containerd
            .exec(
                pod,
                &["probe", "get", "http://web.default.svc.cluster.local/"],
            )
            .unwrap();
        assert!(done.stdout.contains("hello from the service"), "{done}");
    }
    let url = format!("http://{}:8080/", ip(&two.id));
    let done = containerd.exec(&one, &["probe", "get", &url]).unwrap();
    assert!(done.all().contains("403"), "{done}");
    let line = node
        .audit_line("which pod it was", |l| {
            l["pod"]["name"] == "one" && l["direction"] == "egress"
        })
        .unwrap();
    assert_eq!(line["pod"]["uid"], "uid-one", "{line}");
    assert_eq!(line["pod"]["namespace"], "agents", "{line}");
    assert_eq!(line["pod"]["fake_ip"], ip(&one.id), "{line}");
    assert!(node.leaked_secrets().unwrap().is_empty());

    for pod in [&one, &two] {
        containerd
            .crictl(&["rmp", "-f", &pod.id])
            .unwrap()
            .success()
            .unwrap();
    }
    let left: Vec<_> = fs::read_dir(node.world().inside(STATE_DIR))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .filter(|n| n.to_string_lossy().ends_with("_eth0.json"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(
        node.place()
            .sh("ip -o link show master agentcni0")
            .unwrap()
            .stdout
            .is_empty()
    );
}

#[test]
fn containerd_is_up_and_cnitool_adds_checks_and_deletes() {
    if !can_run().unwrap() {
        return;
    }
    let node = Node::start("cnitool").unwrap();
    let containerd = Containerd::start(node.world()).unwrap();
    node.place()
        .run(&["ip", "netns", "add", "tool"])
        .unwrap()
        .success()
        .unwrap();
    let network = ["agent-network", "/run/netns/tool"];
    let added = containerd
        .cnitool(&[&["add"][..], &network].concat())
        .unwrap()
        .success()
        .unwrap();
    assert!(added.stdout.contains("/32"), "{added}");
    containerd
        .cnitool(&[&["check"][..], &network].concat())
        .unwrap()
        .success()
        .unwrap();
    for _ in 0..2 {
        containerd
            .cnitool(&[&["del"][..], &network].concat())
            .unwrap()
            .success()
            .unwrap();
    }
    let link = node
        .place()
        .sh("nsenter --net=/run/netns/tool ip link show eth0")
        .unwrap();
    assert!(!link.ok(), "{link}");
}
