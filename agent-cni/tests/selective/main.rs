//! Pods that are not ours get the primary network, by libcni's `cnitool`, with the reference plugins behind us.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on should say where"
)]

#[path = "../support/mod.rs"]
mod support;

mod multus;
mod shared;

use std::{
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use serde_json::{Value, json};
use shared::Shared;
use support::{PLUGIN, address};

#[test]
fn labels_decide_whose_network_a_pod_gets_and_every_verb_follows() {
    for (ours, primary) in [
        ("0.4.0", "1.0.0"),
        ("1.0.0", "0.3.1"),
        ("1.1.0", "1.0.0"),
        ("1.1.0", "1.1.0"),
    ] {
        let shared = Shared::new(ours, primary);
        let agent = shared.added("agent");
        assert_eq!(address(&agent), "169.254.9.2");
        assert!(
            shared.primary_traces().is_empty(),
            "{}",
            shared.primary_traces()
        );
        let plain = shared.added("plain");
        assert_eq!(plain["cniVersion"], ours, "{plain}");
        assert!(address(&plain).starts_with("10.77.0."), "{plain}");
        let family = plain["ips"][0].get("version").cloned();
        assert_eq!(family, (ours == "0.4.0").then(|| json!("4")), "{plain}");
        let traces = shared.primary_traces();
        assert!(traces.contains("8088"), "the port is not mapped: {traces}");
        assert!(traces.contains("_eth0.json"), "{traces}");
        shared.ok("check", "agent");
        shared.ok("check", "plain");
        if ours == "1.1.0" {
            shared.ok("status", "plain");
        }
        // the same again is the same
        let again: Value = serde_json::from_str(&shared.ok("add", "plain")).unwrap();
        assert_eq!(again["ips"], plain["ips"]);
        // CHECK goes to the primary's plugins: one of them misses its address
        if primary != "0.3.1" {
            shared.node.in_pod("plain", "ip addr flush dev eth0");
            shared.refused("check", "plain");
        }
        shared.ok("del", "plain");
        shared.ok("del", "plain");
        assert_eq!(shared.primary_traces(), "");
        shared.ok("del", "agent");
        assert_eq!(shared.node.traces(), "");
    }
}

#[test]
fn what_a_pod_was_at_add_it_stays() {
    let shared = Shared::new("1.1.0", "1.0.0");
    shared.added("plain");
    shared.added("agent");
    // labels turn round, and the primary's file goes
    shared.workloads(&json!({
        "agents/agent": {"labels": {"app": "web"}},
        "agents/plain": {"labels": {"agent": "yes"}},
    }));
    let file = shared.net_d("10-primary.conflist");
    std::fs::rename(&file, shared.node.files().join("away")).unwrap();
    shared.ok("check", "plain");
    shared.ok("check", "agent");
    let again: Value = serde_json::from_str(&shared.ok("add", "agent")).unwrap();
    assert_eq!(address(&again), "169.254.9.2");
    shared.ok("del", "plain");
    shared.ok("del", "agent");
    assert_eq!(shared.primary_traces(), "");
    assert_eq!(shared.node.traces(), "");
}

#[test]
fn a_selector_that_is_taken_away_leaves_delegated_pods_their_del() {
    let mut shared = Shared::new("1.1.0", "1.0.0");
    shared.added("plain");
    for key in ["workloadSelector", "workloadsFile", "primary"] {
        shared.conf.as_object_mut().unwrap().remove(key);
    }
    shared.install();
    shared.ok("check", "plain");
    shared.ok("del", "plain");
    assert_eq!(shared.primary_traces(), "");
    // without a selector, every pod is ours
    assert_eq!(address(&shared.added("other")), "169.254.9.2");
}

#[test]
fn a_pod_whose_labels_are_not_known_is_controlled() {
    let shared = Shared::new("1.1.0", "1.0.0");
    let begun = Instant::now();
    assert_eq!(address(&shared.added("stranger")), "169.254.9.2");
    assert!(
        begun.elapsed() > Duration::from_millis(900),
        "its entry was not waited for"
    );
    for (round, text) in ["", "{", "[]", r#"{"agents": {}}"#].into_iter().enumerate() {
        std::fs::write(shared.node.files().join("workloads.json"), text).unwrap();
        let result = shared.added(&format!("unknown{round}"));
        assert!(
            address(&result).starts_with("169.254.9."),
            "{text}: {result}"
        );
    }
    std::fs::remove_file(shared.node.files().join("workloads.json")).unwrap();
    assert!(address(&shared.added("plain")).starts_with("169.254.9."));
    assert_eq!(shared.primary_traces(), "");
    // one that comes while it is waited for counts
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(300));
            shared.workloads(&json!({"agents/late": {}}));
        });
        assert!(address(&shared.added("late")).starts_with("10.77.0."));
    });
}

