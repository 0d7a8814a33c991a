//! All ports of the bridge at one look: three dumps, however many pods there are.
//!
//! What `bridge::check_port` and `bridge::check_announced` ask for one pod, for whoever looks at all of them every
//! second.

use std::{
    collections::{HashMap, HashSet},
    net::Ipv4Addr,
};

use futures_util::TryStreamExt;
use netlink_packet_route::{
    AddressFamily,
    link::{LinkAttribute, LinkFlags, LinkMessage},
    neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState},
};

use crate::{
    bridge::{flags_of, neighbour_address, port_flags},
    error::NetError,
    rtnl::{Doing, Rtnl},
};

/// What the kernel has of every pod's link.
#[derive(Debug, Clone, Default)]
pub struct Ports {
    links: HashMap<String, Link>,
    neighbours: HashMap<Ipv4Addr, [u8; 6]>,
    forwarding: HashSet<(u32, [u8; 6])>,
}

#[derive(Debug, Clone)]
struct Link {
    index: u32,
    is_port: bool,
    is_isolated: bool,
    is_up: bool,
}

/// How a pod's link is not as an ADD makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PortFault {
    /// There is no such link.
    #[error("the link is gone")]
    Gone,
    /// The name belongs to another link.
    #[error("another link has its name")]
    Other,
    /// It is a port of no bridge, or of another.
    #[error("the link is no port of the bridge")]
    NotAPort,
    /// It learns, floods or is not isolated.
    #[error("the port's flags are set otherwise")]
    Flags,
    /// Its permanent neighbour is missing or another.
    #[error("the permanent neighbour is missing or another")]
    Neighbour,
    /// Its forwarding entry is missing.
    #[error("the forwarding entry is missing")]
    Forwarding,
    /// It is down.
    #[error("the link is down")]
    Down,
}

impl Ports {
    /// Looks.
    ///
    /// # Errors
    /// `Refused` when the kernel cannot be asked.
    pub async fn look(rtnl: &Rtnl, bridge: u32) -> Result<Self, NetError> {
        let mut ports = Self::default();
        let mut links = rtnl.handle().link().get().execute();
        while let Some(message) = links.try_next().await.doing(|| "list interfaces".into())? {
            let name = message
                .attributes
                .iter()
                .find_map(|attribute| match attribute {
                    LinkAttribute::IfName(name) => Some(name.clone()),
                    _ => None,
                });
            if let Some(name) = name {
                ports.links.insert(name, Link::of(&message, bridge));
            }
        }
        for entry in entries(rtnl, AddressFamily::Inet).await? {
            if entry.header.ifindex == bridge
                && entry.header.state == NeighbourState::Permanent
                && let Some(address) = neighbour_address(&entry.attributes)
                && let Some(mac) = mac_of(&entry)
            {
                ports.neighbours.insert(address, mac);
            }
        }
        for entry in entries(rtnl, AddressFamily::Bridge).await? {
            if entry.header.state == NeighbourState::Noarp
                && let Some(mac) = mac_of(&entry)
            {
                ports.forwarding.insert((entry.header.ifindex, mac));
            }
        }
        Ok(ports)
    }

    /// How one pod's link differs from what an ADD makes, the most serious difference first; empty when it is right. Of a
    /// link that is gone, or another's, nothing else is said.
    #[must_use]
    pub fn faults(
        &self,
        name: &str,
        index: u32,
        address: Ipv4Addr,
        mac: [u8; 6],
    ) -> Vec<PortFault> {
        let link = match self.links.get(name) {
            None => return vec![PortFault::Gone],
            Some(link) if link.index != index => return vec![PortFault::Other],
            Some(link) => link,
        };
        let faults = [
            (!link.is_port, PortFault::NotAPort),
            // what is no port has no flags
            (link.is_port && !link.is_isolated, PortFault::Flags),
            (
                self.neighbours.get(&address) != Some(&mac),
                PortFault::Neighbour,
            ),
            (
                !self.forwarding.contains(&(index, mac)),
                PortFault::Forwarding,
            ),
            (!link.is_up, PortFault::Down),
        ];
        let found = faults.iter().filter(|(found, _)| *found);
        found.map(|(_, fault)| *fault).collect()
    }
}

impl Link {
    fn of(message: &LinkMessage, bridge: u32) -> Self {
        let flags = flags_of(message);
        Self {
            index: message.header.index,
            is_port: message
                .attributes
                .contains(&LinkAttribute::Controller(bridge)),
            is_isolated: port_flags().iter().all(|flag| flags.contains(flag)),
            is_up: message.header.flags.contains(LinkFlags::Up),
        }
    }
}

async fn entries(rtnl: &Rtnl, family: AddressFamily) -> Result<Vec<NeighbourMessage>, NetError> {
    let mut stream = rtnl
        .handle()
        .neighbours()
        .get()
        .set_address_family(family)
        .execute();
    let mut entries = Vec::new();
    while let Some(entry) = stream.try_next().await.doing(|| "list neighbours".into())? {
        entries.push(entry);
    }
    Ok(entries)
}

fn mac_of(entry: &NeighbourMessage) -> Option<[u8; 6]> {
    entry
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(lla) => lla.as_slice().try_into().ok(),
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 2);
    const MAC: [u8; 6] = [0x0a, 0x58, 169, 254, 9, 2];

    fn sound() -> Ports {
        let link = Link {
            index: 7,
            is_port: true,
            is_isolated: true,
            is_up: true,
        };
        Ports {
            links: HashMap::from([("agt0".to_owned(), link)]),
            neighbours: HashMap::from([(ADDRESS, MAC)]),
            forwarding: HashSet::from([(7, MAC)]),
        }
    }

    fn faults(change: fn(&mut Ports)) -> Vec<PortFault> {
        let mut ports = sound();
        change(&mut ports);
        ports.faults("agt0", 7, ADDRESS, MAC)
    }

    fn link(ports: &mut Ports) -> &mut Link {
        ports.links.get_mut("agt0").unwrap()
    }

    #[test]
    fn each_difference_is_named() {
        for (change, found) in [
            ((|_| {}) as fn(&mut Ports), &[][..]),
            (|p| p.links.clear(), &[PortFault::Gone]),
            (|p| link(p).index = 8, &[PortFault::Other]),
            (|p| link(p).is_port = false, &[PortFault::NotAPort]),
            (|p| link(p).is_isolated = false, &[PortFault::Flags]),
            (|p| p.neighbours.clear(), &[PortFault::Neighbour]),
            (|p| p.forwarding.clear(), &[PortFault::Forwarding]),
            (|p| link(p).is_up = false, &[PortFault::Down]),
        ] {
            assert_eq!(faults(change), found);
        }
    }

    #[test]
    fn several_differences_are_named_together_and_of_a_link_that_is_gone_nothing_else() {
        let broken = |p: &mut Ports| {
            p.neighbours.clear();
            p.forwarding.clear();
            let link = link(p);
            (link.is_isolated, link.is_up) = (false, false);
        };
        assert_eq!(
            faults(broken),
            [
                PortFault::Flags,
                PortFault::Neighbour,
                PortFault::Forwarding,
                PortFault::Down
            ]
        );
        assert_eq!(faults(|p| *p = Ports::default()), [PortFault::Gone]);
    }
}
