//! Programs and maps, ours and others'.

use std::{collections::BTreeMap, fmt::Debug};

use agent_core::attachment::Mode;

use super::{RECREATE, SETUP, pods::name_of};
use crate::{
    doctor::{
        check::{Check, Finding},
        facts::{Facts, pods::Program},
    },
    node::endpoint,
};

/// How the programs of Cilium's load balancing in sockets are called, in its newer and older versions.
const SOCKET_LB: [&str; 3] = ["cil_sock4_conne", "cil_sock", "sock4_connect"];

/// Loaded, dispatching, and first on every pod's link.
pub(super) fn programs(facts: &Facts) -> Finding {
    let mut check = Check::new("programs");
    if let Err(why) = &facts.datapath.opened {
        check.fail(why, SETUP);
        return check.finish("");
    }
    if check.see("the dispatch program", &facts.datapath.dispatching) == Some(&false) {
        check.fail(
            "the dispatch program does not serve this network namespace: pods reach nothing",
            SETUP,
        );
    }
    for pod in &facts.pods {
        match &pod.program {
            Program::Right => {}
            Program::Wrong(why) => check.fail(format!("{}: {why}", name_of(pod)), RECREATE),
            Program::Unseen(why) => check.fail(
                format!("{}: cannot look at its program: {why}", name_of(pod)),
                "run doctor as root on the node, or in the agent-cni-installer pod",
            ),
        }
    }
    let pods = facts.pods.len();
    check.finish(format!(
        "dispatching, and first on {pods} pod{}",
        if pods == 1 { "" } else { "s" }
    ))
}

/// What the programs were told, against the state.
pub(super) fn maps(facts: &Facts) -> Finding {
    let mut check = Check::new("maps");
    let datapath = &facts.datapath;
    let settings = check.see("the programs' settings", &datapath.settings);
    let wanted = check.see("the node's choices", &datapath.wanted);
    if let (Some(found), Some(wanted)) = (settings, wanted) {
        let pairs: [(&str, &dyn Debug, &dyn Debug); 5] = [
            ("Service CIDRs", &found.service_cidrs, &wanted.service_cidrs),
            ("Fake IP CIDRs", &found.fake_cidrs, &wanted.fake_cidrs),
            ("the gateway", &found.gateway, &wanted.gateway),
            ("the gateway's MAC", &found.gateway_mac, &wanted.gateway_mac),
            ("the marks", &found.marks, &wanted.marks),
        ];
        for (what, found, wanted) in pairs {
            let (found, wanted) = (format!("{found:?}"), format!("{wanted:?}"));
            if found != wanted {
                check.fail(
                    format!("{what}: the programs have {found}, node.json says {wanted}"),
                    SETUP,
                );
            }
        }
    }
    if let Some(entries) = check.see("the pods' entries", &datapath.endpoints) {
        let entries: BTreeMap<_, _> = entries.iter().copied().collect();
        for attachment in &facts.state.attachments {
            let name = format!("{}/{}", attachment.pod.namespace, attachment.pod.name);
            match entries.get(&attachment.ifindex) {
                None => check.fail(
                    format!("{name} has no entry: all its packets are dropped"),
                    RECREATE,
                ),
                Some(found) if *found != endpoint(attachment) => check.fail(
                    format!(
                        "{name} is held to {}, its state file says {}",
                        found.fake_ip, attachment.fake_ip
                    ),
                    RECREATE,
                ),
                Some(_) => {}
            }
        }
        let known = |index: &u32| {
            facts
                .state
                .attachments
                .iter()
                .any(|attachment| attachment.ifindex == *index)
        };
        let strays: Vec<_> = entries.keys().filter(|index| !known(index)).collect();
        // a verb at work has its entry before its state, or after it
        for index in strays.into_iter().skip(facts.state.busy.len()) {
            let [a, b, c, d] = index.to_ne_bytes();
            let remedy = match &facts.state.node {
                Ok(node) if node.mode == Mode::IptablesCompat => {
                    "nothing: the runtime's next GC removes it".to_owned()
                }
                _ => format!(
                    "bpftool map delete pinned {}/v1/ENDPOINTS key {a} {b} {c} {d}",
                    facts.machine.pin_dir
                ),
            };
            check.fail(
                format!("there is an entry for interface {index}, which is no pod's"),
                remedy,
            );
        }
    }
    check.finish("settings and entries are what the state says")
}

/// Programs of others on the same hooks.
pub(super) fn other_programs(facts: &Facts) -> Finding {
    let mut check = Check::new("other-programs");
    if matches!(&facts.state.node, Ok(node) if node.mode == Mode::IptablesCompat) {
        return check.finish("not needed in mode iptables-compat");
    }
    for pod in &facts.pods {
        // what cannot be looked at is told by `programs`, with the same reason
        for program in pod.foreign.iter().flatten() {
            check.warn(
                format!(
                    "{}: program {} ({}) is on {} too, behind ours",
                    name_of(pod),
                    program.id,
                    program.name,
                    pod.attachment.host_veth
                ),
                format!("find its owner (bpftool prog show id {0}; tc filter show dev {1} ingress); it may not redirect packets", program.id, pod.attachment.host_veth),
            );
        }
        if let Err(why) = &pod.foreign {
            check.warn(
                format!("{}: cannot look at other programs: {why}", name_of(pod)),
                "",
            );
        }
    }
    match &facts.datapath.foreign_dispatchers {
        Ok(0) => {}
        Ok(others) => check.warn(
            format!(
                "{others} other program{} socket look-ups here",
                if *others == 1 { " decides" } else { "s decide" }
            ),
            "find the owner: bpftool net show; bpftool link show",
        ),
        Err(why) => check.warn(
            format!("cannot look at other socket look-up programs: {why}"),
            "",
        ),
    }
    check.finish("nobody else is on our hooks")
}

/// Cilium's load balancing in sockets: it translates a Service's address before our hook sees it.
pub(super) fn socket_lb(facts: &Facts) -> Finding {
    let mut check = Check::new("socket-lb");
    let Some(programs) = check.see("the programs on this machine", &facts.programs) else {
        return check.finish("");
    };
    let found = programs
        .iter()
        .find(|program| SOCKET_LB.iter().any(|name| program.name.starts_with(name)));
    let Some(found) = found else {
        return check.finish("no socket load balancing");
    };
    let what = format!(
        "Cilium balances Services in sockets (program {}, {})",
        found.id, found.name
    );
    const MEND: &str = "set socketLB.hostNamespaceOnly=true in Cilium's values (bpf-lb-sock-hostns-only) and restart its agents";
    match facts.services.cilium_host_only {
        Some(true) => return check.finish(format!("{what}, for the node itself only")),
        Some(false) => check.fail(
            format!("{what}, in pods too: their calls to Services reach the proxy as calls to pods, and are denied"),
            MEND,
        ),
        None => check.warn(format!("{what}; whether in pods too cannot be told"), MEND),
    }
    check.finish("")
}
