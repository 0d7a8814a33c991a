//! nftables tables, chains of iptables-nft, and the ipset: asked for by netlink, so that no tool is needed to see them.

use std::{io, path::Path, thread, time::Duration};

use super::{CHAIN_PREFIX, IPSETS, TABLE};
use crate::{
    error::NetError,
    nft::{
        encode::{Attributes, NLM_F_ACK, NLM_F_DUMP, framed},
        socket::{NetfilterSocket, attribute},
    },
};

/// `NFPROTO_…` with the names that nft(8) has for them.
const FAMILIES: [(u8, &str); 5] = [
    (1, "inet"),
    (2, "ip"),
    (5, "netdev"),
    (7, "bridge"),
    (10, "ip6"),
];
/// The families that iptables and ip6tables live in.
const IPTABLES_FAMILIES: [u8; 2] = [2, 10];

const NFTABLES: u16 = 10 << 8;
const GET_TABLE: u16 = NFTABLES | 1;
const DELETE_TABLE: u16 = NFTABLES | 2;
const GET_CHAIN: u16 = NFTABLES | 4;
const TABLE_NAME: u16 = 1;
const CHAIN_NAME: u16 = 3;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const BATCH_OF_NFTABLES: u16 = 10;

const IPSET_SUBSYSTEM: u16 = 6 << 8;
const IPSET_DESTROY: u16 = IPSET_SUBSYSTEM | 3;
const IPSET_HEADER: u16 = IPSET_SUBSYSTEM | 12;
const IPSET_PROTOCOL: u16 = 1;
const IPSET_NAME: u16 = 2;
/// What every kernel of the last ten years speaks.
const IPSET_VERSION: u8 = 6;
/// A rule that nftables removed lets go of its set a little later.
const PATIENCE: [u64; 5] = [0, 20, 50, 100, 300];

pub(super) fn find_tables() -> Result<Vec<(String, String)>, NetError> {
    let mut found = Vec::new();
    for (family, name) in FAMILIES {
        if has_table(family)? {
            found.push((
                format!("nftables table {name} {TABLE}"),
                format!("nft delete table {name} {TABLE}"),
            ));
        }
    }
    Ok(found)
}

pub(super) fn remove_tables() -> Result<(), NetError> {
    let mut errors = Vec::new();
    for (family, name) in FAMILIES {
        match has_table(family) {
            Ok(true) => errors.extend(remove_table(family, name).err()),
            Ok(false) => {}
            Err(error) => errors.push(error),
        }
    }
    NetError::of_all(errors)
}

fn has_table(family: u8) -> Result<bool, NetError> {
    let question = framed(GET_TABLE, 0, 1, family, 0, named(TABLE_NAME, TABLE).bytes());
    absent_as_none(open()?.one(&question))
        .map(|found| found.is_some())
        .map_err(|source| NetError::refused("list nftables tables", source))
}

fn remove_table(family: u8, name: &str) -> Result<(), NetError> {
    let mut batch = framed(BATCH_BEGIN, 0, 0, 0, BATCH_OF_NFTABLES, &[]);
    batch.extend(framed(
        DELETE_TABLE,
        NLM_F_ACK,
        1,
        family,
        0,
        named(TABLE_NAME, TABLE).bytes(),
    ));
    batch.extend(framed(BATCH_END, 0, 2, 0, BATCH_OF_NFTABLES, &[]));
    absent_as_none(open()?.acknowledged(&batch, 1))
        .map(|_| ())
        .map_err(|source| {
            NetError::refused(format!("remove nftables table {name} {TABLE}"), source)
        })
}

/// The names of our chains that iptables-nft made.
pub(super) fn iptables_chains() -> Result<Vec<String>, NetError> {
    let mut names = Vec::new();
    for family in IPTABLES_FAMILIES {
        let question = framed(GET_CHAIN, NLM_F_DUMP, 1, family, 0, &[]);
        let socket = open()?;
        let listed = socket.each(&question, |chain| {
            names.extend(
                attribute(chain, CHAIN_NAME)
                    .and_then(|name| std::str::from_utf8(name).ok())
                    .map(|name| name.trim_end_matches('\0'))
                    .filter(|name| name.starts_with(CHAIN_PREFIX))
                    .map(str::to_owned),
            );
        });
        absent_as_none(listed)
            .map_err(|source| NetError::refused("list nftables chains", source))?;
    }
    Ok(names)
}

pub(super) fn find_ipsets() -> Result<Vec<(String, String)>, NetError> {
    let mut found = Vec::new();
    for name in IPSETS {
        if has_ipset(name)? {
            found.push((format!("ipset {name}"), format!("ipset destroy {name}")));
        }
    }
    Ok(found)
}

pub(super) fn remove_ipsets() -> Result<(), NetError> {
    let errors = IPSETS
        .into_iter()
        .filter_map(|name| remove_ipset(name).err());
    NetError::of_all(errors.collect())
}

fn has_ipset(name: &str) -> Result<bool, NetError> {
    // asking a kernel that has not loaded the module would load it
    if !Path::new("/sys/module/ip_set").exists() {
        return Ok(false);
    }
    let question = framed(IPSET_HEADER, 0, 1, 2, 0, set(name).bytes());
    absent_as_none(open()?.one(&question))
        .map(|found| found.is_some())
        .map_err(|source| NetError::refused(format!("look up ipset {name}"), source))
}

fn remove_ipset(name: &str) -> Result<(), NetError> {
    let mut outcome = Ok(());
    for wait in PATIENCE {
        if !has_ipset(name)? {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(wait));
        let request = framed(IPSET_DESTROY, NLM_F_ACK, 1, 2, 0, set(name).bytes());
        outcome = open()?
            .acknowledged(&request, 1)
            .map_err(|source| NetError::refused(format!("remove ipset {name}"), source));
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn set(name: &str) -> Attributes {
    Attributes::default()
        .push(IPSET_PROTOCOL, &[IPSET_VERSION])
        .push(IPSET_NAME, &[name.as_bytes(), &[0]].concat())
}

fn named(kind: u16, name: &str) -> Attributes {
    Attributes::default().push(kind, &[name.as_bytes(), &[0]].concat())
}

fn open() -> Result<NetfilterSocket, NetError> {
    NetfilterSocket::open().map_err(|source| NetError::refused("open a netfilter socket", source))
}

/// A kernel without the family or the subsystem has nothing of ours in it.
fn absent_as_none<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(
                    libc::ENOENT
                        | libc::EAFNOSUPPORT
                        | libc::EOPNOTSUPP
                        | libc::EPROTONOSUPPORT
                        | libc::EINVAL
                )
            ) =>
        {
            Ok(None)
        }
        other => other.map(Some),
    }
}
