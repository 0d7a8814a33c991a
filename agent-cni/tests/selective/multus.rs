//! The real Multus beside us (its thin plugin, without an API server: pods have the networks of its configuration alone).
//!
//! Its file is called `00-multus.conf`, which comes after `00-agent-cni.conf`: the runtime calls us, and Multus is what was
//! there before.

use serde_json::{Value, json};

use crate::{shared::Shared, support::address};

/// A node where Multus, in front of the bridge plugin, is the primary network.
fn beside_multus(ours: &str) -> Shared {
    let shared = Shared::new(ours, "1.1.0");
    let multus = shared.node.files().join("bin/multus");
    std::os::unix::fs::symlink(shared.programs.join("multus"), multus).unwrap();
    write_multus(&shared, &json!({"delegates": [primary(&shared)]}));
    shared
}

fn write_multus(shared: &Shared, networks: &Value) {
    let mut conf = json!({
        "cniVersion": "1.1.0", "name": "multus-cni-network", "type": "multus", "logLevel": "error",
        "capabilities": {"portMappings": true}, "binDir": shared.node.files().join("bin"),
    });
    let all = conf.as_object_mut().unwrap();
    all.extend(networks.as_object().unwrap().clone());
    std::fs::write(shared.net_d("00-multus.conf"), conf.to_string()).unwrap();
}

/// The configuration that Multus has in its own, as its entrypoint copies it.
fn primary(shared: &Shared) -> Value {
    let text = std::fs::read(shared.net_d("10-primary.conflist")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Networks that Multus remembers of pods.
fn known_to_multus(shared: &Shared) -> usize {
    let count = shared
        .node
        .sh("ls /var/lib/cni/multus 2>/dev/null | grep -v results | wc -l");
    count.trim().parse().unwrap()
}

#[test]
fn pods_that_are_not_ours_go_to_multus_which_gives_them_its_own_network() {
    for ours in ["1.0.0", "1.1.0"] {
        let shared = beside_multus(ours);
        let agent = shared.added("agent");
        assert_eq!(address(&agent), "169.254.9.2");
        assert_eq!(known_to_multus(&shared), 0);
        let plain = shared.added("plain");
        assert!(address(&plain).starts_with("10.77.0."), "{plain}");
        assert_eq!(plain["cniVersion"], ours, "{plain}");
        assert_eq!(known_to_multus(&shared), 1);
        let traces = shared.primary_traces();
        assert!(
            traces.contains("8088"),
            "Multus passes the port mapping on: {traces}"
        );
        shared.ok("check", "agent");
        shared.ok("check", "plain");
        if ours == "1.1.0" {
            shared.ok("status", "plain");
        }
        shared.node.in_pod("plain", "ip addr flush dev eth0");
        shared.refused("check", "plain");
        shared.ok("del", "plain");
        shared.ok("del", "plain");
        shared.ok("del", "agent");
        assert_eq!(known_to_multus(&shared), 0);
        assert_eq!(shared.primary_traces(), "");
        assert_eq!(shared.node.traces(), "");
    }
}

#[test]
fn del_goes_the_way_of_add_when_multus_and_its_configuration_were_changed_or_removed() {
    let shared = beside_multus("1.1.0");
    for pod in ["plain", "other"] {
        assert!(address(&shared.added(pod)).starts_with("10.77.0."));
    }
    write_multus(
        &shared,
        &json!({"delegates": [{"cniVersion": "1.0.0", "name": "y", "type": "none"}]}),
    );
    shared.ok("del", "plain");
    for file in ["00-multus.conf", "10-primary.conflist"] {
        std::fs::remove_file(shared.net_d(file)).unwrap();
    }
    shared.ok("del", "other");
    assert_eq!(known_to_multus(&shared), 0);
    assert_eq!(shared.primary_traces(), "");
}

#[test]
fn garbage_of_pods_that_multus_had_is_collected() {
    let shared = beside_multus("1.1.0");
    shared.added("agent");
    shared.added("plain");
    let mut conf = shared.conf.clone();
    conf["cni.dev/valid-attachments"] = json!([]);
    let path = shared.node.files().join("bin");
    let variables = [("CNI_COMMAND", "GC"), ("CNI_PATH", path.to_str().unwrap())];
    shared
        .node
        .raw(&variables, conf.to_string().as_bytes())
        .ok();
    assert_eq!(known_to_multus(&shared), 0);
    assert_eq!(shared.primary_traces(), "");
    assert_eq!(shared.node.traces(), "");
}

#[test]
fn status_is_multus_answer_about_its_own_network() {
    let shared = beside_multus("1.1.0");
    shared.plugin(
        "sick",
        r#"cat > /dev/null; [ "$CNI_COMMAND" = STATUS ] || exit 0; echo '{"cniVersion": "1.1.0", "code": 50, "msg": "sick today"}'; exit 1"#,
    );
    let sick = json!({"cniVersion": "1.1.0", "name": "sick", "plugins": [{"type": "sick"}]});
    write_multus(&shared, &json!({"delegates": [sick]}));
    let said = shared.refused("status", "plain");
    assert!(said.contains("sick today"), "{said}");
}

/// What Multus' entrypoint makes when it starts after us: it takes the first file of the directory for its master.
#[test]
fn a_multus_that_took_us_for_its_own_network_is_refused_and_passed_by_when_the_primary_is_named() {
    let mut shared = beside_multus("1.1.0");
    shared.node.pod("plain");
    let ours = shared.conf.clone();
    for networks in [
        json!({"delegates": [ours]}),
        json!({"clusterNetwork": shared.net_d("00-agent-cni.conf")}),
        json!({"clusterNetwork": "agents"}),
    ] {
        write_multus(&shared, &networks);
        let (code, said) = shared.direct("ADD", "plain").error();
        assert_eq!(code, 106, "{said}");
        assert!(
            said.contains("00-multus.conf") && said.contains("leads back to agent-cni"),
            "{said}"
        );
    }
    shared.conf["primary"]["file"] = json!("10-primary.conflist");
    shared.install();
    let plain: Value = serde_json::from_str(&shared.ok("add", "plain")).unwrap();
    assert!(address(&plain).starts_with("10.77.0."), "{plain}");
    assert_eq!(known_to_multus(&shared), 0);
}