#[test]
fn without_a_primary_network_only_our_pods_start_until_it_appears() {
    let shared = Shared::new("1.1.0", "1.0.0");
    let file = shared.net_d("10-primary.conflist");
    let away = shared.node.files().join("away");
    std::fs::rename(&file, &away).unwrap();
    assert_eq!(address(&shared.added("agent")), "169.254.9.2");
    shared.node.pod("plain");
    let said = shared.refused("add", "plain");
    assert!(said.contains("there is no primary network"), "{said}");
    let said = shared.refused("status", "plain");
    assert!(said.contains("there is no primary network"), "{said}");
    // a broken one is not passed over for a later one
    std::fs::write(&file, "{").unwrap();
    std::fs::copy(&away, shared.net_d("20-later.conflist")).unwrap();
    let (code, said) = shared.direct("ADD", "plain").error();
    assert_eq!(code, 106, "{said}");
    assert!(
        said.contains("10-primary.conflist cannot be used"),
        "{said}"
    );
    std::fs::rename(&away, &file).unwrap();
    shared.ok("status", "plain");
    let result: Value = serde_json::from_str(&shared.ok("add", "plain")).unwrap();
    assert!(address(&result).starts_with("10.77.0."));
}

#[test]
fn a_plugin_that_fails_is_undone_with_those_before_it_and_its_error_is_told() {
    let shared = Shared::new("1.1.0", "1.0.0");
    shared.plugin(
        "refuses",
        r#"cat > /dev/null; [ "$CNI_COMMAND" = ADD ] || exit 0; echo '{"cniVersion": "1.0.0", "code": 4711, "msg": "not today", "details": "because"}'; exit 1"#,
    );
    shared.primary("1.0.0", &[json!({"type": "refuses"})]);
    shared.node.pod("plain");
    let answer = shared.direct("ADD", "plain");
    let (code, message) = answer.error();
    assert_eq!((code, message.as_str()), (4711, "not today: because"));
    assert_eq!(shared.primary_traces(), "");
    assert_eq!(
        shared.node.in_pod("plain", "ip -br link").lines().count(),
        1
    );
    // and a plugin that is not there
    shared.primary("1.0.0", &[json!({"type": "nowhere"})]);
    let said = shared.refused("add", "plain");
    assert!(said.contains("needs the plugin nowhere"), "{said}");
    shared.primary("1.0.0", &[]);
    shared.ok("add", "plain");
}

