//! The nftables table `ip agent_network`, written and compared by netlink.
//!
//! - [`value`]: tables, chains and rules as plain values; [`ruleset`] makes ours.
//! - `encode`: values to bytes; `socket`: bytes to the kernel.
//!
//! The table is replaced as a whole in one transaction, so at no instant is there half of it. Each rule's comment
//! carries a hash of the table, so that looking is enough to know that nothing has to be written.

use std::io;

pub(crate) mod encode;
pub mod ruleset;
pub(crate) mod socket;
pub mod value;

use self::{
    encode::Message,
    socket::{NetfilterSocket, attribute},
    value::{Chain, Table},
};
use crate::error::NetError;

/// Makes the table be as given in the calling thread's network namespace.
///
/// # Errors
/// `Refused` when the kernel says no; then nothing has changed.
pub fn ensure(table: &Table) -> Result<(), NetError> {
    let socket = open()?;
    if difference(&socket, table)?.is_none() {
        return Ok(());
    }
    socket.commit(&encode::replace(table)).map_err(|source| {
        NetError::refused(
            format!("write nftables table ip {}", table.name),
            explain(source),
        )
    })
}

/// Compares the table with what the kernel has.
///
/// # Errors
/// `Differs`, naming the chain, or `Refused` when the kernel cannot be asked.
pub fn check(table: &Table) -> Result<(), NetError> {
    match difference(&open()?, table)? {
        None => Ok(()),
        Some(found) => Err(NetError::differs(
            format!("nftables table ip {}", table.name),
            found,
            "ours",
        )),
    }
}

/// Removes the table; fine when there is none.
///
/// # Errors
/// `Refused` when the kernel says no.
pub fn remove(name: &str) -> Result<(), NetError> {
    match open()?.commit(&encode::delete(name)) {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(NetError::refused(
            format!("remove nftables table ip {name}"),
            error,
        )),
        _ => Ok(()),
    }
}

fn open() -> Result<NetfilterSocket, NetError> {
    NetfilterSocket::open().map_err(|source| NetError::refused("open a netfilter socket", source))
}

/// What is not as it should be, or `None`. Chains are asked for by name and rules by table, so that the cost does not
/// grow with what others have in nftables.
fn difference(socket: &NetfilterSocket, table: &Table) -> Result<Option<String>, NetError> {
    let asking = |source| {
        NetError::refused(
            format!("read nftables table ip {}", table.name),
            explain(source),
        )
    };
    let question = encode::get(
        Message::GetTable,
        false,
        &[(encode::TABLE_NAME, table.name)],
    );
    let Some(found) = absent_as_none(socket.one(&question)).map_err(asking)? else {
        return Ok(Some("missing".into()));
    };
    if attribute(&found, encode::TABLE_FLAGS).is_some_and(|flags| flags != [0; 4]) {
        return Ok(Some("switched off (flags set)".into()));
    }
    for chain in &table.chains {
        let question = encode::get(
            Message::GetChain,
            false,
            &[
                (encode::CHAIN_TABLE, table.name),
                (encode::CHAIN_NAME, chain.name),
            ],
        );
        let found = absent_as_none(socket.one(&question)).map_err(asking)?;
        if !found.is_some_and(|found| is_chain(&found, chain)) {
            return Ok(Some(format!(
                "without chain {} as it should be",
                chain.name
            )));
        }
    }
    let question = encode::get(Message::GetRule, true, &[(encode::RULE_TABLE, table.name)]);
    let rules = socket.all(&question).map_err(asking)?;
    let generation = encode::generation(table);
    for chain in &table.chains {
        let wanted = chain
            .rules
            .iter()
            .map(|rule| encode::userdata(rule, generation));
        let found = rules
            .iter()
            .filter(|rule| {
                text(rule, encode::RULE_TABLE) == Some(table.name)
                    && text(rule, encode::RULE_CHAIN) == Some(chain.name)
            })
            .map(|rule| attribute(rule, encode::RULE_USERDATA).unwrap_or_default());
        if !wanted.eq(found) {
            return Ok(Some(format!("with other rules in chain {}", chain.name)));
        }
    }
    Ok(None)
}

fn is_chain(found: &[u8], chain: &Chain) -> bool {
    let Some(hook) = attribute(found, encode::CHAIN_HOOK) else {
        return false;
    };
    attribute(hook, encode::HOOK_NUMBER) == Some(&(chain.hook as u32).to_be_bytes())
        && attribute(hook, encode::HOOK_PRIORITY) == Some(&chain.priority.to_be_bytes())
        && text(found, encode::CHAIN_TYPE) == Some(chain.kind.name())
}

fn text(object: &[u8], kind: u16) -> Option<&str> {
    std::str::from_utf8(attribute(object, kind)?)
        .ok()
        .map(|text| text.trim_end_matches('\0'))
}

fn absent_as_none(answer: io::Result<Vec<u8>>) -> io::Result<Option<Vec<u8>>> {
    match answer {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        other => other.map(Some),
    }
}

/// Says what a kernel without nftables means by its error number.
fn explain(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => io::Error::new(
            error.kind(),
            format!("{error}; the kernel needs nf_tables with nat, ct and masquerade support"),
        ),
        _ => error,
    }
}

#[cfg(test)]
mod tests;
