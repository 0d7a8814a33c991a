//! What ZeroProxy allows and denies, and what it writes down.

use std::time::Duration;

use anyhow::{Context, ensure};
use e2e::cluster::agent::Agent;
use e2e::cluster::{Cluster, OUTSIDE_PORT, ROUTER, eventually};
use e2e::steps::Steps;
use serde_json::Value;

use crate::common::{in_coder, pod_ip};

/// Requests to the outside.
pub(crate) fn holds(cluster: &Cluster, agent: &Agent, steps: &mut Steps) {
    let coder = |url: &str| in_coder(cluster, &["probe", "get", url]);
    steps.step("an allowed destination answers", || {
        let done = coder(&format!("http://docs.example.com:{OUTSIDE_PORT}/"))?.success()?;
        ensure!(done.stdout.contains("hello from"), "{done}");
        Ok(())
    });
    steps.step(
        "a denied destination is denied with the proxy's text",
        || {
            let done = coder(&format!("http://{ROUTER}:{OUTSIDE_PORT}/"))?;
            ensure!(!done.ok() && !done.stdout.contains("hello from"), "{done}");
            let body: Value =
                serde_json::from_str(&done.stdout).with_context(|| done.to_string())?;
            ensure!(body["reason"] == "EGRESS_DENIED_BY_POLICY", "{body}");
            ensure!(
                body["host"] == ROUTER && body["remedy"] != Value::Null,
                "{body}"
            );
            Ok(())
        },
    );
    steps.step("a denied name is not resolved", || {
        let done = in_coder(cluster, &["probe", "lookup", "evil.example.com"])?;
        ensure!(!done.ok() && done.all().contains("no such host"), "{done}");
        Ok(())
    });
    steps.step("a pod that no policy selects gets nothing", || {
        let url = format!("http://{ROUTER}:{OUTSIDE_PORT}/");
        let done = cluster
            .kubectl()
            .exec("agents", "worker", &["probe", "get", &url])?;
        ensure!(
            !done.ok() && done.all().contains("EGRESS_DENIED_BY_POLICY"),
            "{done}"
        );
        Ok(())
    });
    steps.step(
        "one agent pod does not reach another by its address",
        || {
            let worker = pod_ip(cluster, "agents", "worker")?;
            let done = coder(&format!("http://{worker}:8080/"))?;
            ensure!(
                done.all().contains("DIRECT_BYPASS_DENIED_BY_ZEROPROXY"),
                "{done}"
            );
            Ok(())
        },
    );
    steps.step(
        "the audit names pod and service account as kubelet knows them",
        || {
            let uid = cluster
                .kubectl()
                .json(&["-n", "agents", "get", "pod", "coder"])?;
            let uid = uid["metadata"]["uid"].clone();
            eventually("the lines are there", Duration::from_secs(5), || {
                let lines = agent.audit()?;
                let of_coder = |decision: &str| {
                    lines.iter().any(|l| {
                        l["pod"]["uid"] == uid
                            && l["pod"]["service_account"] == "coder"
                            && l["direction"] == "egress"
                            && l["decision"] == decision
                    })
                };
                ensure!(of_coder("allow") && of_coder("deny"), "{lines:?}");
                Ok(())
            })
        },
    );
}
