//! The networks that the node uses besides ours, each with where that is said: what has to be told to whoever wants to take
//! one away.

use std::{collections::BTreeMap, net::IpAddr};

use futures_util::TryStreamExt;
use ipnet::Ipv4Net;
use netlink_packet_route::{
    address::AddressAttribute,
    link::LinkAttribute,
    route::{RouteAttribute, RouteMessage, RouteProtocol, RouteType},
};

use crate::{
    error::NetError,
    routing,
    rtnl::{Doing, Rtnl},
};

/// The table of an interface's routes, which `ip route` means when no table is named.
const MAIN: u32 = 254;
/// The table of the node's own addresses.
const LOCAL: u32 = 255;

/// A network in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    /// Which.
    pub net: Ipv4Net,
    /// Where that is said.
    pub place: Place,
}

/// Why a network is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// An interface has an address in it.
    Address {
        /// The address, with the length of its prefix.
        address: String,
        /// The interface.
        device: String,
    },
    /// It is routed.
    Route {
        /// The route as `ip route del` takes it: `10.0.0.0/8 dev eth1 table 100`.
        route: String,
    },
}

impl Used {
    /// What it is, in words.
    #[must_use]
    pub fn what(&self) -> String {
        match &self.place {
            Place::Address { address, device } => format!("{address}, which {device} has"),
            Place::Route { route } => format!("{}, which is routed ({route})", self.net),
        }
    }

    /// The command that takes it away.
    #[must_use]
    pub fn removal(&self) -> String {
        match &self.place {
            Place::Address { address, device } => format!("ip addr del {address} dev {device}"),
            Place::Route { route } => format!("ip route del {route}"),
        }
    }
}

/// The IPv4 networks that the node's addresses and routes use, apart from what belongs to the interface `except` (our
/// bridge) and default routes. Routes that the kernel made for an address go with it, and are not named.
///
/// # Errors
/// `Refused` when the kernel cannot be asked.
pub async fn networks_in_use(rtnl: &Rtnl, except: &str) -> Result<Vec<Used>, NetError> {
    let names = names(rtnl).await?;
    let name = |index: u32| match names.get(&index) {
        Some(name) => name.clone(),
        // it went between the two questions
        None => format!("if{index}"),
    };
    let mut used = Vec::new();
    let mut owned = Vec::new();
    let mut addresses = rtnl.handle().address().get().execute();
    while let Some(message) = addresses
        .try_next()
        .await
        .doing(|| "list addresses".into())?
    {
        let local = message.attributes.iter().find_map(|one| match one {
            AddressAttribute::Local(IpAddr::V4(address)) => {
                Ipv4Net::new(*address, message.header.prefix_len).ok()
            }
            _ => None,
        });
        let Some(address) = local else { continue };
        let device = name(message.header.index);
        owned.push((message.header.index, address));
        if device != except {
            used.push(Used {
                net: address.trunc(),
                place: Place::Address {
                    address: address.to_string(),
                    device,
                },
            });
        }
    }
    for route in routing::routes(rtnl).await? {
        let Some(net) = routing::destination(&route).filter(|net| net.prefix_len() > 0) else {
            continue;
        };
        let out = out(&route);
        if out.is_some_and(|index| name(index) == except) || is_of_an_address(&route, net, &owned) {
            continue;
        }
        let route = described(&route, net, out.map(name));
        used.push(Used {
            net,
            place: Place::Route { route },
        });
    }
    used.sort_by_key(|one| one.net);
    Ok(used)
}

/// Whether the kernel made the route for one of these addresses. Pure.
fn is_of_an_address(route: &RouteMessage, net: Ipv4Net, owned: &[(u32, Ipv4Net)]) -> bool {
    if route.header.protocol != RouteProtocol::Kernel {
        return false;
    }
    let own_table = routing::table(route) == LOCAL;
    owned
        .iter()
        .filter(|(index, _)| out(route) == Some(*index))
        .any(|(_, address)| match own_table {
            true => address.contains(&net.network()),
            false => address.trunc() == net,
        })
}

fn out(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|one| match one {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    })
}

/// As `ip route del` takes it. Pure.
fn described(route: &RouteMessage, net: Ipv4Net, device: Option<String>) -> String {
    let kind = match route.header.kind {
        RouteType::Local => "local ",
        RouteType::Broadcast => "broadcast ",
        RouteType::BlackHole => "blackhole ",
        RouteType::Unreachable => "unreachable ",
        RouteType::Prohibit => "prohibit ",
        _ => "",
    };
    let mut text = format!("{kind}{net}");
    if let Some(device) = device {
        text.push_str(&format!(" dev {device}"));
    }
    let table = routing::table(route);
    if table != MAIN {
        text.push_str(&format!(" table {table}"));
    }
    text
}

async fn names(rtnl: &Rtnl) -> Result<BTreeMap<u32, String>, NetError> {
    let mut links = rtnl.handle().link().get().execute();
    let mut names = BTreeMap::new();
    while let Some(link) = links.try_next().await.doing(|| "list links".into())? {
        names.extend(link.attributes.iter().find_map(|one| match one {
            LinkAttribute::IfName(name) => Some((link.header.index, name.clone())),
            _ => None,
        }));
    }
    Ok(names)
}
