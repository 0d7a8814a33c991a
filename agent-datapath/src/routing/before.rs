//! Policy rules of others that come before ours, and take what ours are for.
//!
//! They are somebody else's, so they stay: whoever looks tells them, with the command that takes each away. Nothing gets out by
//! them (the nftables table and the bridge's filter hold without any rule), but what they take does not arrive either.

use std::net::IpAddr;

use ipnet::Ipv4Net;
use netlink_packet_route::{
    route::{RouteMessage, RouteType},
    rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage},
};

use super::{destination, routes, rules, table};
use crate::{error::NetError, rtnl::Rtnl};

/// `RT_TABLE_LOCAL`: a packet that is the node's own by this table is so whoever asks it first.
const LOCAL: u32 = 255;

/// Packets that one of our rules is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Which they are, in words: `what is for pods`.
    pub what: &'static str,
    /// The interface that they come by; any when there is none.
    pub iif: Option<String>,
    /// Their source; any when there is none.
    pub from: Option<Ipv4Net>,
    /// Their destination; any when there is none.
    pub to: Option<Ipv4Net>,
    /// Their mark.
    pub mark: u32,
    /// The preference of our rule for them.
    pub pref: u32,
}

/// Ours, which no comparison may take for somebody else's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnRules {
    /// The bridge's name.
    pub bridge: String,
    /// The preference of those that drop what it brings.
    pub drop_pref: u32,
    /// The tables that the others lead to.
    pub tables: [u32; 2],
}

/// A rule of others that takes a flow before ours does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleBefore {
    /// What it takes.
    pub flow: &'static str,
    /// The preference of ours.
    pub ours: u32,
    /// The rule, as `ip rule del` takes it: `pref 90 to 169.254.9.0/24 lookup 77`.
    pub rule: String,
    /// Whether it takes the whole flow, or a part of it for certain; else it asks for more besides, and may.
    pub certain: bool,
}

impl RuleBefore {
    /// What it is, in words.
    #[must_use]
    pub fn what(&self) -> String {
        let Self {
            flow, ours, rule, ..
        } = self;
        let takes = if self.certain { "takes" } else { "may take" };
        format!("a policy rule of others ({rule}) comes before ours ({ours}) and {takes} {flow}")
    }

    /// The command that takes it away.
    #[must_use]
    pub fn removal(&self) -> String {
        format!("ip rule del {}", self.rule)
    }
}

/// Looks for rules of others that take one of these flows. Routes are asked for only when a rule might.
///
/// # Errors
/// `Refused` when the kernel cannot be asked.
pub async fn rules_before(
    rtnl: &Rtnl,
    flows: &[Flow],
    own: &OwnRules,
) -> Result<Vec<RuleBefore>, NetError> {
    let rules = rules(rtnl).await?;
    if takers(&rules, None, flows, own).is_empty() {
        return Ok(Vec::new());
    }
    let routes = routes(rtnl).await?;
    Ok(takers(&rules, Some(&routes), flows, own))
}

/// The rules, in the order in which the kernel asks them, that take a flow before ours. Without routes every table is taken to
/// lead everywhere. Pure.
fn takers(
    rules: &[RuleMessage],
    routes: Option<&[RouteMessage]>,
    flows: &[Flow],
    own: &OwnRules,
) -> Vec<RuleBefore> {
    let mut found = Vec::new();
    for flow in flows {
        // of equal preference the one that was added first is asked first
        let ours = rules
            .iter()
            .position(|rule| own.is_own(rule) && preference(rule) == flow.pref);
        for (place, rule) in rules.iter().enumerate() {
            let before = match ours {
                Some(ours) => place < ours,
                None => preference(rule) < flow.pref,
            };
            if !before || own.is_own(rule) {
                continue;
            }
            if let Some(certain) = takes(rule, routes, flow, own) {
                found.push(RuleBefore {
                    flow: flow.what,
                    ours: flow.pref,
                    rule: described(rule),
                    certain,
                });
            }
        }
    }
    found
}

