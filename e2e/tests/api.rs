//! The definitions of `chart/crds/` in a real API server: what it takes, what it refuses and with which words, what it
//! fills in, and what `kubectl` shows.

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

use anyhow::{Context, Result, ensure};
use e2e::cluster::{ApiServer, is_true};
use e2e::machine::can_run;
use e2e::steps::Steps;
use serde_json::{Value, json};

#[path = "api/refused.rs"]
mod refused;

const CRDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../chart/crds");
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../chart/examples");
const SYSTEM: &str = "tke-agent-network-real";
const GROUP: &str = "agent.tke.cloud.tencent.com";

#[test]
fn api_server_takes_the_definitions_and_refuses_what_cannot_run_with_what_to_write() {
    if !can_run().unwrap() {
        return;
    }
    let mut steps = Steps::new();
    let mut server = None;
    steps.step("an API server comes up", || {
        server = Some(ApiServer::start()?);
        Ok(())
    });
    let Some(server) = &server else {
        return steps.finish().unwrap();
    };
    steps.step(
        "it takes both definitions, whose rules are in its budget",
        || definitions(server),
    );
    steps.step(
        "it takes the policies of the examples and the README",
        || examples(server),
    );
    steps.step("it fills defaults in", || defaults(server));
    steps.step(
        "it refuses every row of the table, saying what to write",
        || refusals(server),
    );
    steps.step("it takes what people write that looks unusual", || {
        accepted(server)
    });
    steps.step("kubectl explain describes every field", || explain(server));
    steps.step("status is written through its own door only", || {
        status(server)
    });
    steps.step("kubectl get shows the columns", || columns(server));
    steps.finish().unwrap();
}

fn definitions(server: &ApiServer) -> Result<()> {
    let kubectl = server.kubectl();
    let applied = kubectl
        .run(&["apply", "--server-side", "-f", CRDS])?
        .success()?;
    ensure!(
        !applied.stderr.contains("Warning"),
        "it warns: {}",
        applied.stderr
    );
    for plural in ["agentnetworkpolicies", "agentnetworkclasses"] {
        let name = format!("crd/{plural}.{GROUP}");
        kubectl
            .run(&[
                "wait",
                "--for=condition=Established",
                "--timeout=30s",
                &name,
            ])?
            .success()?;
        let definition = kubectl.json(&["get", &name])?;
        ensure!(
            !is_true(&definition, "NonStructuralSchema"),
            "{plural}: not structural"
        );
    }
    kubectl.run(&["create", "namespace", SYSTEM])?.success()?;
    Ok(())
}

fn examples(server: &ApiServer) -> Result<()> {
    let kubectl = server.kubectl();
    kubectl.run(&["apply", "-f", EXAMPLES])?.success()?;
    let readme = include_str!("../../README.md");
    let first = readme
        .split("```yaml\n")
        .nth(1)
        .context("the README has no policy")?;
    kubectl.apply(first.split("```").next().unwrap_or_default())?;
    let list = kubectl.json(&["-n", SYSTEM, "get", "anp"])?;
    ensure!(
        list["items"].as_array().is_some_and(|i| i.len() == 2),
        "{list}"
    );
    Ok(())
}

fn defaults(server: &ApiServer) -> Result<()> {
    let kubectl = server.kubectl();
    let class = refused::class("defaults", json!({}));
    let policy = refused::policy("defaults", json!({}));
    kubectl.apply(&list([class, policy]))?;
    let class = kubectl.json(&["get", "anc", "defaults"])?;
    let expected = json!({
        "nodeSelector": {}, "fakeIPCIDR": "169.254.0.0/16", "nodePrefixLength": 24,
        "proxy": {"port": 18080, "dnsPort": 18053, "failMode": "Closed"},
        "cni": {"defaultConnectivity": "Zero", "mode": "auto"},
    });
    ensure!(class["spec"] == expected, "{}", class["spec"]);
    let policy = kubectl.json(&["-n", SYSTEM, "get", "anp", "defaults"])?;
    let expected = json!({"podSelector": {}, "priority": 0, "mode": "enforce"});
    ensure!(policy["spec"] == expected, "{}", policy["spec"]);
    let coding = kubectl.json(&["-n", SYSTEM, "get", "anp", "coding-agent-network"])?;
    let rule = &coding["spec"]["egress"]["credential"][0];
    ensure!(
        rule["format"] == "raw"
            && rule["stripFromResponse"] == true
            && rule["allowCleartext"] == false,
        "{rule}"
    );
    kubectl.delete(SYSTEM, &["anp/defaults"])?;
    kubectl.run(&["delete", "anc", "defaults"])?.success()?;
    Ok(())
}

