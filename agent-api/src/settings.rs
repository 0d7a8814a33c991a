//! From classes and nodes to node settings. Pure: the same classes, nodes and settings of before give the same bytes.
//!
//! A node keeps its range for as long as it can: pods that run have addresses of it. What a running pod can't follow is
//! staged, and the class says for which nodes and what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use agent_core::node::{derive_from_pool, is_avoided, overlap};
use agent_core::node_settings::{ClassSettings, NodeEntry, NodeSettingsFile};
use agent_core::policy::cidr::IpCidr;
use agent_core::policy::selector::Labels;
use ipnet::Ipv4Net;

use crate::class::ClassSpec;

/// The annotation by which an operator lets a node move to another range: its value is the class's `fakeIPCIDR`.
pub const RENUMBER: &str = "agent.tke.cloud.tencent.com/renumber";

/// A class as it is taken, wherever it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedClass {
    /// The object's name.
    pub name: String,
    /// What it says.
    pub spec: ClassSpec,
}

/// What has to be known of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: Labels,
    /// The value of its annotation [`RENUMBER`].
    pub renumber: Option<String>,
    /// Ranges that its cluster uses there: its Pod CIDRs and addresses.
    pub in_use: Vec<Ipv4Net>,
}

/// Why a class is left out. Its nodes keep what they have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassError {
    /// The pool and a Service CIDR have addresses in common.
    #[error(
        "fakeIPCIDR {pool} overlaps the Service CIDR {with}; write a range that nothing else in the cluster uses"
    )]
    Services {
        /// The pool.
        pool: Ipv4Net,
        /// The Service CIDR.
        with: Ipv4Net,
    },
    /// The pool and what a node uses have addresses in common.
    #[error(
        "fakeIPCIDR {pool} overlaps {with}, which node {node} uses; write a range that nothing else in the cluster uses"
    )]
    InUse {
        /// The pool.
        pool: Ipv4Net,
        /// The range in use.
        with: Ipv4Net,
        /// The node.
        node: String,
    },
    /// No part of that length.
    #[error(
        "fakeIPCIDR {pool} has no part with nodePrefixLength {length}; write a larger number, or a larger fakeIPCIDR"
    )]
    Length {
        /// The pool.
        pool: Ipv4Net,
        /// The length.
        length: u8,
    },
    /// The whole pool is sensitive.
    #[error("sensitiveCIDRs has {with}, which closes all of fakeIPCIDR {pool}; leave it out")]
    Sensitive {
        /// The pool.
        pool: Ipv4Net,
        /// The range.
        with: IpCidr,
    },
}

/// What became of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClassOutcome {
    /// It is left out.
    Invalid(ClassError),
    /// It is followed.
    Valid(Followed),
}

/// The nodes of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// All of them.
    pub nodes: BTreeSet<String>,
    /// Those that keep a range of before, which the class doesn't have.
    pub staged: BTreeMap<String, Ipv4Net>,
    /// Those for which the pool had no part left.
    pub without: BTreeSet<String>,
    /// Those that match, and follow another class that names them more closely.
    pub elsewhere: BTreeMap<String, String>,
}

/// Derives the settings. `services` are the Service CIDRs that the cluster was installed with.
pub fn derive(
    classes: &[NamedClass],
    nodes: &[NodeFacts],
    before: &NodeSettingsFile,
    services: &[Ipv4Net],
) -> (NodeSettingsFile, BTreeMap<String, ClassOutcome>) {
    let mut outcomes = BTreeMap::new();
    let mut valid: Vec<&NamedClass> = Vec::new();
    for class in classes {
        let outcome = match check(&class.spec, nodes, services) {
            Ok(()) => {
                valid.push(class);
                ClassOutcome::Valid(Followed::default())
            }
            Err(error) => ClassOutcome::Invalid(error),
        };
        outcomes.insert(class.name.clone(), outcome);
    }
    // the more a selector asks, the closer it names; the name decides between equals
    valid.sort_by_key(|class| {
        let selector = &class.spec.node_selector;
        let asks = selector.match_labels.len() + selector.match_expressions.len();
        (std::cmp::Reverse(asks), &class.name)
    });
    let mut sorted: Vec<&NodeFacts> = nodes.iter().collect();
    sorted.sort_by_key(|node| &node.name);

    let mut file = NodeSettingsFile::default();
    let mut fresh: Vec<(&NodeFacts, &NamedClass)> = Vec::new();
    for node in sorted {
        let old = before.nodes.get(&node.name);
        let mut matching = valid
            .iter()
            .filter(|class| class.spec.node_selector.matches(&node.labels));
        let Some(class) = matching.next().copied() else {
            // pods of the time when a class was for it may run there
            if let Some((entry, settings)) = old.and_then(|_| before.node(&node.name)) {
                file.nodes.insert(node.name.clone(), entry.clone());
                let class = file.classes.entry(entry.class.clone());
                class.or_insert_with(|| settings.clone());
            }
            continue;
        };
        for other in matching {
            if let Some(ClassOutcome::Valid(followed)) = outcomes.get_mut(&other.name) {
                followed
                    .elsewhere
                    .insert(node.name.clone(), class.name.clone());
            }
        }
        file.classes
            .insert(class.name.clone(), settings(&class.spec, services));
        let Some(ClassOutcome::Valid(followed)) = outcomes.get_mut(&class.name) else {
            continue;
        };
        followed.nodes.insert(node.name.clone());
        let kept = old.map(|entry| entry.fake_ip_cidr);
        let pool = class.spec.fake_ip_cidr.to_string();
        match kept {
            Some(range) if fits(range, &class.spec) => {}
            Some(range) if node.renumber.as_ref() != Some(&pool) => {
                followed.staged.insert(node.name.clone(), range);
            }
            _ => {
                fresh.push((node, class));
                continue;
            }
        }
        if let Some(fake_ip_cidr) = kept {
            let class = class.name.clone();
            let entry = NodeEntry {
                class,
                fake_ip_cidr,
            };
            file.nodes.insert(node.name.clone(), entry);
        }
    }
    number(&fresh, nodes, services, &mut file, &mut outcomes);
    file.classes
        .retain(|name, _| file.nodes.values().any(|entry| entry.class == *name));
    (file, outcomes)
}

