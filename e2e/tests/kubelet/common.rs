//! What several subjects ask.

use anyhow::{Context, Result, ensure};
use e2e::cluster::agent::Agent;
use e2e::cluster::{Cluster, OUTSIDE_PORT, is_true};
use e2e::place::Finished;

/// The Service `web`, over TCP and over UDP.
pub(crate) const SERVICE: &str = "10.96.0.80";

/// Takes the first node over.
pub(crate) fn take_over(cluster: &Cluster, flags: &[&str]) -> Result<Agent> {
    let policy = include_str!("policy.yaml");
    Agent::take_over(&cluster.n1, cluster.kubectl(), policy, flags)
}

/// What ordinary pods on both nodes can do on a cluster without this project.
pub(crate) fn as_before(cluster: &Cluster) -> Result<()> {
    for (pod, network) in [("neighbour", "10.244.2."), ("before", "10.244.1.")] {
        let ip = pod_ip(cluster, "apps", pod)?;
        ensure!(ip.starts_with(network), "{pod} has {ip}");
        let done = cluster
            .kubectl()
            .exec("apps", pod, &["probe", "get", "http://web/"])?;
        ensure!(done.stdout.contains("hello from web"), "{pod}: {done}");
        let url = format!("http://evil.example.com:{OUTSIDE_PORT}/");
        let done = cluster
            .kubectl()
            .exec("apps", pod, &["probe", "get", &url])?;
        ensure!(done.stdout.contains("hello from"), "{pod}: {done}");
    }
    let nodes = cluster.kubectl().json(&["get", "nodes"])?;
    let nodes = nodes["items"].as_array().context("no nodes")?;
    ensure!(nodes.iter().all(|n| is_true(n, "Ready")), "{nodes:?}");
    Ok(())
}

/// Runs a command in the agent pod `coder`.
pub(crate) fn in_coder(cluster: &Cluster, command: &[&str]) -> Result<Finished> {
    let line = [
        &["-n", "agents", "exec", "coder", "-c", "http", "--"][..],
        command,
    ]
    .concat();
    cluster.kubectl().run(&line)
}

/// A pod's address, as the API server has it.
pub(crate) fn pod_ip(cluster: &Cluster, namespace: &str, name: &str) -> Result<String> {
    let pod = cluster
        .kubectl()
        .json(&["-n", namespace, "get", "pod", name])?;
    let ip = pod["status"]["podIP"].as_str();
    Ok(ip
        .with_context(|| format!("{name} has no address"))?
        .to_owned())
}
