//! Names and addresses that follow from others, so that DEL can find things without a state file.

use std::net::Ipv4Addr;

use agent_core::mac::MacAddr;
use agent_datapath::link::HOST_VETH_PREFIX;
use sha2::{Digest, Sha256};

use crate::command::Target;

/// Hexadecimal digits after it: 15 characters is what Linux allows.
const VETH_DIGITS: usize = 12;

/// The host's end of an attachment's veth.
pub(crate) fn host_veth(target: &Target) -> String {
    let digest = Sha256::new()
        .chain_update(target.container_id.as_bytes())
        .chain_update([0])
        .chain_update(target.ifname.as_bytes())
        .finalize();
    let mut name = String::from(HOST_VETH_PREFIX);
    for byte in &digest[..VETH_DIGITS / 2] {
        name.push_str(&format!("{byte:02x}"));
    }
    name
}

/// A pod's MAC: locally administered, and the same for an address whoever has it, so that no neighbour table anywhere
/// is ever wrong about it.
pub(crate) fn pod_mac(address: Ipv4Addr) -> MacAddr {
    let [a, b, c, d] = address.octets();
    MacAddr([0x0a, 0x58, a, b, c, d])
}

/// The address that a MAC of [`pod_mac`] belongs to.
pub(crate) fn address_of(mac: [u8; 6]) -> Option<Ipv4Addr> {
    match mac {
        [0x0a, 0x58, a, b, c, d] => Some(Ipv4Addr::new(a, b, c, d)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_datapath::footprint::is_pod_link;

    fn target(container_id: &str, ifname: &str) -> Target {
        Target {
            container_id: container_id.into(),
            ifname: ifname.into(),
        }
    }

    #[test]
    fn host_names_are_valid_and_differ_by_container_and_interface() {
        let name = host_veth(&target("c1", "eth0"));
        assert_eq!(name.len(), 15);
        assert!(is_pod_link(&name));
        assert_ne!(name, host_veth(&target("c1", "eth1")));
        assert_ne!(name, host_veth(&target("c1e", "th0")));
    }

    #[test]
    fn a_mac_leads_back_to_its_address() {
        let address = Ipv4Addr::new(169, 254, 9, 2);
        assert_eq!(address_of(pod_mac(address).octets()), Some(address));
        assert_eq!(address_of([2, 0, 0, 0, 0, 1]), None);
    }
}
