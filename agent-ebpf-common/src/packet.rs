//! What is read from a packet, and what makes one malformed.
//!
//! Sources: RFC 791 (IPv4), RFC 9293 (TCP), RFC 768 (UDP), RFC 826 (ARP). Options are stepped over, not read.

use crate::abi::{Ipv4Bytes, MacBytes};

/// Length of an Ethernet header in bytes.
pub const ETHERNET_LEN: u32 = 14;
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherTypes of VLAN tags: 802.1Q, 802.1ad and its predecessor.
const ETHERTYPES_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// IP protocol number of ICMP.
pub const ICMP: u8 = 1;
/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// IP protocol number of SCTP.
pub const SCTP: u8 = 132;

const TCP_SYN: u8 = 0x02;
const TCP_ACK: u8 = 0x10;

const IPV4_MIN_HEADER: u32 = 20;
const TCP_MIN_HEADER: u32 = 20;
const UDP_HEADER: u32 = 8;
const SCTP_HEADER: u32 = 12;
/// "More fragments" and the offset: either makes a packet a fragment.
const IPV4_FRAGMENT_BITS: u16 = 0x3fff;
/// Longest packet whose length the IPv4 header can hold.
const IPV4_MAX_TOTAL: u32 = 65_535;

/// A packet that can be read from; an skb in the kernel, a slice in tests.
pub trait Packet {
    /// Length in bytes with the Ethernet header; of a GSO packet, that of the whole.
    fn length(&self) -> u32;
    /// Whether a VLAN tag was taken off the frame and is kept beside it.
    fn has_vlan_tag(&self) -> bool;
    /// `N` bytes from `offset` on, counted from the Ethernet header, when the packet has them.
    fn load<const N: usize>(&self, offset: u32) -> Option<[u8; N]>;
}

/// What a frame holds, as far as it is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A header is cut short or contradicts itself.
    Malformed,
    /// VLAN-tagged.
    Vlan,
    /// A well-formed ARP request; `src` and `dst` are its sender and target addresses.
    ArpRequest,
    /// Any other ARP.
    ArpOther,
    /// IPv6.
    Ipv6,
    /// A whole IPv4 datagram.
    Ipv4,
    /// A piece of an IPv4 datagram.
    Ipv4Fragment,
    /// Another EtherType.
    Other,
}

/// What was read from a packet. Fields that a kind does not have are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// What the rest means.
    pub kind: Kind,
    /// Source MAC of the frame.
    pub src_mac: MacBytes,
    /// Destination MAC of the frame.
    pub dst_mac: MacBytes,
    /// Sender MAC inside ARP.
    pub arp_mac: MacBytes,
    /// EtherType in host byte order.
    pub ethertype: u16,
    /// Source address.
    pub src: Ipv4Bytes,
    /// Destination address.
    pub dst: Ipv4Bytes,
    /// IP protocol number.
    pub protocol: u8,
    /// TCP flags: the header's byte 13.
    pub tcp_flags: u8,
    /// Source port in host byte order.
    pub sport: u16,
    /// Destination port in host byte order.
    pub dport: u16,
}

impl Headers {
    /// Of a packet of which nothing could be read.
    pub const UNREADABLE: Self = Self {
        kind: Kind::Malformed,
        src_mac: [0; 6],
        dst_mac: [0; 6],
        arp_mac: [0; 6],
        ethertype: 0,
        src: [0; 4],
        dst: [0; 4],
        protocol: 0,
        tcp_flags: 0,
        sport: 0,
        dport: 0,
    };

    /// Whether this is TCP that asks for a new connection.
    #[must_use]
    #[inline(always)]
    pub const fn is_opening_syn(&self) -> bool {
        self.protocol == TCP && self.tcp_flags & (TCP_SYN | TCP_ACK) == TCP_SYN
    }
}

/// Reads the headers of a packet, up to the first thing that is wrong.
#[must_use]
#[inline(always)]
pub fn parse<P: Packet>(packet: &P) -> Headers {
    let mut h = Headers::UNREADABLE;
    let Some(eth) = packet.load::<14>(0) else {
        return h;
    };
    h.dst_mac = field(&eth, 0);
    h.src_mac = field(&eth, 6);
    h.ethertype = u16::from_be_bytes(field(&eth, 12));
    h.kind = if packet.has_vlan_tag() || is_vlan(h.ethertype) {
        Kind::Vlan
    } else if h.ethertype == ETHERTYPE_IPV4 {
        parse_ipv4(packet, &mut h).unwrap_or(Kind::Malformed)
    } else if h.ethertype == ETHERTYPE_ARP {
        parse_arp(packet, &mut h).unwrap_or(Kind::Malformed)
    } else if h.ethertype == ETHERTYPE_IPV6 {
        Kind::Ipv6
    } else {
        Kind::Other
    };
    h
}

