//! The node's own network.

use std::net::Ipv4Addr;

use agent_core::attachment::Mode;
use agent_datapath::{network::FOR_PODS, routing::RuleBefore};
use ipnet::Ipv4Net;

use super::SETUP;
use crate::doctor::{
    check::{Check, Finding},
    facts::{Facts, cni::Content},
};

/// The cloud's metadata service.
const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// Denied whatever the policy says; infrastructure of clouds.
const CGNAT: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10);
/// Routed on the uplink by many distributions (zeroconf); so general a route is no use of a /24 of it.
const LINK_LOCAL: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16);

/// `agentcni0`.
pub(super) fn bridge(facts: &Facts) -> Finding {
    let mut check = Check::new("bridge");
    if let Err(why) = &facts.network.bridge {
        check.fail(why, SETUP);
    }
    let address = facts.state.node.as_ref().map_or_else(
        |_| String::new(),
        |node| {
            format!(
                "{} has {}/{}",
                node.bridge,
                node.gateway,
                node.fake_ip_cidr.prefix_len()
            )
        },
    );
    check.finish(address)
}

/// The filter at the bridge's ingress.
pub(super) fn bridge_filter(facts: &Facts) -> Finding {
    let mut check = Check::new("bridge-filter");
    if let Err(why) = &facts.network.bridge_filter {
        check.fail(why, SETUP);
    }
    check.finish("the bridge drops what has no mark")
}

/// The rule and the route that make the proxy's packets local, where the node's mode has them, and the rules that let
/// nothing be routed out.
pub(super) fn policy_route(facts: &Facts) -> Finding {
    let mut check = Check::new("policy-route");
    if !is_compat(facts)
        && let Err(why) = &facts.network.policy_route
    {
        check.fail(why, SETUP);
    }
    if let Err(why) = &facts.network.drop_rules {
        check.fail(why, SETUP);
    }
    // what cannot be looked at is told once, by the next check
    for rule in facts.network.rules_before.iter().flatten() {
        if rule.flow != FOR_PODS {
            tell_before(&mut check, rule);
        }
    }
    check.finish(match is_compat(facts) {
        true => "what is not redirected or translated is dropped",
        false => "marked packets go to the proxy, and what nobody translates is dropped",
    })
}

/// The way back to the pods.
pub(super) fn pool_route(facts: &Facts) -> Finding {
    let mut check = Check::new("pool-route");
    if let Err(why) = &facts.network.pool_route {
        check.fail(why, SETUP);
    }
    if let Some(rules) = check.see("policy rules of others", &facts.network.rules_before) {
        for rule in rules.iter().filter(|rule| rule.flow == FOR_PODS) {
            tell_before(&mut check, rule);
        }
    }
    check.finish("what is for a pod goes by the bridge, or nowhere")
}

fn tell_before(check: &mut Check, rule: &RuleBefore) {
    let remedy = format!(
        "find its owner and give it a preference behind ours, or take it away ({})",
        rule.removal()
    );
    match rule.certain {
        true => check.fail(rule.what(), remedy),
        false => check.warn(rule.what(), remedy),
    }
}

/// Our nftables table.
pub(super) fn nftables(facts: &Facts) -> Finding {
    let mut check = Check::new("nftables");
    if let Err(why) = &facts.network.nftables {
        check.fail(why, SETUP);
    }
    check.finish("table ip agent_network is as it should be")
}

/// The documented iptables rules, where the node's mode has them.
pub(super) fn iptables_rules(facts: &Facts) -> Finding {
    let mut check = Check::new("iptables-rules");
    if !is_compat(facts) {
        return check.finish("not needed in mode ebpf");
    }
    if let Err(why) = &facts.network.iptables_rules {
        check.fail(why, SETUP);
    }
    check.finish("chains AGENT-CNI are as they should be")
}

/// Which of the two iptables is this node's.
pub(super) fn iptables(facts: &Facts) -> Finding {
    let mut check = Check::new("iptables");
    let choice = match &facts.network.iptables {
        Ok(choice) => choice,
        Err(why) if is_compat(facts) => {
            check.fail(
                format!("iptables does not work: {why}"),
                "install iptables 1.8 or later, in the installer's image and on the node",
            );
            return check.finish("");
        }
        Err(why) => {
            check.warn(
                format!("iptables cannot be looked at: {why}"),
                "nothing: mode ebpf does without",
            );
            return check.finish("");
        }
    };
    let name = choice.backend.name();
    if choice.both_in_use {
        check.warn(
            format!(
                "others have rules in iptables-nft and in iptables-legacy; the node's is {name} ({:?})",
                choice.why
            ),
            "find who uses the other one (iptables-nft-save, iptables-legacy-save) and have it use the node's",
        );
    }
    check.finish(format!("{name} ({:?})", choice.why))
}