/// All rows in one call: kubectl tries every object of a list and reports each. Misspelt fields are asked about one by
/// one, since that answer doesn't name the object; kubectl's own check, which would come first, is left out.
fn refusals(server: &ApiServer) -> Result<()> {
    let table = refused::table();
    ensure!(table.len() >= 40, "only {} rows", table.len());
    let (misspelt, others): (Vec<_>, Vec<_>) = table
        .iter()
        .partition(|row| row.says.starts_with("unknown field"));
    let file = server.dir().join("refused.json");
    std::fs::write(&file, list(others.iter().map(|row| row.object.clone())))?;
    let file = file.to_string_lossy();
    let line = [
        "create",
        "--dry-run=server",
        "--validate=false",
        "-f",
        &file,
    ];
    let said = server.kubectl().run(&line)?.stderr;
    let mut wrong = Vec::new();
    for row in others {
        let name = row.object["metadata"]["name"].as_str().unwrap_or_default();
        let answer = answer(&said, name);
        if !answer.is_some_and(|answer| answer.contains(row.says)) {
            let answer = answer.unwrap_or("nothing");
            wrong.push(format!(
                "{name}: expected {:?}, it says: {answer}",
                row.says
            ));
        }
    }
    for row in misspelt {
        let said = strictly(server, &row.object)?;
        if !said.contains(row.says) {
            wrong.push(format!("expected {:?}, it says: {said}", row.says));
        }
    }
    ensure!(
        wrong.is_empty(),
        "{} of {} rows:\n{}\n\nall it said: {said}",
        wrong.len(),
        table.len(),
        wrong.join("\n")
    );
    Ok(())
}

/// What the API server answers to one object whose fields it is told to know all of, as kubectl does.
fn strictly(server: &ApiServer, object: &Value) -> Result<String> {
    let file = server.dir().join("misspelt.json");
    std::fs::write(&file, object.to_string())?;
    let resource = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("namespaces/{namespace}/agentnetworkpolicies"),
        None => "agentnetworkclasses".to_owned(),
    };
    let path = format!("/apis/{GROUP}/v1alpha1/{resource}?dryRun=All&fieldValidation=Strict");
    let file = file.to_string_lossy();
    let done = server
        .kubectl()
        .run(&["create", "--raw", &path, "-f", &file])?;
    ensure!(!done.ok(), "accepted: {object}");
    Ok(done.stderr)
}

/// What the API server says about one object: kubectl begins each answer on a line of its own.
fn answer<'a>(said: &'a str, name: &str) -> Option<&'a str> {
    let at = said.find(&format!("\"{name}\" is invalid"))?;
    let rest = &said[at..];
    Some(rest.split("\nError from server").next().unwrap_or(rest))
}

fn accepted(server: &ApiServer) -> Result<()> {
    let objects = refused::accepted();
    let count = objects.len();
    let file = server.dir().join("accepted.json");
    std::fs::write(&file, list(objects))?;
    let file = file.to_string_lossy();
    let done = server
        .kubectl()
        .run(&["create", "--dry-run=server", "-f", &file])?
        .success()?;
    ensure!(done.stdout.lines().count() == count, "{done}");
    Ok(())
}

