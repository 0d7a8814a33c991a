//! Which addresses are never an upstream, whatever a rule says. Owns the built-in ranges and the node's own addresses.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::Ipv4Net;

use crate::audit::ReasonCode;
use crate::policy::cidr::{CidrSet, IpCidr};
use crate::policy::permit::Denial;

/// The ranges that are sensitive everywhere: instance metadata (also by the IPv6 addresses that clouds give it) and
/// carrier-grade NAT space (RFC 6598), where clouds keep their internal services.
pub const BUILT_IN_SENSITIVE: [&str; 4] = [
    "169.254.169.254/32",
    "100.64.0.0/10",
    "fd00:ec2::254/128",
    "fd20:ce::254/128",
];

/// What of the node's networks no pod may reach through the proxy.
#[derive(Clone, Debug, Default)]
pub struct NodeNets {
    fake_cidrs: CidrSet,
    fake_list: Vec<Ipv4Net>,
    node_addresses: HashSet<IpAddr>,
}

impl NodeNets {
    /// `fake_cidrs`: every Fake IP CIDR that is known, of this node and of others; `node_addresses`: the addresses of
    /// all interfaces of this node, bridge included.
    pub fn new(
        fake_cidrs: impl IntoIterator<Item = Ipv4Net>,
        node_addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        let fake_list: Vec<Ipv4Net> = fake_cidrs.into_iter().collect();
        Self {
            fake_cidrs: fake_list.iter().copied().map(IpCidr::from).collect(),
            fake_list,
            node_addresses: node_addresses
                .into_iter()
                .map(|ip| ip.to_canonical())
                .collect(),
        }
    }

    /// True when the address lies in a Fake IP CIDR.
    pub fn is_fake(&self, address: IpAddr) -> bool {
        self.fake_cidrs.find(address).is_some()
    }

    /// True when the address is one of the node's own.
    pub fn is_node(&self, address: IpAddr) -> bool {
        self.node_addresses.contains(&address.to_canonical())
    }

    /// The node's own addresses.
    pub fn node_addresses(&self) -> &HashSet<IpAddr> {
        &self.node_addresses
    }

    /// The Fake IP CIDRs.
    pub fn fake_cidrs(&self) -> &[Ipv4Net] {
        &self.fake_list
    }
}

/// The built-in sensitive ranges and the operator's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sensitive(CidrSet);

impl Sensitive {
    pub(crate) fn new(operators: &[IpCidr]) -> Self {
        let built_in = BUILT_IN_SENSITIVE
            .iter()
            .filter_map(|text| text.parse().ok());
        Self(built_in.chain(operators.iter().copied()).collect())
    }

    /// Denies an address in a sensitive range, also one that hides in an IPv6 address.
    pub(crate) fn check(&self, address: IpAddr) -> Result<(), Denial> {
        let hit = std::iter::once(address.to_canonical())
            .chain(embedded_v4(address).map(IpAddr::V4))
            .find_map(|address| self.0.find(address));
        match hit {
            None => Ok(()),
            Some(net) => Err(Denial::built_in(
                ReasonCode::SensitiveAddressDenied,
                format!("{address} lies in the sensitive range {net}, which no policy can open"),
            )),
        }
    }
}

/// Denies the node's own addresses, loopback, and what is no single host's address.
pub(crate) fn check_local(address: IpAddr, nets: &NodeNets) -> Result<(), Denial> {
    let deny = |what: &str| {
        Err(Denial::built_in(
            ReasonCode::NodeAddressDenied,
            format!("{address} is {what}, which no policy can open"),
        ))
    };
    for address in
        std::iter::once(address.to_canonical()).chain(embedded_v4(address).map(IpAddr::V4))
    {
        if nets.is_node(address) {
            return deny("an address of this node");
        }
        match address {
            IpAddr::V4(v4) if v4.is_loopback() => return deny("a loopback address"),
            IpAddr::V4(v4) if v4.octets()[0] == 0 => return deny("an unspecified address"),
            IpAddr::V4(v4) if v4.is_multicast() || v4.is_broadcast() => {
                return deny("no single host's address");
            }
            IpAddr::V6(v6) if v6.is_loopback() => return deny("a loopback address"),
            IpAddr::V6(v6) if v6.is_unspecified() => return deny("an unspecified address"),
            IpAddr::V6(v6) if v6.is_multicast() => return deny("no single host's address"),
            IpAddr::V6(v6) if v6.is_unicast_link_local() => return deny("a link-local address"),
            IpAddr::V4(_) | IpAddr::V6(_) => {}
        }
    }
    Ok(())
}

