//! A pod's veth pair: its creation across two namespaces, the pod's side of it, looking at links, and removal.
//!
//! The pod's end is created in the pod's namespace under its final name, so nothing is renamed or moved afterwards and
//! a name that is taken fails before anything exists. Whether the host's end may carry traffic is the caller's choice:
//! it is created down.

use std::{
    net::{IpAddr, Ipv4Addr},
    os::fd::AsRawFd,
};

use agent_core::mac::MacAddr as Mac;
use futures_util::TryStreamExt;
use ipnet::Ipv4Net;
use netlink_packet_route::{
    AddressFamily,
    link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    neighbour::{NeighbourAttribute, NeighbourState},
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};

use crate::{
    bridge::{address_of, neighbour_address},
    error::NetError,
    netns::Netns,
    routing,
    rtnl::{Doing, Rtnl},
    sysctl,
};

/// What the names of all our host-side interfaces begin with.
pub const HOST_VETH_PREFIX: &str = "agt";

/// A veth pair to create.
#[derive(Debug)]
pub struct PodLink<'a> {
    /// The name of the host's end, at most 15 bytes.
    pub host_name: &'a str,
    /// The name of the pod's end: `eth0`.
    pub pod_name: &'a str,
    /// The pod's MAC.
    pub pod_mac: [u8; 6],
    /// Bytes of IP a frame may carry, on both ends.
    pub mtu: u32,
    /// Where the pod's end goes.
    pub netns: &'a Netns,
}

/// The pod's end of the link.
#[derive(Debug, Clone)]
pub struct PodSide {
    /// Its name: `eth0`.
    pub ifname: String,
    /// The pod's MAC.
    pub mac: [u8; 6],
    /// The pod's only address, a /32.
    pub address: Ipv4Addr,
    /// The bridge's address, the default route's next hop.
    pub gateway: Ipv4Addr,
    /// The bridge's MAC, so that the pod never asks for it.
    pub gateway_mac: [u8; 6],
    /// Bytes of IP a frame may carry.
    pub mtu: u32,
}

/// Creates the pair, both ends down and without IPv6, and answers the host end's ifindex.
///
/// # Errors
/// `Refused` with `EEXIST` when a name is taken in its namespace.
pub async fn create_pod_link(rtnl: &Rtnl, link: &PodLink<'_>) -> Result<u32, NetError> {
    let peer = LinkMessageBuilder::<LinkUnspec>::new()
        .name(link.pod_name)
        .address(link.pod_mac.to_vec())
        .mtu(link.mtu)
        .setns_by_fd(link.netns.file().as_raw_fd())
        .build();
    let message = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
        .name(link.host_name)
        .mtu(link.mtu)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .build();
    rtnl.handle()
        .link()
        .add(message)
        .execute()
        .await
        .doing(|| {
            format!(
                "create veth {} with {} in {}",
                link.host_name,
                link.pod_name,
                link.netns.path().display()
            )
        })?;
    let made = find(rtnl, link.host_name)
        .await?
        .ok_or_else(|| NetError::NoLink {
            name: link.host_name.to_owned(),
        })?;
    sysctl::ensure(&sysctl::no_ipv6(link.host_name), None)?;
    Ok(made.header.index)
}

/// Configures the pod's end. Runs in the pod's namespace: call it through [`Netns::run_async`].
///
/// # Errors
/// `NoLink` or `Refused`.
pub async fn configure_pod_side(side: &PodSide) -> Result<(), NetError> {
    let rtnl = Rtnl::connect()?;
    let link = find(&rtnl, &side.ifname)
        .await?
        .ok_or_else(|| NetError::NoLink {
            name: side.ifname.clone(),
        })?;
    let index = link.header.index;
    sysctl::ensure(&sysctl::no_ipv6(&side.ifname), None)?;
    ensure_up(&rtnl, "lo").await?;
    rtnl.handle()
        .address()
        .add(index, IpAddr::V4(side.address), 32)
        .replace()
        .execute()
        .await
        .doing(|| format!("add address {}/32 to {}", side.address, side.ifname))?;
    set_up(&rtnl, index, &side.ifname).await?;
    rtnl.handle()
        .neighbours()
        .add(index, IpAddr::V4(side.gateway))
        .state(NeighbourState::Permanent)
        .link_layer_address(&side.gateway_mac)
        .replace()
        .execute()
        .await
        .doing(|| format!("make the gateway {} a permanent neighbour", side.gateway))?;
    routing::add_pod_routes(&rtnl, index, side.gateway).await
}

