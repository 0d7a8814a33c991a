//! Finds the lowest-ranked rule that covers a request, at a cost that does not depend on the number of rules.
//!
//! Rules are split by destination (a hash look-up for the name, for each suffix length in use, for each prefix length in
//! use), then by path, then by port (a binary search), then by method and protocol: each step only where more than [`FEW`]
//! rules are left, so that small sets stay small and no rule is multiplied without need. The last step keeps one rank per protocol: of
//! rules that cover the same requests only the first can ever decide.
//!
//! Maps use std's SipHash with random keys. Look-ups are made with what pods send; only policy authors add keys.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::policy::cidr::CidrMap;
use crate::policy::document::RuleKind;
use crate::policy::host::{HostName, HostPattern, label_count};
use crate::policy::rule::{Destination, NO_RULE, Probe, RuleTable};

mod calls;
mod cell;
mod node;
mod ports;

pub(crate) use calls::{CallKeys, Calls};
use node::Node;

/// Up to so many rules are looked at one by one.
pub(crate) const FEW: usize = 8;

/// The egress rules of some policies.
#[derive(Debug)]
pub(crate) enum Index {
    Few(Box<[u32]>),
    Many(Box<Tables>),
}

#[derive(Debug, Default)]
pub(crate) struct Tables {
    exact: HashMap<Box<str>, Bucket>,
    suffix: HashMap<Box<str>, Bucket>,
    /// Bit n is set when a suffix of n labels (63: or more) occurs.
    suffix_labels: u64,
    any: Bucket,
    networks: CidrMap<Bucket>,
}

/// The rules of one destination.
#[derive(Debug, Default)]
struct Bucket {
    about: About,
    node: Node,
}

/// What is asked of a destination without a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct About {
    /// Some rule could let something through.
    pub(crate) permits: bool,
    /// Some deny rule covers everything.
    pub(crate) denied: bool,
    /// Some rule could let something through that the proxy can see inside.
    pub(crate) needs_sight: bool,
}

impl About {
    pub(crate) fn add(&mut self, other: Self) {
        self.permits |= other.permits;
        self.denied |= other.denied;
        self.needs_sight |= other.needs_sight;
    }

    fn of(rules: &RuleTable, ranks: &[u32]) -> Self {
        let mut about = Self::default();
        for rule in ranks.iter().filter_map(|rank| rules.get(*rank)) {
            about.permits |= rule.kind != RuleKind::Deny;
            about.denied |= rule.kind == RuleKind::Deny && rule.is_unconditional();
            about.needs_sight |= rule.needs_sight();
        }
        about
    }
}

impl Index {
    /// Indexes rules given by ascending rank.
    pub(crate) fn build(rules: &RuleTable, ranks: &[u32]) -> Self {
        if ranks.len() <= FEW {
            return Self::Few(ranks.into());
        }
        Self::Many(Box::new(Tables::build(rules, ranks)))
    }

    /// The lowest rank of a rule that names the host and covers the request; [`NO_RULE`] when there is none.
    ///
    /// Rules for every host cover requests without one too; which of them may is settled by their channels.
    pub(crate) fn find_by_host(
        &self,
        rules: &RuleTable,
        host: Option<&HostName>,
        probe: &Probe<'_>,
    ) -> u32 {
        match self {
            Self::Few(ranks) => first(ranks, |rank| {
                rules
                    .get(rank)
                    .is_some_and(|rule| names_host(&rule.destination, host) && rule.covers(probe))
            }),
            Self::Many(tables) => tables
                .host_buckets(host)
                .map(|bucket| bucket.node.find(rules, probe))
                .min()
                .unwrap_or(NO_RULE),
        }
    }

    /// The lowest rank of a rule that names a network around the address and covers the request.
    pub(crate) fn find_by_address(
        &self,
        rules: &RuleTable,
        address: IpAddr,
        probe: &Probe<'_>,
    ) -> u32 {
        match self {
            Self::Few(ranks) => first(ranks, |rank| {
                rules.get(rank).is_some_and(|rule| {
                    matches!(&rule.destination, Destination::Network(net) if net.contains(address))
                        && rule.covers(probe)
                })
            }),
            Self::Many(tables) => tables
                .networks
                .covering(address)
                .map(|(_, bucket)| bucket.node.find(rules, probe))
                .min()
                .unwrap_or(NO_RULE),
        }
    }