/// Gives ranges to nodes that have none, around those of all others.
fn number(
    fresh: &[(&NodeFacts, &NamedClass)],
    nodes: &[NodeFacts],
    services: &[Ipv4Net],
    file: &mut NodeSettingsFile,
    outcomes: &mut BTreeMap<String, ClassOutcome>,
) {
    let mut taken: Vec<Ipv4Net> = file
        .nodes
        .values()
        .map(|entry| entry.fake_ip_cidr)
        .collect();
    taken.extend_from_slice(services);
    taken.extend(nodes.iter().flat_map(|node| &node.in_use));
    for (node, class) in fresh {
        let spec = &class.spec;
        let mut in_use = taken.clone();
        in_use.extend_from_slice(&spec.service_cidrs);
        in_use.extend(spec.sensitive_cidrs.iter().filter_map(v4));
        match derive_from_pool(
            &node.name,
            spec.fake_ip_cidr,
            spec.node_prefix_length,
            &in_use,
        ) {
            Some(fake_ip_cidr) => {
                taken.push(fake_ip_cidr);
                let entry = NodeEntry {
                    class: class.name.clone(),
                    fake_ip_cidr,
                };
                file.nodes.insert(node.name.clone(), entry);
            }
            None => {
                if let Some(ClassOutcome::Valid(followed)) = outcomes.get_mut(&class.name) {
                    followed.without.insert(node.name.clone());
                }
            }
        }
    }
}

fn check(spec: &ClassSpec, nodes: &[NodeFacts], services: &[Ipv4Net]) -> Result<(), ClassError> {
    let pool = spec.fake_ip_cidr;
    let length = spec.node_prefix_length;
    if length < pool.prefix_len() || length > 32 {
        return Err(ClassError::Length { pool, length });
    }
    if let Some(with) = effective(spec, services)
        .iter()
        .find(|net| overlap(**net, pool))
    {
        return Err(ClassError::Services { pool, with: *with });
    }
    let closes = |range: &&IpCidr| v4(range).is_some_and(|net| net.contains(&pool));
    if let Some(with) = spec.sensitive_cidrs.iter().find(closes) {
        return Err(ClassError::Sensitive { pool, with: *with });
    }
    // a node's own address may be link-local; that it lies in the pool is only worth a part, not the pool
    for node in nodes {
        let used = node.in_use.iter().filter(|net| net.prefix_len() < 32);
        if let Some(with) = used.into_iter().find(|net| overlap(**net, pool)) {
            return Err(ClassError::InUse {
                pool,
                with: *with,
                node: node.name.clone(),
            });
        }
    }
    Ok(())
}

fn v4(range: &IpCidr) -> Option<Ipv4Net> {
    match range.network() {
        IpAddr::V4(first) => Ipv4Net::new(first, range.prefix_len()).ok(),
        IpAddr::V6(_) => None,
    }
}

fn effective<'a>(spec: &'a ClassSpec, services: &'a [Ipv4Net]) -> &'a [Ipv4Net] {
    if spec.service_cidrs.is_empty() {
        services
    } else {
        &spec.service_cidrs
    }
}

fn fits(range: Ipv4Net, spec: &ClassSpec) -> bool {
    range.prefix_len() == spec.node_prefix_length
        && spec.fake_ip_cidr.contains(&range)
        && !is_avoided(range)
}

fn settings(spec: &ClassSpec, services: &[Ipv4Net]) -> ClassSettings {
    ClassSettings {
        service_cidrs: effective(spec, services).to_vec(),
        proxy_port: spec.proxy.port,
        dns_port: spec.proxy.dns_port,
        fail_mode: spec.proxy.fail_mode,
        default_connectivity: spec.cni.default_connectivity,
        mode: spec.cni.mode,
        workload_selector: spec.workload_selector.clone(),
        sensitive_cidrs: spec.sensitive_cidrs.clone(),
    }
}

#[cfg(test)]
mod tests;
