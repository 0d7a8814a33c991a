//! Routes and policy rules: the one that makes marked packets local, a pod's two routes, and what the node has.

use std::net::Ipv4Addr;

use futures_util::TryStreamExt;
use ipnet::Ipv4Net;
use netlink_packet_route::{
    AddressFamily,
    address::AddressAttribute,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType},
    rule::{RuleAction, RuleAttribute, RuleMessage},
};
use rtnetlink::{IpVersion, RouteMessageBuilder};

use crate::{
    error::NetError,
    rtnl::{Doing, Rtnl},
};

mod before;
mod drop_rules;
mod pool_route;

pub use before::{Flow, OwnRules, RuleBefore, rules_before};
pub use drop_rules::DropRules;
pub use pool_route::PoolRoute;

/// `ip rule add pref PREF iif IIF fwmark MARK/MASK lookup TABLE` and `ip route add local default dev lo table TABLE`.
///
/// `iif` is essential: without it `src_valid_mark` and `tcp_fwmark_accept` break what the node itself does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRoute {
    /// The bridge's name.
    pub iif: String,
    /// The mark of packets for the proxy.
    pub mark: u32,
    /// The bits of the mark that are ours.
    pub mask: u32,
    /// The routing table.
    pub table: u32,
    /// The rule's preference.
    pub pref: u32,
}

impl PolicyRoute {
    /// Makes rule and route be there, once; a rule of ours for another mark is replaced.
    ///
    /// # Errors
    /// `Refused` when the kernel says no.
    pub async fn ensure(&self, rtnl: &Rtnl) -> Result<(), NetError> {
        let lo = crate::link::index_of(rtnl, "lo")
            .await?
            .ok_or_else(|| NetError::NoLink { name: "lo".into() })?;
        rtnl.handle()
            .route()
            .add(self.local_default(lo))
            .replace()
            .execute()
            .await
            .doing(|| format!("add the local default route to table {}", self.table))?;
        let rule = new_rule(self.pref, RuleAction::ToTable)
            .with(RuleAttribute::Iifname(self.iif.clone()))
            .with(RuleAttribute::Table(self.table))
            .with(RuleAttribute::FwMark(self.mark))
            .with(RuleAttribute::FwMask(self.mask));
        let is_this = |rule: &RuleMessage| self.is_this(rule);
        ensure_only_rule(rtnl, self.table, is_this, rule, || self.describe_rule()).await
    }

    /// Removes the rules that lead to our table, and whatever is in it; fine when they are gone.
    ///
    /// # Errors
    /// `Refused` when the kernel says no.
    pub async fn remove(&self, rtnl: &Rtnl) -> Result<(), NetError> {
        remove_table(rtnl, self.table).await
    }

    /// Compares with what the kernel has.
    ///
    /// # Errors
    /// `Differs` when the rule or the route is missing.
    pub async fn check(&self, rtnl: &Rtnl) -> Result<(), NetError> {
        let rules = rules_to(rtnl, self.table).await?;
        if !rules.iter().any(|rule| self.is_this(rule)) {
            return Err(NetError::differs(
                format!("the policy rule of table {}", self.table),
                "missing",
                self.describe_rule(),
            ));
        }
        let found = routes(rtnl).await?.iter().any(|route| {
            table(route) == self.table
                && route.header.kind == RouteType::Local
                && destination(route).is_some_and(|net| net.prefix_len() == 0)
        });
        if found {
            Ok(())
        } else {
            Err(NetError::differs(
                format!("table {}", self.table),
                "without a local default route",
                "local default dev lo",
            ))
        }
    }

    fn describe_rule(&self) -> String {
        format!(
            "add rule pref {} iif {} fwmark {:#x}/{:#x} lookup {}",
            self.pref, self.iif, self.mark, self.mask, self.table
        )
    }

    fn local_default(&self, lo: u32) -> RouteMessage {
        RouteMessageBuilder::<Ipv4Addr>::new()
            .table_id(self.table)
            .kind(RouteType::Local)
            .scope(RouteScope::Host)
            .output_interface(lo)
            .build()
    }

    fn is_this(&self, rule: &RuleMessage) -> bool {
        let has = |wanted| rule.attributes.contains(&wanted);
        has(RuleAttribute::Priority(self.pref))
            && has(RuleAttribute::Iifname(self.iif.clone()))
            && has(RuleAttribute::FwMark(self.mark))
            && has(RuleAttribute::FwMask(self.mask))
            && rule.header.action == RuleAction::ToTable
            && rule.header.src_len == 0
            && rule.header.dst_len == 0
    }
}

/// A rule as a message: what it asks for is added by [`RuleParts::with`].
fn new_rule(pref: u32, action: RuleAction) -> RuleMessage {
    let mut rule = RuleMessage::default();
    rule.header.family = AddressFamily::Inet;
    rule.header.action = action;
    rule.with(RuleAttribute::Priority(pref))
}

