//! `agent-cni doctor` on nodes without a proxy: what mode iptables-compat has instead of programs, and what both modes have
//! whose remedy has to be exact. The rest is in e2e's test of the same name, on a node with everything.

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

const MODES: [&str; 2] = ["ebpf", "iptables-compat"];

impl Patient {
    fn conf(&self) -> String {
        let file = self.node.files().join("net.d/00-agent-cni.conf");
        file.display().to_string()
    }

    /// That doctor names exactly this, in these words; answers its remedy.
    #[track_caller]
    fn named(&self, check: &str, says: &str) -> String {
        let complaints = self.complaints();
        assert_eq!(others(&complaints), [check], "{says}: {complaints:#?}");
        let found = complaints[check]["found"].as_str().unwrap();
        assert!(found.contains(says), "{says}: {found}");
        complaints[check]["remedy"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    fn well(&self) {
        let complaints = self.complaints();
        assert!(others(&complaints).is_empty(), "{complaints:#?}");
    }
}

#[test]
fn a_configuration_of_another_mode_is_named_and_auto_is_none() {
    for (mode, other) in [MODES, [MODES[1], MODES[0]]].map(|pair| (pair[0], pair[1])) {
        let patient = Patient::new(mode);
        let rewrite = |from: &str, to: &str| {
            let conf = patient.conf();
            patient.sh(&format!(
                "sed -i 's/\"mode\":\"{from}\"/\"mode\":\"{to}\"/' {conf}"
            ));
        };
        rewrite(mode, other);
        let says = format!("says mode {other}, the node runs with {mode}");
        let remedy = patient.named("cni-conf", &says);
        assert!(remedy.contains("`agent-cni setup` does it now"), "{remedy}");
        patient.sh("SETUP");
        patient.well();
        rewrite(other, "auto");
        patient.well();
    }
}

#[test]
fn what_overlaps_is_taken_away_by_what_doctor_says_and_the_bridge_keeps_its_route() {
    let patient = Patient::new("ebpf");
    patient.sh(
        "ip link add theirs type veth peer name peer; ip link set theirs up; ip link set peer up",
    );
    for (spoil, says) in [
        (
            "ip addr add 169.254.9.250/24 dev theirs",
            "overlaps 169.254.9.250/24, which theirs has",
        ),
        (
            "ip route add 169.254.9.0/24 dev theirs metric 7",
            "169.254.9.0/24, which is routed",
        ),
        (
            "ip route add 169.254.9.128/25 dev theirs table 77",
            "169.254.9.128/25, which is routed",
        ),
        ("ip route add blackhole 169.254.9.64/26", "which is routed"),
        (
            "ip addr add 10.96.3.1/24 dev theirs",
            "10.96.3.1/24, which theirs has, lies in the Service CIDR",
        ),
    ] {
        patient.sh(spoil);
        let remedy = patient.named("cidrs", says);
        let command = remedy.split('(').nth(1).unwrap();
        let command = command.split(')').next().unwrap();
        assert!(!command.contains("agentcni0"), "{command}");
        patient.sh(command);
        patient.well();
        patient.sh("ip route show 169.254.9.0/24 dev agentcni0 | grep -q 'scope link'");
    }
}

#[test]
fn programs_of_others_before_ours_are_named_with_where_to_look() {
    // a program that is somebody else's on every other node
    let owner = Patient::new("ebpf");
    let shown = owner.node.sh(&format!(
        "bpftool prog show pinned {}/agent-network/v1/programs/pod_ingress",
        owner.node.files().join("bpf").display()
    ));
    let id = shown.split(':').next().unwrap();
    for mode in MODES {
        let patient = Patient::new(mode);
        let veth = patient
            .node
            .sh("ip -o link | grep -o 'agt[0-9a-f]*' | head -1");
        let devices: &[&str] = match mode {
            "ebpf" => &["agentcni0"],
            _ => &["agentcni0", veth.trim()],
        };
        for device in devices {
            let attach = format!("bpftool net attach tcx_ingress id {id} dev {device}");
            if !patient.node.succeeds(&attach) {
                // kernels before 6.6 have no such hook
                let old = "[ $(printf '6.6\n%s\n' $(uname -r) | sort -V | head -1) != 6.6 ]";
                assert!(patient.node.succeeds(old), "{attach}");
                continue;
            }
            let says = format!("program {id} (pod_ingress) is on {device} too, before");
            let remedy = patient.named("other-programs", &says);
            for how in [
                format!("bpftool prog show id {id}"),
                format!("bpftool net show dev {device}"),
            ] {
                assert!(remedy.contains(&how), "{remedy}");
                patient.sh(&how);
            }
            patient.sh(&format!("bpftool net detach tcx_ingress dev {device}"));
            patient.well();
        }
    }
}

#[test]
fn capabilities_that_the_primary_network_wants_and_ours_does_not_declare_are_named() {
    let patient = Patient::new("ebpf");
    let files = patient.node.files();
    let list = json!({"cniVersion": "1.0.0", "name": "primary", "plugins": [
        {"type": "bridge"},
        {"type": "portmap", "capabilities": {"portMappings": true, "dns": false}},
    ]});
    std::fs::write(files.join("net.d/10-primary.conflist"), list.to_string()).unwrap();
    for plugin in ["bridge", "portmap"] {
        std::fs::write(files.join("bin").join(plugin), "").unwrap();
    }
    std::fs::write(files.join("workloads.json"), "{}").unwrap();
    let mut conf = patient.node.conf.clone();
    conf["workloadSelector"] = json!({"matchLabels": {"agent": "yes"}});
    conf["workloadsFile"] = json!(files.join("workloads.json"));
    std::fs::write(patient.conf(), conf.to_string()).unwrap();
    let remedy = patient.named("selective", "want portMappings");
    let said = remedy.split("\"capabilities\": ").nth(1).unwrap();
    conf["capabilities"] = serde_json::from_str(said).unwrap();
    std::fs::write(patient.conf(), conf.to_string()).unwrap();
    patient.well();
}

#[test]
fn a_directory_of_the_configurations_name_is_named() {
    let patient = Patient::new("ebpf");
    let conf = patient.conf();
    patient.sh(&format!("mv {conf} {conf}.kept; mkdir -p {conf}/theirs"));
    let complaints = patient.complaints();
    let named = &complaints["cni-conf"];
    assert!(
        named["found"].as_str().unwrap().contains("is a directory"),
        "{named}"
    );
    let remedy = named["remedy"].as_str().unwrap();
    assert!(remedy.contains(&format!("rm -r {conf}")), "{remedy}");
    patient.sh(&format!("rm -r {conf}; mv {conf}.kept {conf}"));
    patient.well();
}
