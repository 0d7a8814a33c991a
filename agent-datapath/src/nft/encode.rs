//! Values to netlink bytes: attributes, expressions, and the batch that replaces a table in one transaction.
//!
//! Attribute numbers are from `linux/netfilter/nf_tables.h`. Integers in attributes are big-endian; what a register
//! is compared with is in the order the packet or the kernel has it.

use super::value::{Chain, Expr, Meta, Rule, Table};

pub(super) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;

const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const SUBSYSTEM: u16 = 10;
const FAMILY_IP: u8 = 2;

/// Message kinds, by `enum nf_tables_msg_types`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Message {
    NewTable = 0,
    GetTable = 1,
    DelTable = 2,
    NewChain = 3,
    GetChain = 4,
    NewRule = 6,
    GetRule = 7,
}

pub(super) const TABLE_NAME: u16 = 1;
pub(super) const TABLE_FLAGS: u16 = 2;
pub(super) const CHAIN_TABLE: u16 = 1;
pub(super) const CHAIN_NAME: u16 = 3;
pub(super) const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
pub(super) const CHAIN_TYPE: u16 = 7;
pub(super) const HOOK_NUMBER: u16 = 1;
pub(super) const HOOK_PRIORITY: u16 = 2;
pub(super) const RULE_TABLE: u16 = 1;
pub(super) const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
pub(super) const RULE_USERDATA: u16 = 7;
const LIST_ELEMENT: u16 = 1;
const EXPR_NAME: u16 = 1;
const EXPR_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const NESTED: u16 = 0x8000;

