//! The controller against a real API server and etcd, with real ZeroProxy processes: from `kubectl apply` to enforced.

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

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::cluster::control::{Controller, Projection, RealProxy, SYSTEM, announce, prepare};
use e2e::cluster::{ApiServer, eventually};
use e2e::machine::can_run;
use e2e::steps::Steps;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(30);

/// An API server with proxies, and a projection.
struct Rig {
    projection: Projection,
    proxies: Vec<RealProxy>,
    server: ApiServer,
}

impl Rig {
    /// With real proxies 1 to `count`, of which the API server knows.
    fn start(count: u16) -> Result<Rig> {
        let server = ApiServer::start()?;
        prepare(&server)?;
        let projection = Projection::start(&server)?;
        let proxies = (1..=count).map(|n| RealProxy::start(&server, &projection, n));
        let proxies = proxies.collect::<Result<Vec<_>>>()?;
        announce(&server, 1..=count)?;
        Ok(Rig {
            projection,
            proxies,
            server,
        })
    }

    fn apply(&self, name: &str, spec: Value) -> Result<()> {
        self.server
            .kubectl()
            .apply(&policy(SYSTEM, name, spec).to_string())
    }

    fn wait_for_phase(&self, name: &str, phase: &str) -> Result<()> {
        let condition = format!("jsonpath={{.status.phase}}={phase}");
        let object = format!("anp/{name}");
        let result = self.server.kubectl().wait(SYSTEM, &condition, &[&object]);
        result.with_context(|| {
            let got = self
                .server
                .kubectl()
                .json(&["-n", SYSTEM, "get", "anp", name]);
            format!("{name} is {:?}", got.map(|g| g["status"].clone()))
        })
    }

    fn get(&self, name: &str) -> Result<Value> {
        self.server
            .kubectl()
            .json(&["-n", SYSTEM, "get", "anp", name])
    }

    fn config_map(&self) -> Result<Value> {
        let map = self.server.kubectl().json(&[
            "-n",
            SYSTEM,
            "get",
            "configmap",
            "agent-network-policy",
        ])?;
        let text = map["data"]["policy.json"]
            .as_str()
            .context("no policy.json")?;
        Ok(serde_json::from_str(text)?)
    }
}

fn policy(namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "agent.tke.cloud.tencent.com/v1alpha1", "kind": "AgentNetworkPolicy",
        "metadata": {"name": name, "namespace": namespace}, "spec": spec,
    })
}

fn allow(host: &str) -> Value {
    json!({"egress": {"allow": [{"name": "r", "host": host}]}})
}

#[test]
fn controller_brings_a_policy_to_real_proxies_and_says_so() {
    if !can_run().unwrap() {
        return;
    }
    let mut steps = Steps::new();
    let rig = Rig::start(2).unwrap();
    let mut controller =
        Controller::start(&rig.server, &rig.server.kubeconfig("admin"), 18080, &[]).unwrap();
    controller.wait_until_ready().unwrap();
    steps.step(
        "kubectl apply, wait and get -o wide see it become Active",
        || first_policy(&rig),
    );
    steps.step("the time that took is a metric", || {
        enforced_in_time(&rig, &controller)
    });
    steps.step("a missing credential is named, and that it came", || {
        credentials(&rig)
    });
    steps.step(
        "an invalid policy is left out and takes no other down",
        || invalid(&rig),
    );
    steps.step("a deleted policy, and a deleted ConfigMap", || {
        deleted(&rig)
    });
    steps.step("Events tell what happened", || events(&rig));
    steps.step("when nothing changes nothing is written", || {
        quiet(&rig, &controller)
    });
    steps.step(
        "SIGTERM gives the Lease back, and a restart writes nothing",
        || restart(&rig, controller),
    );
    steps.finish().unwrap();
}