#[inline(always)]
const fn is_vlan(ethertype: u16) -> bool {
    ethertype == ETHERTYPES_VLAN[0]
        || ethertype == ETHERTYPES_VLAN[1]
        || ethertype == ETHERTYPES_VLAN[2]
}

#[inline(always)]
fn parse_ipv4<P: Packet>(packet: &P, h: &mut Headers) -> Option<Kind> {
    let ip = packet.load::<20>(ETHERNET_LEN)?;
    let header_len = u32::from(ip[0] & 0x0f) * 4;
    if ip[0] >> 4 != 4 || header_len < IPV4_MIN_HEADER {
        return None;
    }
    h.src = field(&ip, 12);
    h.dst = field(&ip, 16);
    h.protocol = ip[9];
    let available = packet.length().saturating_sub(ETHERNET_LEN);
    let total_len = match u32::from(u16::from_be_bytes(field(&ip, 2))) {
        // "BIG TCP": a GSO packet too long for the field
        0 if available > IPV4_MAX_TOTAL => available,
        len => len,
    };
    if total_len < header_len || total_len > available {
        return None;
    }
    if u16::from_be_bytes(field(&ip, 6)) & IPV4_FRAGMENT_BITS != 0 {
        return Some(Kind::Ipv4Fragment);
    }
    parse_transport(packet, h, ETHERNET_LEN + header_len, total_len - header_len)?;
    Some(Kind::Ipv4)
}

/// Reads ports and flags of the transport header at `offset`, with `len` bytes from there to the datagram's end.
#[inline(always)]
fn parse_transport<P: Packet>(packet: &P, h: &mut Headers, offset: u32, len: u32) -> Option<()> {
    if h.protocol == TCP {
        if len < TCP_MIN_HEADER {
            return None;
        }
        let tcp = packet.load::<14>(offset)?;
        set_ports(h, field(&tcp, 0), field(&tcp, 2));
        h.tcp_flags = tcp[13];
        let header_len = u32::from(tcp[12] >> 4) * 4;
        if header_len < TCP_MIN_HEADER || header_len > len {
            return None;
        }
    } else if h.protocol == UDP {
        if len < UDP_HEADER {
            return None;
        }
        let udp = packet.load::<6>(offset)?;
        set_ports(h, field(&udp, 0), field(&udp, 2));
        let udp_len = u32::from(u16::from_be_bytes(field(&udp, 4)));
        if udp_len < UDP_HEADER || udp_len > len {
            return None;
        }
    } else if h.protocol == SCTP {
        if len < SCTP_HEADER {
            return None;
        }
        let sctp = packet.load::<4>(offset)?;
        set_ports(h, field(&sctp, 0), field(&sctp, 2));
    }
    Some(())
}

#[inline(always)]
const fn set_ports(h: &mut Headers, source: [u8; 2], destination: [u8; 2]) {
    h.sport = u16::from_be_bytes(source);
    h.dport = u16::from_be_bytes(destination);
}

/// `N` bytes of a header from `at` on, as one value; both are constants where it is called.
#[inline(always)]
const fn field<const N: usize, const M: usize>(header: &[u8; M], at: usize) -> [u8; N] {
    match header.split_at(at).1.first_chunk() {
        Some(field) => *field,
        None => [0; N],
    }
}

#[inline(always)]
fn parse_arp<P: Packet>(packet: &P, h: &mut Headers) -> Option<Kind> {
    let arp = packet.load::<28>(ETHERNET_LEN)?;
    h.arp_mac = field(&arp, 8);
    h.src = field(&arp, 14);
    h.dst = field(&arp, 24);
    // Ethernet (1) with 6-byte addresses, IPv4 with 4-byte ones
    let ethernet_ipv4 = u32::from_be_bytes(field(&arp, 0)) == 0x0001_0800
        && u16::from_be_bytes(field(&arp, 4)) == 0x0604;
    let request = u16::from_be_bytes(field(&arp, 6)) == 1;
    Some(if ethernet_ipv4 && request {
        Kind::ArpRequest
    } else {
        Kind::ArpOther
    })
}

#[cfg(test)]
mod tests;
