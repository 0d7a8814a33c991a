//! The plugin under a real containerd (crictl), and under cnitool.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::time::Duration;

use anyhow::ensure;
use e2e::cluster::eventually;
use e2e::cni::{CONF, STATE_DIR};
use e2e::containerd::Containerd;
use e2e::machine::{can_run, program};
use e2e::world::World;
use e2e::{Node, PodSpec};
use serde_json::{Value, json};

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
    let (ready, why) = containerd.network_ready().unwrap();
    assert!(ready, "{why}");

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

/// Some pods only: the others' network comes later than ours, as on a node that is new.
#[test]
fn containerd_has_a_network_once_the_primary_network_is_there_and_its_port_mappings_are_passed_on()
{
    if !can_run().unwrap() {
        return;
    }
    for version in ["1.0.0", "1.1.0"] {
        let world = World::create("late").unwrap();
        let containerd = Containerd::start(&world).unwrap();
        let place = world.node();
        for plugin in ["bridge", "host-local", "portmap"] {
            let to = world.inside(&format!("/opt/cni/bin/{plugin}"));
            fs::copy(containerd.bins().join(plugin), to).unwrap();
        }
        let workloads = json!({"agents/one": {"labels": {"agent": "yes"}}, "apps/plain": {}});
        fs::write(world.inside("/etc/workloads.json"), workloads.to_string()).unwrap();
        let program = program("agent-cni").unwrap().to_string_lossy().into_owned();
        let install = [
            &program,
            "install",
            "--service-cidrs=10.96.0.0/16",
            "--workloads-file=/etc/workloads.json",
            r#"--workload-selector={"matchLabels": {"agent": "yes"}}"#,
            &format!("--cni-version={version}"),
        ];
        let mut installer = place.spawn("installer", &install, &[]).unwrap();
        installer
            .wait_for_output("there is no primary network", Duration::from_secs(20))
            .unwrap();
        // longer than it takes containerd to read a configuration that is there
        std::thread::sleep(Duration::from_secs(2));
        let (ready, why) = containerd.network_ready().unwrap();
        assert!(!ready, "{version}");
        let conf = world.inside(CONF);
        assert_eq!(conf.exists(), version == "1.1.0");
        if version == "1.1.0" {
            assert!(why.contains("there is no primary network"), "{why}");
        }

        let list = include_str!("../cluster/primary.conflist").replace("@PODS@", "10.244.9.0/24");
        fs::write(world.inside("/etc/cni/net.d/10-primary.conflist"), list).unwrap();
        eventually("the node is ready", Duration::from_secs(20), || {
            place.run(&[&program, "install", "--ready"])?.success()?;
            let (ready, why) = containerd.network_ready()?;
            ensure!(ready && conf.exists(), "{why}");
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{version}: {error:#}\n{}", installer.log_text()));
        // containerd's first file by name is ours from now on
        eventually("containerd has read ours", Duration::from_secs(20), || {
            let info = containerd.crictl(&["info"])?.success()?;
            ensure!(info.stdout.contains("agent-network"), "{info}");
            Ok(())
        })
        .unwrap();
        let one = containerd.run_pod("agents", "one").unwrap();
        let plain = containerd
            .run_pod_with_port("apps", "plain", Some(18088))
            .unwrap();
        let ip = |id: &str| {
            let shown = containerd.crictl(&["inspectp", id]).unwrap();
            let shown: Value = serde_json::from_str(&shown.success().unwrap().stdout).unwrap();
            shown["status"]["network"]["ip"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        assert!(ip(&one.id).starts_with("169.254."));
        assert!(ip(&plain.id).starts_with("10.244.9."));
        let mapped = || place.sh("iptables-save -t nat | grep 18088").unwrap();
        assert!(mapped().ok(), "containerd passed no port mapping on");
        for pod in [&one, &plain] {
            let removed = containerd.crictl(&["rmp", "-f", &pod.id]).unwrap();
            removed.success().unwrap();
        }
        assert!(!mapped().ok(), "{}", mapped());
    }
}