fn first_policy(rig: &Rig) -> Result<()> {
    rig.apply("first", allow("git.example.com"))?;
    let kubectl = rig.server.kubectl();
    kubectl.wait(SYSTEM, "condition=Programmed", &["anp/first"])?;
    rig.wait_for_phase("first", "Active")?;
    let wide = kubectl
        .run(&["-n", SYSTEM, "get", "anp", "-o", "wide"])?
        .success()?;
    let words: Vec<&str> = wide
        .stdout
        .lines()
        .last()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    ensure!(words[..4] == ["first", "Active", "1", "2/2"], "{wide}");
    let status = rig.get("first")?["status"].clone();
    ensure!(status["observedGeneration"] == 1, "{status}");
    let version = rig.config_map()?["version"].clone();
    ensure!(status["policyVersion"] == version, "{status} {version}");
    for proxy in &rig.proxies {
        ensure!(version == proxy.version()?, "{version}");
        ensure!(proxy.reload_status("wrong")? == "401");
    }
    Ok(())
}

fn enforced_in_time(rig: &Rig, controller: &Controller) -> Result<()> {
    let before = controller.metric("apply_to_enforced_seconds_count", &[])?;
    let begun = Instant::now();
    rig.apply("first", allow("docs.example.com"))?;
    let kubectl = rig.server.kubectl();
    kubectl.wait(
        SYSTEM,
        "jsonpath={.status.observedGeneration}=2",
        &["anp/first"],
    )?;
    rig.wait_for_phase("first", "Active")?;
    eprintln!("        apply to seen Active: {:?}", begun.elapsed());
    let count = controller.metric("apply_to_enforced_seconds_count", &[])?;
    let sum = controller.metric("apply_to_enforced_seconds_sum", &[])?;
    eprintln!("        as the metric has it: {sum:.3} s for {count} policies");
    ensure!(
        count > before && sum > 0.0,
        "{}",
        controller.get("/metrics")?
    );
    Ok(())
}

fn credentials(rig: &Rig) -> Result<()> {
    let rule = json!({
        "name": "git", "host": "git.example.com", "header": "Authorization", "tls": "originate",
        "valueFrom": {"name": "zeroproxy-credentials", "key": "REPO_TOKEN"},
    });
    rig.apply("needs-token", json!({"egress": {"credential": [rule]}}))?;
    rig.wait_for_phase("needs-token", "Degraded")?;
    let kubectl = rig.server.kubectl();
    kubectl.wait(
        SYSTEM,
        "condition=CredentialsResolved=False",
        &["anp/needs-token"],
    )?;
    let message = rig.get("needs-token")?["status"]["message"].to_string();
    ensure!(
        message.contains("key REPO_TOKEN of Secret zeroproxy-credentials"),
        "{message}"
    );
    for proxy in &rig.proxies {
        fs::write(proxy.credential("REPO_TOKEN"), "canary-value")?;
    }
    rig.wait_for_phase("needs-token", "Active")?;
    kubectl.wait(
        SYSTEM,
        "condition=CredentialsResolved",
        &["anp/needs-token"],
    )
}

/// What the API server can't see to be wrong.
fn not_mounted() -> Value {
    let rule = json!({
        "name": "git", "host": "git.example.com", "header": "Authorization",
        "valueFrom": {"name": "not-mounted", "key": "K"},
    });
    json!({"egress": {"credential": [rule]}})
}

fn invalid(rig: &Rig) -> Result<()> {
    rig.apply("bad", not_mounted())?;
    rig.wait_for_phase("bad", "Invalid")?;
    let status = rig.get("bad")?["status"].clone();
    let message = status["message"].to_string();
    ensure!(message.contains("zeroproxy.credentialSecrets"), "{message}");
    rig.wait_for_phase("first", "Active")?;
    let names = rig.config_map()?["policies"].to_string();
    ensure!(!names.contains("bad") && names.contains("first"), "{names}");
    // what was valid and is made invalid goes
    rig.apply("second", allow("a.example.com"))?;
    rig.wait_for_phase("second", "Active")?;
    rig.apply("second", not_mounted())?;
    rig.wait_for_phase("second", "Invalid")?;
    let names = rig.config_map()?["policies"].to_string();
    ensure!(!names.contains("second"), "{names}");
    Ok(())
}

