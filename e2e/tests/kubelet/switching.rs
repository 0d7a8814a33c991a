//! Another mode, with the pods that run.

use anyhow::ensure;
use e2e::cluster::agent::Agent;
use e2e::cluster::{Cluster, OUTSIDE_PORT, ROUTER};
use e2e::steps::Steps;

use crate::common::{SERVICE, in_coder};
use crate::pods;

/// There and back: the installer is started anew with another `--mode`, as a changed DaemonSet would.
pub(crate) fn live(cluster: &Cluster, agent: &mut Agent, steps: &mut Steps) {
    for mode in ["iptables-compat", "ebpf"] {
        steps.part(&format!("switched to {mode}"));
        let switched = steps.step("the node is ready in the other mode", || {
            agent.switch(&["--mode", mode])?;
            let is = agent.mode()?;
            ensure!(is == mode, "it is in {is}");
            Ok(())
        });
        if !switched {
            return;
        }
        at_once(cluster, steps);
        pods::doctor_passes(agent, steps);
        pods::no_probe_failed(cluster, steps);
    }
}

/// Each is asked once: nothing has to be waited for when the installer has said that the node is ready.
fn at_once(cluster: &Cluster, steps: &mut Steps) {
    let coder = |verb: &str, what: &str| in_coder(cluster, &["probe", verb, what]);
    steps.step("the pod's next request to an allowed name answers", || {
        let url = format!("http://docs.example.com:{OUTSIDE_PORT}/");
        let done = coder("get", &url)?.success()?;
        ensure!(done.stdout.contains("hello from"), "{done}");
        Ok(())
    });
    steps.step("its next request to a denied address is denied", || {
        let done = coder("get", &format!("http://{ROUTER}:{OUTSIDE_PORT}/"))?;
        ensure!(done.stdout.contains("EGRESS_DENIED_BY_POLICY"), "{done}");
        Ok(())
    });
    steps.step("a Service answers its next request", || {
        let done = coder("get", &format!("http://{SERVICE}/"))?.success()?;
        ensure!(done.stdout.contains("hello from web"), "{done}");
        Ok(())
    });
    steps.step("a Service answers its next datagram", || {
        let done = coder("udp", &format!("{SERVICE}:9000"))?.success()?;
        ensure!(done.stdout.contains("hello from web"), "{done}");
        Ok(())
    });
}