/// Kernel settings.
pub(super) fn sysctls(facts: &Facts) -> Finding {
    let mut check = Check::new("sysctls");
    if let Some(differences) = check.see("kernel settings", &facts.network.sysctls) {
        for difference in differences {
            // as in net.ipv4.conf.all.rp_filter is 1, wanted 0
            let name = difference.split(' ').next().unwrap_or_default();
            let key = name.rsplit(['.', '/']).next().unwrap_or_default();
            check.fail(
                difference,
                format!("{SETUP}; if it comes back, find who sets it: grep -r {key} /etc/sysctl.d /run/sysctl.d /usr/lib/sysctl.d"),
            );
        }
    }
    check.finish("ip_forward is on, rp_filter off, and no IPv6 on the bridge")
}

/// Ranges that must not overlap.
pub(super) fn cidrs(facts: &Facts) -> Finding {
    let mut check = Check::new("cidrs");
    let Some(node) = check.see("the node's ranges", &facts.state.node) else {
        return check.finish("");
    };
    const OTHER_POOL: &str =
        "drain the node, set fakeIPCIDR to a range that nothing uses, and run `agent-cni setup`";
    const REAL: &str = "set serviceCIDRs to the cluster's actual Service CIDR";
    let pool = node.fake_ip_cidr;
    if pool.contains(&METADATA) {
        check.fail(
            format!("the Fake IP CIDR {pool} holds the metadata service {METADATA}"),
            OTHER_POOL,
        );
    }
    if overlap(pool, CGNAT) {
        check.warn(
            format!("the Fake IP CIDR {pool} lies in {CGNAT}, which is always denied"),
            OTHER_POOL,
        );
    }
    for service in &node.service_cidrs {
        if service.contains(&METADATA) {
            check.fail(
                format!("the Service CIDR {service} holds the metadata service {METADATA}"),
                REAL,
            );
        }
    }
    let pods = pod_cidrs(facts);
    for (primary, file) in &pods {
        if overlap(*primary, pool) {
            check.fail(
                format!("the Fake IP CIDR {pool} overlaps {primary}, which {file} gives to pods"),
                OTHER_POOL,
            );
        }
        for service in node
            .service_cidrs
            .iter()
            .filter(|one| overlap(**one, *primary))
        {
            check.fail(
                format!("the Service CIDR {service} overlaps {primary}, which {file} gives to pods: they would be reached past the proxy"),
                REAL,
            );
        }
    }
    if let Some(in_use) = check.see("the node's routes", &facts.network.in_use) {
        for used in in_use {
            let (net, what, removal) = (used.net, used.what(), used.removal());
            if net != LINK_LOCAL && overlap(net, pool) {
                check.fail(
                    format!("the Fake IP CIDR {pool} overlaps {what}"),
                    format!("take it away ({removal}), or {OTHER_POOL}"),
                );
            }
            // single addresses are IPVS's own; a route around all of it is how a VPC is routed
            let inside = |service: &&Ipv4Net| net.prefix_len() < 32 && service.contains(&net);
            for service in node.service_cidrs.iter().filter(inside) {
                check.fail(
                    format!(
                        "{what}, lies in the Service CIDR {service}: it is reached past the proxy"
                    ),
                    format!("{REAL}, or take it away ({removal})"),
                );
            }
        }
    }
    check.finish(format!("{pool} overlaps nothing"))
}

/// What a primary network says it gives to pods.
fn pod_cidrs(facts: &Facts) -> Vec<(Ipv4Net, String)> {
    let files = facts.cni.confs.as_deref().unwrap_or_default();
    files
        .iter()
        .flat_map(|file| match &file.content {
            Content::Others(_, pools) => {
                pools.iter().map(|net| (*net, file.name.clone())).collect()
            }
            _ => Vec::new(),
        })
        .collect()
}

/// Frames that are too large for the way out.
pub(super) fn mtu(facts: &Facts) -> Finding {
    let mut check = Check::new("mtu");
    let pods = check
        .see("the pods' MTU", &facts.network.port_mtu)
        .copied()
        .flatten();
    let uplink = check
        .see("the uplink's MTU", &facts.network.uplink_mtu)
        .copied()
        .flatten();
    match (pods, uplink) {
        (Some(pods), Some(uplink)) if pods > uplink => check.warn(
            format!("a pod's MTU is {pods}, the uplink's {uplink}: large packets to Services are lost or cut"),
            format!("set mtu to {uplink} or less in the CNI configuration and recreate the pods"),
        ),
        _ => {}
    }
    check.finish("no pod's MTU is above the uplink's")
}

fn is_compat(facts: &Facts) -> bool {
    matches!(&facts.state.node, Ok(node) if node.mode == Mode::IptablesCompat)
}

fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}