    /// What the rules for a host say of it without a request.
    pub(crate) fn about_host(&self, rules: &RuleTable, host: &HostName) -> About {
        match self {
            Self::Few(ranks) => {
                let mut about = About::default();
                for rank in ranks {
                    if rules
                        .get(*rank)
                        .is_some_and(|rule| names_host(&rule.destination, Some(host)))
                    {
                        about.add(About::of(rules, &[*rank]));
                    }
                }
                about
            }
            Self::Many(tables) => {
                tables
                    .host_buckets(Some(host))
                    .fold(About::default(), |mut all, bucket| {
                        all.add(bucket.about);
                        all
                    })
            }
        }
    }
}

/// The first rank, of ascending ones, that satisfies a test.
fn first(ranks: &[u32], test: impl Fn(u32) -> bool) -> u32 {
    ranks
        .iter()
        .copied()
        .find(|rank| test(*rank))
        .unwrap_or(NO_RULE)
}

fn names_host(destination: &Destination, host: Option<&HostName>) -> bool {
    match (destination, host) {
        (Destination::Host(HostPattern::Any), _) => true,
        (Destination::Host(pattern), Some(host)) => pattern.matches(host),
        (Destination::Host(_), None) | (Destination::Network(_) | Destination::Call(_), _) => false,
    }
}

impl Tables {
    fn build(rules: &RuleTable, ranks: &[u32]) -> Self {
        let mut exact: HashMap<&str, Vec<u32>> = HashMap::new();
        let mut suffix: HashMap<&str, Vec<u32>> = HashMap::new();
        let mut networks: HashMap<_, Vec<u32>> = HashMap::new();
        let mut any = Vec::new();
        for &rank in ranks {
            let Some(rule) = rules.get(rank) else {
                continue;
            };
            match &rule.destination {
                Destination::Host(HostPattern::Exact(name)) => {
                    exact.entry(name.as_str()).or_default().push(rank);
                }
                Destination::Host(HostPattern::Suffix(name)) => {
                    suffix.entry(name.as_str()).or_default().push(rank);
                }
                Destination::Host(HostPattern::Any) => any.push(rank),
                Destination::Network(net) => networks.entry(*net).or_default().push(rank),
                Destination::Call(_) => {}
            }
        }
        let mut tables = Self {
            suffix_labels: suffix
                .keys()
                .fold(0, |bits, name| bits | label_bit(label_count(name))),
            any: Bucket::build(rules, &any),
            ..Self::default()
        };
        let boxed = |(name, ranks): (&str, Vec<u32>)| (name.into(), Bucket::build(rules, &ranks));
        tables.exact = exact.into_iter().map(boxed).collect();
        tables.suffix = suffix.into_iter().map(boxed).collect();
        for (net, ranks) in networks {
            tables.networks.insert(net, Bucket::build(rules, &ranks));
        }
        tables
    }

    fn host_buckets<'a>(&'a self, host: Option<&'a HostName>) -> impl Iterator<Item = &'a Bucket> {
        let exact = host.and_then(|host| self.exact.get(host.as_str()));
        let suffixes = host
            .filter(|_| self.suffix_labels != 0)
            .into_iter()
            .flat_map(HostName::suffixes)
            .filter(|(_, labels)| self.suffix_labels & label_bit(*labels) != 0)
            .filter_map(|(suffix, _)| self.suffix.get(suffix));
        exact.into_iter().chain(suffixes).chain([&self.any])
    }
}

/// The bit of a number of labels.
fn label_bit(labels: usize) -> u64 {
    1 << labels.min(63)
}

impl Bucket {
    fn build(rules: &RuleTable, ranks: &[u32]) -> Self {
        Self {
            about: About::of(rules, ranks),
            node: Node::build(rules, ranks),
        }
    }
}
