//! Policy rules that end what may not be routed out of the node: a pod's packet for the proxy that nothing has redirected, and
//! one for a Service that nobody has translated.
//!
//! The table `ip agent_network` drops them too, but not after `nft flush ruleset`, which takes kube-proxy's rules as well.
//! What is redirected or translated has another destination by the time it is routed, and a Service's address that is
//! the node's own (IPVS) is found in the table `local` before.

use std::net::IpAddr;

use futures_util::TryStreamExt;
use ipnet::Ipv4Net;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::IpVersion;

use crate::{
    error::NetError,
    network::MaskedMark,
    rtnl::{Doing, Rtnl},
};

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
            let mut request = rtnl
                .handle()
                .rule()
                .add()
                .v4()
                .priority(self.pref)
                .input_interface(&self.iif)
                .action(RuleAction::Blackhole);
            request.message_mut().header.table = 0;
            request = match wanted {
                Ends::To(net) => request.destination_prefix(net.addr(), net.prefix_len()),
                Ends::Marked(mark, mask) => {
                    let mut request = request.fw_mark(mark);
                    let attributes = &mut request.message_mut().attributes;
                    attributes.push(RuleAttribute::FwMask(mask));
                    request
                }
            };
            request.execute().await.doing_unless(libc::EEXIST, || {
                format!("add rule {}", self.describe(wanted))
            })?;
        }
        for rule in surplus {
            delete(rtnl, rule).await?;
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
            delete(rtnl, rule).await?;
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
        let mut stream = rtnl.handle().rule().get(IpVersion::V4).execute();
        let mut ours = Vec::new();
        while let Some(rule) = stream
            .try_next()
            .await
            .doing(|| "list policy rules".into())?
        {
            let has = |wanted| rule.attributes.contains(&wanted);
            if rule.header.action == RuleAction::Blackhole
                && has(RuleAttribute::Priority(self.pref))
                && has(RuleAttribute::Iifname(self.iif.clone()))
            {
                ours.push(rule);
            }
        }
        Ok(ours)
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

async fn delete(rtnl: &Rtnl, rule: RuleMessage) -> Result<(), NetError> {
    rtnl.handle()
        .rule()
        .del(rule)
        .execute()
        .await
        .doing_unless(libc::ENOENT, || "remove a policy rule that drops".into())?;
    Ok(())
}
