//! From `kubectl apply` to a pod's traffic: a real API server, the controller, a node with its proxy and pods. And every
//! fault of the control plane, of which none lets anything through that no policy allows.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::addresses::address_of;
use e2e::cluster::control::{
    ADMIN_PORT, Controller, Projection, RELOAD_TOKEN, SYSTEM, announce_on, prepare, service_account,
};
use e2e::cluster::{ApiServer, NODE, eventually, rights};
use e2e::machine::can_run;
use e2e::node::FILES;
use e2e::patience::patience;
use e2e::steps::Steps;
use e2e::{Node, Pod, PodSpec};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

mod support;
use support::status;

/// What ZeroProxy may do in the cluster.
const RULES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../chart/files/zeroproxy-rbac.yaml"
);
const USER: &str = "system:serviceaccount:tke-agent-network-real:zeroproxy";
const UPLINK: &str = "cluster0";
const DOCS: &str = "http://docs.example.com/";
const ECHO: &str = "http://echo.example.com/";
const API: &str = "http://api.example.com/v1/models";
/// No policy of this test names it.
const EVIL: &str = "http://evil.example.com/";

struct Site {
    server: ApiServer,
    node: Node,
    coder: Pod,
    /// Of another namespace.
    guest: Pod,
    projection: Projection,
    controller: Option<Controller>,
    controllers: u16,
}

impl Site {
    fn start() -> Result<Site> {
        let server = ApiServer::start()?;
        prepare(&server)?;
        let projection = Projection::start(&server)?;
        let mut node = Node::start("control-plane")?;
        server.join(node.world(), UPLINK)?;
        server.kubectl().run(&["apply", "-f", RULES])?.success()?;
        let kubeconfig = service_account(&server, "zeroproxy")?;
        std::fs::create_dir_all(node.file("policy"))?;
        projection.add(&node.file("policy"));
        node.write("reload-token", RELOAD_TOKEN.as_bytes())?;
        let config = node.config().as_object_mut().context("no object")?;
        config.remove("workloadsFile");
        config.extend(
            json!({
                "policyFile": format!("{FILES}/policy/policy.json"),
                "adminListen": format!("{NODE}:{ADMIN_PORT}"),
                "cluster": {
                    "nodeName": "n1", "kubeconfig": kubeconfig,
                    "snapshotFile": format!("{FILES}/pods.json"),
                },
            })
            .as_object()
            .context("no object")?
            .clone(),
        );
        node.place().run(&[e2e::cni::PLUGIN, "setup"])?.success()?;
        let coder = declare(&server, "agents", "coder")?;
        let guest = declare(&server, "guests", "guest")?;
        // without a document the proxy is alive, denies, and isn't ready
        node.spawn_proxy_and_wait("/healthz")?;
        let coder = node.add_pod(&coder)?;
        let guest = node.add_pod(&guest)?;
        announce_on(&server, "n1", NODE)?;
        Ok(Site {
            server,
            node,
            coder,
            guest,
            projection,
            controller: None,
            controllers: 0,
        })
    }

    fn start_controller(&mut self) -> Result<()> {
        self.controllers += 1;
        let port = 18080 + self.controllers;
        let flags = [
            "--watch-namespaces",
            "agents,guests",
            "--credential-secrets",
            "zeroproxy-credentials,agents-tokens@agents",
            "--lease-seconds",
            "3",
        ];
        let kubeconfig = self.server.kubeconfig("admin");
        let mut controller = Controller::start(&self.server, &kubeconfig, port, &flags)?;
        controller.wait_until_ready()?;
        self.controller = Some(controller);
        Ok(())
    }

    fn kill_controller(&mut self) -> Result<()> {
        let controller = self.controller.take().context("no controller runs")?;
        controller.stop(Signal::SIGKILL).map(|_| ())
    }

    fn apply(&self, namespace: &str, name: &str, spec: &Value) -> Result<()> {
        let object = json!({
            "apiVersion": "agent.tke.cloud.tencent.com/v1alpha1", "kind": "AgentNetworkPolicy",
            "metadata": {"name": name, "namespace": namespace}, "spec": spec,
        });
        self.server.kubectl().apply(&object.to_string())
    }

    fn phase(&self, namespace: &str, name: &str, phase: &str) -> Result<()> {
        let condition = format!("jsonpath={{.status.phase}}={phase}");
        let object = format!("anp/{name}");
        self.server
            .kubectl()
            .wait(namespace, &condition, &[&object])
    }

    /// What a pod gets that no policy names, at any time.
    fn nothing_else(&self) -> Result<()> {
        for pod in [&self.coder, &self.guest] {
            let got = get(pod, EVIL)?;
            ensure!(got == 403, "{EVIL}: {got}");
        }
        Ok(())
    }
}

