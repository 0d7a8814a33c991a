//! The rules of one destination and path, split by port where they are many.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use crate::policy::index::FEW;
use crate::policy::index::cell::{Cell, deciding, scan};
use crate::policy::port::PortBlock;
use crate::policy::rule::{ChannelSet, NO_RULE, Probe, RuleTable};

/// Rules that may be looked at for each rule that is cut into intervals, before blocks are used instead.
const LOOKED_AT_PER_RULE: usize = 64;

/// Rules by port.
#[derive(Debug)]
pub(super) enum PortNode {
    Few(Box<[u32]>),
    Intervals(Box<Intervals>),
    Blocks(Box<Blocks>),
}

/// The ports cut wherever a rule's range begins or ends; a look-up is one binary search.
#[derive(Debug)]
pub(super) struct Intervals {
    /// First ports, ascending from 0.
    starts: Box<[u16]>,
    cells: Box<[Cell]>,
}

/// The same by aligned power-of-two blocks, up to 17 look-ups: for rules of which so many decide on one port (by method)
/// that listing them for every interval would multiply them.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Bit n is set when a block of n leading bits occurs.
    lengths: u32,
    blocks: HashMap<u32, Cell, BuildHasherDefault<BlockHasher>>,
}

/// Hashes a port block's key by one multiplication. SipHash is not needed here: a look-up asks for up to 17 blocks, there
/// are no more than 2^17 keys in all, the multiplication tells them all apart, and pods choose none of them.
#[derive(Debug, Default)]
struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, key: u32) {
        // 2^64 divided by the golden ratio (Knuth, TAOCP 3, 6.4); the table uses the low bits, so the high ones join.
        let product = (self.0 ^ u64::from(key)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }
}

impl PortNode {
    pub(super) fn build(rules: &RuleTable, ranks: Vec<u32>) -> Self {
        if ranks.len() <= FEW {
            return Self::Few(ranks.into());
        }
        match Intervals::build(rules, &ranks) {
            Some(intervals) => Self::Intervals(Box::new(intervals)),
            None => Self::Blocks(Box::new(Blocks::build(rules, &ranks))),
        }
    }

    pub(super) fn find(&self, rules: &RuleTable, probe: &Probe<'_>) -> u32 {
        match self {
            Self::Few(ranks) => scan(rules, ranks, probe),
            Self::Intervals(intervals) => intervals.find(rules, probe),
            Self::Blocks(blocks) => blocks.find(rules, probe),
        }
    }
}

impl Intervals {
    /// `None` when too many rules decide on the same ports.
    fn build(rules: &RuleTable, ranks: &[u32]) -> Option<Self> {
        let mut all = ChannelSet::NONE;
        // (first port of an interval, rank, how many of the rule's ranges begin less how many have ended)
        let mut changes: Vec<(u32, u32, i32)> = Vec::new();
        for &rank in ranks {
            let Some(rule) = rules.get(rank) else {
                continue;
            };
            all = all.union(rule.channels);
            if rule.ports.is_empty() {
                changes.push((0, rank, 1));
            }
            for ports in rule.ports.iter().map(|ports| ports.range()) {
                changes.push((u32::from(*ports.start()), rank, 1));
                changes.push((u32::from(*ports.end()) + 1, rank, -1));
            }
        }
        changes.sort_unstable();
        let mut budget = ranks.len().saturating_mul(LOOKED_AT_PER_RULE);
        let (mut starts, mut cells) = (vec![0u16], Vec::new());
        let mut open: BTreeMap<u32, i32> = BTreeMap::new();
        let mut changes = changes.into_iter().peekable();
        loop {
            let start = starts.last().copied().map(u32::from)?;
            while let Some((_, rank, change)) = changes.next_if(|(at, ..)| *at <= start) {
                let count = open.entry(rank).or_insert(0);
                *count += change;
                if *count == 0 {
                    open.remove(&rank);
                }
            }
            let (ranks, seen) = deciding(rules, open.keys().copied(), all);
            budget = budget.checked_sub(seen)?;
            cells.push(Cell::build(rules, ranks));
            match changes.peek().map(|(at, ..)| u16::try_from(*at)) {
                Some(Ok(next)) => starts.push(next),
                // What ends behind the last port changes nothing.
                Some(Err(_)) | None => break,
            }
        }
        Some(Self {
            starts: starts.into(),
            cells: cells.into(),
        })
    }

    fn find(&self, rules: &RuleTable, probe: &Probe<'_>) -> u32 {
        // The first start is 0, so one is always at or before the port.
        let after = self.starts.partition_point(|start| *start <= probe.port);
        self.cells
            .get(after.wrapping_sub(1))
            .map_or(NO_RULE, |cell| cell.find(rules, probe))
    }
}

