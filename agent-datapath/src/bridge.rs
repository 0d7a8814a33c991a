//! The bridge every pod's veth is a port of: its address, its MAC, its ports' flags and its static entries.
//!
//! The bridge switches nothing between pods: ports are isolated, do not learn and are not flooded to, and the one
//! entry a pod has in the forwarding table is written here. Creating the veth itself is `link`'s business.

use std::net::{IpAddr, Ipv4Addr};

use agent_core::mac::MacAddr as Mac;
use futures_util::TryStreamExt;
use ipnet::Ipv4Net;
use netlink_packet_route::{
    AddressFamily,
    address::AddressAttribute,
    link::{
        InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, LinkAttribute, LinkFlags,
        LinkInfo, LinkMessage,
    },
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourState},
};
use rtnetlink::{LinkBridge, LinkBridgePort, LinkUnspec};

use crate::{
    error::NetError,
    link,
    rtnl::{Doing, Rtnl},
};

/// How the bridge must look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridge {
    /// Its name: `agentcni0`.
    pub name: String,
    /// Its fixed MAC, which every pod has as a permanent neighbour.
    pub mac: [u8; 6],
    /// The gateway address with the pool's length.
    pub address: Ipv4Net,
}

/// Makes the bridge as it must look and answers its ifindex; changes only what differs, so that a bridge that lost its
/// address, its MAC or its administrative state is mended.
///
/// # Errors
/// `ForeignLink` when the name belongs to something else; `Refused` when the kernel says no.
pub async fn ensure(rtnl: &Rtnl, bridge: &Bridge) -> Result<u32, NetError> {
    if link::find(rtnl, &bridge.name).await?.is_none() {
        create(rtnl, bridge).await?;
    }
    let message = link::find(rtnl, &bridge.name)
        .await?
        .ok_or_else(|| NetError::NoLink {
            name: bridge.name.clone(),
        })?;
    must_be_bridge(&message, &bridge.name)?;
    let index = message.header.index;
    if link::mac(&message) != Some(bridge.mac) {
        let change = LinkUnspec::new_with_index(index)
            .address(bridge.mac.to_vec())
            .build();
        rtnl.handle()
            .link()
            .change(change)
            .execute()
            .await
            .doing(|| format!("set the MAC of {} to {}", bridge.name, Mac(bridge.mac)))?;
    }
    // off is the default, and a kernel built without it refuses even to be told so
    if vlan_filtering(&message) {
        let plain = LinkBridge::new(&bridge.name)
            .index(index)
            .vlan_filtering(false)
            .build();
        rtnl.handle()
            .link()
            .change(plain)
            .execute()
            .await
            .doing(|| format!("switch off VLAN filtering on {}", bridge.name))?;
    }
    ensure_address(rtnl, bridge, index).await?;
    Ok(index)
}

/// Takes the bridge up. Apart from [`ensure`], so that settings of the interface can be made before.
///
/// # Errors
/// `Refused` when the kernel says no.
pub async fn up(rtnl: &Rtnl, bridge: &Bridge, index: u32) -> Result<(), NetError> {
    link::set_up(rtnl, index, &bridge.name).await
}

async fn create(rtnl: &Rtnl, bridge: &Bridge) -> Result<(), NetError> {
    let message = LinkBridge::new(&bridge.name)
        .down()
        .address(bridge.mac.to_vec())
        .build();
    // two that start at the same time both want it: the other one's will do
    rtnl.handle()
        .link()
        .add(message)
        .execute()
        .await
        .doing_unless(libc::EEXIST, || format!("create bridge {}", bridge.name))?;
    Ok(())
}

/// Adds the gateway address and removes other IPv4 addresses, which would be ways to the node that no rule knows.
async fn ensure_address(rtnl: &Rtnl, bridge: &Bridge, index: u32) -> Result<(), NetError> {
    let mut present = false;
    let mut addresses = rtnl
        .handle()
        .address()
        .get()
        .set_link_index_filter(index)
        .execute();
    let mut surplus = Vec::new();
    while let Some(message) = addresses
        .try_next()
        .await
        .doing(|| format!("list the addresses of {}", bridge.name))?
    {
        match address_of(&message.attributes, message.header.prefix_len) {
            Some(address) if address == bridge.address => present = true,
            Some(_) => surplus.push(message),
            None => {}
        }
    }
    if !present {
        rtnl.handle()
            .address()
            .add(
                index,
                bridge.address.addr().into(),
                bridge.address.prefix_len(),
            )
            .execute()
            .await
            .doing_unless(libc::EEXIST, || {
                format!("add address {} to {}", bridge.address, bridge.name)
            })?;
    }
    for message in surplus {
        rtnl.handle()
            .address()
            .del(message)
            .execute()
            .await
            .doing_unless(libc::EADDRNOTAVAIL, || {
                format!("remove a foreign address from {}", bridge.name)
            })?;
    }
    Ok(())
}

