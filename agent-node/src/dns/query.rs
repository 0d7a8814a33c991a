//! Reads what a pod asks (RFC 1035 §4.1, RFC 6891): bytes in, a [`Query`] or the reason for none out.
//!
//! Doesn't decide whether the pod may ask it.

use super::wire::{self, CLASS_IN, HEADER_LEN, Header, RecordAt, WireError, flag, rtype};

/// The smallest UDP reply every client takes, in bytes (RFC 1035 §2.3.4); smaller sizes in an
/// EDNS record mean this one (RFC 6891 §6.2.3).
pub(crate) const MIN_UDP_PAYLOAD: u16 = 512;

/// A query that can be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Query {
    /// The query's ID.
    pub(crate) id: u16,
    /// Recursion desired.
    pub(crate) rd: bool,
    /// The client understands the AD bit (RFC 6840 §5.7).
    pub(crate) ad: bool,
    /// Checking disabled.
    pub(crate) cd: bool,
    /// The name as it was sent, uncompressed; its case is given back as it came (0x20).
    pub(crate) name: Vec<u8>,
    /// The question's type.
    pub(crate) qtype: u16,
    /// The question's class.
    pub(crate) qclass: u16,
    /// What the client said by EDNS.
    pub(crate) edns: Option<ClientEdns>,
}

/// What a client's OPT record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientEdns {
    /// The largest UDP reply the client takes, in bytes; at least 512.
    pub(crate) payload: u16,
    /// The client wants DNSSEC records (RFC 3225).
    pub(crate) dnssec_ok: bool,
}

/// A message that gets an error or silence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unanswerable {
    /// Too short to be a message, or a response: answering would make loops.
    Drop,
    /// Malformed: FORMERR with this ID.
    FormErr {
        /// The message's ID.
        id: u16,
        /// The message's flags.
        flags: u16,
    },
    /// An operation other than QUERY: NOTIMP.
    NotImp {
        /// The message's ID.
        id: u16,
        /// The message's flags.
        flags: u16,
    },
    /// An EDNS version that isn't 0: BADVERS.
    BadVers(Box<Query>),
    /// A class other than IN, or a type that is no question to a forwarder (zone transfers): REFUSED.
    Refused(Box<Query>),
}

impl Query {
    /// The name in lower case: how the proxy compares, caches and asks.
    pub(crate) fn lower_name(&self) -> Vec<u8> {
        // Length bytes are at most 63 and not letters.
        self.name.to_ascii_lowercase()
    }

    /// Whether the client wants DNSSEC records.
    pub(crate) fn dnssec_ok(&self) -> bool {
        self.edns.is_some_and(|edns| edns.dnssec_ok)
    }

    /// Reads one message from a pod.
    ///
    /// # Errors
    /// [`Unanswerable`], which says what the pod gets instead of an answer.
    pub(crate) fn parse(message: &[u8]) -> Result<Query, Unanswerable> {
        let Ok(header) = Header::read(message) else {
            return Err(Unanswerable::Drop);
        };
        let Header { id, flags, .. } = header;
        if flags & flag::QR != 0 {
            return Err(Unanswerable::Drop);
        }
        if flags & flag::OPCODE != 0 {
            return Err(Unanswerable::NotImp { id, flags });
        }
        let (query, version) =
            read_body(message, &header).map_err(|_| Unanswerable::FormErr { id, flags })?;
        if version != 0 {
            return Err(Unanswerable::BadVers(Box::new(query)));
        }
        if query.qclass != CLASS_IN || !is_forwardable(query.qtype) {
            return Err(Unanswerable::Refused(Box::new(query)));
        }
        Ok(query)
    }
}

/// The query and its EDNS version.
fn read_body(message: &[u8], header: &Header) -> Result<(Query, u8), WireError> {
    if header.questions != 1 || header.answers != 0 || header.authorities != 0 {
        return Err(WireError::Short);
    }
    let name_end = uncompressed_name_end(message)?;
    let name = message.get(HEADER_LEN..name_end).ok_or(WireError::Short)?;
    let mut query = Query {
        id: header.id,
        rd: header.flags & flag::RD != 0,
        ad: header.flags & flag::AD != 0,
        cd: header.flags & flag::CD != 0,
        name: name.to_vec(),
        qtype: wire::u16_at(message, name_end)?,
        qclass: wire::u16_at(message, name_end + 2)?,
        edns: None,
    };
    let mut version = 0;
    let mut at = name_end + 4;
    for _ in 0..header.additionals {
        let record = RecordAt::read(message, at)?;
        at = record.rdata.end;
        if record.rtype != rtype::OPT {
            continue;
        }
        let rooted = message.get(record.owner) == Some(&0);
        if query.edns.is_some() || !rooted || !options_are_whole(message, &record) {
            return Err(WireError::Edns);
        }
        let [_, edns_version, high, _] = record.ttl.to_be_bytes();
        version = edns_version;
        query.edns = Some(ClientEdns {
            payload: record.class.max(MIN_UDP_PAYLOAD),
            dnssec_ok: high & 0x80 != 0,
        });
    }
    Ok((query, version))
}

/// Where the question's name ends. There is nothing before it that a pointer could point to.
fn uncompressed_name_end(message: &[u8]) -> Result<usize, WireError> {
    let (name, end) = wire::read_name(message, HEADER_LEN)?;
    if end != HEADER_LEN + name.len() {
        return Err(WireError::Name);
    }
    Ok(end)
}

/// Whether the options of an OPT record fill its data exactly.
fn options_are_whole(message: &[u8], record: &RecordAt) -> bool {
    let mut at = record.rdata.start;
    while at < record.rdata.end {
        match wire::u16_at(message, at + 2) {
            Ok(length) => at += 4 + usize::from(length),
            Err(_) => return false,
        }
    }
    at == record.rdata.end
}

/// Whether a question of this type makes sense to a forwarder. ANY does; transfers of whole
/// zones, and types that only exist beside a question, don't.
fn is_forwardable(qtype: u16) -> bool {
    !matches!(
        qtype,
        0 | rtype::OPT
            | rtype::TKEY
            | rtype::TSIG
            | rtype::IXFR
            | rtype::AXFR
            | rtype::MAILB
            | rtype::MAILA
    )
}

#[cfg(test)]
mod tests;
