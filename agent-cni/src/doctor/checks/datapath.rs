//! Programs and maps, ours and others'.

use std::{collections::BTreeMap, fmt::Debug};

use agent_core::{attachment::Mode, node::BRIDGE};
use agent_datapath::inspect::{OtherProgram, ProgramName};

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

/// What controls pods: programs that are loaded, dispatching, and first on every pod's link; in mode iptables-compat the
/// bridge's table with chains of every pod.
pub(super) fn programs(facts: &Facts) -> Finding {
    let mut check = Check::new("programs");
    let compat = is_compat(facts);
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
    let its = if compat { "chains" } else { "program" };
    for pod in &facts.pods {
        match &pod.program {
            Program::Right => {}
            Program::Wrong(why) => check.fail(format!("{}: {why}", name_of(pod)), RECREATE),
            Program::Unseen(why) => check.fail(
                format!("{}: cannot look at its {its}: {why}", name_of(pod)),
                "run doctor as root on the node, or in the agent-cni-installer pod",
            ),
        }
    }
    let pods = facts.pods.len();
    let pods = format!("{pods} pod{}", if pods == 1 { "" } else { "s" });
    check.finish(match compat {
        true => format!("table bridge agent_network, with the chains of {pods}"),
        false => format!("dispatching, and first on {pods}"),
    })
}

/// What the programs were told, against the state.
pub(super) fn maps(facts: &Facts) -> Finding {
    let mut check = Check::new("maps");
    let datapath = &facts.datapath;
    if let Err(why) = &datapath.opened {
        check.fail(why, SETUP);
        return check.finish("");
    }
    let (whose, has) = match is_compat(facts) {
        true => ("the table's", "the table has"),
        false => ("the programs'", "the programs have"),
    };
    let settings = check.see(&format!("{whose} settings"), &datapath.settings);
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
                    format!("{what}: {has} {found}, node.json says {wanted}"),
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
            let remedy = match is_compat(facts) {
                true => "nothing: the runtime's next GC removes it".to_owned(),
                false => format!(
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

fn is_compat(facts: &Facts) -> bool {
    matches!(&facts.state.node, Ok(node) if node.mode == Mode::IptablesCompat)
}

/// Programs of others on the same hooks.
pub(super) fn other_programs(facts: &Facts) -> Finding {
    let mut check = Check::new("other-programs");
    let mut tell = |whose: &str, device: &str, other: &OtherProgram| {
        let ProgramName { id, name } = &other.program;
        let (place, may) = match other.before {
            true => (
                "before what is ours: it decides what that sees",
                "it may neither redirect nor change packets",
            ),
            false => ("behind ours", "it may not redirect packets"),
        };
        let found = format!("{whose}program {id} ({name}) is on {device} too, {place}");
        let remedy = format!(
            "find its owner, bpftool prog show id {id}, and take it off ({}); as long as it is there {may}",
            other.removal(device)
        );
        // the bridge's filter is the last lock, and what comes before it may open it
        match other.before && device == BRIDGE {
            true => check.fail(found, remedy),
            false => check.warn(found, remedy),
        }
    };
    for pod in &facts.pods {
        // what cannot be looked at is told by `programs`, with the same reason
        for other in pod.foreign.iter().flatten() {
            tell(
                &format!("{}: ", name_of(pod)),
                &pod.attachment.host_veth,
                other,
            );
        }
    }
    for other in facts.network.on_bridge.iter().flatten() {
        tell("", BRIDGE, other);
    }
    for pod in &facts.pods {
        if let Err(why) = &pod.foreign {
            check.warn(
                format!("{}: cannot look at other programs: {why}", name_of(pod)),
                "",
            );
        }
    }
    if let Err(why) = &facts.network.on_bridge {
        check.warn(
            format!("cannot look at other programs on {BRIDGE}: {why}"),
            "",
        );
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