/// Compares the bridge with how it must look.
///
/// # Errors
/// `NoLink`, `ForeignLink`, or every difference.
pub async fn check(rtnl: &Rtnl, bridge: &Bridge) -> Result<u32, NetError> {
    let message = link::find(rtnl, &bridge.name)
        .await?
        .ok_or_else(|| NetError::NoLink {
            name: bridge.name.clone(),
        })?;
    must_be_bridge(&message, &bridge.name)?;
    let index = message.header.index;
    let addresses = link::addresses(rtnl, index, &bridge.name).await?;
    NetError::of_all(differences(&message, &addresses, bridge))?;
    Ok(index)
}

fn differences(message: &LinkMessage, addresses: &[Ipv4Net], bridge: &Bridge) -> Vec<NetError> {
    let mut differences = Vec::new();
    if link::mac(message) != Some(bridge.mac) {
        let found = link::mac(message).map_or("none".into(), |mac| Mac(mac).to_string());
        differences.push(NetError::differs(
            format!("the MAC of {}", bridge.name),
            found,
            Mac(bridge.mac),
        ));
    }
    if !message.header.flags.contains(LinkFlags::Up) {
        differences.push(NetError::differs(
            format!("the state of {}", bridge.name),
            "down",
            "up",
        ));
    }
    if addresses != [bridge.address] {
        differences.push(NetError::differs(
            format!("the address of {}", bridge.name),
            link::list(addresses),
            bridge.address,
        ));
    }
    differences
}

/// Makes the host side of a veth a port that can be neither heard by others nor learnt from.
///
/// # Errors
/// `Refused` when the kernel says no.
pub async fn add_port(rtnl: &Rtnl, bridge: u32, port: u32, name: &str) -> Result<(), NetError> {
    let join = LinkUnspec::new_with_index(port).controller(bridge).build();
    rtnl.handle()
        .link()
        .change(join)
        .execute()
        .await
        .doing(|| format!("make {name} a port of the bridge"))?;
    let mut flags = LinkBridgePort::new(port).append_info_data(NOTHING_HANDED_UP);
    for flag in port_flags() {
        flags = flags.append_info_data(flag);
    }
    rtnl.handle()
        .link()
        .set_port(flags.build())
        .execute()
        .await
        .doing(|| format!("isolate bridge port {name}"))
}

/// A bridge hands frames to 01:80:c2:00:00:0x up to the node past all rules, unless it is to forward them: then they go
/// by the same way as all others, to the rules that drop them. Bit 1, for pause frames, may not be set; those it drops.
const NOTHING_HANDED_UP: InfoBridgePort = InfoBridgePort::GroupFwdMask(0xfffd);

/// Sets on a port what ports of earlier versions are without and the iptables-compat mode needs.
///
/// # Errors
/// `Refused` when the kernel says no.
pub async fn hand_nothing_up(rtnl: &Rtnl, port: u32, name: &str) -> Result<(), NetError> {
    let flags = LinkBridgePort::new(port).append_info_data(NOTHING_HANDED_UP);
    rtnl.handle()
        .link()
        .set_port(flags.build())
        .execute()
        .await
        .doing(|| format!("have all frames of bridge port {name} go by the rules"))
}

/// What a port must be set to. Flooding off means that only frames to an address in the table reach the pod.
pub(crate) fn port_flags() -> [InfoBridgePort; 7] {
    [
        InfoBridgePort::Isolated(true),
        InfoBridgePort::Learning(false),
        InfoBridgePort::UnicastFlood(false),
        InfoBridgePort::MulticastFlood(false),
        InfoBridgePort::BroadcastFlood(false),
        InfoBridgePort::HairpinMode(false),
        InfoBridgePort::Guard(true),
    ]
}

/// Compares a port's flags and its bridge.
///
/// # Errors
/// `NoLink`, or every difference; what is no port of the bridge has no flags to compare.
pub async fn check_port(rtnl: &Rtnl, bridge: u32, name: &str) -> Result<(), NetError> {
    let message = link::find(rtnl, name)
        .await?
        .ok_or_else(|| NetError::NoLink {
            name: name.to_owned(),
        })?;
    let controller = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::Controller(index) => Some(*index),
            _ => None,
        });
    if controller != Some(bridge) {
        return Err(NetError::differs(
            format!("the bridge of {name}"),
            controller.map_or("none".into(), |index| format!("ifindex {index}")),
            format!("ifindex {bridge}"),
        ));
    }
    let flags = flags_of(&message);
    let differences = port_flags()
        .into_iter()
        .filter(|wanted| !flags.contains(wanted))
        .map(|wanted| {
            NetError::differs(
                format!("bridge port {name}"),
                "set otherwise",
                format!("{wanted:?}"),
            )
        });
    NetError::of_all(differences.collect())
}

/// How a port of a bridge is set; nothing for what is none.
pub(crate) fn flags_of(message: &LinkMessage) -> &[InfoBridgePort] {
    link::infos(message)
        .find_map(|info| match info {
            LinkInfo::PortData(InfoPortData::BridgePort(flags)) => Some(flags.as_slice()),
            _ => None,
        })
        .unwrap_or_default()
}