/// Builds a rule.
trait RuleParts {
    /// With one thing more that it asks for, or says.
    fn with(self, part: RuleAttribute) -> Self;
    /// For packets to a network.
    fn to(self, net: Ipv4Net) -> Self;
}

impl RuleParts for RuleMessage {
    fn with(mut self, part: RuleAttribute) -> Self {
        self.attributes.push(part);
        self
    }

    fn to(mut self, net: Ipv4Net) -> Self {
        self.header.dst_len = net.prefix_len();
        self.with(RuleAttribute::Destination(net.network().into()))
    }
}

/// Adds a rule; fine when somebody was faster.
async fn add_rule(
    rtnl: &Rtnl,
    rule: RuleMessage,
    describe: impl FnOnce() -> String,
) -> Result<(), NetError> {
    let mut request = rtnl.handle().rule().add();
    *request.message_mut() = rule;
    request
        .execute()
        .await
        .doing_unless(libc::EEXIST, describe)?;
    Ok(())
}

/// Makes one rule lead to a table of ours: of those that are as wanted one stays, and every other goes.
async fn ensure_only_rule(
    rtnl: &Rtnl,
    table: u32,
    is_wanted: impl Fn(&RuleMessage) -> bool,
    wanted: RuleMessage,
    describe: impl FnOnce() -> String,
) -> Result<(), NetError> {
    let mut present = false;
    for rule in rules_to(rtnl, table).await? {
        if !present && is_wanted(&rule) {
            present = true;
        } else {
            delete_rule(rtnl, rule).await?;
        }
    }
    match present {
        true => Ok(()),
        false => add_rule(rtnl, wanted, describe).await,
    }
}

/// Removes a rule; fine when it is gone.
async fn delete_rule(rtnl: &Rtnl, rule: RuleMessage) -> Result<(), NetError> {
    rtnl.handle()
        .rule()
        .del(rule)
        .execute()
        .await
        .doing_unless(libc::ENOENT, || "remove a policy rule of ours".into())?;
    Ok(())
}

/// Every IPv4 policy rule.
async fn rules(rtnl: &Rtnl) -> Result<Vec<RuleMessage>, NetError> {
    let mut stream = rtnl.handle().rule().get(IpVersion::V4).execute();
    let mut rules = Vec::new();
    while let Some(rule) = stream
        .try_next()
        .await
        .doing(|| "list policy rules".into())?
    {
        rules.push(rule);
    }
    Ok(rules)
}

/// Every IPv4 rule that leads to a table.
async fn rules_to(rtnl: &Rtnl, table: u32) -> Result<Vec<RuleMessage>, NetError> {
    let mut rules = rules(rtnl).await?;
    rules.retain(|rule| {
        rule.attributes.contains(&RuleAttribute::Table(table))
            || (table < 256 && u32::from(rule.header.table) == table)
    });
    Ok(rules)
}

/// The rules that lead to a table of ours, and whatever is in it; fine when there is nothing.
pub(crate) async fn remove_table(rtnl: &Rtnl, number: u32) -> Result<(), NetError> {
    for rule in rules_to(rtnl, number).await? {
        delete_rule(rtnl, rule).await?;
    }
    for route in routes(rtnl).await? {
        if table(&route) == number {
            delete_route(rtnl, route).await?;
        }
    }
    Ok(())
}

async fn delete_route(rtnl: &Rtnl, route: RouteMessage) -> Result<(), NetError> {
    let number = table(&route);
    rtnl.handle()
        .route()
        .del(route)
        .execute()
        .await
        .doing_unless(libc::ESRCH, || {
            format!("remove a route from table {number}")
        })?;
    Ok(())
}

/// How many rules lead to a table, and how many routes are in it.
pub(crate) async fn traces_of_table(rtnl: &Rtnl, number: u32) -> Result<(usize, usize), NetError> {
    let routes = routes(rtnl).await?;
    let routes = routes.iter().filter(|route| table(route) == number);
    Ok((rules_to(rtnl, number).await?.len(), routes.count()))
}

/// A pod's routes: the gateway on the link, everything else by it. A route that is there already is somebody else's,
/// and an error: replacing it would take another interface's traffic.
pub(crate) async fn add_pod_routes(
    rtnl: &Rtnl,
    index: u32,
    gateway: Ipv4Addr,
) -> Result<(), NetError> {
    let to_gateway = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(gateway, 32)
        .scope(RouteScope::Link)
        .output_interface(index)
        .build();
    let default = RouteMessageBuilder::<Ipv4Addr>::new()
        .gateway(gateway)
        .output_interface(index)
        .build();
    for (route, what) in [
        (to_gateway, "to the gateway"),
        (default, "to everything else"),
    ] {
        rtnl.handle()
            .route()
            .add(route)
            .execute()
            .await
            .doing(|| format!("add the pod's route {what}"))?;
    }
    Ok(())
}

