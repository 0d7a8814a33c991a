//! What a rule asks of a packet and does to it, in nftables' expressions.

use ipnet::Ipv4Net;

use super::super::value::{Ct, Expr, Load, Meta, Rule};
use super::{DESTINATION_TRANSLATED, DNS_PORT, ESTABLISHED_OR_RELATED, LOCAL};
use crate::network::{MaskedMark, NodeNetwork};

pub(super) fn rule<const N: usize>(purpose: &'static str, parts: [Vec<Expr>; N]) -> Rule {
    Rule {
        purpose: purpose.into(),
        expressions: parts.into_iter().flatten().collect(),
    }
}

pub(super) fn from_pods(node: &NodeNetwork) -> Vec<Expr> {
    vec![
        Expr::Meta(Meta::InputName),
        Expr::Equal(interface(&node.bridge.name)),
    ]
}

pub(super) fn to_pods(node: &NodeNetwork) -> Vec<Expr> {
    vec![
        Expr::Meta(Meta::OutputName),
        Expr::Equal(interface(&node.bridge.name)),
    ]
}

pub(super) fn not_by(name: &str) -> Vec<Expr> {
    vec![Expr::Meta(Meta::InputName), Expr::NotEqual(interface(name))]
}

pub(super) fn not_out_by(name: &str) -> Vec<Expr> {
    vec![
        Expr::Meta(Meta::OutputName),
        Expr::NotEqual(interface(name)),
    ]
}

pub(super) fn from(net: Ipv4Net) -> Vec<Expr> {
    within(Expr::SOURCE_ADDRESS, net)
}

pub(super) fn to(net: Ipv4Net) -> Vec<Expr> {
    within(Expr::DESTINATION_ADDRESS, net)
}

pub(super) fn within(address: Expr, net: Ipv4Net) -> Vec<Expr> {
    vec![
        address,
        Expr::Mask(net.netmask().octets().to_vec()),
        Expr::Equal(net.network().octets().to_vec()),
    ]
}

pub(super) fn not_within(address: Expr, net: Ipv4Net) -> Vec<Expr> {
    vec![
        address,
        Expr::Mask(net.netmask().octets().to_vec()),
        Expr::NotEqual(net.network().octets().to_vec()),
    ]
}

pub(super) fn marked(mark: MaskedMark) -> Vec<Expr> {
    vec![
        Expr::Meta(Meta::Mark),
        Expr::Mask(mark.mask.to_ne_bytes().to_vec()),
        Expr::Equal(mark.value.to_ne_bytes().to_vec()),
    ]
}

pub(super) fn transparent_socket() -> Vec<Expr> {
    vec![Expr::SocketIsTransparent, Expr::Equal(vec![1])]
}

pub(super) fn mark(mark: MaskedMark) -> Vec<Expr> {
    vec![
        Expr::Meta(Meta::Mark),
        Expr::MaskAndFlip(
            (!mark.mask).to_ne_bytes().to_vec(),
            mark.value.to_ne_bytes().to_vec(),
        ),
        Expr::SetMark,
    ]
}

pub(super) fn to_gateway(node: &NodeNetwork) -> Vec<Expr> {
    vec![
        Expr::DESTINATION_ADDRESS,
        Expr::Equal(node.bridge.address.addr().octets().to_vec()),
    ]
}

pub(super) fn not_to_gateway(node: &NodeNetwork) -> Vec<Expr> {
    vec![
        Expr::DESTINATION_ADDRESS,
        Expr::NotEqual(node.bridge.address.addr().octets().to_vec()),
    ]
}

/// Queries to an address that is the node's own, by whatever interface it has it.
pub(super) fn dns_to_the_node(node: &NodeNetwork, number: u8) -> Vec<Expr> {
    [
        from_pods(node),
        marked(node.proxy),
        protocol(number),
        port(DNS_PORT),
        destination_is(LOCAL),
    ]
    .concat()
}

pub(super) fn protocol(number: u8) -> Vec<Expr> {
    vec![Expr::Meta(Meta::Protocol), Expr::Equal(vec![number])]
}

pub(super) fn port(number: u16) -> Vec<Expr> {
    vec![
        Expr::Load(Load::transport(2, 2)),
        Expr::Equal(number.to_be_bytes().to_vec()),
    ]
}

pub(super) fn destination_is(kind: u32) -> Vec<Expr> {
    vec![
        Expr::DestinationType,
        Expr::Equal(kind.to_ne_bytes().to_vec()),
    ]
}

pub(super) fn known_connection() -> Vec<Expr> {
    any_bit(Ct::State, ESTABLISHED_OR_RELATED)
}

pub(super) fn unknown_connection() -> Vec<Expr> {
    vec![
        Expr::Ct(Ct::State),
        Expr::Mask(ESTABLISHED_OR_RELATED.to_ne_bytes().to_vec()),
        Expr::Equal(vec![0; 4]),
    ]
}

pub(super) fn translated() -> Vec<Expr> {
    any_bit(Ct::Status, DESTINATION_TRANSLATED)
}

pub(super) fn any_bit(key: Ct, bits: u32) -> Vec<Expr> {
    vec![
        Expr::Ct(key),
        Expr::Mask(bits.to_ne_bytes().to_vec()),
        Expr::NotEqual(vec![0; 4]),
    ]
}

pub(super) fn refuse() -> Vec<Expr> {
    vec![Expr::COUNTER, Expr::Drop]
}

/// An interface name as the register holds it: IFNAMSIZ bytes, so that it matches exactly.
pub(crate) fn interface(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(libc::IFNAMSIZ, 0);
    bytes
}