impl OwnRules {
    fn is_own(&self, rule: &RuleMessage) -> bool {
        match rule.header.action {
            RuleAction::ToTable => self.tables.contains(&table_of(rule)),
            RuleAction::Blackhole => {
                let has = |wanted| rule.attributes.contains(&wanted);
                preference(rule) == self.drop_pref
                    && has(RuleAttribute::Iifname(self.bridge.clone()))
            }
            _ => false,
        }
    }
}

/// Whether a rule takes packets of a flow: for certain, or perhaps; none when it takes none.
fn takes(
    rule: &RuleMessage,
    routes: Option<&[RouteMessage]>,
    flow: &Flow,
    own: &OwnRules,
) -> Option<bool> {
    let selected = selects(rule, flow)?;
    let ends = match rule.header.action {
        RuleAction::Blackhole | RuleAction::Unreachable | RuleAction::Prohibit => true,
        RuleAction::Goto => {
            // ours is asked still, when it is at or behind the place that it leads to
            let past = rule
                .attributes
                .iter()
                .any(|one| matches!(one, RuleAttribute::Goto(target) if *target > flow.pref));
            past.then_some(true)?
        }
        RuleAction::ToTable => leads(rule, routes, flow, own)?,
        _ => return None,
    };
    Some(selected && ends)
}

/// Whether a rule asks for packets of a flow, and for nothing that only some of them have.
fn selects(rule: &RuleMessage, flow: &Flow) -> Option<bool> {
    let mut certain = true;
    let (mut mark, mut mask) = (0, 0);
    let (mut to, mut from, mut iif) = (None, None, None);
    for attribute in &rule.attributes {
        match attribute {
            RuleAttribute::FwMark(value) => mark = *value,
            RuleAttribute::FwMask(value) => mask = *value,
            RuleAttribute::Destination(IpAddr::V4(address)) => {
                to = Ipv4Net::new(*address, rule.header.dst_len).ok();
            }
            RuleAttribute::Source(IpAddr::V4(address)) => {
                from = Ipv4Net::new(*address, rule.header.src_len).ok();
            }
            RuleAttribute::Iifname(name) => iif = Some(name.as_str()),
            // what is only forwarded has no socket that could ask for a way out
            RuleAttribute::Oifname(_) if flow.iif.is_some() => return None,
            RuleAttribute::Oifname(_)
            | RuleAttribute::UidRange(_)
            | RuleAttribute::IpProtocol(_)
            | RuleAttribute::SourcePortRange(_)
            | RuleAttribute::DestinationPortRange(_)
            | RuleAttribute::TunId(1..)
            | RuleAttribute::L3MDev(true) => certain = false,
            _ => {}
        }
    }
    certain &= rule.header.tos == 0;
    if rule.header.flags.contains(RuleFlags::Invert) {
        // everything but what it says
        return Some(false);
    }
    if (flow.mark ^ mark) & mask != 0 {
        return None;
    }
    match (iif, &flow.iif) {
        (Some(wanted), Some(comes_by)) if wanted != comes_by => return None,
        // what the node itself sends is a part of it, and always there
        (Some(wanted), None) => certain &= wanted == "lo",
        _ => {}
    }
    for (wanted, has) in [(to, flow.to), (from, flow.from)] {
        match (wanted, has) {
            (Some(wanted), Some(has)) if !overlap(wanted, has) => return None,
            _ => {}
        }
    }
    // the node's source is chosen by the route, which is looked for here
    certain &= from.is_none() || flow.from.is_some();
    Some(certain)
}

