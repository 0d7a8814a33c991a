//! Rules that cover the same paths and ports, split by method and protocol where they are many. Of rules that cover the
//! same requests only the first is kept, so that a cell is small however many rules meet in it.

use std::collections::HashMap;

use crate::policy::document::RuleKind;
use crate::policy::index::{FEW, first};
use crate::policy::rule::{CHANNELS, ChannelSet, NO_RULE, Probe, RuleTable};

/// Rules by method and protocol.
#[derive(Debug)]
pub(super) enum Cell {
    Few(Box<[u32]>),
    ByMethod(Box<ByMethod>),
}

/// The lowest rank for each channel.
type Row = [u32; CHANNELS];
const EMPTY_ROW: Row = [NO_RULE; CHANNELS];

#[derive(Debug)]
pub(super) struct ByMethod {
    any: Row,
    unseen: Row,
    named: HashMap<Box<str>, Row>,
}

/// The first of a few rules that covers the request.
pub(super) fn scan(rules: &RuleTable, ranks: &[u32], probe: &Probe<'_>) -> u32 {
    first(ranks, |rank| {
        rules.get(rank).is_some_and(|rule| rule.covers(probe))
    })
}

/// The rules, of ascending ranks, that can decide at all where path and port are settled: behind a rule for every method
/// no later one on its channels can. Stops when every channel of `all` is settled; also says how many were looked at.
pub(super) fn deciding(
    rules: &RuleTable,
    ranks: impl IntoIterator<Item = u32>,
    all: ChannelSet,
) -> (Vec<u32>, usize) {
    let (mut kept, mut seen, mut settled) = (Vec::new(), 0, ChannelSet::NONE);
    for rank in ranks {
        let Some(rule) = rules.get(rank) else {
            continue;
        };
        seen += 1;
        if !rule.channels.is_subset_of(settled) {
            kept.push(rank);
        }
        if rule.methods.is_empty() {
            settled = settled.union(rule.channels);
            if all.is_subset_of(settled) {
                break;
            }
        }
    }
    (kept, seen)
}

impl Cell {
    /// Indexes rules that all cover the same paths and ports, given by ascending rank.
    pub(super) fn build(rules: &RuleTable, ranks: impl IntoIterator<Item = u32>) -> Self {
        let ranks = deciding(rules, ranks, ChannelSet::ALL).0;
        if ranks.len() <= FEW {
            return Self::Few(ranks.into());
        }
        let mut cell = ByMethod {
            any: EMPTY_ROW,
            unseen: EMPTY_ROW,
            named: HashMap::new(),
        };
        for rank in ranks {
            let Some(rule) = rules.get(rank) else {
                continue;
            };
            let lower = |row: &mut Row| {
                for i in rule.channels.indices() {
                    row[i] = row[i].min(rank);
                }
            };
            if rule.methods.is_empty() {
                lower(&mut cell.any);
            } else if rule.kind == RuleKind::Deny {
                lower(&mut cell.unseen);
            }
            for method in &rule.methods {
                match cell.named.get_mut(method) {
                    Some(row) => lower(row),
                    None => lower(cell.named.entry(method.clone()).or_insert(EMPTY_ROW)),
                }
            }
        }
        Self::ByMethod(Box::new(cell))
    }

    pub(super) fn find(&self, rules: &RuleTable, probe: &Probe<'_>) -> u32 {
        let cell = match self {
            Self::Few(ranks) => return scan(rules, ranks, probe),
            Self::ByMethod(cell) => cell,
        };
        let i = probe.channel.index();
        let named = match probe.method {
            None => cell.unseen[i],
            // Deny rules have the lowest ranks, so the row shows one if any is in it.
            Some(method) => cell
                .named
                .get(method.upper())
                .map(|row| row[i])
                .filter(|rank| {
                    rules
                        .get(*rank)
                        .is_some_and(|rule| method.is_for(rule.kind))
                })
                .unwrap_or(NO_RULE),
        };
        cell.any[i].min(named)
    }
}
