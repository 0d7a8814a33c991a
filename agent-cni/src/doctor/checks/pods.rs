//! State files against what is there of the pods.

use std::collections::BTreeSet;

use agent_datapath::footprint::is_pod_link;

use super::{RECREATE, SETUP};
use crate::doctor::{
    check::{Check, Finding},
    facts::{
        Facts,
        pods::{Namespace, Pod},
    },
};

/// The state directory.
pub(super) fn state(facts: &Facts) -> Finding {
    let mut check = Check::new("state");
    let state = &facts.state;
    let path = state.path.display();
    if let Some(why) = &state.unread {
        check.fail(
            format!("the state directory cannot be read: {why}"),
            format!("{SETUP}; when agent-cni is installed with another stateDir, pass --state-dir"),
        );
        return check.finish("");
    }
    if let Some(unfit) = &state.unfit {
        check.fail(unfit.what(), unfit.remedy());
    }
    if let Err(why) = &state.node {
        check.fail(format!("the node's choices cannot be read: {why}"), SETUP);
    }
    for (name, why) in &state.garbage {
        check.fail(
            format!(
                "{name} holds no attachment ({why}): its pod, if there is one, has no identity"
            ),
            format!("recreate the pod, then rm -r {path}/{name}"),
        );
    }
    for name in &state.aside {
        check.warn(
            format!("{name} was set aside, because it could not be read"),
            format!("rm {path}/{name}"),
        );
    }
    for name in &state.of_another_boot {
        check.warn(
            format!("{name} is of an earlier boot"),
            "nothing: the next ADD removes it",
        );
    }
    for name in &state.dead {
        check.warn(
            format!("an ADD or DEL of {name} died halfway"),
            "nothing: the next ADD or GC removes what it left",
        );
    }
    let pods = state.attachments.len();
    check.finish(format!(
        "{pods} pod{} in {path}",
        if pods == 1 { "" } else { "s" }
    ))
}

/// Does each attachment's network namespace live?
pub(super) fn namespaces(facts: &Facts) -> Finding {
    let mut check = Check::new("namespaces");
    for pod in &facts.pods {
        let name = name_of(pod);
        match &pod.namespace {
            Namespace::Alive => {}
            Namespace::Gone(why) => check.fail(
                format!("{name} has a state file but no network namespace ({why})"),
                format!(
                    "let the runtime remove the sandbox ({}), or call the plugin's DEL for it",
                    pod.attachment.container_id
                ),
            ),
            Namespace::Unseen(why) => check.fail(
                format!("{name}: {why}"),
                "run doctor as root on the node; in a pod, mount the node's /run/netns with HostToContainer propagation",
            ),
        }
    }
    check.finish("every pod's network namespace is there")
}

/// Each pod's link on both ends; and ports of the bridge that nobody knows.
pub(super) fn pods(facts: &Facts) -> Finding {
    let mut check = Check::new("pods");
    for pod in &facts.pods {
        // of a pod that is gone as a whole, `namespaces` tells
        if let (Err(why), false) = (&pod.link, matches!(pod.namespace, Namespace::Gone(_))) {
            check.fail(format!("{}: {why}", name_of(pod)), RECREATE);
        }
    }
    if let Some(ports) = check.see("the bridge's ports", &facts.network.ports) {
        let known: BTreeSet<&str> = facts
            .state
            .attachments
            .iter()
            .map(|attachment| attachment.host_veth.as_str())
            .collect();
        let strays = ports.iter().filter(|port| !known.contains(port.as_str()));
        // a verb at work has its link before its state, or after it
        for port in strays.skip(facts.state.busy.len()) {
            let whose = if is_pod_link(port) {
                "a pod's, of which there is no state file: its traffic is denied"
            } else {
                "not agent-cni's"
            };
            check.fail(
                format!("{port} is a port of the bridge and {whose}"),
                format!("recreate the pod that it belongs to, or ip link del {port}"),
            );
        }
    }
    check.finish("links, ports, neighbours and pod ends are right")
}

/// `namespace/name`.
pub(super) fn name_of(pod: &Pod) -> String {
    let reference = &pod.attachment.pod;
    format!("{}/{}", reference.namespace, reference.name)
}
