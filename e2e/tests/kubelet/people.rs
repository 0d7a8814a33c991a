//! What people do with a pod from afar.

use std::time::Duration;

use anyhow::ensure;
use e2e::cluster::Cluster;
use e2e::steps::Steps;

use crate::common::in_coder;

/// exec, logs, port-forward.
pub(crate) fn are_served(cluster: &Cluster, steps: &mut Steps, mode: &str) {
    let kubectl = cluster.kubectl();
    steps.step("kubectl exec works", || {
        let done = in_coder(cluster, &["hostname"])?.success()?;
        ensure!(done.stdout.trim() == "coder", "{done}");
        Ok(())
    });
    steps.step("kubectl logs works", || {
        let done = kubectl
            .run(&["-n", "agents", "logs", "coder", "-c", "http"])?
            .success()?;
        ensure!(done.stdout.contains("serving on :8080"), "{done}");
        Ok(())
    });
    steps.step("kubectl port-forward works", || {
        let line = ["-n", "agents", "port-forward", "pod/coder", "19090:8080"];
        let mut forward = kubectl.spawn(&format!("port-forward-{mode}"), &line)?;
        forward.wait_for_output("Forwarding from", Duration::from_secs(20))?;
        let done = cluster
            .place()
            .run(&["curl", "-sS", "-m", "10", "http://127.0.0.1:19090/"])?
            .success()?;
        ensure!(done.stdout.contains("hello from coder"), "{done}");
        Ok(())
    });
}