/// Compares the pod's end with what it must be. Runs in the pod's namespace: call it through [`Netns::run_async`].
///
/// # Errors
/// `NoLink` or `Differs`, naming the first difference.
pub async fn check_pod_side(side: &PodSide) -> Result<(), NetError> {
    let rtnl = Rtnl::connect()?;
    let link = find(&rtnl, &side.ifname)
        .await?
        .ok_or_else(|| NetError::NoLink {
            name: side.ifname.clone(),
        })?;
    let index = link.header.index;
    let name = &side.ifname;
    if !link.header.flags.contains(LinkFlags::Up) {
        return Err(NetError::differs(
            format!("the state of {name}"),
            "down",
            "up",
        ));
    }
    if mac(&link) != Some(side.mac) {
        let found = mac(&link).map_or("none".into(), |found| Mac(found).to_string());
        return Err(NetError::differs(
            format!("the MAC of {name}"),
            found,
            Mac(side.mac),
        ));
    }
    let wanted = Ipv4Net::from(side.address);
    let found = addresses(&rtnl, index, name).await?;
    if !found.contains(&wanted) {
        return Err(NetError::differs(
            format!("the address of {name}"),
            list(&found),
            wanted,
        ));
    }
    let neighbour = permanent_neighbour(&rtnl, index, side.gateway).await?;
    if neighbour != Some(side.gateway_mac) {
        return Err(NetError::differs(
            format!("the pod's permanent neighbour {}", side.gateway),
            neighbour.map_or("none".into(), |found| Mac(found).to_string()),
            Mac(side.gateway_mac),
        ));
    }
    routing::check_pod_routes(&rtnl, index, side.gateway).await?;
    sysctl::check(&sysctl::no_ipv6(name))
}

/// Takes a link up.
///
/// # Errors
/// `Refused` when the kernel says no.
pub async fn set_up(rtnl: &Rtnl, index: u32, name: &str) -> Result<(), NetError> {
    let message = LinkUnspec::new_with_index(index).up().build();
    rtnl.handle()
        .link()
        .change(message)
        .execute()
        .await
        .doing(|| format!("take {name} up"))
}

/// Takes a link down: no packet passes until it is up again.
///
/// # Errors
/// `Refused` when the kernel says no.
pub async fn set_down(rtnl: &Rtnl, index: u32, name: &str) -> Result<(), NetError> {
    let message = LinkUnspec::new_with_index(index).down().build();
    rtnl.handle()
        .link()
        .change(message)
        .execute()
        .await
        .doing(|| format!("take {name} down"))
}

/// Takes a link up by its name, when it is not.
///
/// # Errors
/// `NoLink`, or `Refused` when the kernel says no.
pub async fn ensure_up(rtnl: &Rtnl, name: &str) -> Result<(), NetError> {
    let link = find(rtnl, name).await?.ok_or_else(|| NetError::NoLink {
        name: name.to_owned(),
    })?;
    if link.header.flags.contains(LinkFlags::Up) {
        return Ok(());
    }
    set_up(rtnl, link.header.index, name).await
}

/// Removes a link, and with a veth its other end; fine when it is gone.
///
/// # Errors
/// `Refused` when the kernel says no.
pub async fn delete_link(rtnl: &Rtnl, name: &str) -> Result<(), NetError> {
    let Some(link) = find(rtnl, name).await? else {
        return Ok(());
    };
    rtnl.handle()
        .link()
        .del(link.header.index)
        .execute()
        .await
        .doing_unless(libc::ENODEV, || format!("remove {name}"))?;
    Ok(())
}

/// A link's ifindex, or `None` when there is no link of that name.
///
/// # Errors
/// `Refused` when the kernel cannot be asked.
pub async fn index_of(rtnl: &Rtnl, name: &str) -> Result<Option<u32>, NetError> {
    Ok(find(rtnl, name).await?.map(|link| link.header.index))
}

/// True when the link is administratively up.
///
/// # Errors
/// `NoLink`, or `Refused` when the kernel cannot be asked.
pub async fn is_up(rtnl: &Rtnl, name: &str) -> Result<bool, NetError> {
    let link = find(rtnl, name).await?.ok_or_else(|| NetError::NoLink {
        name: name.to_owned(),
    })?;
    Ok(link.header.flags.contains(LinkFlags::Up))
}

