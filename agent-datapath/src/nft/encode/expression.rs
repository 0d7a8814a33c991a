//! Expressions to netlink bytes.
//!
//! What a register is compared with is in the order the packet or the kernel has it.

use super::{Attributes, DATA_VALUE, DATA_VERDICT, EXPR_DATA, EXPR_NAME, LIST_ELEMENT, attributes};
use crate::nft::value::{Expr, Load, Meta, Rule};

const VERDICT_CODE: u16 = 1;
pub(crate) const VERDICT_CHAIN: u16 = 2;
pub(crate) const COUNTER_BYTES: u16 = 1;
pub(crate) const COUNTER_PACKETS: u16 = 2;

const REGISTER_VERDICT: u32 = 0;
/// All 16 bytes of the first register.
const REGISTER_1: u32 = 1;
/// Its first four bytes (`NFT_REG32_00`).
const REGISTER_1_WORDS: u32 = 8;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
/// `NFT_GOTO`, -4.
pub(super) const VERDICT_GOTO: u32 = 0xffff_fffc;
/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`: what kube-proxy uses too; sequential ports collide under load.
const RANDOM_FULLY: u32 = 1 << 4;
/// `NFT_LOOKUP_F_INV`.
const INVERTED: u32 = 1;
/// `NFT_DYNSET_OP_UPDATE`.
const UPDATE: u32 = 1;

/// The operators of `cmp`, by `enum nft_cmp_ops`.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Operator {
    Equal = 0,
    NotEqual = 1,
    Less = 2,
    AtLeast = 5,
}

pub(super) fn expressions(rule: &Rule) -> Attributes {
    rule.expressions
        .iter()
        .fold(attributes(), |list, expression| {
            list.nested(LIST_ELEMENT, &named(encode(expression)))
        })
}

fn named((name, data): (&str, Attributes)) -> Attributes {
    attributes().text(EXPR_NAME, name).nested(EXPR_DATA, &data)
}

fn encode(expression: &Expr) -> (&'static str, Attributes) {
    match expression {
        Expr::Meta(key) => ("meta", attributes().u32(1, REGISTER_1).u32(2, *key as u32)),
        Expr::Ct(key) => ("ct", attributes().u32(1, REGISTER_1).u32(2, *key as u32)),
        Expr::Load(load) => ("payload", payload(REGISTER_1, *load)),
        Expr::LoadAt(word, load) => ("payload", payload(REGISTER_1_WORDS + word, *load)),
        // result NFT_FIB_RESULT_ADDRTYPE, flag NFTA_FIB_F_DADDR
        Expr::DestinationType => ("fib", attributes().u32(1, REGISTER_1).u32(2, 3).u32(3, 2)),
        // key NFT_SOCKET_TRANSPARENT
        Expr::SocketIsTransparent => ("socket", attributes().u32(1, 0).u32(2, REGISTER_1)),
        Expr::Mask(mask) => ("bitwise", bitwise(mask, &vec![0; mask.len()])),
        Expr::MaskAndFlip(mask, flip) => ("bitwise", bitwise(mask, flip)),
        Expr::SetMark => (
            "meta",
            attributes().u32(2, Meta::Mark as u32).u32(3, REGISTER_1),
        ),
        // operation NFT_BYTEORDER_HTON, length and size 4
        Expr::ToNetworkOrder => (
            "byteorder",
            attributes()
                .u32(1, REGISTER_1)
                .u32(2, REGISTER_1)
                .u32(3, 1)
                .u32(4, 4)
                .u32(5, 4),
        ),
        Expr::Equal(value) => ("cmp", compare(Operator::Equal, value)),
        Expr::NotEqual(value) => ("cmp", compare(Operator::NotEqual, value)),
        Expr::Less(value) => ("cmp", compare(Operator::Less, value)),
        Expr::AtLeast(value) => ("cmp", compare(Operator::AtLeast, value)),
        Expr::In(set) => ("lookup", attributes().text(1, set).u32(2, REGISTER_1)),
        Expr::NotIn(set) => (
            "lookup",
            attributes()
                .text(1, set)
                .u32(2, REGISTER_1)
                .u32(5, INVERTED),
        ),
        Expr::Verdict(map) => (
            "lookup",
            attributes()
                .text(1, map)
                .u32(2, REGISTER_1)
                .u32(3, REGISTER_VERDICT),
        ),
        Expr::Within { set, per_second } => (
            "dynset",
            attributes()
                .text(1, set)
                .u32(3, UPDATE)
                .u32(4, REGISTER_1)
                .nested(7, &named(("limit", limit(*per_second)))),
        ),
        Expr::Counter { packets, bytes } => (
            "counter",
            attributes()
                .u64(COUNTER_BYTES, *bytes)
                .u64(COUNTER_PACKETS, *packets),
        ),
        Expr::Log {
            group,
            prefix,
            length,
        } => (
            "log",
            attributes().u16(1, *group).text(2, prefix).u32(3, *length),
        ),
        Expr::Notrack => ("notrack", attributes()),
        Expr::Masquerade => ("masq", attributes().u32(1, RANDOM_FULLY)),
        Expr::Put(value) => (
            "immediate",
            attributes()
                .u32(1, REGISTER_1)
                .nested(2, &attributes().push(DATA_VALUE, value)),
        ),
        Expr::Redirect => ("redir", attributes().u32(1, REGISTER_1)),
        Expr::Accept => ("immediate", immediate(&verdict(NF_ACCEPT))),
        Expr::Drop => ("immediate", immediate(&verdict(NF_DROP))),
        Expr::Goto(chain) => ("immediate", immediate(&chain_verdict(VERDICT_GOTO, chain))),
    }
}

fn bitwise(mask: &[u8], flip: &[u8]) -> Attributes {
    attributes()
        .u32(1, REGISTER_1)
        .u32(2, REGISTER_1)
        .u32(3, u32::try_from(mask.len()).unwrap_or(u32::MAX))
        .nested(4, &attributes().push(DATA_VALUE, mask))
        .nested(5, &attributes().push(DATA_VALUE, flip))
}

fn payload(register: u32, load: Load) -> Attributes {
    attributes()
        .u32(1, register)
        .u32(2, load.header as u32)
        .u32(3, load.offset)
        .u32(4, load.length)
}

fn compare(operator: Operator, value: &[u8]) -> Attributes {
    attributes()
        .u32(1, REGISTER_1)
        .u32(2, operator as u32)
        .nested(3, &attributes().push(DATA_VALUE, value))
}

/// So many packets a second, and as many at once (type `NFT_LIMIT_PKTS`).
fn limit(per_second: u32) -> Attributes {
    attributes()
        .u64(1, u64::from(per_second))
        .u64(2, 1)
        .u32(3, per_second)
        .u32(4, 0)
}

fn verdict(code: u32) -> Attributes {
    attributes().u32(VERDICT_CODE, code)
}

pub(super) fn chain_verdict(code: u32, chain: &str) -> Attributes {
    verdict(code).text(VERDICT_CHAIN, chain)
}

fn immediate(verdict: &Attributes) -> Attributes {
    attributes()
        .u32(1, REGISTER_VERDICT)
        .nested(2, &attributes().nested(DATA_VERDICT, verdict))
}
