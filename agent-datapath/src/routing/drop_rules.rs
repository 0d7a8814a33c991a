//! Policy rules that end what may not be routed out of the node: a pod's packet for the proxy that nothing has redirected, and
//! one for a Service that nobody has translated.
//!
//! The table `ip agent_network` drops them too, but not after `nft flush ruleset`, which takes kube-proxy's rules as well.
//! What is redirected or translated has another destination by the time it is routed, and a Service's address that is
//! the node's own (IPVS) is found in the table `local` before.

use std::net::IpAddr;

use ipnet::Ipv4Net;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};

use super::{RuleParts, add_rule, delete_rule, new_rule, rules};
use crate::{error::NetError, network::MaskedMark, rtnl::Rtnl};

/// `ip rule add pref PREF iif IIF fwmark MARK/MASK blackhole`, and `ip rule add pref PREF iif IIF to CIDR blackhole` for each
/// Service CIDR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DropRules {
    /// The bridge's name.
    pub iif: String,
    /// The rules' preference: behind the rule that leads packets to the proxy.
    pub pref: u32,
    /// The mark of packets for the proxy.
    pub mark: MaskedMark,
    /// The Service CIDRs.
    pub services: Vec<Ipv4Net>,
}

/// What one rule is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    Marked(u32, u32),
    To(Ipv4Net),
}

impl DropRules {
    /// Makes each rule be there, once, and no other of ours.
    ///
    /// # Errors
    /// `Refused` when the kernel says no.
    pub async fn ensure(&self, rtnl: &Rtnl) -> Result<(), NetError> {
        let mut missing = self.wanted();
        let mut surplus = Vec::new();
        for rule in self.rules(rtnl).await? {
            match missing
                .iter()
                .position(|wanted| ends(&rule) == Some(*wanted))
            {
                Some(at) => {
                    missing.swap_remove(at);
                }
                None => surplus.push(rule),
            }
        }
        for wanted in missing {
            let rule = new_rule(self.pref, RuleAction::Blackhole)
                .with(RuleAttribute::Iifname(self.iif.clone()));
            let rule = match wanted {
                Ends::To(net) => rule.to(net),
                Ends::Marked(mark, mask) => rule
                    .with(RuleAttribute::FwMark(mark))
                    .with(RuleAttribute::FwMask(mask)),
            };
            add_rule(rtnl, rule, || format!("add rule {}", self.describe(wanted))).await?;
        }
        for rule in surplus {
            delete_rule(rtnl, rule).await?;
        }
        Ok(())
    }

    /// Compares with what the kernel has.
    ///
    /// # Errors
    /// `Differs`, naming the first rule that is missing or too many.
    pub async fn check(&self, rtnl: &Rtnl) -> Result<(), NetError> {
        let mut missing = self.wanted();
        for rule in self.rules(rtnl).await? {
            match missing
                .iter()
                .position(|wanted| ends(&rule) == Some(*wanted))
            {
                Some(at) => {
                    missing.swap_remove(at);
                }
                None => {
                    return Err(NetError::differs(
                        format!("a policy rule of preference {}", self.pref),
                        "for something else, or twice",
                        "for the proxy's mark and for each Service CIDR, once",
                    ));
                }
            }
        }
        match missing.first() {
            None => Ok(()),
            Some(wanted) => Err(NetError::differs(
                "a policy rule that drops",
                "missing",
                self.describe(*wanted),
            )),
        }
    }

    /// Removes the rules, for whatever they are; fine when they are gone.
    ///
    /// # Errors
    /// `Refused` when the kernel says no.
    pub async fn remove(&self, rtnl: &Rtnl) -> Result<(), NetError> {
        for rule in self.rules(rtnl).await? {
            delete_rule(rtnl, rule).await?;
        }
        Ok(())
    }

    /// The rules that are there, for whatever, as `ip rule del` takes them.
    ///
    /// # Errors
    /// `Refused` when the kernel cannot be asked.
    pub async fn traces(&self, rtnl: &Rtnl) -> Result<Vec<String>, NetError> {
        let rules = self.rules(rtnl).await?;
        Ok(rules
            .iter()
            .map(|rule| match ends(rule) {
                Some(found) => self.describe(found),
                None => format!("pref {} iif {} blackhole", self.pref, self.iif),
            })
            .collect())
    }

    fn wanted(&self) -> Vec<Ends> {
        let mut services = self.services.clone();
        services.iter_mut().for_each(|net| *net = net.trunc());
        services.sort();
        services.dedup();
        std::iter::once(Ends::Marked(self.mark.value, self.mark.mask))
            .chain(services.into_iter().map(Ends::To))
            .collect()
    }

    fn describe(&self, what: Ends) -> String {
        let what = match what {
            Ends::Marked(mark, mask) => format!("fwmark {mark:#x}/{mask:#x}"),
            Ends::To(net) => format!("to {net}"),
        };
        format!("pref {} iif {} {what} blackhole", self.pref, self.iif)
    }

    /// Every IPv4 rule at our preference that drops what the bridge brings.
    async fn rules(&self, rtnl: &Rtnl) -> Result<Vec<RuleMessage>, NetError> {
        let mut rules = rules(rtnl).await?;
        rules.retain(|rule| {
            let has = |wanted| rule.attributes.contains(&wanted);
            rule.header.action == RuleAction::Blackhole
                && has(RuleAttribute::Priority(self.pref))
                && has(RuleAttribute::Iifname(self.iif.clone()))
        });
        Ok(rules)
    }
}

/// What a rule ends; nothing of ours when it asks for anything else besides.
fn ends(rule: &RuleMessage) -> Option<Ends> {
    let (mut mark, mut mask, mut to) = (None, None, None);
    for attribute in &rule.attributes {
        match attribute {
            RuleAttribute::FwMark(value) => mark = Some(*value),
            RuleAttribute::FwMask(value) => mask = Some(*value),
            RuleAttribute::Destination(IpAddr::V4(address)) => to = Some(*address),
            RuleAttribute::Source(_)
            | RuleAttribute::Oifname(_)
            | RuleAttribute::IpProtocol(_)
            | RuleAttribute::SourcePortRange(_)
            | RuleAttribute::DestinationPortRange(_)
            | RuleAttribute::UidRange(_) => return None,
            _ => {}
        }
    }
    match (mark, mask, to) {
        // the kernel tells the mask of a rule without a mark, too
        (None | Some(0), None | Some(0), Some(to)) => {
            Ipv4Net::new(to, rule.header.dst_len).ok().map(Ends::To)
        }
        (Some(mark), Some(mask), None) => Some(Ends::Marked(mark, mask)),
        _ => None,
    }
}