/// Denies an address in a Fake IP CIDR.
pub(crate) fn check_fake(address: IpAddr, nets: &NodeNets) -> Result<(), Denial> {
    let hides = std::iter::once(address)
        .chain(embedded_v4(address).map(IpAddr::V4))
        .any(|ip| nets.is_fake(ip));
    if hides {
        return Err(Denial::built_in(
            ReasonCode::DirectBypassDenied,
            format!(
                "{address} is an agent pod's address; agents call each other through an ingress rule"
            ),
        ));
    }
    Ok(())
}

/// The IPv4 address that an IPv6 address leads to by translation or tunnel: mapped (RFC 4291, 2.5.5.2), compatible
/// (2.5.5.1), NAT64 (RFC 6052, and RFC 8215's local /48 with the address in its last 32 bits), 6to4 (RFC 3056).
pub(crate) fn embedded_v4(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(v6) = address else { return None };
    let segments = v6.segments();
    let last = || v4_of(segments[6], segments[7]);
    match segments {
        [0, 0, 0, 0, 0, 0xffff, _, _]
        | [0x64, 0xff9b, 0, 0, 0, 0, _, _]
        | [0x64, 0xff9b, 1, ..] => Some(last()),
        [0, 0, 0, 0, 0, 0, _, _] if v6 != Ipv6Addr::LOCALHOST && v6 != Ipv6Addr::UNSPECIFIED => {
            Some(last())
        }
        [0x2002, high, low, ..] => Some(v4_of(high, low)),
        _ => None,
    }
}

fn v4_of(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn nets() -> NodeNets {
        NodeNets::new(
            ["169.254.9.0/24".parse().unwrap()],
            [ip("192.0.2.10"), ip("2001:db8::10")],
        )
    }

    #[test]
    fn sensitive_ranges_are_denied_in_every_disguise() {
        let sensitive = Sensitive::new(&["198.51.100.0/24".parse().unwrap()]);
        for text in [
            "169.254.169.254",
            "100.64.0.1",
            "100.127.255.255",
            "198.51.100.7",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
        ] {
            let denial = sensitive.check(ip(text)).unwrap_err();
            assert_eq!(denial.reason, ReasonCode::SensitiveAddressDenied, "{text}");
        }
        for text in [
            "169.254.169.253",
            "100.128.0.0",
            "203.0.113.9",
            "2001:db8::1",
            "fd00::1",
        ] {
            assert_eq!(sensitive.check(ip(text)), Ok(()), "{text}");
        }
    }

    #[test]
    fn every_built_in_range_is_well_formed() {
        for text in BUILT_IN_SENSITIVE {
            assert_eq!(text.parse::<IpCidr>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_node_and_what_is_no_host_are_denied() {
        for text in [
            "192.0.2.10",
            "::ffff:192.0.2.10",
            "2001:db8::10",
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "::ffff:127.0.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "224.0.0.1",
            "255.255.255.255",
            "ff02::1",
            "fe80::1",
            "64:ff9b::7f00:1",
        ] {
            let denial = check_local(ip(text), &nets()).unwrap_err();
            assert_eq!(denial.reason, ReasonCode::NodeAddressDenied, "{text}");
        }
        for text in [
            "192.0.2.11",
            "10.0.0.1",
            "240.0.0.1",
            "2001:db8::11",
            "fd00::1",
        ] {
            assert_eq!(check_local(ip(text), &nets()), Ok(()), "{text}");
        }
    }

    #[test]
    fn agent_pods_are_denied_also_as_mapped_addresses() {
        for text in [
            "169.254.9.1",
            "169.254.9.200",
            "::ffff:169.254.9.2",
            "64:ff9b::a9fe:902",
        ] {
            assert_eq!(
                check_fake(ip(text), &nets()).unwrap_err().reason,
                ReasonCode::DirectBypassDenied
            );
        }
        assert_eq!(check_fake(ip("169.254.8.1"), &nets()), Ok(()));
    }
}