/// Compares the pod's routes.
pub(crate) async fn check_pod_routes(
    rtnl: &Rtnl,
    index: u32,
    gateway: Ipv4Addr,
) -> Result<(), NetError> {
    let routes = routes(rtnl).await?;
    let leaves_here = |route: &RouteMessage| route.attributes.contains(&RouteAttribute::Oif(index));
    let link = Ipv4Net::from(gateway);
    let to_gateway = routes.iter().any(|route| {
        leaves_here(route)
            && route.header.scope == RouteScope::Link
            && destination(route) == Some(link)
    });
    if !to_gateway {
        return Err(NetError::differs(
            format!("the pod's route to {gateway}"),
            "missing",
            "on the link",
        ));
    }
    let by_gateway = RouteAttribute::Gateway(RouteAddress::Inet(gateway));
    let default = routes.iter().any(|route| {
        leaves_here(route)
            && destination(route).is_some_and(|net| net.prefix_len() == 0)
            && route.attributes.contains(&by_gateway)
    });
    if default {
        Ok(())
    } else {
        Err(NetError::differs(
            "the pod's default route",
            "missing",
            format!("via {gateway}"),
        ))
    }
}

/// The IPv4 networks that the node's addresses and routes use already, apart from what belongs to the interface
/// `except` (our bridge) and default routes.
///
/// # Errors
/// `Refused` when the kernel cannot be asked.
pub async fn networks_in_use(rtnl: &Rtnl, except: &str) -> Result<Vec<Ipv4Net>, NetError> {
    let ours = crate::link::index_of(rtnl, except).await?;
    let mut networks: Vec<Ipv4Net> = routes(rtnl)
        .await?
        .iter()
        .filter(|route| {
            !ours.is_some_and(|index| route.attributes.contains(&RouteAttribute::Oif(index)))
        })
        .filter_map(destination)
        .filter(|net| net.prefix_len() > 0)
        .collect();
    networks.extend(networks_of_addresses(rtnl, except).await?);
    networks.sort();
    networks.dedup();
    Ok(networks)
}

/// The IPv4 networks that the node's own addresses are in, apart from those of the interface `except`.
///
/// # Errors
/// `Refused` when the kernel cannot be asked.
pub async fn networks_of_addresses(rtnl: &Rtnl, except: &str) -> Result<Vec<Ipv4Net>, NetError> {
    let ours = crate::link::index_of(rtnl, except).await?;
    let mut networks = Vec::new();
    let mut addresses = rtnl.handle().address().get().execute();
    while let Some(message) = addresses
        .try_next()
        .await
        .doing(|| "list addresses".into())?
    {
        if ours == Some(message.header.index) {
            continue;
        }
        networks.extend(message.attributes.iter().find_map(|attribute| {
            match attribute {
                AddressAttribute::Local(std::net::IpAddr::V4(address)) => {
                    Ipv4Net::new(*address, message.header.prefix_len)
                        .ok()
                        .map(|net| net.trunc())
                }
                _ => None,
            }
        }));
    }
    Ok(networks)
}

/// The interface that traffic to the outside leaves by. Asks for one address (RFC 5737), not for the whole table.
pub(crate) async fn uplink(rtnl: &Rtnl) -> Result<Option<u32>, NetError> {
    let question = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(Ipv4Addr::new(192, 0, 2, 1), 32)
        .build();
    let mut answer = rtnl.handle().route().get(question).execute();
    let route = match answer.try_next().await {
        Err(rtnetlink::Error::NetlinkError(message))
            if [-libc::ENETUNREACH, -libc::EHOSTUNREACH, -libc::EACCES]
                .contains(&message.raw_code()) =>
        {
            return Ok(None);
        }
        other => other.doing(|| "look up the route to the outside".into())?,
    };
    Ok(route.and_then(|route| {
        route
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                RouteAttribute::Oif(index) => Some(*index),
                _ => None,
            })
    }))
}

pub(crate) async fn routes(rtnl: &Rtnl) -> Result<Vec<RouteMessage>, NetError> {
    let mut question = RouteMessageBuilder::<Ipv4Addr>::new().build();
    question.header.address_family = AddressFamily::Inet;
    question.header.protocol = RouteProtocol::Unspec;
    let mut stream = rtnl.handle().route().get(question).execute();
    let mut routes = Vec::new();
    while let Some(route) = stream.try_next().await.doing(|| "list routes".into())? {
        routes.push(route);
    }
    Ok(routes)
}

pub(crate) fn table(route: &RouteMessage) -> u32 {
    route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Table(table) => Some(*table),
            _ => None,
        })
        .unwrap_or(u32::from(route.header.table))
}

pub(crate) fn destination(route: &RouteMessage) -> Option<Ipv4Net> {
    let address = route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(*address),
            _ => None,
        })
        .unwrap_or(Ipv4Addr::UNSPECIFIED);
    Ipv4Net::new(address, route.header.destination_prefix_length).ok()
}
