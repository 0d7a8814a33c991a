//! The node's tracked connections, by ctnetlink: those of an address end before it can become another pod's.
//!
//! A Service's connections are tracked and masqueraded. One that outlives its pod would bring the peer's answers to
//! whoever has the address next.
//!
//! The table has no index by address, so each call costs the kernel one walk over it. Kernels from 5.8 on copy only
//! the address's own entries to us; older ones pass over the filter and send all, so every answer is compared here.

use std::{io, net::Ipv4Addr};

use crate::{
    error::NetError,
    nft::{
        encode::{Attributes, NLM_F_ACK, NLM_F_DUMP, framed},
        socket::{NetfilterSocket, attribute},
    },
};

/// `NFNL_SUBSYS_CTNETLINK`.
const SUBSYSTEM: u16 = 1;
/// `IPCTNL_MSG_CT_GET`.
const GET: u16 = 1;
/// `IPCTNL_MSG_CT_DELETE`.
const DELETE: u16 = 2;
const FAMILY_IP: u8 = 2;

// `enum ctattr_type` and what lies below it
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
const FILTER_ORIGINAL_FLAGS: u16 = 1;
const TUPLE_IP: u16 = 1;
const IP_V4_SOURCE: u16 = 1;
const IP_V4_DESTINATION: u16 = 2;
/// `CTA_FILTER_F_CTA_IP_SRC` of the kernel's `nf_internals.h`.
const FILTER_BY_SOURCE: u32 = 1;

/// Ends every tracked connection that `source` began, in the calling thread's network namespace, and answers how many
/// there were. A kernel that tracks nothing has none.
///
/// # Errors
/// `Refused` when the kernel says no; then connections may be left.
pub fn forget(source: Ipv4Addr) -> Result<usize, NetError> {
    end(source)
        .map_err(|error| NetError::refused(format!("end the connections of {source}"), error))
}

/// Ends what is tracked between a pod and the proxy, and nothing else of the pod: connections that were redirected to
/// the gateway, and what the proxy's own packets looked like to a kernel that had not seen the pod's. Both ends then
/// learn that the connection is over; a Service's connections and kubelet's go on.
///
/// # Errors
/// As [`forget`].
pub fn forget_proxied(pod: Ipv4Addr, gateway: Ipv4Addr) -> Result<usize, NetError> {
    let proxied = |socket: &NetfilterSocket| {
        let mut found = Vec::new();
        socket.each(&everything(), |entry| {
            found.extend(Connection::proxied(entry, pod, gateway));
        })?;
        Ok(found)
    };
    NetfilterSocket::open()
        .and_then(|socket| {
            let found = absent_as_none(proxied(&socket))?.unwrap_or_default();
            end_all(&socket, &found)
        })
        .map_err(|error| NetError::refused(format!("end the proxied connections of {pod}"), error))
}

fn end(source: Ipv4Addr) -> io::Result<usize> {
    let Some(socket) = absent_as_none(NetfilterSocket::open())? else {
        return Ok(0);
    };
    let mut found = absent_as_none(begun_by(&socket, &filtered(source), source))?;
    if found.is_none() {
        // never taken for "nothing is tracked" because a kernel does not like the filter
        found = absent_as_none(begun_by(&socket, &everything(), source))?;
    }
    end_all(&socket, &found.unwrap_or_default())
}

fn end_all(socket: &NetfilterSocket, connections: &[Connection]) -> io::Result<usize> {
    let mut ended = 0;
    for connection in connections {
        match socket.acknowledged(&connection.delete(), 1) {
            Ok(()) => ended += 1,
            // it ended by itself meanwhile
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ended)
}

fn begun_by(
    socket: &NetfilterSocket,
    question: &[u8],
    source: Ipv4Addr,
) -> io::Result<Vec<Connection>> {
    let mut found = Vec::new();
    socket.each(question, |entry| {
        found.extend(Connection::begun_by(entry, source));
    })?;
    Ok(found)
}

/// What the kernel says of a subsystem that it does not have is not an error here.
fn absent_as_none<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Err(error) if is_absent(&error) => Ok(None),
        other => other.map(Some),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::ENOENT | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT)
    )
}

/// What names one tracked connection, in the kernel's own bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Connection {
    tuple: Vec<u8>,
    /// So that another connection that took the same addresses and ports meanwhile is not ended.
    id: Option<Vec<u8>>,
    zone: Option<Vec<u8>>,
}

impl Connection {
    /// Reads an entry; `None` when somebody else began it.
    fn begun_by(entry: &[u8], source: Ipv4Addr) -> Option<Self> {
        let tuple = attribute(entry, TUPLE_ORIGINAL)?;
        let from = attribute(attribute(tuple, TUPLE_IP)?, IP_V4_SOURCE)?;
        (from == source.octets()).then(|| Self {
            tuple: tuple.to_vec(),
            id: attribute(entry, ID).map(<[u8]>::to_vec),
            zone: attribute(entry, ZONE).map(<[u8]>::to_vec),
        })
    }

    /// Reads an entry; `None` when it is not one between the pod and the proxy.
    fn proxied(entry: &[u8], pod: Ipv4Addr, gateway: Ipv4Addr) -> Option<Self> {
        let address = |tuple: u16, kind: u16| {
            let addresses = attribute(attribute(entry, tuple)?, TUPLE_IP)?;
            let octets: [u8; 4] = attribute(addresses, kind)?.try_into().ok()?;
            Some(Ipv4Addr::from(octets))
        };
        let from = address(TUPLE_ORIGINAL, IP_V4_SOURCE)?;
        let to = address(TUPLE_ORIGINAL, IP_V4_DESTINATION)?;
        let redirected = from == pod && address(TUPLE_REPLY, IP_V4_SOURCE)? == gateway;
        let in_anothers_name = to == pod && from != gateway;
        if !redirected && !in_anothers_name {
            return None;
        }
        Self::begun_by(entry, from)
    }

    fn delete(&self) -> Vec<u8> {
        let mut names = Attributes::default().nested_bytes(TUPLE_ORIGINAL, &self.tuple);
        for (kind, value) in [(ID, &self.id), (ZONE, &self.zone)] {
            if let Some(value) = value {
                names = names.push(kind, value);
            }
        }
        request(DELETE, NLM_F_ACK, &names)
    }
}

fn everything() -> Vec<u8> {
    request(GET, NLM_F_DUMP, &Attributes::default())
}

fn filtered(source: Ipv4Addr) -> Vec<u8> {
    let addresses = Attributes::default().push(IP_V4_SOURCE, &source.octets());
    let tuple = Attributes::default().nested(TUPLE_IP, &addresses);
    // the one number of ctnetlink that is not big-endian
    let flags = Attributes::default().push(FILTER_ORIGINAL_FLAGS, &FILTER_BY_SOURCE.to_ne_bytes());
    let filter = Attributes::default()
        .nested(TUPLE_ORIGINAL, &tuple)
        .nested(FILTER, &flags);
    request(GET, NLM_F_DUMP, &filter)
}

fn request(kind: u16, flags: u16, attributes: &Attributes) -> Vec<u8> {
    framed(
        (SUBSYSTEM << 8) | kind,
        flags,
        1,
        FAMILY_IP,
        0,
        attributes.bytes(),
    )
}

#[cfg(test)]
mod tests;