/// Whether a rule's table has a route for packets of a flow that is not ours anyway.
fn leads(
    rule: &RuleMessage,
    routes: Option<&[RouteMessage]>,
    flow: &Flow,
    own: &OwnRules,
) -> Option<bool> {
    let number = table_of(rule);
    if number == LOCAL || own.tables.contains(&number) {
        return None;
    }
    let Some(routes) = routes else {
        return Some(true);
    };
    let suppressed = rule.attributes.iter().find_map(|one| match one {
        // which is what the kernel says of a rule that suppresses nothing
        RuleAttribute::SuppressPrefixLen(u32::MAX) => None,
        RuleAttribute::SuppressPrefixLen(length) => Some(*length),
        _ => None,
    });
    let to = rule.attributes.iter().find_map(|one| match one {
        RuleAttribute::Destination(IpAddr::V4(address)) => {
            Ipv4Net::new(*address, rule.header.dst_len).ok()
        }
        _ => None,
    });
    let found: Vec<Ipv4Net> = routes
        .iter()
        .filter(|route| table(route) == number && route.header.kind != RouteType::Throw)
        .filter_map(destination)
        .filter(|net| suppressed.is_none_or(|length| u32::from(net.prefix_len()) > length))
        .filter(|net| flow.to.is_none_or(|has| overlap(*net, has)))
        .filter(|net| to.is_none_or(|wanted| overlap(*net, wanted)))
        .collect();
    if found.is_empty() {
        return None;
    }
    // the main table has the bridge's own route, too: as long as it is there, wider ones are not asked
    let shadowed = flow.to.is_some_and(|has| {
        found.contains(&has) && found.iter().all(|net| net.prefix_len() <= has.prefix_len())
    });
    Some(!shadowed)
}

fn preference(rule: &RuleMessage) -> u32 {
    let of = rule.attributes.iter().find_map(|one| match one {
        RuleAttribute::Priority(pref) => Some(*pref),
        _ => None,
    });
    of.unwrap_or(0)
}

fn table_of(rule: &RuleMessage) -> u32 {
    let of = rule.attributes.iter().find_map(|one| match one {
        RuleAttribute::Table(table) => Some(*table),
        _ => None,
    });
    of.unwrap_or(u32::from(rule.header.table))
}

fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

/// As `ip rule del` takes it.
fn described(rule: &RuleMessage) -> String {
    let mut text = format!("pref {}", preference(rule));
    if rule.header.flags.contains(RuleFlags::Invert) {
        text.push_str(" not");
    }
    let (mut mark, mut mask) = (0, 0);
    for attribute in &rule.attributes {
        let part = match attribute {
            RuleAttribute::Source(address) => format!(" from {address}/{}", rule.header.src_len),
            RuleAttribute::Destination(address) => {
                format!(" to {address}/{}", rule.header.dst_len)
            }
            RuleAttribute::Iifname(name) => format!(" iif {name}"),
            RuleAttribute::Oifname(name) => format!(" oif {name}"),
            RuleAttribute::IpProtocol(protocol) => format!(" ipproto {}", u8::from(*protocol)),
            RuleAttribute::SourcePortRange(range) => {
                format!(" sport {}-{}", range.start, range.end)
            }
            RuleAttribute::DestinationPortRange(range) => {
                format!(" dport {}-{}", range.start, range.end)
            }
            RuleAttribute::UidRange(range) => format!(" uidrange {}-{}", range.start, range.end),
            RuleAttribute::FwMark(value) => {
                mark = *value;
                continue;
            }
            RuleAttribute::FwMask(value) => {
                mask = *value;
                continue;
            }
            _ => continue,
        };
        text.push_str(&part);
    }
    if mask != 0 {
        text.push_str(&format!(" fwmark {mark:#x}/{mask:#x}"));
    }
    if rule.header.tos != 0 {
        text.push_str(&format!(" tos {:#x}", rule.header.tos));
    }
    let action = match rule.header.action {
        RuleAction::Blackhole => " blackhole".to_owned(),
        RuleAction::Unreachable => " unreachable".to_owned(),
        RuleAction::Prohibit => " prohibit".to_owned(),
        // which rule it is is said by its preference
        RuleAction::Goto => String::new(),
        _ => format!(" lookup {}", table_of(rule)),
    };
    text + &action
}

#[cfg(test)]
mod tests;
