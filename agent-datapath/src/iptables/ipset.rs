//! The ipset of the Service CIDRs, for nodes that have many: one look-up instead of a rule for each.

use std::{collections::BTreeSet, path::PathBuf};

use ipnet::Ipv4Net;

use super::{
    command::{find, run},
    rules::{MANY, SERVICES_SET},
};
use crate::error::NetError;

/// Filled, and then swapped with the one in use, so that no packet sees half of it.
pub const NEXT: &str = "agent-cni-next";

/// Makes the set, when there are many networks and ipset works; answers whether rules can use it.
///
/// # Errors
/// A set of our name is of another type, or ipset refuses although it works.
pub(super) fn ensure(networks: &[Ipv4Net]) -> Result<bool, NetError> {
    let Some(ipset) = wanted(networks) else {
        return Ok(false);
    };
    match members(&ipset) {
        Ok(found) if found.as_ref() == Some(&texts(networks)) => return Ok(true),
        Ok(_) => {}
        Err(error) => {
            tracing::info!(error = %error, "ipset does not work here: one rule for each Service CIDR");
            return Ok(false);
        }
    }
    run(
        &ipset,
        &["restore", "-exist"],
        &script(networks),
        "write the set of Service CIDRs",
    )?;
    Ok(true)
}

/// Compares the set; answers whether rules must use it.
///
/// # Errors
/// `Differs`.
pub(super) fn check(networks: &[Ipv4Net]) -> Result<bool, NetError> {
    let Some(ipset) = wanted(networks) else {
        return Ok(false);
    };
    match members(&ipset) {
        Err(_) => Ok(false),
        Ok(Some(found)) if found == texts(networks) => Ok(true),
        Ok(found) => Err(NetError::differs(
            format!("ipset {SERVICES_SET}"),
            match found {
                None => "missing",
                Some(_) => "of other networks",
            },
            "the Service CIDRs",
        )),
    }
}

/// Removes the set; fine when there is none, also no ipset.
///
/// # Errors
/// A rule uses it still.
pub(super) fn remove() -> Result<(), NetError> {
    let Some(ipset) = find("ipset") else {
        return Ok(());
    };
    for name in names(&ipset) {
        if name == SERVICES_SET || name == NEXT {
            run(
                &ipset,
                &["destroy", &name],
                "",
                "remove the set of Service CIDRs",
            )?;
        }
    }
    Ok(())
}

/// Whether the set is there.
///
/// # Errors
/// None today; a kernel without ipset has no set.
pub(super) fn exists() -> Result<bool, NetError> {
    Ok(find("ipset").is_some_and(|ipset| names(&ipset).iter().any(|name| name == SERVICES_SET)))
}

fn wanted(networks: &[Ipv4Net]) -> Option<PathBuf> {
    // a set of networks holds none of length 0
    let many = networks.len() > MANY && networks.iter().all(|net| net.prefix_len() > 0);
    many.then(|| find("ipset")).flatten()
}

fn names(ipset: &std::path::Path) -> Vec<String> {
    run(ipset, &["list", "-n"], "", "list sets")
        .map(|text| text.lines().map(str::to_owned).collect())
        .unwrap_or_default()
}

/// What is in the set; none when there is no set.
fn members(ipset: &std::path::Path) -> Result<Option<BTreeSet<String>>, NetError> {
    let all = run(ipset, &["list", "-n"], "", "list sets")?;
    if !all.lines().any(|name| name == SERVICES_SET) {
        return Ok(None);
    }
    let text = run(
        ipset,
        &["save", SERVICES_SET],
        "",
        "list the set of Service CIDRs",
    )?;
    Ok(Some(read(&text)))
}

fn read(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix("add ")?.split(' ').nth(1))
        .map(|member| match member.contains('/') {
            true => member.to_owned(),
            false => format!("{member}/32"),
        })
        .collect()
}

fn texts(networks: &[Ipv4Net]) -> BTreeSet<String> {
    networks.iter().map(|net| net.trunc().to_string()).collect()
}

fn script(networks: &[Ipv4Net]) -> String {
    let networks = texts(networks);
    let size = networks.len().next_power_of_two().max(1024);
    let mut text = String::new();
    for name in [SERVICES_SET, NEXT] {
        text.push_str(&format!(
            "create {name} hash:net family inet hashsize 1024 maxelem {size}\n"
        ));
    }
    text.push_str(&format!("flush {NEXT}\n"));
    for net in networks {
        text.push_str(&format!("add {NEXT} {net}\n"));
    }
    text.push_str(&format!("swap {NEXT} {SERVICES_SET}\ndestroy {NEXT}\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_set_is_filled_before_it_takes_the_place_of_the_old_one() {
        let networks = ["10.96.0.0/12", "10.0.0.1/32"].map(|text| text.parse().unwrap());
        assert_eq!(
            script(&networks),
            "create agent-cni-services hash:net family inet hashsize 1024 maxelem 1024\n\
             create agent-cni-next hash:net family inet hashsize 1024 maxelem 1024\n\
             flush agent-cni-next\n\
             add agent-cni-next 10.0.0.1/32\n\
             add agent-cni-next 10.96.0.0/12\n\
             swap agent-cni-next agent-cni-services\n\
             destroy agent-cni-next\n"
        );
    }

    #[test]
    fn what_ipset_saves_is_read_back() {
        let saved = "create agent-cni-services hash:net family inet hashsize 1024 maxelem 65536\n\
                     add agent-cni-services 10.96.0.0/12\nadd agent-cni-services 10.0.0.1\n";
        let networks = ["10.96.0.0/12", "10.0.0.1/32"].map(|text| text.parse().unwrap());
        assert_eq!(read(saved), texts(&networks));
    }
}
