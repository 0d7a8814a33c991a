//! The verdict over a parsed packet from a pod.
//!
//! This is the order of evaluation, and the first that applies decides:
//!
//! 1. no configuration, no endpoint, a VLAN tag, an EtherType other than ARP and IPv4: drop;
//! 2. a source that is not the endpoint's, a frame that is not for the gateway, a malformed header, a fragment: drop;
//! 3. port 53 over UDP or TCP, to any address: to the DNS proxy;
//! 4. a Fake IP (the gateway too): TCP that answers the node passes, other TCP goes to the proxy, the rest drops;
//! 5. a Service CIDR with TCP, UDP or SCTP: past the proxy;
//! 6. other TCP: to the proxy;
//! 7. the rest: drop.

use crate::abi::{Config, Endpoint, Ipv4Bytes, MacBytes};
use crate::packet::{Headers, ICMP, Kind, SCTP, TCP, UDP};
use crate::reason::Reason;

const DNS_PORT: u16 = 53;
const BROADCAST: MacBytes = [0xff; 6];

/// Which of our marks a packet gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Neither.
    None,
    /// To the proxy's listeners.
    Proxy,
    /// Past the proxy, to a Service.
    Service,
}

impl Mark {
    /// The packet's new mark: our bits are cleared and set, all others are kept.
    #[must_use]
    #[inline(always)]
    pub const fn over(self, old: u32, config: &Config) -> u32 {
        let others = old & !(config.proxy_mask | config.service_mask);
        match self {
            Self::None => others,
            Self::Proxy => others | config.proxy_mark & config.proxy_mask,
            Self::Service => others | config.service_mark & config.service_mask,
        }
    }
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on, with that mark.
    Pass {
        /// The mark it gets.
        mark: Mark,
        /// Why it may.
        reason: Reason,
    },
    /// It ends here.
    Drop(Reason),
}

impl Verdict {
    /// Why.
    #[must_use]
    #[inline(always)]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Pass { reason, .. } | Self::Drop(reason) => reason,
        }
    }
}

/// The two sets of prefixes that a verdict depends on.
pub trait Cidrs {
    /// Whether the address is in a Fake IP CIDR.
    fn is_fake(&self, address: Ipv4Bytes) -> bool;
    /// Whether the address is in a Service CIDR.
    fn is_service(&self, address: Ipv4Bytes) -> bool;
}

/// Decides what happens to a packet that came in on a pod's interface.
///
/// `config` is absent, or its proxy mask 0, before the data path was configured; `endpoint` is absent for an
/// interface that is no pod's.
#[must_use]
#[inline(always)]
pub fn classify<C: Cidrs>(
    h: &Headers,
    endpoint: Option<&Endpoint>,
    config: Option<&Config>,
    cidrs: &C,
) -> Verdict {
    let Some(config) = config else {
        return Verdict::Drop(Reason::NoConfig);
    };
    if config.proxy_mask == 0 {
        return Verdict::Drop(Reason::NoConfig);
    }
    let Some(endpoint) = endpoint else {
        return Verdict::Drop(Reason::NoEndpoint);
    };
    match h.kind {
        Kind::Vlan => Verdict::Drop(Reason::Vlan),
        Kind::Ipv6 => Verdict::Drop(Reason::Ipv6),
        Kind::Other => Verdict::Drop(Reason::NotIpv4),
        Kind::Malformed => Verdict::Drop(Reason::Malformed),
        Kind::ArpOther => Verdict::Drop(Reason::ArpNotForGateway),
        Kind::ArpRequest => classify_arp(h, endpoint, config),
        Kind::Ipv4Fragment | Kind::Ipv4 => match check_source(h, endpoint, config) {
            Some(reason) => Verdict::Drop(reason),
            None if matches!(h.kind, Kind::Ipv4Fragment) => Verdict::Drop(Reason::Fragment),
            None => classify_ipv4(h, config, cidrs),
        },
    }
}

