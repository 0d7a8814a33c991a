//! Our nftables tables, written and compared by netlink.
//!
//! - [`value`]: tables, sets, chains and rules as plain values; [`ruleset`] makes the table `ip agent_network`.
//! - `encode`: values to bytes; `socket`: bytes to the kernel; `read`: what the kernel has.
//!
//! A table is replaced as a whole in one transaction, so at no instant is there half of it. Each rule's comment
//! carries a hash of the table, so that looking is enough to know that nothing has to be written.

use std::io;

pub(crate) mod encode;
pub(crate) mod read;
pub mod ruleset;
pub(crate) mod socket;
pub mod value;

use self::{
    encode::Message,
    socket::{NetfilterSocket, attribute},
    value::{Chain, Family, SetKind, Table},
};
use crate::error::{NetError, some_of};

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
            format!("write {}", title(table.family, table.name)),
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
            title(table.family, table.name),
            found,
            "ours",
        )),
    }
}

/// Removes the table; fine when there is none.
///
/// # Errors
/// `Refused` when the kernel says no.
pub fn remove(family: Family, name: &'static str) -> Result<(), NetError> {
    match open()?.commit(&encode::delete(family, name)) {
        Err(error) if !is_absent(&error) => Err(NetError::refused(
            format!("remove {}", title(family, name)),
            error,
        )),
        _ => Ok(()),
    }
}

/// A table for a message.
pub(crate) fn title(family: Family, name: &str) -> String {
    format!("nftables table {} {name}", family.name())
}

/// Whether a chain of another table than `ours` translates destinations before routing, no later than iptables does.
///
/// # Errors
/// `Refused` when the kernel cannot be asked.
pub fn others_translate(ours: &str) -> Result<bool, NetError> {
    read::others_translate(&open()?, ours)
        .map_err(|source| NetError::refused("list the chains of nftables", explain(source)))
}

/// Whether the calling thread's network namespace has a table of the family `ip`, or a chain in it; anybody's.
///
/// # Errors
/// `Refused` when the kernel cannot be asked.
pub fn exists(table: &str, chain: Option<&str>) -> Result<bool, NetError> {
    let question = match chain {
        None => encode::get(
            Message::GetTable,
            false,
            Family::Ip,
            &[(encode::TABLE_NAME, table)],
        ),
        Some(chain) => encode::get(
            Message::GetChain,
            false,
            Family::Ip,
            &[(encode::CHAIN_TABLE, table), (encode::CHAIN_NAME, chain)],
        ),
    };
    absent_as_none(open()?.one(&question))
        .map(|found| found.is_some())
        .map_err(|source| {
            NetError::refused(
                format!("look for {}", title(Family::Ip, table)),
                explain(source),
            )
        })
}

pub(crate) fn open() -> Result<NetfilterSocket, NetError> {
    NetfilterSocket::open().map_err(|source| NetError::refused("open a netfilter socket", source))
}

/// What is not as it should be, or `None`. Everything is asked for by name, so that the cost does not grow with what
/// others have in nftables, nor with chains of the table that are not in `table`.
pub(crate) fn difference(
    socket: &NetfilterSocket,
    table: &Table,
) -> Result<Option<String>, NetError> {
    let (mut differences, there) = structure_differences(socket, table)?;
    let settings = table
        .sets
        .iter()
        .filter(|set| matches!(set.kind, SetKind::Keys | SetKind::Ranges))
        // of one that is not there it is told already
        .filter(|set| there.contains(&set.name));
    for set in settings {
        let found =
            read::elements(socket, table.family, table.name, set.name).map_err(asking(table))?;
        if found != set.elements.iter().cloned().collect() {
            differences.push(format!("with other elements in set {}", set.name));
        }
    }
    Ok(named(&differences))
}

/// As [`difference`], without the elements of sets.
pub(crate) fn structure_difference(
    socket: &NetfilterSocket,
    table: &Table,
) -> Result<Option<String>, NetError> {
    Ok(named(&structure_differences(socket, table)?.0))
}

