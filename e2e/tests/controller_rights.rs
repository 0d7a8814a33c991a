//! The controller with exactly the rights of `chart/files/controller-rbac.yaml`: nothing that it does is forbidden, and
//! nothing that is allowed is never done. The API server's audit log is the witness.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(
    clippy::needless_pass_by_value,
    reason = "json! in a call reads better without an ampersand"
)]

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::cluster::control::simulated::{Manner, Simulated};
use e2e::cluster::control::{Controller, Projection, SYSTEM, announce, prepare, service_account};
use e2e::cluster::{ApiServer, eventually, rights};
use e2e::machine::can_run;
use e2e::steps::Steps;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const RULES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../chart/files/controller-rbac.yaml"
);
const USER: &str = "system:serviceaccount:tke-agent-network-real:agent-network-controller";
const LIMIT: Duration = Duration::from_secs(40);

#[test]
fn controller_has_the_rights_that_it_uses_and_no_others() {
    if !can_run().unwrap() {
        return;
    }
    let mut steps = Steps::new();
    let server = ApiServer::start().unwrap();
    prepare(&server).unwrap();
    server
        .kubectl()
        .run(&["apply", "-f", RULES])
        .unwrap()
        .success()
        .unwrap();
    let projection = Projection::start(&server).unwrap();
    let _simulated = Simulated::start(&server, &projection, &[(1, Manner::Prompt)]).unwrap();
    announce(&server, 1..=1).unwrap();
    let flags = ["--service-cidrs", "10.96.0.0/12"];
    let account = service_account(&server, "agent-network-controller").unwrap();
    let mut controller = Controller::start(&server, &account, 18080, &flags).unwrap();
    controller.wait_until_ready().unwrap();
    steps.step("it does all that it can do", || everything(&server));
    steps.step(
        "another namespace's policies are followed once they are bound",
        || {
            ensure!(controller.stop(Signal::SIGTERM)? == 0);
            another_namespace(&server)
        },
    );
    steps.step("nothing was forbidden, and every right was used", || {
        rights::assert_used(&server, RULES, USER)
    });
    steps.finish().unwrap();
}

fn policy(namespace: &str, name: &str, hosts: usize, long: &str) -> Value {
    let rules: Vec<Value> = (0..hosts)
        .map(|n| json!({"name": format!("r{n}"), "host": format!("h{n}.example.com"), "paths": [format!("/{long}")]}))
        .collect();
    json!({
        "apiVersion": "agent.tke.cloud.tencent.com/v1alpha1", "kind": "AgentNetworkPolicy",
        "metadata": {"name": name, "namespace": namespace}, "spec": {"egress": {"allow": rules}},
    })
}

fn class(pool: &str) -> Value {
    json!({
        "apiVersion": "agent.tke.cloud.tencent.com/v1alpha1", "kind": "AgentNetworkClass",
        "metadata": {"name": "default"}, "spec": {"fakeIPCIDR": pool, "proxy": {"failMode": "Open"}},
    })
}

fn phase(server: &ApiServer, namespace: &str, name: &str, phase: &str) -> Result<()> {
    let object = format!("anp/{name}");
    let condition = format!("jsonpath={{.status.phase}}={phase}");
    server.kubectl().wait(namespace, &condition, &[&object])
}

