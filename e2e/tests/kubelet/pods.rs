//! Agent pods as kubelet sees them, and those that were there before.

use anyhow::{Context, ensure};
use e2e::cluster::Cluster;
use e2e::cluster::agent::Agent;
use e2e::steps::Steps;

use crate::common::{as_before, pod_ip};

/// They start, and their addresses are ours.
pub(crate) fn become_ready(cluster: &Cluster, agent: &Agent, steps: &mut Steps, mode: &str) {
    let kubectl = cluster.kubectl();
    steps.step("the node is in the mode that was asked for", || {
        let is = agent.mode()?;
        ensure!(is == mode, "it is in {is}");
        Ok(())
    });
    steps.step(
        "agent pods become ready: kubelet's HTTP, TCP and exec probes pass",
        || {
            kubectl.apply(include_str!("agents.yaml"))?;
            kubectl.wait("agents", "condition=Ready", &["pod/coder", "pod/worker"])
        },
    );
    steps.step("their addresses in the cluster are Fake IPs", || {
        let pool = agent.pool()?;
        let network = pool.rsplit_once('.').context("no network")?.0;
        for name in ["coder", "worker"] {
            let ip = pod_ip(cluster, "agents", name)?;
            ensure!(
                ip.starts_with(&format!("{network}.")),
                "{name} has {ip}, not of {pool}"
            );
        }
        Ok(())
    });
}

/// `agent-cni doctor`.
pub(crate) fn doctor_passes(agent: &Agent, steps: &mut Steps) {
    steps.step("doctor passes", || {
        let said = agent.doctor()?;
        let passed = said.stdout.trim_end().ends_with("AGENT_CNI_DOCTOR_PASSED");
        ensure!(said.ok() && passed, "{said}");
        Ok(())
    });
}

/// Ordinary pods, which the primary CNI has: containerd calls ours for those of this node too.
pub(crate) fn from_before(cluster: &Cluster, steps: &mut Steps) {
    steps.step(
        "the other node, and pods that were there before, are as before",
        || as_before(cluster),
    );
    steps.step(
        "a pod that was there before goes, and the primary CNI has its address back",
        || {
            let ip = pod_ip(cluster, "apps", "leaver")?;
            let lease = format!("/var/lib/cni/networks/primary/{ip}");
            let held = cluster.n1.place().run(&["cat", &lease])?;
            ensure!(held.ok(), "it had no lease: {held}");
            cluster.kubectl().delete("apps", &["pod/leaver"])?;
            let left = cluster.n1.place().run(&["cat", &lease])?;
            ensure!(!left.ok(), "its address is not free: {left}");
            Ok(())
        },
    );
}

/// A pod whose liveness probe fails is started again, and one whose readiness probe fails isn't ready.
pub(crate) fn no_probe_failed(cluster: &Cluster, steps: &mut Steps) {
    steps.step("no probe has failed all the while", || {
        let pod = cluster
            .kubectl()
            .json(&["-n", "agents", "get", "pod", "coder"])?;
        let containers = pod["status"]["containerStatuses"].as_array();
        let containers = containers.context("no containers")?;
        ensure!(containers.len() == 3, "{pod}");
        ensure!(
            containers
                .iter()
                .all(|c| c["restartCount"] == 0 && c["ready"] == true),
            "{}",
            pod["status"]
        );
        Ok(())
    });
}