fn named(differences: &[String]) -> Option<String> {
    (!differences.is_empty()).then(|| some_of(differences, ", "))
}

/// Everything that is not as it should be, and the sets that are there.
fn structure_differences(
    socket: &NetfilterSocket,
    table: &Table,
) -> Result<(Vec<String>, Vec<&'static str>), NetError> {
    let only = |what: &str| Ok((vec![what.to_owned()], Vec::new()));
    let question = encode::get(
        Message::GetTable,
        false,
        table.family,
        &[(encode::TABLE_NAME, table.name)],
    );
    let Some(found) = absent_as_none(socket.one(&question)).map_err(asking(table))? else {
        return only("missing");
    };
    if attribute(&found, encode::TABLE_FLAGS).is_some_and(|flags| flags != [0; 4]) {
        return only("switched off (flags set)");
    }
    let (mut differences, mut there) = (Vec::new(), Vec::new());
    for set in &table.sets {
        let question = encode::get(
            Message::GetSet,
            false,
            table.family,
            &[
                (encode::SET_TABLE, table.name),
                (encode::SET_NAME, set.name),
            ],
        );
        match absent_as_none(socket.one(&question)).map_err(asking(table))? {
            Some(_) => there.push(set.name),
            None => differences.push(format!("without set {}", set.name)),
        }
    }
    let generation = encode::generation(table);
    for chain in &table.chains {
        let found = chain_difference(socket, table.family, table.name, chain, generation)
            .map_err(asking(table))?;
        differences.extend(found);
    }
    Ok((differences, there))
}

fn asking(table: &Table) -> impl Fn(io::Error) -> NetError + use<> {
    let title = title(table.family, table.name);
    move |source| NetError::refused(format!("read {title}"), explain(source))
}

/// As [`difference`], of one chain.
pub(crate) fn chain_difference(
    socket: &NetfilterSocket,
    family: Family,
    table: &str,
    chain: &Chain,
    generation: u64,
) -> io::Result<Option<String>> {
    let question = encode::get(
        Message::GetChain,
        false,
        family,
        &[
            (encode::CHAIN_TABLE, table),
            (encode::CHAIN_NAME, &chain.name),
        ],
    );
    let found = absent_as_none(socket.one(&question))?;
    if !found.is_some_and(|found| is_chain(&found, chain)) {
        return Ok(Some(format!(
            "without chain {} as it should be",
            chain.name
        )));
    }
    let found = read::rules(socket, family, table, Some(&chain.name))?;
    let wanted = chain
        .rules
        .iter()
        .map(|rule| encode::userdata(rule, generation));
    if !wanted.eq(found.iter().map(|rule| rule.userdata.as_slice())) {
        return Ok(Some(format!("with other rules in chain {}", chain.name)));
    }
    Ok(None)
}

fn is_chain(found: &[u8], chain: &Chain) -> bool {
    match (attribute(found, encode::CHAIN_HOOK), &chain.base) {
        (None, None) => true,
        (Some(hook), Some(base)) => {
            attribute(hook, encode::HOOK_NUMBER) == Some(&(base.hook as u32).to_be_bytes())
                && attribute(hook, encode::HOOK_PRIORITY) == Some(&base.priority.to_be_bytes())
                && text(found, encode::CHAIN_TYPE) == Some(base.kind.name())
        }
        _ => false,
    }
}

pub(crate) fn text(object: &[u8], kind: u16) -> Option<&str> {
    std::str::from_utf8(attribute(object, kind)?)
        .ok()
        .map(|text| text.trim_end_matches('\0'))
}

pub(crate) fn absent_as_none<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Err(error) if is_absent(&error) => Ok(None),
        other => other.map(Some),
    }
}

pub(crate) fn is_absent(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOENT)
}

/// Says what a kernel without nftables means by its error number.
pub(crate) fn explain(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => io::Error::new(
            error.kind(),
            format!(
                "{error}; the kernel needs nf_tables with nat, ct, masquerade and bridge support"
            ),
        ),
        _ => error,
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