fn everything(server: &ApiServer) -> Result<()> {
    let kubectl = server.kubectl();
    // an Event once, and again, which counts the first one up
    for _ in 0..2 {
        kubectl.apply(&policy(SYSTEM, "one", 1, "a").to_string())?;
        phase(server, SYSTEM, "one", "Active")?;
        let bad = json!({"egress": {"credential": [{
            "name": "r", "host": "a.example.com", "header": "Authorization",
            "valueFrom": {"name": "not-mounted", "key": "K"},
        }]}});
        let mut invalid = policy(SYSTEM, "one", 1, "a");
        invalid["spec"] = bad;
        kubectl.apply(&invalid.to_string())?;
        phase(server, SYSTEM, "one", "Invalid")?;
    }
    // a document in parts, and one that isn't again
    let long = "x".repeat(500);
    let many: Vec<Value> = (0..9)
        .map(|n| policy(SYSTEM, &format!("p{n}"), 250, &long))
        .collect();
    kubectl.apply(&json!({"apiVersion": "v1", "kind": "List", "items": many}).to_string())?;
    phase(server, SYSTEM, "p8", "Active")?;
    let parts = || {
        kubectl.json(&[
            "-n",
            SYSTEM,
            "get",
            "configmaps",
            "-l",
            "app.kubernetes.io/managed-by=agent-network-controller",
        ])
    };
    let count = |maps: &Value| maps["items"].as_array().map_or(0, Vec::len);
    ensure!(count(&parts()?) >= 3, "{} ConfigMaps", count(&parts()?));
    kubectl
        .run(&["-n", SYSTEM, "delete", "anp", "--all"])?
        .success()?;
    eventually("parts are removed", LIMIT, || {
        ensure!(count(&parts()?) == 1);
        Ok(())
    })?;
    // classes and nodes
    for name in ["n1", "n2"] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        kubectl.apply(&node.to_string())?;
    }
    for pool in [
        "10.250.0.0/16",
        "10.96.0.0/16",
        "10.250.0.0/16",
        "10.96.0.0/16",
    ] {
        kubectl.apply(&class(pool).to_string())?;
        let phase = if pool.starts_with("10.96") {
            "Invalid"
        } else {
            "Active"
        };
        let condition = format!("jsonpath={{.status.phase}}={phase}");
        kubectl.wait("default", &condition, &["anc/default"])?;
    }
    let nodes = kubectl.json(&["-n", SYSTEM, "get", "configmap", "agent-network-nodes"])?;
    let text = nodes["data"]["nodes.json"]
        .as_str()
        .context("no nodes.json")?;
    let file: Value = serde_json::from_str(text)?;
    ensure!(
        file["nodes"]["n1"]["class"] == "default"
            && file["classes"]["default"]["failMode"] == "Open",
        "{file}"
    );
    Ok(())
}

fn another_namespace(server: &ApiServer) -> Result<()> {
    let kubectl = server.kubectl();
    kubectl.run(&["create", "namespace", "team-a"])?.success()?;
    kubectl
        .run(&[
            "-n",
            "team-a",
            "create",
            "rolebinding",
            "agent-network-controller-policies",
            "--clusterrole=agent-network-controller-policies",
            "--serviceaccount=tke-agent-network-real:agent-network-controller",
        ])?
        .success()?;
    let flags = ["--watch-namespaces", "team-a"];
    let mut controller = Controller::start(
        server,
        &service_account(server, "agent-network-controller")?,
        18090,
        &flags,
    )?;
    controller.wait_until_ready()?;
    kubectl.apply(&policy("team-a", "own", 1, "a").to_string())?;
    kubectl.apply(&policy("default", "unwatched", 1, "a").to_string())?;
    phase(server, "team-a", "own", "Active")?;
    let map = kubectl.json(&["-n", SYSTEM, "get", "configmap", "agent-network-policy"])?;
    let text = map["data"]["policy.json"].as_str().unwrap_or_default();
    let document: Value = serde_json::from_str(text)?;
    ensure!(
        document["policies"]
            .as_array()
            .is_some_and(|p| p.len() == 1),
        "{document}"
    );
    ensure!(
        document["policies"][0]["subjects"]["namespaces"] == json!(["team-a"]),
        "{document}"
    );
    let unwatched = kubectl.json(&["-n", "default", "get", "anp", "unwatched"])?;
    ensure!(unwatched["status"].is_null());
    ensure!(controller.stop(Signal::SIGTERM)? == 0);
    Ok(())
}
