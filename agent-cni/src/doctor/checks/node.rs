//! What else the node runs: ZeroProxy, its ports, kube-proxy.

use std::net::IpAddr;

use agent_core::node_settings::Connectivity;

use crate::{
    doctor::{
        check::{Check, Finding},
        facts::{Facts, proxy::Answer},
    },
    listeners::{Listener, PROXY_PORT},
};

/// The process that may have the ports.
const PROXY: &str = "agent-node";

/// Does somebody else have the proxy's ports?
pub(super) fn ports(facts: &Facts) -> Finding {
    let mut check = Check::new("ports");
    let alive = facts
        .proxy
        .health
        .as_ref()
        .is_ok_and(|answer| answer.status == 200);
    if let Some(listeners) = check.see("listening sockets", &facts.listeners) {
        for listener in listeners.iter().filter(|one| conflicts(facts, one)) {
            let place = format!(
                "{} {}:{}",
                listener.protocol, listener.address, listener.port
            );
            let whose = match listener.owner.as_deref() {
                Some(PROXY) => continue,
                Some(other) => format!("{other} listens on {place}"),
                // without the host's PIDs nobody can be named; a proxy that answers is taken for the owner
                None if alive => continue,
                None => format!("somebody who is not ZeroProxy listens on {place}"),
            };
            check.fail(
                whose,
                format!(
                    "stop it or give it another port: ss -lnp | grep {}",
                    listener.port
                ),
            );
        }
    }
    check.finish("nobody else has ports 18080 and 18053")
}

/// Whether the proxy could not listen, or others would be taken for it.
fn conflicts(facts: &Facts, listener: &Listener) -> bool {
    if listener.protocol == "udp" && listener.port == PROXY_PORT {
        return false;
    }
    let gateway = facts
        .state
        .node
        .as_ref()
        .map(|node| IpAddr::from(node.gateway));
    let localhost = IpAddr::from([127, 0, 0, 1]);
    listener.address.is_unspecified()
        || listener.address == localhost
        || gateway == Ok(listener.address)
}

/// Who translates Services?
pub(super) fn kube_proxy(facts: &Facts) -> Finding {
    let mut check = Check::new("kube-proxy");
    let services = &facts.services;
    let seen = |fact: &Result<bool, String>| fact.as_ref().is_ok_and(|there| *there);
    let mut modes: Vec<String> = Vec::new();
    if let Some(told) = &services.told {
        modes.push(format!("kube-proxy says {told}"));
    }
    let found = [
        (
            seen(&services.nftables),
            "table ip kube-proxy (nftables mode)",
        ),
        (
            seen(&services.iptables_nft),
            "chain KUBE-SERVICES (iptables mode)",
        ),
        (services.ipvs, "virtual servers (IPVS mode)"),
    ];
    modes.extend(
        found
            .iter()
            .filter(|(there, _)| *there)
            .map(|(_, what)| (*what).to_owned()),
    );
    const MEND: &str = "check that kube-proxy runs on this node: kubectl -n kube-system get pod -o wide; curl 127.0.0.1:10249/proxyMode";
    for fact in [&services.nftables, &services.iptables_nft] {
        check.see("nftables", fact);
    }
    let has_services = facts
        .state
        .node
        .as_ref()
        .is_ok_and(|node| !node.service_cidrs.is_empty());
    if modes.is_empty() && has_services {
        check.warn(
            "nobody on this node translates Services: calls to them are dropped",
            MEND,
        );
    }
    if found.iter().filter(|(there, _)| *there).count() > 1 {
        check.warn(
            format!(
                "rules of more than one mode are there: {}",
                modes.join(", ")
            ),
            "remove those of the mode that is not in use: kube-proxy --cleanup",
        );
    }
    let fine = if modes.is_empty() {
        "no Service CIDRs, so no kube-proxy is needed".to_owned()
    } else {
        modes.join(", ")
    };
    check.finish(fine)
}

/// What is ours and should not be there any more.
pub(super) fn leftovers(facts: &Facts) -> Finding {
    let mut check = Check::new("leftovers");
    for (what, by_hand) in &facts.leftovers.found {
        check.warn(format!("{what} is left over"), by_hand);
    }
    for why in &facts.leftovers.unseen {
        check.warn(format!("cannot look for leftovers: {why}"), "");
    }
    check.finish("nothing of another mode or version")
}

/// Does the node go by what its class says, and does that leave anything open?
pub(super) fn class(facts: &Facts) -> Finding {
    let mut check = Check::new("class");
    let conf = facts.cni.conf();
    if conf.fail_open {
        check.warn(
            "failMode is Open: while no ZeroProxy listens, pods reach the network without any policy, but for sensitive ranges, the node and other pods",
            "set proxy.failMode of the node's class to Closed",
        );
    }
    let Some(taken) = check.see("what the node's class says", &facts.state.settings) else {
        return check.finish("");
    };
    let Some(taken) = taken else {
        return check.finish("the node follows no class");
    };
    let class = &taken.class;
    if taken.settings.default_connectivity == Connectivity::Passthrough {
        check.warn(
            "defaultConnectivity is Passthrough: what no policy decides is passed on",
            format!("set cni.defaultConnectivity of class {class} to Zero"),
        );
    }
    if let Some(old) = taken.staged_behind {
        check.warn(
            format!(
                "{} of class {class} waits until no pod has an address of {old}",
                taken.fake_ip_cidr
            ),
            "drain the node",
        );
    }
    if let Some(why) = &taken.kept_because {
        check.warn(
            format!("the last settings of class {class} are kept: {why}"),
            "look at the class (kubectl get anc), the controller's log, and the installer's projected nodes.json",
        );
    }
    check.finish(format!("as class {class} says"))
}

/// Is the proxy alive, and ready?
pub(super) fn zeroproxy(facts: &Facts) -> Finding {
    let mut check = Check::new("zeroproxy");
    let proxy = &facts.proxy;
    const LOOK: &str = "look at its log: kubectl -n tke-agent-network-real logs ds/zeroproxy; without it pods reach nothing";
    match &proxy.health {
        Err(why) => {
            check.fail(format!("ZeroProxy does not answer: {why}"), LOOK);
            return check.finish("");
        }
        Ok(answer) if answer.status != 200 => {
            check.fail(format!("{} answers {}", proxy.url, answer.status), LOOK);
        }
        Ok(_) => {}
    }
    match &proxy.ready {
        Err(why) => check.fail(format!("readiness cannot be asked: {why}"), LOOK),
        Ok(answer) if answer.status != 200 => {
            check.fail(format!("ZeroProxy is not ready: {}", reasons(answer)), LOOK);
        }
        Ok(_) => {}
    }
    check.finish("alive and ready")
}

/// The checks that keep the proxy from being ready, out of its own answer.
fn reasons(answer: &Answer) -> String {
    let value: serde_json::Value = serde_json::from_str(&answer.body).unwrap_or_default();
    let failing: Vec<String> = value["checks"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|one| one["ok"] == false)
        .map(|one| {
            let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
            format!("{} ({})", text("name"), text("detail"))
        })
        .collect();
    if failing.is_empty() {
        format!("it answers {}", answer.status)
    } else {
        failing.join(", ")
    }
}
