//! A real cluster, one node of which this project takes over and gives back, in each mode: what kubelet, kube-proxy, CoreDNS
//! and `kubectl` find. One bring-up, many steps; all are tried and reported. A module for each subject.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::process::Command;

use e2e::cluster::agent::Agent;
use e2e::cluster::{Cluster, ProxyMode};
use e2e::machine::can_run;
use e2e::steps::Steps;

mod common;
mod giving_back;
mod people;
mod pods;
mod policy;
mod services;
mod switching;
mod taking_over;

#[test]
fn kubelet_finds_agent_pods_in_order_on_a_node_taken_over_and_ordinary_ones_when_it_is_given_back()
{
    if !can_run().unwrap() {
        return;
    }
    let before = machine();
    let mut steps = Steps::new();
    let mut cluster = None;
    steps.step("a cluster of two nodes with a primary CNI comes up", || {
        cluster = Some(Cluster::start()?);
        Ok(())
    });
    let mut worlds = Vec::new();
    if let Some(cluster) = &mut cluster {
        worlds = [cluster.n1.world(), cluster.n2.world()]
            .map(e2e::world::World::name)
            .into();
        scenario(cluster, &mut steps);
    }
    // the cluster is still there, so that it leaves its logs behind when this fails
    steps.finish().unwrap();
    drop(cluster);
    assert_eq!(machine(), before, "the machine itself must stay as it is");
    for world in worlds {
        let left = Command::new("find")
            .args(["/sys/fs/cgroup", "/tmp/agent-network-e2e", "-name"])
            .arg(format!("*{world}*"))
            .output()
            .unwrap();
        let left = String::from_utf8(left.stdout).unwrap();
        assert!(left.is_empty(), "left of {world}: {left}");
    }
}

/// The node's history: taken over and given back in each mode, and once more with a range that Services take.
fn scenario(cluster: &mut Cluster, steps: &mut Steps) {
    if let Some(mut agent) = taking_over::step(cluster, steps, &["--mode", "ebpf"]) {
        life(cluster, &agent, steps, "ebpf", ProxyMode::Nftables);
        services::agents_as_endpoints(cluster, steps);
        switching::live(cluster, &mut agent, steps);
        giving_back::step(cluster, agent, steps);
    }
    if let Some(agent) = taking_over::step(cluster, steps, &["--mode", "iptables-compat"]) {
        life(
            cluster,
            &agent,
            steps,
            "iptables-compat",
            ProxyMode::Iptables,
        );
        giving_back::step(cluster, agent, steps);
    }
    steps.part("private range");
    giving_back::with_a_private_range(cluster, steps);
}

/// All that is to hold in either mode. kube-proxy goes on in `next` halfway.
fn life(cluster: &mut Cluster, agent: &Agent, steps: &mut Steps, mode: &str, next: ProxyMode) {
    let first = cluster.n1.proxy_mode();
    steps.part(mode);
    pods::become_ready(cluster, agent, steps, mode);
    steps.part(&format!("{mode}, kube-proxy by {first}"));
    services::names_and_services(cluster, steps);
    pods::doctor_passes(agent, steps);
    steps.part(mode);
    policy::holds(cluster, agent, steps);
    people::are_served(cluster, steps, mode);
    pods::from_before(cluster, steps);
    steps.part(&format!("{mode}, kube-proxy by {next}"));
    services::kube_proxy_goes_on(cluster, steps, next);
    services::names_and_services(cluster, steps);
    pods::doctor_passes(agent, steps);
    steps.part(mode);
    pods::no_probe_failed(cluster, steps);
}

/// What the machine's own network is, and the settings that kubelet would change for all.
fn machine() -> String {
    let script = "ip -br link; ip -br addr; ip route show table all; ip rule; nft -s list ruleset
        sysctl vm.overcommit_memory kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys net.ipv4.ip_forward";
    let out = Command::new("bash").args(["-c", script]).output().unwrap();
    String::from_utf8(out.stdout).unwrap()
}
