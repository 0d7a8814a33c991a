//! A node of a cluster that works is taken over.

use std::time::Duration;

use e2e::cluster::agent::Agent;
use e2e::cluster::{Cluster, eventually};
use e2e::patience::patience;
use e2e::steps::Steps;

use crate::common::{as_before, take_over};

/// The ordinary pods are there and the agents' aren't, and the node is taken over with these flags; nothing when it isn't.
pub(crate) fn step(cluster: &Cluster, steps: &mut Steps, flags: &[&str]) -> Option<Agent> {
    steps.part(&flags.join(" "));
    steps.step("ordinary pods run on both nodes, as on any cluster", || {
        let kubectl = cluster.kubectl();
        kubectl.apply(include_str!("apps.yaml"))?;
        kubectl.wait(
            "apps",
            "condition=Ready",
            &["pod/web", "pod/neighbour", "pod/before", "pod/leaver"],
        )?;
        let names = ["pod/coder", "pod/worker", "--ignore-not-found"];
        kubectl.delete("agents", &names)?;
        // kube-proxy learns of endpoints after the pods are Ready
        let limit = patience(Duration::from_secs(15));
        eventually("Services answer", limit, || as_before(cluster))
    });
    let mut agent = None;
    let taken = steps.step("the project takes a node over, which stays Ready", || {
        agent = Some(take_over(cluster, flags)?);
        cluster.wait_for_nodes()
    });
    agent.filter(|_| taken)
}
