//! The way back to the pods: what has a Fake IP as its destination leaves by the bridge, or not at all.
//!
//! An answer that takes another interface leaves the node with what an upstream said. The kernel's own route of the bridge's
//! address is enough until somebody removes it, or adds a narrower one; so a rule before the main table leads to a table of
//! ours, whose default is a blackhole: without the bridge there is no way at all.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use netlink_packet_route::{
    route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType},
    rule::{RuleAction, RuleAttribute, RuleMessage},
};
use rtnetlink::RouteMessageBuilder;

use super::{
    RuleParts, delete_route, destination, ensure_only_rule, new_rule, remove_table, routes,
    rules_to, table,
};
use crate::{
    error::NetError,
    rtnl::{Doing, Rtnl},
};

/// `RT_TABLE_MAIN`.
const MAIN: u32 = 254;

/// `ip rule add pref PREF to POOL lookup TABLE`, `ip route add POOL dev BRIDGE src GATEWAY table TABLE`, `ip route add blackhole
/// default table TABLE`, and the route that the kernel made in the main table with the bridge's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolRoute {
    /// The gateway's address with the pool's length.
    pub gateway: Ipv4Net,
    /// The routing table.
    pub table: u32,
    /// The rule's preference.
    pub pref: u32,
}

impl PoolRoute {
    /// Lets nothing for a pod leave by another interface. Needs no bridge: for before it is up.
    ///
    /// # Errors
    /// `Refused` when the kernel says no.
    pub async fn close(&self, rtnl: &Rtnl) -> Result<(), NetError> {
        self.put(rtnl, self.blackhole(), "the blackhole").await?;
        let rule = new_rule(self.pref, RuleAction::ToTable)
            .with(RuleAttribute::Table(self.table))
            .to(self.pool());
        let is_this = |rule: &RuleMessage| self.is_this(rule);
        ensure_only_rule(rtnl, self.table, is_this, rule, || self.describe_rule()).await
    }

    /// Opens the way by the bridge, which is up, and removes others from our table.
    ///
    /// # Errors
    /// `Refused` when the kernel says no.
    pub async fn ensure(&self, rtnl: &Rtnl, bridge: u32) -> Result<(), NetError> {
        self.close(rtnl).await?;
        let present = routes(rtnl).await?;
        for table in [self.table, MAIN] {
            if !present.iter().any(|route| self.leads(route, table, bridge)) {
                self.put(rtnl, self.by(table, bridge), "the pods' route")
                    .await?;
            }
        }
        for route in present {
            if table(&route) == self.table
                && !self.leads(&route, self.table, bridge)
                && !is_blackhole(&route)
            {
                delete_route(rtnl, route).await?;
            }
        }
        Ok(())
    }

    /// Compares with what the kernel has.
    ///
    /// # Errors
    /// `Differs`, naming what is missing or too many.
    pub async fn check(&self, rtnl: &Rtnl, bridge: u32) -> Result<(), NetError> {
        let rules = rules_to(rtnl, self.table).await?;
        if rules.len() != 1 || !rules.iter().all(|rule| self.is_this(rule)) {
            return Err(NetError::differs(
                format!("the policy rule of table {}", self.table),
                if rules.is_empty() {
                    "missing"
                } else {
                    "another, or there twice"
                },
                self.describe_rule(),
            ));
        }
        let routes = routes(rtnl).await?;
        for wanted in [MAIN, self.table] {
            if !routes.iter().any(|route| self.leads(route, wanted, bridge)) {
                return Err(NetError::differs(
                    format!("the pods' route in table {wanted}"),
                    "missing",
                    format!("{} by the bridge", self.pool()),
                ));
            }
        }
        let ours = routes.iter().filter(|route| table(route) == self.table);
        if !ours.clone().any(is_blackhole) {
            return Err(NetError::differs(
                format!("table {}", self.table),
                "without a default",
                "a blackhole",
            ));
        }
        if ours.count() != 2 {
            return Err(NetError::differs(
                format!("table {}", self.table),
                "with routes that are not ours",
                "the pods' route and a blackhole",
            ));
        }
        Ok(())
    }

    /// Removes rule and table; fine when they are gone. The main table's route goes with the bridge.
    ///
    /// # Errors
    /// `Refused` when the kernel says no.
    pub async fn remove(&self, rtnl: &Rtnl) -> Result<(), NetError> {
        remove_table(rtnl, self.table).await
    }

    fn pool(&self) -> Ipv4Net {
        self.gateway.trunc()
    }

    fn describe_rule(&self) -> String {
        format!(
            "add rule pref {} to {} lookup {}",
            self.pref,
            self.pool(),
            self.table
        )
    }

    fn is_this(&self, rule: &RuleMessage) -> bool {
        let has = |wanted| rule.attributes.contains(&wanted);
        let asks_for_more = rule.attributes.iter().any(|attribute| {
            matches!(
                attribute,
                RuleAttribute::Iifname(_)
                    | RuleAttribute::Oifname(_)
                    | RuleAttribute::Source(_)
                    | RuleAttribute::IpProtocol(_)
                    | RuleAttribute::SourcePortRange(_)
                    | RuleAttribute::DestinationPortRange(_)
                    | RuleAttribute::UidRange(_)
                    | RuleAttribute::FwMark(1..)
            )
        });
        has(RuleAttribute::Priority(self.pref))
            && has(RuleAttribute::Destination(self.pool().network().into()))
            && rule.header.dst_len == self.pool().prefix_len()
            && rule.header.action == RuleAction::ToTable
            && !asks_for_more
    }

    /// Whether a route is the pods', by the bridge.
    fn leads(&self, route: &RouteMessage, number: u32, bridge: u32) -> bool {
        table(route) == number
            && route.header.kind == RouteType::Unicast
            && destination(route) == Some(self.pool())
            && route.attributes.contains(&RouteAttribute::Oif(bridge))
            && !has_gateway(route)
    }

    /// As the kernel makes it with the bridge's address, which is how the main table must have it.
    fn by(&self, table: u32, bridge: u32) -> RouteMessage {
        RouteMessageBuilder::<Ipv4Addr>::new()
            .table_id(table)
            .protocol(if table == MAIN {
                RouteProtocol::Kernel
            } else {
                RouteProtocol::Static
            })
            .scope(RouteScope::Link)
            .destination_prefix(self.pool().network(), self.pool().prefix_len())
            .output_interface(bridge)
            .pref_source(self.gateway.addr())
            .build()
    }

    fn blackhole(&self) -> RouteMessage {
        RouteMessageBuilder::<Ipv4Addr>::new()
            .table_id(self.table)
            .kind(RouteType::BlackHole)
            .build()
    }

    async fn put(&self, rtnl: &Rtnl, route: RouteMessage, what: &str) -> Result<(), NetError> {
        let number = table(&route);
        rtnl.handle()
            .route()
            .add(route)
            .replace()
            .execute()
            .await
            .doing(|| format!("add {what} to table {number}"))?;
        Ok(())
    }
}

fn is_blackhole(route: &RouteMessage) -> bool {
    route.header.kind == RouteType::BlackHole
        && destination(route).is_some_and(|net| net.prefix_len() == 0)
}

fn has_gateway(route: &RouteMessage) -> bool {
    route
        .attributes
        .iter()
        .any(|attribute| matches!(attribute, RouteAttribute::Gateway(_)))
}
