//! What `iptables-save` says, and what has to change. Pure.

use std::collections::BTreeMap;

use super::rules::{CHAINS, OurChain};

/// Rules by table and chain, in order, each without `-A` and its chain's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Saved(BTreeMap<String, BTreeMap<String, Vec<String>>>);

/// Input for `iptables-restore --noflush`, and what it mends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) text: String,
    pub(super) reasons: Vec<String>,
}

impl Saved {
    /// Reads the text; lines that mean nothing here are passed over.
    pub(super) fn parse(text: &str) -> Self {
        let mut tables: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
        let mut table = String::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name.trim().to_owned();
            } else if let Some(chain) = line.strip_prefix(':') {
                let name = chain.split(' ').next().unwrap_or_default();
                tables
                    .entry(table.clone())
                    .or_default()
                    .entry(name.to_owned())
                    .or_default();
            } else if let Some((chain, rule)) = line
                .strip_prefix("-A ")
                .map(|rule| rule.split_once(' ').unwrap_or((rule, "")))
            {
                tables
                    .entry(table.clone())
                    .or_default()
                    .entry(chain.to_owned())
                    .or_default()
                    .push(rule.trim_end().to_owned());
            }
        }
        Self(tables)
    }

    fn chain(&self, table: &str, chain: &str) -> Option<&[String]> {
        Some(self.0.get(table)?.get(chain)?)
    }

    /// Our chains that are there, with their tables.
    pub(super) fn ours(&self) -> Vec<(&'static str, &'static str)> {
        CHAINS
            .iter()
            .filter(|(table, name, _)| self.chain(table, name).is_some())
            .map(|&(table, name, _)| (table, name))
            .collect()
    }

    /// Whether kubelet says that this is the node's iptables.
    pub(super) fn has_kubelet_hint(&self) -> bool {
        ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"]
            .iter()
            .any(|chain| self.chain("mangle", chain).is_some())
    }

    /// Whether kube-proxy has its rules here.
    pub(super) fn has_kube_proxy(&self) -> bool {
        self.chain("nat", "KUBE-SERVICES")
            .is_some_and(|rules| !rules.is_empty())
    }

    /// How many rules are not ours.
    pub(super) fn foreign_rules(&self) -> usize {
        self.0
            .values()
            .flatten()
            .filter(|(chain, _)| !is_ours(chain))
            .flat_map(|(_, rules)| rules)
            .filter(|rule| !leads_to_ours(rule))
            .count()
    }

    /// Rules of a chain that lead to one of ours.
    fn jumps<'a>(
        &'a self,
        table: &str,
        parent: &str,
        to: &str,
    ) -> impl Iterator<Item = &'a String> {
        self.chain(table, parent)
            .unwrap_or_default()
            .iter()
            .filter(move |rule| target(rule) == Some(to))
    }
}

fn is_ours(chain: &str) -> bool {
    CHAINS.iter().any(|(_, name, _)| *name == chain)
}

fn leads_to_ours(rule: &str) -> bool {
    target(rule).is_some_and(is_ours)
}

fn target(rule: &str) -> Option<&str> {
    let mut words = rule.split(' ');
    words.find(|word| matches!(*word, "-j" | "-g"))?;
    words.next()
}

/// What makes the chains be as they should: none when they are. A table that is right is not touched.
pub(super) fn change(wanted: &[OurChain], saved: &Saved) -> Option<Change> {
    let mut tables: Vec<(&str, Vec<String>)> = Vec::new();
    let mut reasons = Vec::new();
    for chain in wanted {
        let mut lines = Vec::new();
        match saved.chain(chain.table, chain.name) {
            Some(found) if found == chain.rules => {}
            found => {
                reasons.push(match found {
                    None => format!("{} is missing", chain.name),
                    Some(_) => format!("{} has other rules", chain.name),
                });
                // with --noflush, naming a chain of ours empties it
                lines.push(format!(":{} - [0:0]", chain.name));
                lines.extend(
                    chain
                        .rules
                        .iter()
                        .map(|rule| format!("-A {} {rule}", chain.name)),
                );
            }
        }
        let jumps: Vec<&String> = saved.jumps(chain.table, chain.parent, chain.name).collect();
        let first = saved
            .chain(chain.table, chain.parent)
            .and_then(<[String]>::first);
        if jumps != [&chain.jump] || first != Some(&chain.jump) {
            reasons.push(match jumps.as_slice() {
                [] => format!("{} does not lead to {}", chain.parent, chain.name),
                [one] if **one == chain.jump => {
                    format!("{} has a rule before that to {}", chain.parent, chain.name)
                }
                _ => format!("{} leads to {} otherwise", chain.parent, chain.name),
            });
            lines.extend(
                jumps
                    .iter()
                    .map(|jump| format!("-D {} {jump}", chain.parent)),
            );
            lines.push(format!("-I {} 1 {}", chain.parent, chain.jump));
        }
        if lines.is_empty() {
            continue;
        }
        match tables.iter_mut().find(|(table, _)| *table == chain.table) {
            Some((_, all)) => all.extend(lines),
            None => tables.push((chain.table, lines)),
        }
    }
    finish(tables, reasons)
}

/// What removes everything of ours: none when there is nothing.
pub(super) fn removal(saved: &Saved) -> Option<Change> {
    let mut tables: Vec<(&str, Vec<String>)> = Vec::new();
    let mut reasons = Vec::new();
    for (table, chains) in &saved.0 {
        let mut lines = Vec::new();
        for (chain, rules) in chains.iter().filter(|(chain, _)| !is_ours(chain)) {
            lines.extend(
                rules
                    .iter()
                    .filter(|rule| leads_to_ours(rule))
                    .map(|rule| format!("-D {chain} {rule}")),
            );
        }
        let ours: Vec<&String> = chains.keys().filter(|chain| is_ours(chain)).collect();
        lines.extend(ours.iter().map(|chain| format!("-F {chain}")));
        lines.extend(ours.iter().map(|chain| format!("-X {chain}")));
        reasons.extend(ours.iter().map(|chain| format!("{chain} is there")));
        if !lines.is_empty() {
            tables.push((table, lines));
        }
    }
    finish(tables, reasons)
}

fn finish(tables: Vec<(&str, Vec<String>)>, reasons: Vec<String>) -> Option<Change> {
    if tables.is_empty() {
        return None;
    }
    let mut text = String::new();
    for (table, lines) in tables {
        text.push_str(&format!("*{table}\n"));
        // chains before rules that lead to them
        let (chains, rules): (Vec<_>, Vec<_>) =
            lines.into_iter().partition(|line| line.starts_with(':'));
        for line in chains.into_iter().chain(rules) {
            text.push_str(&line);
            text.push('\n');
        }
        text.push_str("COMMIT\n");
    }
    Some(Change { text, reasons })
}

#[cfg(test)]
mod tests;
