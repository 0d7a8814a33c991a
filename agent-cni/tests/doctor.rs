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

/// The command that a remedy has in parentheses.
#[track_caller]
fn command_in(remedy: &str) -> &str {
    let command = remedy.split_once('(').unwrap_or_else(|| panic!("{remedy}"));
    command.1.split(')').next().unwrap()
}

/// Whether the kernel has the TCX hook; those before 6.6 have not.
fn has_tcx(node: &Node) -> bool {
    node.succeeds("[ $(printf '6.6\n%s\n' $(uname -r) | sort -V | head -1) = 6.6 ]")
}

#[test]
fn programs_of_others_are_taken_off_by_what_doctor_says() {
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
        for device in ["agentcni0", veth.trim()] {
            let tcx = format!("bpftool net attach tcx_ingress id {id} dev {device}");
            let theirs = patient
                .node
                .files()
                .join("bpf/theirs")
                .display()
                .to_string();
            let filter = format!(
                "bpftool prog pin id {id} {theirs}; tc qdisc add dev {device} clsact 2>/dev/null; \
                 tc filter add dev {device} ingress protocol all pref 7 bpf da pinned {theirs}; rm {theirs}",
            );
            for (attach, is_tcx) in [(&tcx, true), (&filter, false)] {
                if is_tcx && !has_tcx(&patient.node) {
                    continue;
                }
                patient.sh(attach);
                // TCX comes before filters; on a pod's link in ebpf mode ours is the first there
                let before = match (device, mode) {
                    ("agentcni0", _) => is_tcx,
                    (_, mode) => mode == MODES[1],
                };
                let place = if before { "before" } else { "behind" };
                // a filter has a name of its own for its program
                let says = format!(") is on {device} too, {place}");
                let remedy = patient.named("other-programs", &says);
                let level = &patient.complaints()["other-programs"]["level"];
                let is_lock = before && device == "agentcni0";
                assert_eq!(*level, if is_lock { "fail" } else { "warn" }, "{attach}");
                patient.sh(&format!("bpftool prog show id {id}"));
                patient.sh(command_in(&remedy));
                patient.well();
            }
        }
    }
}

#[test]
fn a_rule_of_others_before_ours_is_named_and_removed_by_what_doctor_says() {
    for mode in MODES {
        let patient = Patient::new(mode);
        patient.sh("ip link add theirs type veth peer name peer; ip link set theirs up; ip link set peer up; \
                    ip addr add 192.0.2.2/24 dev theirs; ip route add default via 192.0.2.1 dev theirs table 77");
        let pool = "169.254.9.0/24";
        for (rule, check, level, says) in [
            (
                format!("pref 90 to {pool} lookup 77"),
                "pool-route",
                "fail",
                "before ours (102) and takes what is for pods",
            ),
            (
                "pref 101 to 169.254.9.128/25 lookup 77".into(),
                "pool-route",
                "fail",
                "takes what is for pods",
            ),
            (
                format!("pref 90 to {pool} prohibit"),
                "pool-route",
                "fail",
                "takes what is for pods",
            ),
            (
                format!("pref 90 to {pool} iif theirs lookup 77"),
                "pool-route",
                "warn",
                "may take what is for pods",
            ),
            (
                "pref 90 to 203.0.113.0/24 iif agentcni0 lookup 77".into(),
                "policy-route",
                "fail",
                "comes before ours (10",
            ),
            (
                "pref 90 fwmark 0xa000000/0xf000000 lookup 77".into(),
                "policy-route",
                "fail",
                "comes before ours (10",
            ),
        ] {
            // one of somebody else's with the same preference, which has to stay
            patient.sh("ip rule add pref 90 to 198.51.100.0/24 iif lo lookup 78");
            patient.sh(&format!("ip rule add {rule}"));
            let complaints = patient.complaints();
            let named = others(&complaints);
            assert!(named.contains(&check), "{mode}: {rule}: {complaints:#?}");
            assert!(
                named
                    .iter()
                    .all(|one| ["pool-route", "policy-route"].contains(one)),
                "{mode}: {rule}: {complaints:#?}"
            );
            let finding = &complaints[check];
            assert_eq!(finding["level"], level, "{mode}: {rule}: {finding}");
            let found = finding["found"].as_str().unwrap();
            assert!(found.contains(says), "{mode}: {rule}: {found}");
            let remedy = finding["remedy"].as_str().unwrap();
            patient.sh(command_in(remedy));
            patient.well();
            patient.sh("ip rule del pref 90 to 198.51.100.0/24 iif lo lookup 78");
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