#[test]
fn an_add_that_dies_halfway_is_taken_back_by_the_next_one_or_by_del() {
    let shared = Shared::new("1.1.0", "1.0.0");
    // the fourth plugin never answers an ADD
    shared.plugin(
        "hangs",
        r#"stdin=$(cat); [ "$CNI_COMMAND" = ADD ] || exit 0; [ -e "${0%/*}/hang" ] && sleep 30; echo "$stdin" | sed 's/.*"prevResult"://; s/,"type":"hangs"}$//'"#,
    );
    shared.primary("1.0.0", &[json!({"type": "hangs"})]);
    let hang = shared.node.files().join("bin/hang");
    for next in ["add", "del"] {
        std::fs::write(&hang, "").unwrap();
        shared.node.pod(&format!("p{next}"));
        shared.workloads(&json!({format!("agents/p{next}"): {}}));
        let mut child = shared
            .command("add", &format!("p{next}"))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while !shared.primary_traces().contains("8088") && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        // the whole family of this call, as a power cut would
        let family = Pid::from_raw(i32::try_from(child.id()).unwrap());
        killpg(family, Signal::SIGKILL).unwrap();
        child.wait().unwrap();
        std::fs::remove_file(&hang).unwrap();
        assert!(shared.primary_traces().contains("8088"));
        if next == "add" {
            let result: Value = serde_json::from_str(&shared.ok("add", "padd")).unwrap();
            assert!(address(&result).starts_with("10.77.0."), "{result}");
            assert_eq!(shared.primary_traces().matches("_eth0.json").count(), 1);
        }
        shared.ok("del", &format!("p{next}"));
        assert_eq!(shared.primary_traces(), "", "{next}");
    }
}

#[test]
fn gc_goes_to_both_and_status_to_the_primary() {
    let shared = Shared::new("1.1.0", "1.1.0");
    let log = shared.node.files().join("log");
    shared.plugin(
        "witness",
        &format!(
            r#"stdin=$(cat); echo "$CNI_COMMAND $stdin" >> {}; [ "$CNI_COMMAND" = STATUS ] && [ -e "${{0%/*}}/sick" ] && {{ echo '{{"code": 50, "msg": "sick"}}'; exit 1; }};
               [ "$CNI_COMMAND" = ADD ] || exit 0; echo "$stdin" | sed 's/.*"prevResult"://; s/,"type":"witness"}}$//'"#,
            log.display()
        ),
    );
    shared.primary("1.1.0", &[json!({"type": "witness"})]);
    shared.added("agent");
    shared.added("plain");
    let other = shared.added("other");
    let files = shared.node.files().join("state/delegated");
    let id = |pod: &str| {
        let names = std::fs::read_dir(&files).unwrap();
        let found = names.map(|one| one.unwrap().path()).find(|path| {
            std::fs::read_to_string(path)
                .is_ok_and(|text| text.contains(&format!("\"name\": \"{pod}\"")))
        });
        let value: Value = serde_json::from_slice(&std::fs::read(found.unwrap()).unwrap()).unwrap();
        value["containerId"].as_str().unwrap().to_owned()
    };
    let mut conf = shared.conf.clone();
    conf["cni.dev/valid-attachments"] = json!([{"containerID": id("other"), "ifname": "eth0"}]);
    let path = shared.node.files().join("bin");
    let variables = [("CNI_COMMAND", "GC"), ("CNI_PATH", path.to_str().unwrap())];
    shared
        .node
        .raw(&variables, conf.to_string().as_bytes())
        .ok();
    assert_eq!(shared.node.traces(), "", "our pod is not valid any more");
    let traces = shared.primary_traces();
    assert_eq!(traces.matches("_eth0.json").count(), 1, "{traces}");
    assert!(traces.contains(&address(&other)), "{traces}");
    let said = std::fs::read_to_string(&log).unwrap();
    let gc = said.lines().find(|line| line.starts_with("GC ")).unwrap();
    assert!(
        gc.contains(&id("other")) && gc.contains("cni.dev/valid-attachments"),
        "{gc}"
    );
    assert!(gc.contains("\"name\":\"primary\""), "{gc}");
    shared.ok("status", "plain");
    std::fs::write(path.join("sick"), "").unwrap();
    let said = shared.refused("status", "plain");
    assert!(said.contains("sick"), "{said}");
}

