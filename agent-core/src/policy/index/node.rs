//! The rules of one destination, split by path where they are many.

use std::collections::HashMap;

use crate::policy::document::RuleKind;
use crate::policy::index::FEW;
use crate::policy::index::cell::scan;
use crate::policy::index::ports::PortNode;
use crate::policy::rule::{PathPattern, Probe, RuleTable};

/// Rules by path.
#[derive(Debug)]
pub(super) enum Node {
    Few(Box<[u32]>),
    ByPath(Box<ByPath>),
}

#[derive(Debug)]
pub(super) struct ByPath {
    /// Rules that name no path.
    any: PortNode,
    /// Rules that name paths and cover requests whose path is not seen: deny rules.
    unseen: PortNode,
    exact: HashMap<Box<str>, PortNode>,
    under: HashMap<Box<str>, PortNode>,
    /// Bit n is set when a key of `under` has n slashes; `validate` keeps n below 64.
    under_slashes: u64,
}

impl Default for Node {
    fn default() -> Self {
        Self::Few(Box::default())
    }
}

impl Node {
    pub(super) fn build(rules: &RuleTable, ranks: &[u32]) -> Self {
        if ranks.len() <= FEW {
            return Self::Few(ranks.into());
        }
        let (mut any, mut unseen) = (Vec::new(), Vec::new());
        let mut exact: HashMap<&str, Vec<u32>> = HashMap::new();
        let mut under: HashMap<&str, Vec<u32>> = HashMap::new();
        for &rank in ranks {
            let Some(rule) = rules.get(rank) else {
                continue;
            };
            if rule.paths.is_empty() {
                any.push(rank);
            } else if rule.kind == RuleKind::Deny {
                unseen.push(rank);
            }
            for path in &rule.paths {
                let list = match path {
                    PathPattern::Exact(text) => exact.entry(text).or_default(),
                    PathPattern::Under(text) => under.entry(text).or_default(),
                };
                if list.last() != Some(&rank) {
                    list.push(rank);
                }
            }
        }
        let boxed = |(path, ranks): (&str, Vec<u32>)| (path.into(), PortNode::build(rules, ranks));
        Self::ByPath(Box::new(ByPath {
            under_slashes: under
                .keys()
                .fold(0, |bits, path| bits | 1 << slashes(path).min(63)),
            any: PortNode::build(rules, any),
            unseen: PortNode::build(rules, unseen),
            exact: exact.into_iter().map(boxed).collect(),
            under: under.into_iter().map(boxed).collect(),
        }))
    }

    pub(super) fn find(&self, rules: &RuleTable, probe: &Probe<'_>) -> u32 {
        match self {
            Self::Few(ranks) => scan(rules, ranks, probe),
            Self::ByPath(by_path) => by_path.find(rules, probe),
        }
    }
}

fn slashes(path: &str) -> usize {
    path.bytes().filter(|b| *b == b'/').count()
}

impl ByPath {
    fn find(&self, rules: &RuleTable, probe: &Probe<'_>) -> u32 {
        let mut best = self.any.find(rules, probe);
        let Some(path) = probe.path else {
            return best.min(self.unseen.find(rules, probe));
        };
        if let Some(node) = self.exact.get(path) {
            best = best.min(node.find(rules, probe));
        }
        let (mut rest, mut count) = (self.under_slashes, 0);
        for (at, _) in path.bytes().enumerate().filter(|(_, b)| *b == b'/') {
            count += 1;
            // Bit 0 is never set: a key ends with a slash.
            let bit = 1u64 << count;
            if rest & bit != 0 {
                rest &= !bit;
                if let Some(node) = path.get(..=at).and_then(|prefix| self.under.get(prefix)) {
                    best = best.min(node.find(rules, probe));
                }
            }
            if rest == 0 || count == 63 {
                break;
            }
        }
        best
    }
}
