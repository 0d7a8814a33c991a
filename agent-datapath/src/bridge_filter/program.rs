//! The filter's program: classic BPF, which the kernel takes without bpf(2). Pure.
//!
//! What it says, in this order, and the first that applies decides:
//!
//! 1. a VLAN tag, or an EtherType other than ARP and IPv4: drop; ARP: pass;
//! 2. IPv4 with the proxy's, an answer's or a Service's mark: pass;
//! 3. unmarked TCP to the gateway's address that is whole and opens no connection, as answers to kubelet's probes: pass;
//! 4. the rest: drop.
//!
//! It is what `agent_ebpf_common::classify` and the chains of the iptables-compat mode let through, seen from behind.

use std::net::Ipv4Addr;

use crate::network::MaskedMark;

/// What the program has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Passes {
    /// Marks of packets that were let through.
    pub(super) marks: [MaskedMark; 3],
    /// Where answers to the node go.
    pub(super) gateway: Ipv4Addr,
}

/// `TC_ACT_UNSPEC`: no verdict, the next filter is asked.
const PASS: u32 = u32::MAX;
/// `TC_ACT_SHOT`.
const DROP: u32 = 2;

/// `struct sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) code: u16,
    pub(super) if_true: u8,
    pub(super) if_false: u8,
    pub(super) k: u32,
}

// Opcodes (linux/bpf_common.h): class, size or operation, mode or source.
/// `A = word`.
pub(super) const LOAD_WORD: u16 = 0x20;
/// `A = half word`.
pub(super) const LOAD_HALF: u16 = 0x28;
/// `A = byte`.
pub(super) const LOAD_BYTE: u16 = 0x30;
/// `A = byte at X + k`.
pub(super) const LOAD_BYTE_AT_X: u16 = 0x50;
/// `A = length of the packet`.
pub(super) const LOAD_LENGTH: u16 = 0x80;
/// `X = 4 * (byte & 15)`: the length of an IPv4 header.
pub(super) const LOAD_X_HEADER_LENGTH: u16 = 0xb1;
/// `A &= k`.
pub(super) const AND: u16 = 0x54;
/// `A += k`.
pub(super) const ADD: u16 = 0x04;
/// `A = X`.
pub(super) const X_TO_A: u16 = 0x87;
/// `X = A`.
pub(super) const A_TO_X: u16 = 0x07;
/// `A == k`?
pub(super) const IF_EQUAL: u16 = 0x15;
/// `A >= k`?
pub(super) const IF_AT_LEAST: u16 = 0x35;
/// `A >= X`?
pub(super) const IF_AT_LEAST_X: u16 = 0x3d;
/// `A & k`?
pub(super) const IF_ANY_BIT: u16 = 0x45;
/// The verdict.
pub(super) const RETURN: u16 = 0x06;

// Loads from these offsets ask for what the kernel knows of the packet (linux/filter.h): `SKF_AD_OFF` and on.
/// The EtherType behind a VLAN tag that the kernel has taken off.
pub(super) const AT_PROTOCOL: u32 = 0xffff_f000;
/// The mark.
pub(super) const AT_MARK: u32 = 0xffff_f014;
/// Whether the kernel has taken a VLAN tag off.
pub(super) const AT_VLAN_TAG_PRESENT: u32 = 0xffff_f030;

const ARP: u32 = 0x0806;
const IPV4: u32 = 0x0800;
const TCP: u32 = 6;
/// `MF` and the offset.
const FRAGMENT_BITS: u32 = 0x3fff;
/// FIN, SYN, RST, ACK: with SYN alone a connection is opened.
const FLAGS: u32 = 0x17;
const SYN: u32 = 0x02;
/// A filter at ingress sees the Ethernet header.
const IP_HEADER: u32 = 14;
const MIN_IP_HEADER: u32 = 20;
/// As much of a TCP header as is looked at.
const TCP_TO_FLAGS: u32 = 14;

/// Where a jump goes: labels are resolved when the program is whole.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Next,
    Pass,
    Drop,
}

/// The program. A load past a packet's end would end it with the verdict 0, which is to accept: lengths are compared
/// before anything is loaded from the packet.
pub(super) fn program(passes: &Passes) -> Vec<Instruction> {
    use To::{Drop, Next, Pass};
    let mut lines = vec![
        (LOAD_WORD, AT_VLAN_TAG_PRESENT, Next, Next),
        (IF_EQUAL, 0, Next, Drop),
        (LOAD_WORD, AT_PROTOCOL, Next, Next),
        (IF_EQUAL, ARP, Pass, Next),
        (IF_EQUAL, IPV4, Next, Drop),
    ];
    for mark in passes.marks {
        lines.extend([
            (LOAD_WORD, AT_MARK, Next, Next),
            (AND, mark.mask, Next, Next),
            (IF_EQUAL, mark.value, Pass, Next),
        ]);
    }
    lines.extend([
        (LOAD_LENGTH, 0, Next, Next),
        (IF_AT_LEAST, IP_HEADER + MIN_IP_HEADER, Next, Drop),
        (LOAD_BYTE, IP_HEADER + 9, Next, Next),
        (IF_EQUAL, TCP, Next, Drop),
        (LOAD_WORD, IP_HEADER + 16, Next, Next),
        (IF_EQUAL, passes.gateway.to_bits(), Next, Drop),
        (LOAD_HALF, IP_HEADER + 6, Next, Next),
        (IF_ANY_BIT, FRAGMENT_BITS, Drop, Next),
        (LOAD_X_HEADER_LENGTH, IP_HEADER, Next, Next),
        (X_TO_A, 0, Next, Next),
        (ADD, IP_HEADER + TCP_TO_FLAGS, Next, Next),
        (A_TO_X, 0, Next, Next),
        (LOAD_LENGTH, 0, Next, Next),
        (IF_AT_LEAST_X, 0, Next, Drop),
        (LOAD_X_HEADER_LENGTH, IP_HEADER, Next, Next),
        (LOAD_BYTE_AT_X, IP_HEADER + TCP_TO_FLAGS - 1, Next, Next),
        (AND, FLAGS, Next, Next),
        (IF_EQUAL, SYN, Drop, Pass),
        (RETURN, PASS, Next, Next),
        (RETURN, DROP, Next, Next),
    ]);
    // the two verdicts are the last lines
    let (drop, pass) = (lines.len() - 1, lines.len() - 2);
    lines
        .iter()
        .enumerate()
        .map(|(at, &(code, k, if_true, if_false))| {
            let over = |to| match to {
                Next => 0,
                Pass => distance(at, pass),
                Drop => distance(at, drop),
            };
            Instruction {
                code,
                if_true: over(if_true),
                if_false: over(if_false),
                k,
            }
        })
        .collect()
}

/// How many instructions a jump goes over. The program is shorter than what a byte can count.
fn distance(from: usize, to: usize) -> u8 {
    u8::try_from(to.saturating_sub(from + 1)).unwrap_or(u8::MAX)
}

/// The program as the kernel takes it, and gives it back.
pub(super) fn bytes(program: &[Instruction]) -> Vec<u8> {
    program
        .iter()
        .flat_map(|one| {
            let [a, b] = one.code.to_ne_bytes();
            let [c, d, e, f] = one.k.to_ne_bytes();
            [a, b, one.if_true, one.if_false, c, d, e, f]
        })
        .collect()
}

#[cfg(test)]
#[path = "program/tests.rs"]
mod tests;