fn declare(server: &ApiServer, namespace: &str, name: &str) -> Result<PodSpec> {
    let kubectl = server.kubectl();
    kubectl
        .run(&["create", "namespace", namespace])?
        .success()?;
    kubectl
        .run(&["-n", namespace, "create", "serviceaccount", name])?
        .success()?;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
        "spec": {
            "nodeName": "n1", "serviceAccountName": name, "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "none"}],
        },
    });
    kubectl.apply(&pod.to_string())?;
    let pod = kubectl.json(&["-n", namespace, "get", "pod", name])?;
    let uid = pod["metadata"]["uid"].as_str().context("no UID")?;
    Ok(PodSpec {
        namespace: namespace.to_owned(),
        uid: Some(uid.to_owned()),
        ..PodSpec::named(name)
    })
}

/// The status of an answer to a new connection, with an address from elsewhere: a denied name has no answer of DNS.
fn get(pod: &Pod, url: &str) -> Result<u16> {
    let host = url.split('/').nth(2).context("no host")?;
    let address = address_of(host).context("no such name")?;
    let resolve = format!("{host}:80:{address}");
    let done = pod.curl(&["--resolve", &resolve, url])?.success()?;
    Ok(status(&done))
}

/// Waits until requests are answered so; returns how long that took.
fn becomes(pod: &Pod, url: &str, wanted: u16) -> Result<Duration> {
    let begun = Instant::now();
    let limit = patience(Duration::from_secs(20));
    eventually(&format!("{url}: {wanted}"), limit, || {
        let got = get(pod, url)?;
        ensure!(got == wanted, "{got}");
        Ok(())
    })?;
    Ok(begun.elapsed())
}

fn allow(hosts: &[&str]) -> Value {
    let rules: Vec<Value> = hosts
        .iter()
        .map(|host| json!({"name": host.replace('.', "-"), "host": host}))
        .collect();
    json!({"podSelector": {"matchLabels": {"app": "coder"}}, "egress": {"allow": rules}})
}

fn credential(secret: &str) -> Value {
    let rule = json!({
        "name": "models", "host": "api.example.com", "header": "Authorization", "prefix": "Bearer ",
        "valueFrom": {"name": secret, "key": "TOKEN"}, "allowCleartext": true,
    });
    json!({"podSelector": {"matchLabels": {"app": "coder"}}, "egress": {"credential": [rule]}})
}

#[test]
fn controller_decides_what_pods_reach_and_no_fault_of_it_opens_anything() {
    if !can_run().unwrap() {
        return;
    }
    let mut steps = Steps::new();
    let mut site = Site::start().unwrap();
    steps.step("before any policy everything is denied", || {
        for url in [DOCS, ECHO, API] {
            ensure!(get(&site.coder, url)? == 403, "{url}");
        }
        site.nothing_else()
    });
    site.start_controller().unwrap();
    steps.step(
        "a policy is applied and enforced, for the pods that it selects",
        || applied(&site),
    );
    steps.step(
        "a policy that becomes invalid denies, and takes no other down",
        || invalid(&site),
    );
    steps.step(
        "a missing Secret answers 502, and nothing else changes",
        || missing_secret(&site),
    );
    steps.step(
        "policies of a namespace are for its pods, come last, and have their own Secrets",
        || namespaced(&site),
    );
    steps.step("a deleted policy denies", || deleted(&site));
    steps.step(
        "while the controller is gone everything stays, and nothing opens",
        || gone(&mut site),
    );
    steps.step("while no ConfigMap is projected everything stays", || {
        unprojected(&mut site)
    });
    steps.step(
        "the proxy was forbidden nothing, and used every right that it has",
        || rights::assert_used(&site.server, RULES, USER),
    );
    steps.finish().unwrap();
    assert!(site.node.leaked_secrets().unwrap().is_empty());
}

fn applied(site: &Site) -> Result<()> {
    let begun = Instant::now();
    site.apply(SYSTEM, "docs", &allow(&["docs.example.com"]))?;
    becomes(&site.coder, DOCS, 200)?;
    println!("from kubectl apply to an answer: {:?}", begun.elapsed());
    site.phase(SYSTEM, "docs", "Active")?;
    ensure!(get(&site.coder, ECHO)? == 403);
    ensure!(get(&site.guest, DOCS)? == 403);
    site.nothing_else()
}

fn invalid(site: &Site) -> Result<()> {
    site.apply(SYSTEM, "echo", &allow(&["echo.example.com"]))?;
    becomes(&site.coder, ECHO, 200)?;
    site.apply(SYSTEM, "echo", &credential("not-mounted"))?;
    becomes(&site.coder, ECHO, 403)?;
    site.phase(SYSTEM, "echo", "Invalid")?;
    ensure!(get(&site.coder, API)? == 403);
    ensure!(get(&site.coder, DOCS)? == 200);
    site.nothing_else()?;
    site.apply(SYSTEM, "echo", &allow(&["echo.example.com"]))?;
    becomes(&site.coder, ECHO, 200)?;
    site.phase(SYSTEM, "echo", "Active")
}

