//! Packets for tests, here and in other packages.
//!
//! Builders make well-formed packets; a test breaks one by writing into its bytes.

extern crate std;

use std::{vec, vec::Vec};

use crate::{
    abi::{Config, Endpoint, Ipv4Bytes, MacBytes},
    classify::Cidrs,
    packet::{ETHERNET_LEN, ETHERTYPE_ARP, ETHERTYPE_IPV4, Packet, TCP, UDP},
};

/// MAC of the pod in tests.
pub const POD_MAC: MacBytes = [0x02, 0, 0, 0, 0, 0x02];
/// Fake IP of the pod in tests.
pub const POD_IP: Ipv4Bytes = [169, 254, 100, 2];
/// Fake IP of another pod.
pub const OTHER_POD_IP: Ipv4Bytes = [169, 254, 100, 3];
/// MAC of the bridge in tests.
pub const GATEWAY_MAC: MacBytes = [0x02, 0, 0, 0, 0, 0x01];
/// Address of the bridge in tests.
pub const GATEWAY_IP: Ipv4Bytes = [169, 254, 100, 1];
/// An address out in the world (TEST-NET-3).
pub const WORLD_IP: Ipv4Bytes = [203, 0, 113, 9];
/// An address in the Service CIDR 10.96.0.0/12.
pub const SERVICE_IP: Ipv4Bytes = [10, 96, 0, 10];
/// Mark and mask of the proxy in tests.
pub const PROXY: (u32, u32) = (0x0a00_0000, 0x0f00_0000);
/// Mark and mask of the bypass in tests.
pub const SERVICE: (u32, u32) = (0x77, 0xff);

/// TCP flags.
pub const SYN: u8 = 0x02;
/// TCP flags.
pub const ACK: u8 = 0x10;

/// The node's settings in tests.
#[must_use]
pub fn config() -> Config {
    Config {
        gateway_ip: GATEWAY_IP,
        gateway_mac: GATEWAY_MAC,
        flags: 0,
        proxy_mark: PROXY.0,
        proxy_mask: PROXY.1,
        service_mark: SERVICE.0,
        service_mask: SERVICE.1,
        events_per_second: 100,
    }
}

/// The pod's entry in tests.
#[must_use]
pub fn endpoint() -> Endpoint {
    Endpoint {
        fake_ip: POD_IP,
        mac: POD_MAC,
        flags: 0,
    }
}

/// The prefixes in tests: 169.254.100.0/24 and 10.96.0.0/12.
#[derive(Debug)]
pub struct TestCidrs;

impl Cidrs for TestCidrs {
    fn is_fake(&self, a: Ipv4Bytes) -> bool {
        a[..3] == POD_IP[..3]
    }

    fn is_service(&self, a: Ipv4Bytes) -> bool {
        a[0] == 10 && a[1] & 0xf0 == 96
    }
}

/// A packet in memory.
#[derive(Debug)]
pub struct Slice<'a>(pub &'a [u8]);

impl Packet for Slice<'_> {
    fn length(&self) -> u32 {
        self.0.len() as u32
    }

    fn has_vlan_tag(&self) -> bool {
        false
    }

    fn load<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        self.0.get(offset as usize..)?.first_chunk().copied()
    }
}

/// A frame from the pod to the gateway.
#[must_use]
pub fn frame(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(GATEWAY_MAC);
    bytes.extend(POD_MAC);
    bytes.extend(ethertype.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// An IPv4 datagram with that many bytes of options (a multiple of 4), in a frame from the pod to the gateway.
#[must_use]
pub fn ipv4(dst: Ipv4Bytes, protocol: u8, options: usize, payload: &[u8]) -> Vec<u8> {
    let header = 20 + options;
    let mut ip = vec![0; header];
    ip[0] = 0x40 | (header / 4) as u8;
    ip[2..4].copy_from_slice(&((header + payload.len()) as u16).to_be_bytes());
    ip[8] = 64;
    ip[9] = protocol;
    ip[12..16].copy_from_slice(&POD_IP);
    ip[16..20].copy_from_slice(&dst);
    ip[20..].fill(1); // no-operation
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip.extend(payload);
    frame(ETHERTYPE_IPV4, &ip)
}

fn checksum(header: &[u8]) -> u16 {
    let mut sum: u32 = header
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// TCP from port 40000.
#[must_use]
pub fn tcp(dst: Ipv4Bytes, dport: u16, flags: u8) -> Vec<u8> {
    ipv4(dst, TCP, 0, &tcp_header(dport, flags))
}

/// A TCP header from port 40000.
#[must_use]
pub fn tcp_header(dport: u16, flags: u8) -> Vec<u8> {
    let mut tcp = vec![0; 20];
    tcp[..2].copy_from_slice(&40_000u16.to_be_bytes());
    tcp[2..4].copy_from_slice(&dport.to_be_bytes());
    tcp[12] = 0x50;
    tcp[13] = flags;
    tcp
}

/// UDP from port 40000 with 4 bytes of payload.
#[must_use]
pub fn udp(dst: Ipv4Bytes, dport: u16) -> Vec<u8> {
    let mut udp = vec![0; 12];
    udp[..2].copy_from_slice(&40_000u16.to_be_bytes());
    udp[2..4].copy_from_slice(&dport.to_be_bytes());
    udp[5] = 12;
    ipv4(dst, UDP, 0, &udp)
}

/// A broadcast ARP request of the pod.
#[must_use]
pub fn arp(target: Ipv4Bytes) -> Vec<u8> {
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend(POD_MAC);
    arp.extend(POD_IP);
    arp.extend([0; 6]);
    arp.extend(target);
    let mut bytes = frame(ETHERTYPE_ARP, &arp);
    bytes[..6].fill(0xff);
    bytes
}

/// Where the IPv4 header begins.
pub const IP: usize = ETHERNET_LEN as usize;
/// Where the transport header begins when there are no options.
pub const L4: usize = IP + 20;
