//! `agent-cni doctor` on a node in mode iptables-compat, without a proxy: what that mode has instead of programs.
//! The rest is in e2e's test of the same name, on a node with everything.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on should say where"
)]

mod support;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use support::{Node, PLUGIN};

/// A node with one pod in a mode.
struct Patient {
    node: Node,
}

impl Patient {
    fn new(mode: &str) -> Self {
        let mut node = Node::new();
        node.conf["mode"] = json!(mode);
        for folder in ["net.d", "bin"] {
            std::fs::create_dir(node.files().join(folder)).unwrap();
        }
        std::fs::copy(PLUGIN, node.files().join("bin/agent-cni")).unwrap();
        let file = node.files().join("net.d/00-agent-cni.conf");
        std::fs::write(file, node.conf.to_string()).unwrap();
        node.added("c1");
        Self { node }
    }

    /// The checks that are not ok, and what they say.
    fn complaints(&self) -> BTreeMap<String, Value> {
        let files = self.node.files();
        let output = self
            .node
            .command(PLUGIN)
            .args(["doctor", "--output", "json", "--state-dir"])
            .arg(self.node.state())
            .arg("--host-cni-bin")
            .arg(files.join("bin"))
            .arg("--host-cni-conf")
            .arg(files.join("net.d"))
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["checks"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|one| one["level"] != "ok")
            .map(|one| (one["id"].as_str().unwrap().to_owned(), one.clone()))
            .collect()
    }

    fn sh(&self, line: &str) {
        let setup = format!(
            "{PLUGIN} setup --config {}",
            self.node.files().join("net.d/00-agent-cni.conf").display()
        );
        self.node.sh(&line.replace("SETUP", &setup));
    }
}

/// What such a node says anyway: nobody listens, nobody translates Services, and its clock may be nobody's.
const ANYWAY: [&str; 3] = ["zeroproxy", "kube-proxy", "clock"];

fn others(complaints: &BTreeMap<String, Value>) -> Vec<&str> {
    let ids = complaints.keys().map(String::as_str);
    // programs of other tests' nodes are seen here too
    ids.filter(|id| !ANYWAY.contains(id) && *id != "socket-lb")
        .collect()
}

#[test]
fn both_modes_are_right_as_they_are_set_up() {
    for mode in ["ebpf", "iptables-compat"] {
        let patient = Patient::new(mode);
        let complaints = patient.complaints();
        assert!(others(&complaints).is_empty(), "{mode}: {complaints:#?}");
        assert_eq!(complaints["zeroproxy"]["level"], "fail");
    }
}

#[test]
fn what_the_compat_mode_has_instead_of_programs_is_looked_at() {
    let patient = Patient::new("iptables-compat");
    for (spoil, named, mend) in [
        (
            "iptables -t nat -F AGENT-CNI-PREROUTING",
            &["iptables-rules"][..],
            "SETUP",
        ),
        (
            "iptables -t nat -D PREROUTING -i agentcni0 -j AGENT-CNI-PREROUTING",
            &["iptables-rules"],
            "SETUP",
        ),
        ("nft delete table ip agent_network", &["nftables"], "SETUP"),
        (
            "ip rule add pref 100 iif agentcni0 fwmark 0xa000000/0xf000000 lookup 18080",
            &["leftovers"],
            "ip rule del pref 100",
        ),
    ] {
        patient.sh(spoil);
        let complaints = patient.complaints();
        assert_eq!(others(&complaints), named, "{spoil}: {complaints:#?}");
        patient.sh(mend);
        let complaints = patient.complaints();
        assert!(
            others(&complaints).is_empty(),
            "after {mend}: {complaints:#?}"
        );
    }
    patient.sh("nft delete table bridge agent_network");
    let complaints = patient.complaints();
    assert!(others(&complaints).contains(&"programs"), "{complaints:#?}");
    patient.sh("SETUP");
    // setup makes the table, and the pod's next ADD its chain
    patient.node.add("c1").ok();
    let complaints = patient.complaints();
    assert!(others(&complaints).is_empty(), "{complaints:#?}");
}