fn explain(server: &ApiServer) -> Result<()> {
    for (kind, some) in [
        (
            "agentnetworkpolicies",
            &["egress", "valueFrom", "stripFromResponse", "defaultAction"][..],
        ),
        (
            "agentnetworkclasses",
            &["fakeIPCIDR", "failMode", "workloadSelector"],
        ),
    ] {
        for part in ["spec", "status"] {
            let field = format!("{kind}.{part}");
            let done = server
                .kubectl()
                .run(&["explain", &field, "--recursive"])?
                .success()?;
            ensure!(!done.stdout.contains("<no description>"), "{done}");
            ensure!(
                part == "status" || some.iter().all(|f| done.stdout.contains(f)),
                "{done}"
            );
        }
    }
    let rule = "agentnetworkpolicies.spec.egress.credential.valueFrom";
    let done = server.kubectl().run(&["explain", rule])?.success()?;
    ensure!(
        done.stdout.contains("zeroproxy.credentialSecrets")
            && done.stdout.contains("-required-")
            && !done.stdout.contains("<no description>"),
        "{done}"
    );
    Ok(())
}

fn status(server: &ApiServer) -> Result<()> {
    let kubectl = server.kubectl();
    let status = json!({"status": {
        "phase": "Active", "observedGeneration": 1, "rules": 3, "policyVersion": "sha256:0",
        "nodes": {"total": 3, "ready": 2, "summary": "2/3"}, "message": "n3 is not ready",
        "conditions": [{
            "type": "Accepted", "status": "True", "reason": "Valid", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    }});
    let patch = status.to_string();
    let line = [
        "-n",
        SYSTEM,
        "patch",
        "anp",
        "coding-agent-network",
        "--type=merge",
        "-p",
        &patch,
    ];
    kubectl.run(&line)?.success()?;
    let policy = kubectl.json(&["-n", SYSTEM, "get", "anp", "coding-agent-network"])?;
    ensure!(policy["status"].is_null(), "written: {}", policy["status"]);
    kubectl
        .run(&[&line[..], &["--subresource=status"]].concat())?
        .success()?;
    let after = kubectl.json(&["-n", SYSTEM, "get", "anp", "coding-agent-network"])?;
    ensure!(after["status"] == status["status"], "{}", after["status"]);
    ensure!(
        after["metadata"]["generation"] == policy["metadata"]["generation"],
        "a status makes a generation"
    );
    let wrong = json!({"status": {"phase": "Fine"}}).to_string();
    let line = [
        "-n",
        SYSTEM,
        "patch",
        "anp",
        "coding-agent-network",
        "--type=merge",
        "-p",
        &wrong,
    ];
    let done = kubectl.run(&[&line[..], &["--subresource=status"]].concat())?;
    ensure!(
        done.stderr.contains("supported values: \"Pending\""),
        "{done}"
    );
    let wait = "--for=condition=Accepted";
    kubectl
        .run(&[
            "-n",
            SYSTEM,
            "wait",
            wait,
            "--timeout=5s",
            "anp/coding-agent-network",
        ])?
        .success()?;
    Ok(())
}

fn columns(server: &ApiServer) -> Result<()> {
    let kubectl = server.kubectl();
    let narrow = kubectl
        .run(&["-n", SYSTEM, "get", "anp"])?
        .success()?
        .stdout;
    let head: Vec<&str> = narrow
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    ensure!(
        head == ["NAME", "PHASE", "RULES", "NODES", "AGE"],
        "{narrow}"
    );
    let wide = kubectl
        .run(&["-n", SYSTEM, "get", "anp", "-o", "wide"])?
        .success()?
        .stdout;
    let line = wide
        .lines()
        .find(|l| l.starts_with("coding-agent"))
        .unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    ensure!(
        wide.lines().next().is_some_and(|l| l.ends_with("MESSAGE"))
            && words[1..4] == ["Active", "3", "2/3"]
            && line.contains("n3 is not ready"),
        "{wide}"
    );
    kubectl.apply(&refused::class("default", json!({})).to_string())?;
    let classes = kubectl
        .run(&["get", "anc", "-o", "wide"])?
        .success()?
        .stdout;
    ensure!(classes.contains("169.254.0.0/16"), "{classes}");
    let all = kubectl
        .run(&["-n", SYSTEM, "get", "agent-network"])?
        .success()?
        .stdout;
    ensure!(
        all.contains("coding-agent-network") && all.contains("default"),
        "{all}"
    );
    Ok(())
}

fn list(items: impl IntoIterator<Item = Value>) -> String {
    let items: Vec<Value> = items.into_iter().collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}
