//! Whether pods' traffic is served as it should be, and what is missing.

use std::sync::Arc;

use serde::Serialize;

use crate::context::Context;
use crate::listener::DataPath;
use crate::policy_store::PolicyStatus;
use crate::workloads::{Cluster, Origin};

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What is looked at.
    pub name: &'static str,
    /// Whether it is as it should be.
    pub ok: bool,
    /// What was found.
    pub detail: String,
}

/// All conditions; the process is ready when each is met.
pub fn readiness(context: &Context, data_path: &DataPath) -> Vec<Check> {
    vec![
        policy(&context.policy.status()),
        node(context),
        workloads(context),
        listeners(data_path),
        draining(context),
    ]
}

/// A refused document doesn't make the process unready: the version before it is still enforced,
/// and taking the proxy out of service would take every pod's traffic down for one bad document.
fn policy(status: &Arc<PolicyStatus>) -> Check {
    let detail = match (&status.problem, status.loaded) {
        (None, true) => format!("version {} with {} rules", status.version, status.rules),
        (None, false) => "no document was read yet; everything is denied".into(),
        (Some(problem), true) => format!(
            "version {} stays active; the document as it is now is refused: {problem}",
            status.version
        ),
        (Some(problem), false) => {
            format!("no valid document yet, everything is denied: {problem}")
        }
    };
    Check {
        name: "policy",
        ok: status.loaded,
        detail,
    }
}

fn node(context: &Context) -> Check {
    let (ok, detail) = match Option::as_ref(&context.nets.node()) {
        _ if !context.nets.is_known() && context.nets.node().is_some() => (
            false,
            "the node's addresses can't be read; until then everything is denied".into(),
        ),
        Some(node) => (true, format!("Fake IP CIDR {}", node.fake_ip_cidr)),
        None => (
            false,
            format!(
                "{} has no valid node.json; agent-cni writes it at the first ADD",
                context.config.state_dir.display()
            ),
        ),
    };
    Check {
        name: "node",
        ok,
        detail,
    }
}

/// An API server that is away doesn't make the process unready: what it said last is good for the pods that run.
fn workloads(context: &Context) -> Check {
    let (ok, detail) = match context.cluster.as_ref().map(Cluster::health) {
        None => (true, format!("{} pods are known", context.workloads.len())),
        Some(health) => {
            let pods = health.pods;
            let known = match health.origin {
                Origin::Listed => format!("{pods} pods, as the API server said"),
                Origin::Snapshot => format!("{pods} pods, as the snapshot says"),
                Origin::Nothing => {
                    "neither API server nor snapshot have named the pods; all of them are denied"
                        .into()
                }
            };
            let detail = match health.problem {
                None => known,
                Some(problem) => format!("{known}; the API server can't be heard now: {problem}"),
            };
            (health.origin != Origin::Nothing, detail)
        }
    };
    Check {
        name: "workloads",
        ok,
        detail,
    }
}

fn listeners(data_path: &DataPath) -> Check {
    let (ok, detail) = match data_path {
        DataPath::Attached(id) => (true, format!("listeners are in dispatch map {id}")),
        DataPath::Redirected(gateway) => (true, format!("iptables redirects to {gateway}")),
        DataPath::Away(problem) => (false, problem.clone()),
    };
    Check {
        name: "data_path",
        ok,
        detail,
    }
}

fn draining(context: &Context) -> Check {
    let draining = context.drain.is_draining();
    Check {
        name: "drain",
        ok: !draining,
        detail: if draining {
            "the process is ending"
        } else {
            "not ending"
        }
        .into(),
    }
}
