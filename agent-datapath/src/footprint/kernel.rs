//! Links, policy rules with their routes, and settings of ours.

use std::path::Path;

use agent_core::node::BRIDGE;
use futures_util::TryStreamExt;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

use super::is_pod_link;
use crate::{
    error::NetError,
    link,
    routing::{self, DropRules},
    rtnl::{Doing, Rtnl},
    sysctl,
};

pub(super) async fn find_pod_links() -> Result<Vec<(String, String)>, NetError> {
    let rtnl = Rtnl::connect()?;
    Ok(pod_links(&rtnl)
        .await?
        .into_iter()
        .map(|name| {
            let by_hand = format!("ip link del {name}");
            (name, by_hand)
        })
        .collect())
}

pub(super) async fn remove_pod_links() -> Result<(), NetError> {
    let rtnl = Rtnl::connect()?;
    let mut errors = Vec::new();
    for name in pod_links(&rtnl).await? {
        errors.extend(link::delete_link(&rtnl, &name).await.err());
    }
    NetError::of_all(errors)
}

/// veths that have our name, and every other one that is a port of our bridge: whatever version made it, it is a
/// pod's, and without the bridge it is good for nothing.
async fn pod_links(rtnl: &Rtnl) -> Result<Vec<String>, NetError> {
    let bridge = link::index_of(rtnl, BRIDGE).await?;
    let mut links = rtnl.handle().link().get().execute();
    let mut names = Vec::new();
    while let Some(link) = links.try_next().await.doing(|| "list interfaces".into())? {
        let Some(name) = name(&link) else { continue };
        let is_port = bridge
            .is_some_and(|bridge| link.attributes.contains(&LinkAttribute::Controller(bridge)));
        let is_veth = link::infos(&link).any(|info| matches!(info, LinkInfo::Kind(InfoKind::Veth)));
        if is_veth && (is_port || is_pod_link(&name)) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn name(link: &LinkMessage) -> Option<String> {
    link.attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        })
}

pub(super) async fn find_bridge() -> Result<Vec<(String, String)>, NetError> {
    let found = link::index_of(&Rtnl::connect()?, BRIDGE).await?;
    Ok(found
        .map(|_| (BRIDGE.to_owned(), format!("ip link del {BRIDGE}")))
        .into_iter()
        .collect())
}

pub(super) async fn remove_bridge() -> Result<(), NetError> {
    link::delete_link(&Rtnl::connect()?, BRIDGE).await
}

pub(super) async fn find_table(table: u32) -> Result<Vec<(String, String)>, NetError> {
    let (rules, routes) = routing::traces_of_table(&Rtnl::connect()?, table).await?;
    let mut found = Vec::new();
    found.extend((rules > 0).then(|| {
        (
            format!("{rules} policy rules to table {table}"),
            format!("ip rule del lookup {table}"),
        )
    }));
    found.extend((routes > 0).then(|| {
        (
            format!("{routes} routes in table {table}"),
            format!("ip route flush table {table}"),
        )
    }));
    Ok(found)
}

pub(super) async fn remove_table(table: u32) -> Result<(), NetError> {
    routing::remove_table(&Rtnl::connect()?, table).await
}

pub(super) async fn find_drop_rules(rules: &DropRules) -> Result<Vec<(String, String)>, NetError> {
    let found = rules.traces(&Rtnl::connect()?).await?;
    Ok(found
        .into_iter()
        .map(|rule| (format!("policy rule {rule}"), format!("ip rule del {rule}")))
        .collect())
}

pub(super) async fn remove_drop_rules(rules: &DropRules) -> Result<(), NetError> {
    rules.remove(&Rtnl::connect()?).await
}

pub(super) fn find_sysctls(record: &Path) -> Result<Vec<(String, String)>, NetError> {
    Ok(sysctl::unrestored(&sysctl::node_settings(BRIDGE), record)?
        .into_iter()
        .map(|(name, now, before)| {
            (
                format!("{name} is {now}, and was {before} before the installation"),
                format!("sysctl -w {name}={before}"),
            )
        })
        .collect())
}
