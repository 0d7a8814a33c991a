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

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::cluster::control::simulated::{Manner, Simulated};
use e2e::cluster::control::{Controller, Projection, SYSTEM, announce, prepare, service_account};
use e2e::cluster::{ApiServer, eventually};
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

/// One thing that somebody may do, or did.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    namespace: String,
    group: String,
    resource: String,
    verb: String,
    name: String,
}

/// A rule's right: to one of these names, or to any.
#[derive(Debug)]
struct Right {
    what: Use,
    names: BTreeSet<String>,
}

impl Right {
    fn covers(&self, done: &Use) -> bool {
        let what = &self.what;
        (what.namespace.is_empty() || what.namespace == done.namespace)
            && (&what.group, &what.resource, &what.verb)
                == (&done.group, &done.resource, &done.verb)
            && (self.names.is_empty() || self.names.contains(&done.name))
    }
}

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
    let account = service_account(&server).unwrap();
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
        compare(&server)
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
    let mut controller = Controller::start(server, &service_account(server)?, 18090, &flags)?;
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

fn compare(server: &ApiServer) -> Result<()> {
    let (done, forbidden) = done(server)?;
    ensure!(forbidden.is_empty(), "forbidden: {forbidden:#?}");
    let rights = rights(server)?;
    ensure!(
        !rights
            .iter()
            .any(|right| right.what.resource.contains("secret") || right.what.verb == "*"),
        "{rights:#?}"
    );
    let unused: Vec<&Right> = rights
        .iter()
        .filter(|right| !done.iter().any(|done| right.covers(done)))
        .collect();
    ensure!(unused.is_empty(), "granted and never used: {unused:#?}");
    Ok(())
}

/// What the controller did, and what of it was forbidden.
fn done(server: &ApiServer) -> Result<(BTreeSet<Use>, Vec<Use>)> {
    let log = std::fs::read_to_string(server.audit_log())?;
    let mut done = BTreeSet::new();
    let mut forbidden = Vec::new();
    for line in log.lines() {
        let event: Value = serde_json::from_str(line).context("the audit log")?;
        if event["user"]["username"] != USER || event["objectRef"].is_null() {
            continue;
        }
        let text = |key: &str| {
            event["objectRef"][key]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let resource = match text("subresource") {
            sub if sub.is_empty() => text("resource"),
            sub => format!("{}/{sub}", text("resource")),
        };
        let one = Use {
            namespace: text("namespace"),
            group: text("apiGroup"),
            resource,
            verb: event["verb"].as_str().unwrap_or_default().to_owned(),
            name: text("name"),
        };
        if event["annotations"]["authorization.k8s.io/decision"] == "forbid"
            || event["responseStatus"]["code"] == 403
        {
            forbidden.push(one.clone());
        }
        // an apply that makes an object is also held against `create`
        if one.verb == "patch" && event["responseStatus"]["code"] == 201 {
            done.insert(Use {
                verb: "create".to_owned(),
                ..one.clone()
            });
        }
        done.insert(one);
    }
    ensure!(!done.is_empty(), "{USER} did nothing");
    Ok((done, forbidden))
}

/// The rights of the file, as bound by it.
fn rights(server: &ApiServer) -> Result<Vec<Right>> {
    let line = ["create", "--dry-run=client", "-o", "json", "-f", RULES];
    let printed = server.kubectl().run(&line)?.success()?.stdout;
    let mut objects = Vec::new();
    for value in serde_json::Deserializer::from_str(&printed).into_iter::<Value>() {
        let value = value?;
        match value["items"].as_array() {
            Some(items) => objects.extend(items.clone()),
            None => objects.push(value),
        }
    }
    let strings = |value: &Value| -> Vec<String> {
        let list = value.as_array().into_iter().flatten();
        list.filter_map(|v| v.as_str().map(str::to_owned)).collect()
    };
    let mut rights = Vec::new();
    for object in objects.iter().filter(|o| o["rules"].is_array()) {
        // a ClusterRole's rights are used wherever it is bound
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        for rule in object["rules"].as_array().into_iter().flatten() {
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    for verb in strings(&rule["verbs"]) {
                        rights.push(Right {
                            what: Use {
                                namespace: namespace.to_owned(),
                                group: group.clone(),
                                resource: resource.clone(),
                                verb,
                                name: String::new(),
                            },
                            names: strings(&rule["resourceNames"]).into_iter().collect(),
                        });
                    }
                }
            }
        }
    }
    ensure!(rights.len() > 10, "{printed}");
    Ok(rights)
}