fn deleted(rig: &Rig) -> Result<()> {
    let kubectl = rig.server.kubectl();
    let before = rig.config_map()?;
    kubectl.delete(SYSTEM, &["configmap/agent-network-policy"])?;
    eventually("the ConfigMap is back", LIMIT, || {
        ensure!(rig.config_map()? == before);
        Ok(())
    })?;
    // and one that somebody edits
    let patch = json!({"data": {"policy.json": "{}", "other": "x"}}).to_string();
    kubectl
        .run(&[
            "-n",
            SYSTEM,
            "patch",
            "configmap",
            "agent-network-policy",
            "--type=merge",
            "-p",
            &patch,
        ])?
        .success()?;
    eventually("the ConfigMap is as it was", LIMIT, || {
        ensure!(rig.config_map()? == before);
        Ok(())
    })?;
    kubectl.delete(SYSTEM, &["anp/needs-token", "anp/bad", "anp/second"])?;
    eventually("the proxies have what is left", LIMIT, || {
        let document = rig.config_map()?;
        ensure!(
            document["policies"]
                .as_array()
                .is_some_and(|p| p.len() == 1),
            "{document}"
        );
        for proxy in &rig.proxies {
            ensure!(document["version"] == proxy.version()?);
        }
        Ok(())
    })
}

fn events(rig: &Rig) -> Result<()> {
    let events = rig
        .server
        .kubectl()
        .json(&["-n", SYSTEM, "get", "events.events.k8s.io"])?;
    let reasons: Vec<String> = events["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|e| {
            format!(
                "{}/{}",
                e["regarding"]["name"].as_str().unwrap_or_default(),
                e["reason"].as_str().unwrap_or_default()
            )
        })
        .collect();
    for wanted in [
        "first/Enforced",
        "needs-token/Degraded",
        "needs-token/Enforced",
        "bad/Invalid",
    ] {
        ensure!(
            reasons.iter().any(|r| r == wanted),
            "{wanted} isn't among {reasons:?}"
        );
    }
    Ok(())
}

fn quiet(rig: &Rig, controller: &Controller) -> Result<()> {
    eventually("it comes to rest", LIMIT, || {
        let before = controller.writes()?;
        std::thread::sleep(Duration::from_secs(2));
        ensure!(controller.writes()? == before);
        Ok(())
    })?;
    let before = controller.writes()?;
    // wakes it in every way without changing anything
    let kubectl = rig.server.kubectl();
    kubectl
        .run(&["-n", SYSTEM, "annotate", "anp", "first", "note=1"])?
        .success()?;
    kubectl
        .run(&["-n", SYSTEM, "annotate", "pod", "zeroproxy-1", "note=1"])?
        .success()?;
    kubectl
        .run(&[
            "-n",
            SYSTEM,
            "annotate",
            "configmap",
            "agent-network-policy",
            "note=1",
        ])?
        .success()?;
    let rounds = controller.metric("reconciles_total", &[])?;
    eventually("it looked", LIMIT, || {
        ensure!(controller.metric("reconciles_total", &[])? > rounds);
        Ok(())
    })?;
    std::thread::sleep(Duration::from_secs(1));
    ensure!(controller.writes()? == before, "{}", controller.log());
    Ok(())
}

fn restart(rig: &Rig, controller: Controller) -> Result<()> {
    let lease = || {
        rig.server
            .kubectl()
            .json(&["-n", SYSTEM, "get", "lease", "agent-network-controller"])
    };
    ensure!(lease()?["spec"]["holderIdentity"] == "controller-18080");
    ensure!(controller.stop(Signal::SIGTERM)? == 0);
    ensure!(
        lease()?["spec"]["holderIdentity"]
            .as_str()
            .unwrap_or_default()
            .is_empty()
    );
    let kubectl = rig.server.kubectl();
    let before = (
        rig.get("first")?,
        kubectl.json(&["-n", SYSTEM, "get", "configmap", "agent-network-policy"])?,
    );
    let mut controller =
        Controller::start(&rig.server, &rig.server.kubeconfig("admin"), 18090, &[])?;
    controller.wait_until_ready()?;
    eventually("it leads and has looked", LIMIT, || {
        ensure!(controller.metric("leader", &[])? == 1.0);
        ensure!(controller.metric("reconciles_total", &["part=\"status\""])? >= 2.0);
        Ok(())
    })?;
    std::thread::sleep(Duration::from_secs(2));
    ensure!(controller.writes()? == 0.0, "{}", controller.log());
    let after = (
        rig.get("first")?,
        kubectl.json(&["-n", SYSTEM, "get", "configmap", "agent-network-policy"])?,
    );
    ensure!(after == before, "{after:?}");
    ensure!(rig.projection.version() == rig.config_map()?["version"]);
    Ok(())
}
