//! Values to netlink bytes: attributes, objects, and the batches that are one transaction each.
//!
//! Attribute numbers are from `linux/netfilter/nf_tables.h`. Integers in attributes are big-endian. Expressions are
//! `encode::expression`'s.

use super::value::{Chain, Element, Family, Key, Rule, Set, SetKind, Table};

mod expression;

pub(crate) use expression::{COUNTER_BYTES, COUNTER_PACKETS, VERDICT_CHAIN};
use expression::{VERDICT_GOTO, chain_verdict, expressions};

pub(super) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;

const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
/// `NFNL_BATCH_GENID`.
const BATCH_GENERATION: u16 = 1;
const SUBSYSTEM: u16 = 10;

/// Message kinds, by `enum nf_tables_msg_types`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Message {
    NewTable = 0,
    GetTable = 1,
    DelTable = 2,
    NewChain = 3,
    GetChain = 4,
    DelChain = 5,
    NewRule = 6,
    GetRule = 7,
    DelRule = 8,
    NewSet = 9,
    GetSet = 10,
    NewElements = 12,
    GetElements = 13,
    DelElements = 14,
    GetGeneration = 16,
}

pub(crate) const TABLE_NAME: u16 = 1;
pub(crate) const TABLE_FLAGS: u16 = 2;
pub(crate) const CHAIN_TABLE: u16 = 1;
pub(crate) const CHAIN_NAME: u16 = 3;
pub(crate) const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
pub(crate) const CHAIN_TYPE: u16 = 7;
pub(crate) const HOOK_NUMBER: u16 = 1;
pub(crate) const HOOK_PRIORITY: u16 = 2;
pub(crate) const RULE_TABLE: u16 = 1;
pub(crate) const RULE_CHAIN: u16 = 2;
pub(crate) const RULE_EXPRESSIONS: u16 = 4;
pub(crate) const RULE_USERDATA: u16 = 7;
pub(crate) const LIST_ELEMENT: u16 = 1;
pub(crate) const EXPR_NAME: u16 = 1;
pub(crate) const EXPR_DATA: u16 = 2;
pub(super) const SET_TABLE: u16 = 1;
pub(super) const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LENGTH: u16 = 5;
const SET_DATA_TYPE: u16 = 6;
const SET_DESCRIPTION: u16 = 9;
const SET_DESCRIPTION_SIZE: u16 = 1;
const SET_ID: u16 = 10;
const SET_TIMEOUT: u16 = 11;
const SET_USERDATA: u16 = 13;
const SET_INTERVAL: u32 = 0x4;
const SET_MAP: u32 = 0x8;
const SET_TIMEOUTS: u32 = 0x10;
const SET_EVAL: u32 = 0x20;
/// `NFT_DATA_VERDICT`.
const DATA_TYPE_VERDICT: u32 = 0xffff_ff00;
pub(crate) const ELEMENTS_TABLE: u16 = 1;
pub(crate) const ELEMENTS_SET: u16 = 2;
pub(crate) const ELEMENTS: u16 = 3;
pub(crate) const ELEMENT_KEY: u16 = 1;
pub(crate) const ELEMENT_DATA: u16 = 2;
pub(crate) const ELEMENT_FLAGS: u16 = 3;
/// `NFT_SET_ELEM_INTERVAL_END`.
pub(crate) const ELEMENT_ENDS_RANGE: u32 = 1;
pub(crate) const DATA_VALUE: u16 = 1;
pub(crate) const DATA_VERDICT: u16 = 2;
const NESTED: u16 = 0x8000;

const NF_ACCEPT: u32 = 1;
/// `UDATA_TYPE_COMMENT`, as libnftnl writes and nft shows it.
const USERDATA_COMMENT: u8 = 0;
/// Elements in one message; an attribute holds at most 64 KiB.
const ELEMENTS_PER_MESSAGE: usize = 512;