impl Blocks {
    fn build(rules: &RuleTable, ranks: &[u32]) -> Self {
        let mut lengths = 0;
        let mut blocks: HashMap<u32, Vec<u32>> = HashMap::new();
        let mut add = |block: PortBlock, rank: u32| {
            lengths |= 1 << block.len;
            let list = blocks.entry(block.key()).or_default();
            if list.last() != Some(&rank) {
                list.push(rank);
            }
        };
        for &rank in ranks {
            let Some(rule) = rules.get(rank) else {
                continue;
            };
            if rule.ports.is_empty() {
                add(PortBlock::ALL, rank);
            }
            for block in rule.ports.iter().flat_map(|ports| ports.blocks()) {
                add(block, rank);
            }
        }
        let blocks = blocks
            .into_iter()
            .map(|(key, ranks)| (key, Cell::build(rules, ranks)))
            .collect();
        Self { lengths, blocks }
    }

    fn find(&self, rules: &RuleTable, probe: &Probe<'_>) -> u32 {
        let (mut best, mut lengths) = (NO_RULE, self.lengths);
        while lengths != 0 {
            let len = lengths.trailing_zeros();
            lengths &= lengths - 1;
            if let Some(cell) = self.blocks.get(&PortBlock::around(probe.port, len).key()) {
                best = best.min(cell.find(rules, probe));
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::document::{PolicyHeader, Rule, RuleKind, RuntimePolicy, Subjects};
    use crate::policy::facts::Protocol;
    use crate::policy::rule::{Channel, METHOD_BYTES, Method};
    use proptest::prelude::*;

    fn table(rules: Vec<Rule>) -> RuleTable {
        let policies = vec![PolicyHeader {
            namespace: "sys".into(),
            name: "p".into(),
            subjects: Subjects {
                all_namespaces: true,
                ..Subjects::default()
            },
            ..PolicyHeader::default()
        }];
        let document = RuntimePolicy {
            policies,
            rules,
            ..RuntimePolicy::default()
        };
        document.validate().unwrap();
        crate::policy::compile::compile(&document).0
    }

    fn rule() -> impl Strategy<Value = Rule> {
        let ports = proptest::collection::vec((1u16..40, 0u16..40, any::<bool>()), 0..4);
        let method = proptest::option::of(0u8..30);
        (ports, method, any::<bool>()).prop_map(|(ports, method, deny)| {
            let kind = if deny {
                RuleKind::Deny
            } else {
                RuleKind::Allow
            };
            let mut rule = Rule::new(0, "x", kind);
            rule.host = Some("a.example".into());
            rule.ports = ports
                .into_iter()
                .map(|(first, more, to_end)| {
                    let last = if to_end { u16::MAX } else { first + more };
                    format!("{first}-{last}").parse().unwrap()
                })
                .collect();
            rule.methods = method.map(|m| format!("M{m}")).into_iter().collect();
            rule
        })
    }

    proptest! {
        #[test]
        fn intervals_and_blocks_find_what_looking_at_every_rule_finds(
            mut rules in proptest::collection::vec(rule(), 9..120),
            port in prop_oneof![0u16..90, Just(u16::MAX)],
            method in proptest::option::of((0u8..30, any::<bool>())),
        ) {
            for (i, rule) in rules.iter_mut().enumerate() {
                rule.name = format!("r{i}");
            }
            let table = table(rules);
            let ranks: Vec<u32> = (0..table.rules.len() as u32).collect();
            let method = method.map(|(m, lower)| format!("{}{m}", if lower { "m" } else { "M" }));
            let intervals = Intervals::build(&table, &ranks);
            let blocks = Blocks::build(&table, &ranks);
            for protocol in Protocol::ALL {
                let mut buffer = [0; METHOD_BYTES];
                let probe = Probe {
                    channel: Channel::new(protocol, true),
                    port,
                    method: method
                        .as_deref()
                        .filter(|_| protocol.is_visible_http())
                        .map(|method| Method::new(method, &mut buffer)),
                    path: None,
                };
                let expected = scan(&table, &ranks, &probe);
                prop_assert_eq!(blocks.find(&table, &probe), expected);
                if let Some(intervals) = &intervals {
                    prop_assert_eq!(intervals.find(&table, &probe), expected);
                }
            }
        }
    }

    #[test]
    fn rules_that_would_be_multiplied_are_kept_in_blocks() {
        let rules = (0..1000u16).map(|i| {
            let mut rule = Rule::new(0, format!("r{i}"), RuleKind::Allow);
            rule.host = Some("a.example".into());
            rule.ports = vec![format!("{}-{}", i + 1, i + 2000).parse().unwrap()];
            rule.methods = vec![format!("M{i}")];
            rule
        });
        let table = table(rules.collect());
        let ranks: Vec<u32> = (0..1000).collect();
        assert!(matches!(
            PortNode::build(&table, ranks),
            PortNode::Blocks(_)
        ));
    }
}