const REGISTER_VERDICT: u32 = 0;
const REGISTER_1: u32 = 1;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`: what kube-proxy uses too; sequential ports collide under load.
const RANDOM_FULLY: u32 = 1 << 4;
/// `UDATA_TYPE_COMMENT`, as libnftnl writes and nft shows it.
const USERDATA_COMMENT: u8 = 0;

/// Attributes, one after the other, each padded to four bytes.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    pub(crate) fn push(mut self, kind: u16, value: &[u8]) -> Self {
        // an attribute is at most a rule: far below 64 KiB
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn u32(self, kind: u16, value: u32) -> Self {
        self.push(kind, &value.to_be_bytes())
    }

    pub(super) fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.push(kind, &bytes)
    }

    pub(crate) fn nested(self, kind: u16, value: &Attributes) -> Self {
        self.nested_bytes(kind, &value.0)
    }

    /// As `nested`, with attributes that are bytes already.
    pub(crate) fn nested_bytes(self, kind: u16, value: &[u8]) -> Self {
        self.push(kind | NESTED, value)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn attributes() -> Attributes {
    Attributes::default()
}

/// One message with its headers.
pub(super) fn message(
    kind: Message,
    flags: u16,
    sequence: u32,
    attributes: &Attributes,
) -> Vec<u8> {
    framed(
        (SUBSYSTEM << 8) | kind as u16,
        flags,
        sequence,
        FAMILY_IP,
        0,
        &attributes.0,
    )
}

/// A netfilter message of any subsystem with its headers.
pub(crate) fn framed(
    kind: u16,
    flags: u16,
    sequence: u32,
    family: u8,
    resource: u16,
    body: &[u8],
) -> Vec<u8> {
    let length = u32::try_from(20 + body.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(20 + body.len());
    bytes.extend_from_slice(&length.to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&0u32.to_ne_bytes());
    bytes.push(family);
    bytes.push(0);
    bytes.extend_from_slice(&resource.to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Messages of one transaction, and how many acknowledgements they bring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) acknowledgements: usize,
    sequence: u32,
}

impl Batch {
    fn begin() -> Self {
        let bytes = framed(NFNL_MSG_BATCH_BEGIN, 0, 0, 0, SUBSYSTEM, &[]);
        Self {
            bytes,
            acknowledgements: 0,
            sequence: 0,
        }
    }

    fn add(&mut self, kind: Message, flags: u16, attributes: &Attributes) {
        self.sequence += 1;
        self.acknowledgements += 1;
        self.bytes
            .extend(message(kind, flags | NLM_F_ACK, self.sequence, attributes));
    }

    fn end(mut self) -> Self {
        self.bytes.extend(framed(
            NFNL_MSG_BATCH_END,
            0,
            self.sequence + 1,
            0,
            SUBSYSTEM,
            &[],
        ));
        self
    }
}

/// The transaction that makes the table be exactly this, whatever was there.
pub(super) fn replace(table: &Table) -> Batch {
    let mut batch = Batch::begin();
    let name = attributes().text(TABLE_NAME, table.name);
    batch.add(Message::NewTable, NLM_F_CREATE, &name);
    batch.add(Message::DelTable, 0, &name);
    batch.add(
        Message::NewTable,
        NLM_F_CREATE,
        &name.clone().u32(TABLE_FLAGS, 0),
    );
    let generation = generation(table);
    for chain in &table.chains {
        batch.add(
            Message::NewChain,
            NLM_F_CREATE,
            &chain_attributes(table.name, chain),
        );
        for rule in &chain.rules {
            let encoded = attributes()
                .text(RULE_TABLE, table.name)
                .text(RULE_CHAIN, chain.name)
                .nested(RULE_EXPRESSIONS, &expressions(rule))
                .push(RULE_USERDATA, &userdata(rule, generation));
            batch.add(Message::NewRule, NLM_F_CREATE | NLM_F_APPEND, &encoded);
        }
    }
    batch.end()
}

/// The transaction that removes the table, or fails with ENOENT.
pub(super) fn delete(name: &str) -> Batch {
    let mut batch = Batch::begin();
    batch.add(Message::DelTable, 0, &attributes().text(TABLE_NAME, name));
    batch.end()
}

/// A request for one object, or for a dump.
pub(super) fn get(kind: Message, dump: bool, names: &[(u16, &str)]) -> Vec<u8> {
    let attributes = names
        .iter()
        .fold(attributes(), |attributes, &(kind, value)| {
            attributes.text(kind, value)
        });
    message(kind, if dump { NLM_F_DUMP } else { 0 }, 1, &attributes)
}

fn chain_attributes(table: &str, chain: &Chain) -> Attributes {
    let hook = attributes()
        .u32(HOOK_NUMBER, chain.hook as u32)
        .push(HOOK_PRIORITY, &chain.priority.to_be_bytes());
    attributes()
        .text(CHAIN_TABLE, table)
        .text(CHAIN_NAME, chain.name)
        .nested(CHAIN_HOOK, &hook)
        .u32(CHAIN_POLICY, NF_ACCEPT)
        .text(CHAIN_TYPE, chain.kind.name())
}

/// What marks a rule as ours and as of this very table: its comment, as nft shows it.
pub(super) fn userdata(rule: &Rule, generation: u64) -> Vec<u8> {
    let mut comment = format!("{} [{generation:016x}]", rule.purpose).into_bytes();
    comment.push(0);
    let mut bytes = vec![
        USERDATA_COMMENT,
        u8::try_from(comment.len()).unwrap_or(u8::MAX),
    ];
    bytes.extend(comment);
    bytes
}

/// A hash of all that the table does (FNV-1a), so that rules written for another configuration are recognised.
pub(super) fn generation(table: &Table) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut feed = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    for chain in &table.chains {
        feed(&chain_attributes(table.name, chain).0);
        for rule in &chain.rules {
            feed(&expressions(rule).0);
            feed(rule.purpose.as_bytes());
        }
    }
    hash
}

fn expressions(rule: &Rule) -> Attributes {
    rule.expressions
        .iter()
        .fold(attributes(), |list, expression| {
            let (name, data) = encode(expression);
            let element = attributes().text(EXPR_NAME, name).nested(EXPR_DATA, &data);
            list.nested(LIST_ELEMENT, &element)
        })
}

fn encode(expression: &Expr) -> (&'static str, Attributes) {
    match expression {
        Expr::Meta(key) => ("meta", attributes().u32(1, REGISTER_1).u32(2, *key as u32)),
        Expr::Ct(key) => ("ct", attributes().u32(1, REGISTER_1).u32(2, *key as u32)),
        Expr::SourceAddress => ("payload", network_header(12, 4)),
        Expr::DestinationAddress => ("payload", network_header(16, 4)),
        // result NFT_FIB_RESULT_ADDRTYPE, flag NFTA_FIB_F_DADDR
        Expr::DestinationType => ("fib", attributes().u32(1, REGISTER_1).u32(2, 3).u32(3, 2)),
        // key NFT_SOCKET_TRANSPARENT
        Expr::SocketIsTransparent => ("socket", attributes().u32(1, 0).u32(2, REGISTER_1)),
        Expr::Mask(mask) => ("bitwise", bitwise(mask, &[0; 4])),
        Expr::Replace { keep, with } => ("bitwise", bitwise(keep, with)),
        // NFTA_META_SREG
        Expr::SetMark => (
            "meta",
            attributes().u32(2, Meta::Mark as u32).u32(3, REGISTER_1),
        ),
        Expr::Equal(value) => ("cmp", compare(0, value)),
        Expr::NotEqual(value) => ("cmp", compare(1, value)),
        Expr::Counter => ("counter", attributes()),
        Expr::Notrack => ("notrack", attributes()),
        Expr::Masquerade => ("masq", attributes().u32(1, RANDOM_FULLY)),
        Expr::Accept => ("immediate", verdict(NF_ACCEPT)),
        Expr::Drop => ("immediate", verdict(NF_DROP)),
    }
}

/// Bytes of the network header, `NFT_PAYLOAD_NETWORK_HEADER`.
fn network_header(offset: u32, length: u32) -> Attributes {
    attributes()
        .u32(1, REGISTER_1)
        .u32(2, 1)
        .u32(3, offset)
        .u32(4, length)
}

fn bitwise(mask: &[u8; 4], xor: &[u8; 4]) -> Attributes {
    attributes()
        .u32(1, REGISTER_1)
        .u32(2, REGISTER_1)
        .u32(3, 4)
        .nested(4, &attributes().push(DATA_VALUE, mask))
        .nested(5, &attributes().push(DATA_VALUE, xor))
}

fn compare(operator: u32, value: &[u8]) -> Attributes {
    attributes()
        .u32(1, REGISTER_1)
        .u32(2, operator)
        .nested(3, &attributes().push(DATA_VALUE, value))
}

fn verdict(code: u32) -> Attributes {
    let verdict = attributes().u32(VERDICT_CODE, code);
    attributes()
        .u32(1, REGISTER_VERDICT)
        .nested(2, &attributes().nested(DATA_VERDICT, &verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_to_four_bytes_and_count_their_header() {
        let encoded = attributes().text(TABLE_NAME, "ab");
        assert_eq!(encoded.0, [7, 0, 1, 0, b'a', b'b', 0, 0]);
    }

    #[test]
    fn a_rule_loads_masks_and_compares_register_one() {
        let rule = Rule {
            purpose: "test",
            expressions: vec![Expr::Meta(Meta::Mark), Expr::Mask([0, 0, 0, 0x0f])],
        };
        let bytes = expressions(&rule).0;
        // list element, name "meta", data: dreg 1, key mark
        assert_eq!(
            bytes[..36],
            [
                36, 0, 1, 0x80, 9, 0, 1, 0, b'm', b'e', b't', b'a', 0, 0, 0, 0, 20, 0, 2, 0x80, 8,
                0, 1, 0, 0, 0, 0, 1, 8, 0, 2, 0, 0, 0, 0, 3
            ]
        );
    }

    #[test]
    fn a_replacement_is_one_transaction_that_deletes_what_was_there() {
        let batch = replace(&Table {
            name: "t",
            chains: Vec::new(),
        });
        let kinds: Vec<u16> = kinds(&batch.bytes);
        let nft = |message: Message| (SUBSYSTEM << 8) | message as u16;
        assert_eq!(
            kinds,
            [
                NFNL_MSG_BATCH_BEGIN,
                nft(Message::NewTable),
                nft(Message::DelTable),
                nft(Message::NewTable),
                NFNL_MSG_BATCH_END
            ]
        );
        assert_eq!(batch.acknowledgements, 3);
    }

    #[test]
    fn another_purpose_or_priority_is_another_generation() {
        let chain = |priority, purpose| Chain {
            name: "c",
            kind: crate::nft::value::ChainKind::Filter,
            hook: crate::nft::value::Hook::Input,
            priority,
            rules: vec![Rule {
                purpose,
                expressions: vec![Expr::Drop],
            }],
        };
        let table = |chain| Table {
            name: "t",
            chains: vec![chain],
        };
        let base = generation(&table(chain(0, "a")));
        assert_eq!(base, generation(&table(chain(0, "a"))));
        assert_ne!(base, generation(&table(chain(1, "a"))));
        assert_ne!(base, generation(&table(chain(0, "b"))));
    }

    fn kinds(mut bytes: &[u8]) -> Vec<u16> {
        let mut kinds = Vec::new();
        while bytes.len() >= 16 {
            let length = u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize;
            kinds.push(u16::from_ne_bytes(bytes[4..6].try_into().unwrap()));
            bytes = &bytes[length..];
        }
        kinds
    }
}