fn missing_secret(site: &Site) -> Result<()> {
    site.apply(SYSTEM, "models", &credential("zeroproxy-credentials"))?;
    site.phase(SYSTEM, "models", "Degraded")?;
    ensure!(get(&site.coder, API)? == 502);
    ensure!(site.node.outside.requests_to("api.example.com")?.is_empty());
    ensure!(get(&site.coder, DOCS)? == 200);
    site.nothing_else()?;
    let token = site.node.secrets.api_token.as_bytes();
    site.node
        .write("credentials/zeroproxy-credentials/TOKEN", token)?;
    site.phase(SYSTEM, "models", "Active")?;
    ensure!(get(&site.coder, API)? == 200);
    let seen = site.node.outside.requests_to("api.example.com")?;
    ensure!(seen.last().is_some_and(|s| s.auth == "right"), "{seen:?}");
    Ok(())
}

fn namespaced(site: &Site) -> Result<()> {
    // of both pods' labels, in the namespace of one
    let everything = json!({"egress": {"allow": [{"name": "all", "host": "*.example.com"}]}});
    let no_docs = json!({
        "priority": -1_000_000,
        "egress": {"deny": [{"name": "no-docs", "host": "docs.example.com"}]},
    });
    ensure!(get(&site.guest, ECHO)? == 403);
    site.apply(SYSTEM, "no-docs", &no_docs)?;
    becomes(&site.coder, DOCS, 403)?;
    let mut first = everything.clone();
    first["priority"] = json!(1_000_000);
    site.apply("guests", "mine", &first)?;
    site.phase("guests", "mine", "Active")?;
    becomes(&site.guest, ECHO, 200)?;
    ensure!(
        get(&site.guest, DOCS)? == 403,
        "the system namespace's rule comes first"
    );
    // one namespace's Secrets are not another's
    site.apply("guests", "theirs", &credential("agents-tokens"))?;
    site.phase("guests", "theirs", "Invalid")?;
    site.apply("agents", "own", &credential("agents-tokens"))?;
    site.phase("agents", "own", "Degraded")?;
    site.apply(
        "guests",
        "system-secret",
        &credential("zeroproxy-credentials"),
    )?;
    site.phase("guests", "system-secret", "Invalid")?;
    let kubectl = site.server.kubectl();
    kubectl.delete(SYSTEM, &["anp/no-docs"])?;
    kubectl.delete("agents", &["anp/own"])?;
    kubectl.delete("guests", &["anp/mine", "anp/theirs", "anp/system-secret"])?;
    becomes(&site.guest, ECHO, 403)?;
    becomes(&site.coder, DOCS, 200)?;
    site.nothing_else()
}

fn deleted(site: &Site) -> Result<()> {
    let kubectl = site.server.kubectl();
    kubectl.delete(SYSTEM, &["anp/echo"])?;
    becomes(&site.coder, ECHO, 403)?;
    ensure!(get(&site.coder, DOCS)? == 200);
    site.nothing_else()
}

fn gone(site: &mut Site) -> Result<()> {
    site.kill_controller()?;
    let kubectl = site.server.kubectl();
    site.apply(SYSTEM, "late", &allow(&["echo.example.com"]))?;
    kubectl.delete(SYSTEM, &["anp/models"])?;
    for signal in [None, Some(Signal::SIGTERM), Some(Signal::SIGKILL)] {
        if let Some(signal) = signal {
            site.node.stop_proxy(signal)?;
            site.node.start_proxy()?;
        }
        ensure!(get(&site.coder, DOCS)? == 200);
        ensure!(get(&site.coder, API)? == 200);
        ensure!(get(&site.coder, ECHO)? == 403);
        site.nothing_else()?;
    }
    site.start_controller()?;
    becomes(&site.coder, ECHO, 200)?;
    becomes(&site.coder, API, 403)?;
    site.phase(SYSTEM, "late", "Active")
}

fn unprojected(site: &mut Site) -> Result<()> {
    site.kill_controller()?;
    let kubectl = site.server.kubectl();
    kubectl.delete(SYSTEM, &["configmap/agent-network-policy"])?;
    eventually("nothing is projected", Duration::from_secs(20), || {
        ensure!(site.projection.version().is_empty());
        Ok(())
    })?;
    for _ in 0..10 {
        ensure!(get(&site.coder, DOCS)? == 200);
        site.nothing_else()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    // a proxy that is started without any document has nothing to allow by
    site.node.stop_proxy(Signal::SIGTERM)?;
    site.node.spawn_proxy_and_wait("/healthz")?;
    ensure!(!site.node.get("/readyz")?.ok());
    becomes(&site.coder, DOCS, 403)?;
    site.nothing_else()?;
    site.start_controller()?;
    becomes(&site.coder, DOCS, 200)?;
    site.nothing_else()
}