/// A link's MTU, or `None` when there is no link of that name.
///
/// # Errors
/// `Refused` when the kernel cannot be asked.
pub async fn mtu(rtnl: &Rtnl, name: &str) -> Result<Option<u32>, NetError> {
    Ok(find(rtnl, name).await?.as_ref().and_then(mtu_of))
}

fn mtu_of(link: &LinkMessage) -> Option<u32> {
    link.attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(*mtu),
            _ => None,
        })
}

/// The names of a bridge's ports.
///
/// # Errors
/// `Refused` when the kernel cannot be asked.
pub async fn ports_of(rtnl: &Rtnl, bridge: u32) -> Result<Vec<String>, NetError> {
    let mut links = rtnl.handle().link().get().execute();
    let mut names = Vec::new();
    while let Some(link) = links.try_next().await.doing(|| "list interfaces".into())? {
        if link.attributes.contains(&LinkAttribute::Controller(bridge)) {
            names.extend(
                link.attributes
                    .iter()
                    .find_map(|attribute| match attribute {
                        LinkAttribute::IfName(name) => Some(name.clone()),
                        _ => None,
                    }),
            );
        }
    }
    Ok(names)
}

/// The MTU of the interface that traffic to the outside leaves by; `None` on a node without such a route.
///
/// # Errors
/// `Refused` when the kernel cannot be asked.
pub async fn uplink_mtu(rtnl: &Rtnl) -> Result<Option<u32>, NetError> {
    let Some(index) = routing::uplink(rtnl).await? else {
        return Ok(None);
    };
    let mut links = rtnl.handle().link().get().match_index(index).execute();
    let link = links
        .try_next()
        .await
        .doing_unless(libc::ENODEV, || "find the uplink".into())?;
    Ok(link.flatten().as_ref().and_then(mtu_of))
}

pub(crate) async fn find(rtnl: &Rtnl, name: &str) -> Result<Option<LinkMessage>, NetError> {
    let mut links = rtnl.handle().link().get().match_name(name).execute();
    let link = links
        .try_next()
        .await
        .doing_unless(libc::ENODEV, || format!("look up {name}"))?;
    Ok(link.flatten())
}

pub(crate) fn mac(link: &LinkMessage) -> Option<[u8; 6]> {
    link.attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::Address(address) => address.as_slice().try_into().ok(),
            _ => None,
        })
}

pub(crate) fn infos(link: &LinkMessage) -> impl Iterator<Item = &LinkInfo> {
    link.attributes
        .iter()
        .filter_map(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => Some(infos.iter()),
            _ => None,
        })
        .flatten()
}

pub(crate) async fn addresses(
    rtnl: &Rtnl,
    index: u32,
    name: &str,
) -> Result<Vec<Ipv4Net>, NetError> {
    let mut messages = rtnl
        .handle()
        .address()
        .get()
        .set_link_index_filter(index)
        .execute();
    let mut found = Vec::new();
    while let Some(message) = messages
        .try_next()
        .await
        .doing(|| format!("list the addresses of {name}"))?
    {
        found.extend(address_of(&message.attributes, message.header.prefix_len));
    }
    Ok(found)
}

pub(crate) async fn permanent_neighbour(
    rtnl: &Rtnl,
    index: u32,
    address: Ipv4Addr,
) -> Result<Option<[u8; 6]>, NetError> {
    let mut entries = rtnl
        .handle()
        .neighbours()
        .get()
        .set_address_family(AddressFamily::Inet)
        .execute();
    let mut found = None;
    while let Some(entry) = entries
        .try_next()
        .await
        .doing(|| "list neighbours".into())?
    {
        if entry.header.ifindex == index
            && entry.header.state == NeighbourState::Permanent
            && neighbour_address(&entry.attributes) == Some(address)
        {
            found = entry
                .attributes
                .iter()
                .find_map(|attribute| match attribute {
                    NeighbourAttribute::LinkLayerAddress(lla) => lla.as_slice().try_into().ok(),
                    _ => None,
                });
        }
    }
    Ok(found)
}

/// Addresses for a message.
pub(crate) fn list(addresses: &[Ipv4Net]) -> String {
    if addresses.is_empty() {
        return "none".into();
    }
    addresses
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}
