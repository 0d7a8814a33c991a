//! The node is given back, and nothing is left.

use std::time::Duration;

use anyhow::ensure;
use e2e::cluster::agent::Agent;
use e2e::cluster::{Cluster, OUTSIDE_PORT, ROUTER, eventually};
use e2e::steps::Steps;

use crate::common::{as_before, in_coder, pod_ip, take_over};

/// Prints what is there of us, by other means than our own look for residues. Both backends of iptables are asked.
const TRACES: &str = "ip -o link | grep -E 'agentcni0|agt[0-9a-f]'; ip rule | grep 18080; ip route show table 18080 2>/dev/null
    nft list tables | grep agent_network; iptables-nft-save 2>/dev/null | grep AGENT-CNI
    test ! -s /proc/net/ip_tables_names || iptables-legacy-save | grep AGENT-CNI; ipset list -n 2>/dev/null | grep agent-cni
    ls -d /sys/fs/bpf/agent-network /var/lib/tke-agent-network/agent-cni* 2>/dev/null; ls -a /opt/cni/bin /etc/cni/net.d | grep agent-cni";

/// The node becomes what it was, with the pods that run.
pub(crate) fn step(cluster: &Cluster, agent: Agent, steps: &mut Steps) {
    let kubectl = cluster.kubectl();
    let mode = agent.mode().unwrap_or_else(|error| format!("{error:#}"));
    steps.part(&format!("given back from {mode}"));
    steps.step("an agent pod is deleted, and its link goes", || {
        let links = || {
            cluster
                .n1
                .place()
                .sh("ip -o link show master agentcni0 | wc -l")
        };
        ensure!(links()?.stdout.trim() == "2", "{}", links()?);
        kubectl.delete("agents", &["pod/coder"])?;
        ensure!(links()?.stdout.trim() == "1", "{}", links()?);
        Ok(())
    });
    let given = steps.step(
        "the node is given back: nothing is left, and the pod that still runs is named",
        || {
            let said = agent.give_back()?;
            ensure!(said.contains("agents/worker"), "{said}");
            let left = cluster.n1.place().sh(TRACES)?;
            ensure!(left.all().trim().is_empty(), "{left}");
            kubectl.delete("agents", &["pod/worker"])
        },
    );
    if !given {
        return;
    }
    steps.step("new pods have ordinary addresses", || {
        kubectl.apply(include_str!("agents.yaml"))?;
        kubectl.wait("agents", "condition=Ready", &["pod/coder", "pod/worker"])?;
        let ip = pod_ip(cluster, "agents", "coder")?;
        ensure!(ip.starts_with("10.244.1."), "coder has {ip}");
        Ok(())
    });
    steps.step("they are under no policy, and reached by others", || {
        for url in [
            format!("http://{ROUTER}:{OUTSIDE_PORT}/"),
            "http://web.apps/".to_owned(),
        ] {
            in_coder(cluster, &["probe", "get", &url])?.success()?;
        }
        let ip = pod_ip(cluster, "agents", "coder")?;
        let url = format!("http://{ip}:8080/");
        let done = kubectl.exec("apps", "neighbour", &["probe", "get", &url])?;
        ensure!(done.stdout.contains("hello from coder"), "{done}");
        Ok(())
    });
    steps.step("ordinary pods are as before", || as_before(cluster));
}

/// Kubernetes refuses link-local endpoints, and takes those of a private range.
pub(crate) fn with_a_private_range(cluster: &Cluster, steps: &mut Steps) {
    let mut agent = None;
    let taken = steps.step("the node is taken over again", || {
        agent = Some(take_over(cluster, &["--fake-ip-cidr", "10.200.0.0/24"])?);
        Ok(())
    });
    let Some(agent) = agent.filter(|_| taken) else {
        return;
    };
    steps.step(
        "an agent pod of a private range is an endpoint of its Service",
        || {
            let kubectl = cluster.kubectl();
            kubectl.apply(include_str!("private.yaml"))?;
            kubectl.wait("agents", "condition=Ready", &["pod/listed"])?;
            let ip = pod_ip(cluster, "agents", "listed")?;
            ensure!(ip.starts_with("10.200.0."), "it has {ip}");
            let of_it = "kubernetes.io/service-name=listed";
            eventually("the endpoint is there", Duration::from_secs(20), || {
                let slices = ["-n", "agents", "get", "endpointslices", "-l", of_it];
                let slices = kubectl.json(&slices)?.to_string();
                ensure!(slices.contains(&format!("\"{ip}\"")), "{slices}");
                Ok(())
            })?;
            kubectl.delete("agents", &["pod/listed"])
        },
    );
    steps.step("it is given back again", || agent.give_back().map(|_| ()));
}