#[inline(always)]
fn check_source(h: &Headers, endpoint: &Endpoint, config: &Config) -> Option<Reason> {
    if !same_mac(h.src_mac, endpoint.mac) {
        Some(Reason::SpoofedMac)
    } else if !same_ip(h.src, endpoint.fake_ip) {
        Some(Reason::SpoofedIp)
    } else if !same_mac(h.dst_mac, config.gateway_mac) {
        Some(Reason::WrongGatewayMac)
    } else {
        None
    }
}

#[inline(always)]
fn classify_arp(h: &Headers, endpoint: &Endpoint, config: &Config) -> Verdict {
    if !same_mac(h.src_mac, endpoint.mac) || !same_mac(h.arp_mac, endpoint.mac) {
        return Verdict::Drop(Reason::SpoofedMac);
    }
    if !same_ip(h.src, endpoint.fake_ip) {
        return Verdict::Drop(Reason::SpoofedIp);
    }
    if !same_ip(h.dst, config.gateway_ip) {
        return Verdict::Drop(Reason::ArpNotForGateway);
    }
    if !same_mac(h.dst_mac, BROADCAST) && !same_mac(h.dst_mac, config.gateway_mac) {
        return Verdict::Drop(Reason::WrongGatewayMac);
    }
    Verdict::Pass {
        mark: Mark::None,
        reason: Reason::Arp,
    }
}

#[inline(always)]
fn classify_ipv4<C: Cidrs>(h: &Headers, config: &Config, cidrs: &C) -> Verdict {
    const TO_PROXY: Verdict = Verdict::Pass {
        mark: Mark::Proxy,
        reason: Reason::Proxied,
    };
    // The kernel hands broadcasts and multicasts to every bound socket, past the dispatch program.
    if !is_unicast(h.dst) {
        return Verdict::Drop(Reason::BadDestination);
    }
    if (h.protocol == UDP || h.protocol == TCP) && h.dport == DNS_PORT {
        return Verdict::Pass {
            mark: Mark::Proxy,
            reason: Reason::Dns,
        };
    }
    if same_ip(h.dst, config.gateway_ip) || cidrs.is_fake(h.dst) {
        if h.protocol != TCP {
            return Verdict::Drop(Reason::FakeCidr);
        }
        if same_ip(h.dst, config.gateway_ip) && !h.is_opening_syn() {
            return Verdict::Pass {
                mark: Mark::None,
                reason: Reason::HostReply,
            };
        }
        return TO_PROXY;
    }
    if (h.protocol == TCP || h.protocol == UDP || h.protocol == SCTP) && cidrs.is_service(h.dst) {
        return Verdict::Pass {
            mark: Mark::Service,
            reason: Reason::Service,
        };
    }
    match h.protocol {
        TCP => TO_PROXY,
        UDP => Verdict::Drop(Reason::Udp),
        ICMP => Verdict::Drop(Reason::Icmp),
        _ => Verdict::Drop(Reason::Protocol),
    }
}

/// Whether the address can be one host's on a network: not in 0/8, 127/8, 224/4 or 240/4.
#[inline(always)]
const fn is_unicast(address: Ipv4Bytes) -> bool {
    address[0] != 0 && address[0] != 127 && address[0] < 224
}

// Compared as numbers: a comparison of byte arrays would be a call to memcmp, which is a loop. A MAC is only
// aligned to two bytes in a frame.
#[inline(always)]
const fn same_ip(a: Ipv4Bytes, b: Ipv4Bytes) -> bool {
    u32::from_ne_bytes(a) == u32::from_ne_bytes(b)
}

#[inline(always)]
const fn same_mac(a: MacBytes, b: MacBytes) -> bool {
    const fn half_words(m: MacBytes) -> [u16; 3] {
        [
            u16::from_ne_bytes([m[0], m[1]]),
            u16::from_ne_bytes([m[2], m[3]]),
            u16::from_ne_bytes([m[4], m[5]]),
        ]
    }
    let (a, b) = (half_words(a), half_words(b));
    (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) == 0
}

#[cfg(test)]
mod tests;