/// Writes the pod's entry into the forwarding table and its permanent neighbour on the bridge.
///
/// # Errors
/// `Refused` when the kernel says no.
pub async fn announce(
    rtnl: &Rtnl,
    bridge: u32,
    port: u32,
    address: Ipv4Addr,
    mac: [u8; 6],
) -> Result<(), NetError> {
    // NOARP is what `bridge fdb add … static` writes; PERMANENT would make the address the bridge's own
    rtnl.handle()
        .neighbours()
        .add_bridge(port, &mac)
        .state(NeighbourState::Noarp)
        .flags(NeighbourFlags::Controller)
        .replace()
        .execute()
        .await
        .doing(|| format!("add {} to the forwarding table", Mac(mac)))?;
    rtnl.handle()
        .neighbours()
        .add(bridge, IpAddr::V4(address))
        .state(NeighbourState::Permanent)
        .link_layer_address(&mac)
        .replace()
        .execute()
        .await
        .doing(|| format!("make {address} a permanent neighbour"))
}

/// Removes the pod's neighbour entry from the bridge; fine when there is none.
///
/// # Errors
/// `Refused` when the kernel says no.
pub async fn forget(rtnl: &Rtnl, bridge: u32, address: Ipv4Addr) -> Result<(), NetError> {
    let request = rtnl.handle().neighbours().add(bridge, IpAddr::V4(address));
    let mut request = request;
    let message = request.message_mut().clone();
    rtnl.handle()
        .neighbours()
        .del(message)
        .execute()
        .await
        .doing_unless(libc::ENOENT, || format!("remove neighbour {address}"))?;
    Ok(())
}

/// The addresses that have a permanent neighbour on the bridge: those of every pod that is attached, whatever the state
/// directory knows.
///
/// # Errors
/// `Refused` when the kernel cannot be asked.
pub async fn announced(rtnl: &Rtnl, bridge: u32) -> Result<Vec<Ipv4Addr>, NetError> {
    let mut entries = rtnl
        .handle()
        .neighbours()
        .get()
        .set_address_family(AddressFamily::Inet)
        .execute();
    let mut addresses = Vec::new();
    while let Some(entry) = entries
        .try_next()
        .await
        .doing(|| "list neighbours".into())?
    {
        if entry.header.ifindex == bridge && entry.header.state == NeighbourState::Permanent {
            addresses.extend(neighbour_address(&entry.attributes));
        }
    }
    Ok(addresses)
}

/// The MAC that the forwarding table has for a port, when [`announce`] wrote one.
///
/// # Errors
/// `Refused` when the kernel cannot be asked.
pub async fn announced_mac(rtnl: &Rtnl, port: u32) -> Result<Option<[u8; 6]>, NetError> {
    let mut entries = rtnl
        .handle()
        .neighbours()
        .get()
        .set_address_family(AddressFamily::Bridge)
        .execute();
    let mut found = None;
    while let Some(entry) = entries
        .try_next()
        .await
        .doing(|| "list the forwarding table".into())?
    {
        if entry.header.ifindex == port && entry.header.state == NeighbourState::Noarp {
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

/// Compares the pod's entries with what [`announce`] writes.
///
/// # Errors
/// Every one that is missing or another.
pub async fn check_announced(
    rtnl: &Rtnl,
    bridge: u32,
    port: u32,
    address: Ipv4Addr,
    mac: [u8; 6],
) -> Result<(), NetError> {
    let mut differences = Vec::new();
    let neighbour = link::permanent_neighbour(rtnl, bridge, address).await?;
    if neighbour != Some(mac) {
        differences.push(NetError::differs(
            format!("the permanent neighbour {address} on the bridge"),
            neighbour.map_or("none".into(), |found| Mac(found).to_string()),
            Mac(mac),
        ));
    }
    if announced_mac(rtnl, port).await? != Some(mac) {
        differences.push(NetError::differs(
            format!("the forwarding entry for {}", Mac(mac)),
            "missing",
            "static on the pod's port",
        ));
    }
    NetError::of_all(differences)
}

/// The address of an IPv4 neighbour entry.
pub(crate) fn neighbour_address(attributes: &[NeighbourAttribute]) -> Option<Ipv4Addr> {
    attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some(*address),
        _ => None,
    })
}

/// The interface's own address (`Local`; without a peer the same as `Address`).
pub(crate) fn address_of(attributes: &[AddressAttribute], length: u8) -> Option<Ipv4Net> {
    attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(IpAddr::V4(address)) => Ipv4Net::new(*address, length).ok(),
        _ => None,
    })
}

fn must_be_bridge(message: &LinkMessage, name: &str) -> Result<(), NetError> {
    let is = link::infos(message).any(|info| matches!(info, LinkInfo::Kind(InfoKind::Bridge)));
    if is {
        Ok(())
    } else {
        Err(NetError::ForeignLink {
            name: name.to_owned(),
            expected: "a bridge",
        })
    }
}

fn vlan_filtering(message: &LinkMessage) -> bool {
    link::infos(message).any(|info| match info {
        LinkInfo::Data(InfoData::Bridge(data)) => data.contains(&InfoBridge::VlanFiltering(true)),
        _ => false,
    })
}
