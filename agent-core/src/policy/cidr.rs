//! Networks of both families, and sets of them whose look-ups cost the same with one network and with a million.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A network, with the bits outside the prefix cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IpCidr(ipnet::IpNet);

/// A text that is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no network; write an address and a prefix length, such as 192.0.2.0/24 or 192.0.2.7/32"
)]
pub struct CidrError(String);

impl IpCidr {
    /// The network of `address` with `len` leading bits; `None` when the address has fewer bits.
    pub fn new(address: IpAddr, len: u8) -> Option<Self> {
        ipnet::IpNet::new(address, len)
            .ok()
            .map(|net| Self(net.trunc()))
    }

    /// True when the address lies in the network; an IPv4-mapped IPv6 address is its IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// The number of leading bits.
    pub fn prefix_len(&self) -> u8 {
        self.0.prefix_len()
    }

    /// The first address.
    pub fn network(&self) -> IpAddr {
        self.0.network()
    }
}

impl FromStr for IpCidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let net: ipnet::IpNet = text
            .parse()
            .map_err(|_| CidrError(text.chars().take(64).collect()))?;
        // An IPv4-mapped network is written as the IPv4 network, or some rules would never match.
        if let ipnet::IpNet::V6(v6) = net
            && let (Some(v4), Some(len)) = (
                v6.network().to_ipv4_mapped(),
                v6.prefix_len().checked_sub(96),
            )
        {
            return Self::new(v4.into(), len).ok_or_else(|| CidrError(text.to_owned()));
        }
        Ok(Self(net.trunc()))
    }
}

impl From<ipnet::Ipv4Net> for IpCidr {
    fn from(net: ipnet::Ipv4Net) -> Self {
        Self(ipnet::IpNet::V4(net.trunc()))
    }
}

impl fmt::Display for IpCidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for IpCidr {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for IpCidr {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Values by network. A look-up costs one hash look-up for each prefix length that occurs (at most 33 for IPv4, 129 for
/// IPv6), whatever the number of networks.
#[derive(Clone, Debug)]
pub(crate) struct CidrMap<T> {
    lengths_v4: u64,
    lengths_v6: [u64; 3],
    values: HashMap<IpCidr, T>,
}

impl<T> Default for CidrMap<T> {
    fn default() -> Self {
        Self {
            lengths_v4: 0,
            lengths_v6: [0; 3],
            values: HashMap::new(),
        }
    }
}

impl<T> CidrMap<T> {
    pub(crate) fn insert(&mut self, net: IpCidr, value: T) {
        let len = usize::from(net.prefix_len());
        match net.network() {
            IpAddr::V4(_) => self.lengths_v4 |= 1 << len,
            IpAddr::V6(_) => self.lengths_v6[len / 64] |= 1 << (len % 64),
        }
        self.values.insert(net, value);
    }

    /// Every network that the address lies in, with its value; the longest prefix first.
    pub(crate) fn covering(&self, address: IpAddr) -> impl Iterator<Item = (IpCidr, &T)> {
        let address = address.to_canonical();
        let words = match address {
            IpAddr::V4(_) => [self.lengths_v4, 0, 0],
            IpAddr::V6(_) => self.lengths_v6,
        };
        LongestFirst(words).filter_map(move |len| {
            let net = IpCidr::new(address, len)?;
            self.values.get(&net).map(|value| (net, value))
        })
    }
}

/// The positions of the set bits, highest first.
struct LongestFirst([u64; 3]);

impl Iterator for LongestFirst {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        for (i, word) in self.0.iter_mut().enumerate().rev() {
            if *word != 0 {
                let bit = 63 - word.leading_zeros();
                *word &= !(1 << bit);
                return u8::try_from(i * 64 + bit as usize).ok();
            }
        }
        None
    }
}

/// A set of networks.
#[derive(Clone, Debug, Default)]
pub(crate) struct CidrSet(CidrMap<()>);

impl CidrSet {
    /// The longest network that the address lies in.
    pub(crate) fn find(&self, address: IpAddr) -> Option<IpCidr> {
        self.0.covering(address).next().map(|(net, ())| net)
    }
}

impl FromIterator<IpCidr> for CidrSet {
    fn from_iter<I: IntoIterator<Item = IpCidr>>(nets: I) -> Self {
        let mut map = CidrMap::default();
        for net in nets {
            map.insert(net, ());
        }
        Self(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn networks_are_written_without_host_bits() {
        for (text, form) in [
            ("192.0.2.7/24", "192.0.2.0/24"),
            ("2001:db8::1/32", "2001:db8::/32"),
            ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
        ] {
            assert_eq!(text.parse::<IpCidr>().unwrap().to_string(), form);
        }
        for bad in [
            "",
            "192.0.2.0",
            "192.0.2.0/33",
            "192.0.2/24",
            "::/129",
            "a/8",
        ] {
            assert!(
                bad.parse::<IpCidr>()
                    .unwrap_err()
                    .to_string()
                    .contains("192.0.2.0/24"),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_mapped_address_is_its_ipv4_address() {
        let net: IpCidr = "192.0.2.0/24".parse().unwrap();
        assert!(net.contains("::ffff:192.0.2.9".parse().unwrap()));
        let set: CidrSet = [net].into_iter().collect();
        assert_eq!(set.find("::ffff:192.0.2.9".parse().unwrap()), Some(net));
    }

    fn nets() -> impl Strategy<Value = Vec<IpCidr>> {
        let v4 = (any::<u32>(), 0u8..=32).prop_map(|(a, len)| {
            IpCidr::new(std::net::Ipv4Addr::from(a & 0x0303_0303).into(), len).unwrap()
        });
        let v6 = (any::<u128>(), 0u8..=128)
            .prop_map(|(a, len)| IpCidr::new(std::net::Ipv6Addr::from(a & 3).into(), len).unwrap());
        proptest::collection::vec(prop_oneof![v4, v6], 0..20)
    }

    proptest! {
        #[test]
        fn a_set_finds_the_longest_network(nets in nets(), a in any::<u32>(), b in any::<u128>()) {
            let set: CidrSet = nets.iter().copied().collect();
            let v4 = IpAddr::from(std::net::Ipv4Addr::from(a & 0x0303_0303));
            let v6 = IpAddr::from(std::net::Ipv6Addr::from(b & 3));
            for address in [v4, v6] {
                let expected = nets.iter().filter(|net| net.contains(address)).max_by_key(|net| net.prefix_len());
                prop_assert_eq!(set.find(address), expected.copied());
            }
        }
    }
}