#[test]
fn a_pod_from_before_us_is_released_by_the_primary_network() {
    let mut shared = Shared::new("1.1.0", "1.0.0");
    let ours = shared.net_d("00-agent-cni.conf");
    std::fs::remove_file(&ours).unwrap();
    // the runtime's network is still the primary
    let direct = |verb: &str| {
        let mut command = shared.command(verb, "old");
        let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let mut again = Command::new(command.get_program());
        for arg in args {
            again.arg(if arg == "agents" {
                "primary".into()
            } else {
                arg
            });
        }
        for (key, value) in command.get_envs() {
            if let Some(value) = value {
                again.env(key, value);
            }
        }
        command = again;
        command.output().unwrap()
    };
    shared.node.pod("old");
    assert!(direct("add").status.success());
    assert!(shared.primary_traces().contains("10.77.0.2"));
    shared.install();
    // without a selector too; cnitool names the container by the namespace's path, so it is the same one for both networks
    for key in ["workloadSelector", "workloadsFile"] {
        shared.conf.as_object_mut().unwrap().remove(key);
    }
    shared.install();
    shared.ok("del", "old");
    let traces = shared.primary_traces();
    assert!(!traces.contains("10.77.0.2"), "{traces}");
}

#[test]
fn plugins_chained_behind_us_get_our_result_or_the_primarys() {
    let shared = Shared::new("1.0.0", "1.0.0");
    std::fs::remove_file(shared.net_d("00-agent-cni.conf")).unwrap();
    let mut ours = shared.conf.clone();
    for key in ["cniVersion", "name"] {
        ours.as_object_mut().unwrap().remove(key);
    }
    let log = shared.node.files().join("log");
    shared.plugin(
        "witness",
        &format!(
            r#"stdin=$(cat); [ "$CNI_COMMAND" = ADD ] || exit 0; echo "$stdin" >> {}; echo "$stdin" | sed 's/.*"prevResult"://; s/,"type":"witness"}}$//'"#,
            log.display()
        ),
    );
    let list = json!({
        "cniVersion": "1.0.0", "name": "agents",
        "plugins": [ours, {"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "witness"}],
    });
    std::fs::write(shared.net_d("00-agent-cni.conflist"), list.to_string()).unwrap();
    let primary = json!({
        "cniVersion": "1.0.0", "name": "primary", "type": "bridge", "bridge": "cni0", "isGateway": true,
        "ipam": {"type": "host-local", "dataDir": shared.node.files().join("ipam"), "subnet": "10.77.0.0/24"},
    });
    std::fs::remove_file(shared.net_d("10-primary.conflist")).unwrap();
    std::fs::write(shared.net_d("10-primary.conf"), primary.to_string()).unwrap();
    let agent = shared.added("agent");
    assert_eq!(address(&agent), "169.254.9.2");
    shared.ok("del", "agent");
    let plain = shared.added("plain");
    assert!(address(&plain).starts_with("10.77.0."), "{plain}");
    assert!(shared.primary_traces().contains("8088"));
    shared.ok("del", "plain");
    let told: Vec<Value> = std::fs::read_to_string(&log)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(told[0]["prevResult"]["ips"], agent["ips"]);
    assert_eq!(told[1]["prevResult"]["ips"], plain["ips"]);
    assert_eq!(shared.primary_traces(), "");
    assert_eq!(shared.node.traces(), "");
}

#[test]
fn a_primary_that_leads_back_to_us_ends_at_once() {
    let shared = Shared::new("1.1.0", "1.0.0");
    // a plugin that calls us again with our own configuration, as Multus does when its master is our file; without the
    // environment that we gave it, as its daemon has none of it
    shared.plugin(
        "loops",
        &format!(
            "cat > /dev/null; exec env -u AGENT_CNI_DELEGATING {} < {}",
            PLUGIN,
            shared.net_d("00-agent-cni.conf").display()
        ),
    );
    shared.primary("1.0.0", &[json!({"type": "loops"})]);
    shared.node.pod("plain");
    let begun = Instant::now();
    let said = shared.refused("add", "plain");
    assert!(said.contains("leads back to agent-cni"), "{said}");
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(shared.primary_traces(), "");
}
