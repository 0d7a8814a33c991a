//! What the kernel has of a table.

use std::{collections::BTreeSet, io};

use super::{
    encode::{self, Message},
    socket::{NetfilterSocket, attribute, attributes},
    text,
    value::{Element, Family, Hook},
};

/// A rule as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundRule {
    /// The chain it is in.
    pub(crate) chain: String,
    /// Its comment, as bytes.
    pub(crate) userdata: Vec<u8>,
    /// Packets and bytes of its first counter.
    pub(crate) counter: Option<(u64, u64)>,
}

/// The rules of a chain, or of all chains of a table.
pub(crate) fn rules(
    socket: &NetfilterSocket,
    family: Family,
    table: &str,
    chain: Option<&str>,
) -> io::Result<Vec<FoundRule>> {
    let mut names = vec![(encode::RULE_TABLE, table)];
    names.extend(chain.map(|chain| (encode::RULE_CHAIN, chain)));
    let question = encode::get(Message::GetRule, true, family, &names);
    socket.all(&question, |rule| {
        let in_table = text(rule, encode::RULE_TABLE)?;
        let in_chain = text(rule, encode::RULE_CHAIN)?;
        // kernels may pass over the filter
        (in_table == table && chain.is_none_or(|chain| chain == in_chain)).then(|| FoundRule {
            chain: in_chain.to_owned(),
            userdata: attribute(rule, encode::RULE_USERDATA)
                .unwrap_or_default()
                .to_vec(),
            counter: counter(rule),
        })
    })
}

fn counter(rule: &[u8]) -> Option<(u64, u64)> {
    let expressions = attribute(rule, encode::RULE_EXPRESSIONS)?;
    let counter = attributes(expressions)
        .find(|(_, expression)| text(expression, encode::EXPR_NAME) == Some("counter"))?
        .1;
    let data = attribute(counter, encode::EXPR_DATA)?;
    let number = |kind| {
        attribute(data, kind)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u64::from_be_bytes)
    };
    Some((
        number(encode::COUNTER_PACKETS)?,
        number(encode::COUNTER_BYTES)?,
    ))
}

/// The elements of a set, or the keys of a map. Fails with ENOENT when there is no such set.
pub(crate) fn elements(
    socket: &NetfilterSocket,
    family: Family,
    table: &str,
    set: &str,
) -> io::Result<BTreeSet<Element>> {
    let names = [(encode::ELEMENTS_TABLE, table), (encode::ELEMENTS_SET, set)];
    let question = encode::get(Message::GetElements, true, family, &names);
    let parts = socket.all(&question, |part| {
        Some(
            attributes(attribute(part, encode::ELEMENTS)?)
                .filter_map(|(_, element)| Some(mapping(element)?.0))
                .collect::<Vec<_>>(),
        )
    })?;
    Ok(parts.into_iter().flatten().collect())
}

fn mapping(element: &[u8]) -> Option<(Element, Option<String>)> {
    let key = attribute(attribute(element, encode::ELEMENT_KEY)?, encode::DATA_VALUE)?;
    let end = attribute(element, encode::ELEMENT_FLAGS)
        .and_then(|flags| flags.try_into().ok())
        .is_some_and(|flags| u32::from_be_bytes(flags) & encode::ELEMENT_ENDS_RANGE != 0);
    let chain = attribute(element, encode::ELEMENT_DATA)
        .and_then(|data| attribute(data, encode::DATA_VERDICT))
        .and_then(|verdict| text(verdict, encode::VERDICT_CHAIN))
        .map(str::to_owned);
    Some((
        Element {
            key: key.to_vec(),
            end,
        },
        chain,
    ))
}

/// The chain that a map of verdicts leads to from a key. Fails with ENOENT when it leads nowhere.
pub(crate) fn leads_to(
    socket: &NetfilterSocket,
    family: Family,
    table: &str,
    map: &str,
    key: &[u8],
) -> io::Result<String> {
    let answer = socket.one(&encode::get_element(family, table, map, key))?;
    attribute(&answer, encode::ELEMENTS)
        .and_then(|list| attributes(list).next())
        .and_then(|(_, element)| mapping(element)?.1)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}

/// The number that the kernel counts up with every change of any table.
pub(crate) fn generation(socket: &NetfilterSocket) -> io::Result<u32> {
    /// `NFTA_GEN_ID`.
    const ID: u16 = 1;
    let question = encode::get(Message::GetGeneration, false, Family::Ip, &[]);
    attribute(&socket.one(&question)?, ID)
        .and_then(|id| id.try_into().ok())
        .map(u32::from_be_bytes)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "nftables has no generation"))
}

/// Whether a chain of somebody else's translates destinations before routing, no later than iptables does. iptables'
/// own chain, where it is one of nftables, is not meant.
pub(crate) fn others_translate(socket: &NetfilterSocket, ours: &str) -> io::Result<bool> {
    /// `NF_IP_PRI_NAT_DST`.
    const DESTINATION_NAT: i32 = -100;
    for family in [Family::Ip, Family::Inet] {
        let question = encode::get(Message::GetChain, true, family, &[]);
        let translating = socket.all(&question, |chain| {
            let table = text(chain, encode::CHAIN_TABLE)?;
            let iptables = family == Family::Ip && table == "nat";
            let hook = attribute(chain, encode::CHAIN_HOOK)?;
            let number = u32::from_be_bytes(attribute(hook, encode::HOOK_NUMBER)?.try_into().ok()?);
            let priority =
                i32::from_be_bytes(attribute(hook, encode::HOOK_PRIORITY)?.try_into().ok()?);
            (!iptables
                && table != ours
                && text(chain, encode::CHAIN_TYPE) == Some("nat")
                && number == Hook::Prerouting as u32
                && priority <= DESTINATION_NAT)
                .then_some(())
        })?;
        if !translating.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}