/// Attributes, one after the other, each padded to four bytes.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    pub(crate) fn push(mut self, kind: u16, value: &[u8]) -> Self {
        // an attribute is at most a rule, or as many elements as are put into a message: far below 64 KiB
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn u16(self, kind: u16, value: u16) -> Self {
        self.push(kind, &value.to_be_bytes())
    }

    pub(crate) fn u32(self, kind: u16, value: u32) -> Self {
        self.push(kind, &value.to_be_bytes())
    }

    pub(crate) fn u64(self, kind: u16, value: u64) -> Self {
        self.push(kind, &value.to_be_bytes())
    }

    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
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

pub(super) fn attributes() -> Attributes {
    Attributes::default()
}

/// One message with its headers.
pub(super) fn message(
    kind: Message,
    flags: u16,
    sequence: u32,
    family: Family,
    attributes: &Attributes,
) -> Vec<u8> {
    framed(
        (SUBSYSTEM << 8) | kind as u16,
        flags,
        sequence,
        family as u8,
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
    family: Family,
    table: &'static str,
}

impl Batch {
    /// A transaction on a table. With a generation of the ruleset (as the kernel counts it), the transaction fails with
    /// ERESTART when anything has changed in nftables since.
    pub(crate) fn begin(family: Family, table: &'static str, generation: Option<u32>) -> Self {
        let guard = generation.map_or_else(attributes, |generation| {
            attributes().u32(BATCH_GENERATION, generation)
        });
        Self {
            bytes: framed(NFNL_MSG_BATCH_BEGIN, 0, 0, 0, SUBSYSTEM, guard.bytes()),
            acknowledgements: 0,
            sequence: 0,
            family,
            table,
        }
    }

    fn add(&mut self, kind: Message, flags: u16, attributes: &Attributes) {
        self.sequence += 1;
        self.acknowledgements += 1;
        self.bytes.extend(message(
            kind,
            flags | NLM_F_ACK,
            self.sequence,
            self.family,
            attributes,
        ));
    }

    pub(crate) fn end(mut self) -> Self {
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

    pub(crate) fn add_table(&mut self) {
        let table = attributes().text(TABLE_NAME, self.table);
        self.add(Message::NewTable, NLM_F_CREATE, &table.u32(TABLE_FLAGS, 0));
    }

    /// Fails with ENOENT when there is none.
    pub(crate) fn delete_table(&mut self) {
        let table = attributes().text(TABLE_NAME, self.table);
        self.add(Message::DelTable, 0, &table);
    }

    pub(crate) fn add_chain(&mut self, chain: &Chain) {
        let chain = chain_attributes(self.table, chain);
        self.add(Message::NewChain, NLM_F_CREATE, &chain);
    }

    pub(crate) fn add_rules(&mut self, chain: &Chain, generation: u64) {
        for rule in &chain.rules {
            let encoded = attributes()
                .text(RULE_TABLE, self.table)
                .text(RULE_CHAIN, &chain.name)
                .nested(RULE_EXPRESSIONS, &expressions(rule))
                .push(RULE_USERDATA, &userdata(rule, generation));
            self.add(Message::NewRule, NLM_F_CREATE | NLM_F_APPEND, &encoded);
        }
    }

    /// Removes the chain's rules, and keeps the chain.
    pub(crate) fn flush_chain(&mut self, name: &str) {
        let chain = attributes()
            .text(RULE_TABLE, self.table)
            .text(RULE_CHAIN, name);
        self.add(Message::DelRule, 0, &chain);
    }

    /// Fails with EBUSY while anything leads to it.
    pub(crate) fn delete_chain(&mut self, name: &str) {
        let chain = attributes()
            .text(CHAIN_TABLE, self.table)
            .text(CHAIN_NAME, name);
        self.add(Message::DelChain, 0, &chain);
    }

    pub(crate) fn add_set(&mut self, set: &Set) {
        // numbers of sets matter within a transaction only, where the messages' own are unique
        let set = set_attributes(self.table, set).u32(SET_ID, self.sequence + 1);
        self.add(Message::NewSet, NLM_F_CREATE, &set);
    }

    pub(crate) fn add_elements(&mut self, set: &str, elements: &[Element]) {
        for part in elements.chunks(ELEMENTS_PER_MESSAGE) {
            let list = part.iter().fold(attributes(), |list, element| {
                let mut encoded = key(&element.key);
                if element.end {
                    encoded = encoded.u32(ELEMENT_FLAGS, ELEMENT_ENDS_RANGE);
                }
                list.nested(LIST_ELEMENT, &encoded)
            });
            self.change_elements(Message::NewElements, NLM_F_CREATE, set, Some(&list));
        }
    }

    pub(crate) fn flush_elements(&mut self, set: &str) {
        self.change_elements(Message::DelElements, 0, set, None);
    }

    /// Makes a map of verdicts lead from a key to a chain.
    pub(crate) fn add_goto(&mut self, map: &str, from: &[u8], chain: &str) {
        let verdict = attributes().nested(DATA_VERDICT, &chain_verdict(VERDICT_GOTO, chain));
        let element = key(from).nested(ELEMENT_DATA, &verdict);
        let list = attributes().nested(LIST_ELEMENT, &element);
        self.change_elements(Message::NewElements, NLM_F_CREATE, map, Some(&list));
    }

    pub(crate) fn delete_key(&mut self, set: &str, from: &[u8]) {
        let list = attributes().nested(LIST_ELEMENT, &key(from));
        self.change_elements(Message::DelElements, 0, set, Some(&list));
    }

    fn change_elements(&mut self, kind: Message, flags: u16, set: &str, list: Option<&Attributes>) {
        let mut change = attributes()
            .text(ELEMENTS_TABLE, self.table)
            .text(ELEMENTS_SET, set);
        if let Some(list) = list {
            change = change.nested(ELEMENTS, list);
        }
        self.add(kind, flags, &change);
    }
}

/// The transaction that makes the table be exactly this, whatever was there.
pub(super) fn replace(table: &Table) -> Batch {
    let mut batch = Batch::begin(table.family, table.name, None);
    add_fresh(&mut batch, table, generation(table));
    batch.end()
}

/// Removes what was there of the table, and adds all of it anew, with this hash in the comments.
pub(crate) fn add_fresh(batch: &mut Batch, table: &Table, generation: u64) {
    // so that there is one to delete
    batch.add_table();
    batch.delete_table();
    batch.add_table();
    for set in &table.sets {
        batch.add_set(set);
        batch.add_elements(set.name, &set.elements);
    }
    // rules may lead to chains that come later
    for chain in &table.chains {
        batch.add_chain(chain);
    }
    for chain in &table.chains {
        batch.add_rules(chain, generation);
    }
}

/// The transaction that removes the table, or fails with ENOENT.
pub(super) fn delete(family: Family, name: &'static str) -> Batch {
    let mut batch = Batch::begin(family, name, None);
    batch.delete_table();
    batch.end()
}

/// A request for one object, or for a dump.
pub(crate) fn get(kind: Message, dump: bool, family: Family, names: &[(u16, &str)]) -> Vec<u8> {
    let attributes = names
        .iter()
        .fold(attributes(), |attributes, &(kind, value)| {
            attributes.text(kind, value)
        });
    message(
        kind,
        if dump { NLM_F_DUMP } else { 0 },
        1,
        family,
        &attributes,
    )
}

/// A request for the element of a set with this key.
pub(crate) fn get_element(family: Family, table: &str, set: &str, of: &[u8]) -> Vec<u8> {
    let list = attributes().nested(LIST_ELEMENT, &key(of));
    let question = attributes()
        .text(ELEMENTS_TABLE, table)
        .text(ELEMENTS_SET, set)
        .nested(ELEMENTS, &list);
    message(Message::GetElements, 0, 1, family, &question)
}

fn key(bytes: &[u8]) -> Attributes {
    attributes().nested(ELEMENT_KEY, &attributes().push(DATA_VALUE, bytes))
}

fn chain_attributes(table: &str, chain: &Chain) -> Attributes {
    let named = attributes()
        .text(CHAIN_TABLE, table)
        .text(CHAIN_NAME, &chain.name);
    let Some(base) = &chain.base else {
        return named;
    };
    let hook = attributes()
        .u32(HOOK_NUMBER, base.hook as u32)
        .push(HOOK_PRIORITY, &base.priority.to_be_bytes());
    named
        .nested(CHAIN_HOOK, &hook)
        .u32(CHAIN_POLICY, NF_ACCEPT)
        .text(CHAIN_TYPE, base.kind.name())
}

fn set_attributes(table: &str, set: &Set) -> Attributes {
    let (key_type, key_length) = set.key.number_and_length();
    let flags = match set.kind {
        SetKind::Keys => 0,
        SetKind::Ranges => SET_INTERVAL,
        SetKind::Verdicts => SET_MAP,
        SetKind::Dynamic { .. } => SET_EVAL | SET_TIMEOUTS,
    };
    let encoded = attributes()
        .text(SET_TABLE, table)
        .text(SET_NAME, set.name)
        .u32(SET_FLAGS, flags)
        .u32(SET_KEY_TYPE, key_type)
        .u32(SET_KEY_LENGTH, key_length)
        .push(SET_USERDATA, &key_order(set.key));
    match set.kind {
        SetKind::Keys | SetKind::Ranges => encoded,
        SetKind::Verdicts => encoded.u32(SET_DATA_TYPE, DATA_TYPE_VERDICT),
        SetKind::Dynamic { timeout_ms, size } => encoded
            .nested(
                SET_DESCRIPTION,
                &attributes().u32(SET_DESCRIPTION_SIZE, size),
            )
            .u64(SET_TIMEOUT, timeout_ms),
    }
}

/// In which order the bytes of keys are, without which nft shows names of interfaces as nothing
/// (`NFTNL_UDATA_SET_KEYBYTEORDER`, with nft's own `enum byteorder`).
fn key_order(key: Key) -> [u8; 6] {
    const HOST: u32 = 1;
    const BIG: u32 = 2;
    let order = match key {
        Key::Interface => HOST,
        Key::Ipv4 | Key::Ethernet | Key::Bytes8 => BIG,
    };
    let [a, b, c, d] = order.to_ne_bytes();
    [0, 4, a, b, c, d]
}

/// What marks a rule as ours and as of this very table: its comment, as nft shows it.
pub(crate) fn userdata(rule: &Rule, generation: u64) -> Vec<u8> {
    let mut comment = format!("{} [{generation:016x}]", rule.purpose).into_bytes();
    comment.push(0);
    let mut bytes = vec![
        USERDATA_COMMENT,
        u8::try_from(comment.len()).unwrap_or(u8::MAX),
    ];
    bytes.extend(comment);
    bytes
}

/// The purpose in a rule's comment, without the hash.
pub(crate) fn purpose(userdata: &[u8]) -> Option<&str> {
    Some(comment(userdata)?.0)
}

/// The hash in a rule's comment.
pub(crate) fn stamp(userdata: &[u8]) -> Option<u64> {
    u64::from_str_radix(comment(userdata)?.1.strip_suffix(']')?, 16).ok()
}

fn comment(userdata: &[u8]) -> Option<(&str, &str)> {
    let comment = userdata.strip_prefix(&[USERDATA_COMMENT])?.get(1..)?;
    let comment = std::str::from_utf8(comment.strip_suffix(&[0])?).ok()?;
    comment.rsplit_once(" [")
}

/// A hash of all that the table does (FNV-1a), so that rules written for another configuration are recognised. The
/// elements of sets are not part of it: they are compared by themselves.
pub(crate) fn generation(table: &Table) -> u64 {
    let mut hash = Hash::default();
    for set in &table.sets {
        hash.feed(&set_attributes(table.name, set).0);
    }
    for chain in &table.chains {
        hash.feed_chain(table.name, chain);
    }
    hash.0
}

/// As [`generation`], of some chains of a table.
pub(crate) fn chains_generation(table: &str, chains: &[Chain]) -> u64 {
    let mut hash = Hash::default();
    for chain in chains {
        hash.feed_chain(table, chain);
    }
    hash.0
}

struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn feed_chain(&mut self, table: &str, chain: &Chain) {
        self.feed(&chain_attributes(table, chain).0);
        for rule in &chain.rules {
            self.feed(&expressions(rule).0);
            self.feed(rule.purpose.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
