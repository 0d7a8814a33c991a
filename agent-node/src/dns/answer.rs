//! An upstream's answer, checked once and then kept as the bytes that came (RFC 1035 §4, RFC 2308).
//!
//! The message is walked when it arrives: sections, TTL places and addresses are noted, the EDNS
//! record (which belongs to one hop) is cut off. What is given to a pod is a copy with ID, flags,
//! name and TTLs written over; see [`super::respond`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use thiserror::Error;

use super::wire::{self, CLASS_IN, HEADER_LEN, Header, RecordAt, WireError, flag, rtype};

/// An answer is asked for again after this time at the latest, whatever its TTL says: policies for
/// names are read by people who expect a moved name to follow within the hour.
const MAX_POSITIVE_TTL: Duration = Duration::from_secs(3600);
/// The same for "no such name" and "no such record". In a cluster a name that isn't there yet is
/// often there a moment later; RFC 2308 §5 allows any cap below three hours.
const MAX_NEGATIVE_TTL: Duration = Duration::from_secs(300);

/// Response codes that the proxy has to know (RFC 6895 §2.3).
pub(crate) mod rcode {
    /// The name exists.
    pub(crate) const NO_ERROR: u16 = 0;
    /// The server couldn't read the query.
    pub(crate) const FORM_ERR: u16 = 1;
    /// The server couldn't answer.
    pub(crate) const SERV_FAIL: u16 = 2;
    /// The name doesn't exist.
    pub(crate) const NX_DOMAIN: u16 = 3;
    /// The server doesn't do that.
    pub(crate) const NOT_IMP: u16 = 4;
    /// The server won't.
    pub(crate) const REFUSED: u16 = 5;
    /// EDNS version not known; its high bits are in the EDNS record.
    pub(crate) const BAD_VERS: u16 = 16;
}

/// The question that a message must answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    /// Wire name in lower case, uncompressed.
    pub(crate) name: Box<[u8]>,
    /// Question type.
    pub(crate) qtype: u16,
    /// DNSSEC records wanted.
    pub(crate) dnssec_ok: bool,
    /// The asker checks signatures itself.
    pub(crate) checking_disabled: bool,
}

/// Why a message is no answer to a question.
#[derive(Debug, Error, PartialEq, Eq, Clone, Copy)]
pub(crate) enum NotAnAnswer {
    /// Not ours: another ID or question, or no response at all. Such a message is ignored, so
    /// that a forged one can't end the wait for the right one.
    #[error("the message answers something else")]
    Foreign,
    /// Ours, and malformed.
    #[error("the answer is malformed")]
    Malformed(#[from] WireError),
}

/// A whole answer of an upstream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The message without its EDNS record.
    pub(crate) message: Box<[u8]>,
    /// The response code, low four bits; see [`rcode`].
    pub(crate) rcode: u16,
    /// The upstream checked the signatures.
    pub(crate) authentic: bool,
    /// How long it may be kept; zero: not at all.
    pub(crate) ttl: Duration,
    /// Each TTL's place and value, in order.
    pub(crate) ttls: Box<[(u32, u32)]>,
    /// Where each record of the answer section ends.
    pub(crate) answer_ends: Box<[u32]>,
    /// Where the authority section ends.
    pub(crate) authority_end: usize,
    /// The addresses in the answer section.
    pub(crate) addresses: Box<[IpAddr]>,
    /// The addresses in the other sections.
    pub(crate) glue: Box<[IpAddr]>,
    /// There is a record whose data may hold addresses or keys for the client (SVCB, HTTPS).
    pub(crate) has_service_binding: bool,
}

/// What an upstream said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// All of it.
    Whole(Answer),
    /// It didn't fit; to be asked again over TCP.
    Truncated,
}

impl Reply {
    /// Checks `message` against the query that was sent with `id` for `question`.
    ///
    /// # Errors
    /// [`NotAnAnswer::Foreign`] when the message must be ignored, [`NotAnAnswer::Malformed`] when
    /// the server can't be understood.
    pub(crate) fn parse(
        message: &[u8],
        id: u16,
        question: &Question,
    ) -> Result<Reply, NotAnAnswer> {
        let header = Header::read(message).map_err(|_| NotAnAnswer::Foreign)?;
        if header.id != id || header.flags & flag::QR == 0 || header.flags & flag::OPCODE != 0 {
            return Err(NotAnAnswer::Foreign);
        }
        let code = header.flags & flag::RCODE;
        if header.questions == 0 && code != rcode::NO_ERROR && code != rcode::NX_DOMAIN {
            // A server that couldn't read the query, or wouldn't, may leave the question out.
            return Ok(Reply::Whole(Answer::error(code)));
        }
        let body = question_end(message, &header, question)?;
        if header.flags & flag::TC != 0 {
            return Ok(Reply::Truncated);
        }
        Ok(Reply::Whole(Answer::read(
            message, &header, body, question,
        )?))
    }
}

/// Where the question ends, when it is the right one.
fn question_end(
    message: &[u8],
    header: &Header,
    question: &Question,
) -> Result<usize, NotAnAnswer> {
    let foreign = |_| NotAnAnswer::Foreign;
    let (name, end) = wire::read_name(message, HEADER_LEN).map_err(foreign)?;
    let qtype = wire::u16_at(message, end).map_err(foreign)?;
    let class = wire::u16_at(message, end + 2).map_err(foreign)?;
    let same = header.questions == 1
        && end == HEADER_LEN + name.len()
        && *name == *question.name
        && qtype == question.qtype
        && class == CLASS_IN;
    if same {
        Ok(end + 4)
    } else {
        Err(NotAnAnswer::Foreign)
    }
}

impl Answer {
    /// An answer without records, which isn't kept.
    fn error(code: u16) -> Answer {
        Answer {
            message: Box::default(),
            rcode: code,
            authentic: false,
            ttl: Duration::ZERO,
            ttls: Box::default(),
            answer_ends: Box::default(),
            authority_end: 0,
            addresses: Box::default(),
            glue: Box::default(),
            has_service_binding: false,
        }
    }

    /// Whether it says that the name has records, or that it has none: the answers a pod gets as
    /// they are. Any other code means that this server couldn't help.
    pub(crate) fn is_conclusive(&self) -> bool {
        matches!(self.rcode, rcode::NO_ERROR | rcode::NX_DOMAIN)
    }

    /// Reads an answer whose question has been checked.
    ///
    /// # Errors
    /// When the message is malformed.
    pub(crate) fn reread(message: &[u8], question: &Question) -> Result<Answer, NotAnAnswer> {
        let header = Header::read(message)?;
        let body = question_end(message, &header, question)?;
        Ok(Answer::read(message, &header, body, question)?)
    }

    fn read(
        message: &[u8],
        header: &Header,
        body: usize,
        question: &Question,
    ) -> Result<Answer, WireError> {
        let mut walk = Walk::new(question.qtype);
        let mut at = body;
        let mut answer_ends = Vec::with_capacity(usize::from(header.answers).min(32));
        for _ in 0..header.answers {
            at = walk.record(message, at, Section::Answer)?;
            answer_ends.push(at as u32);
        }
        for _ in 0..header.authorities {
            at = walk.record(message, at, Section::Authority)?;
        }
        let authority_end = at;
        let mut additionals = 0;
        for _ in 0..header.additionals {
            let record = RecordAt::read(message, at)?;
            if record.rtype == rtype::OPT {
                // What follows it, if anything, is a signature of the hop or can be done without.
                break;
            }
            at = walk.record(message, at, Section::Additional)?;
            additionals += 1;
        }
        let mut kept = message.get(..at).ok_or(WireError::Short)?.to_vec();
        wire::put_u16(&mut kept, 10, additionals);
        let code = header.flags & flag::RCODE;
        Ok(Answer {
            message: kept.into(),
            rcode: code,
            authentic: header.flags & flag::AD != 0,
            ttl: walk.keep_for(code),
            ttls: walk.ttls.into(),
            answer_ends: answer_ends.into(),
            authority_end,
            addresses: walk.addresses.into(),
            glue: walk.glue.into(),
            has_service_binding: walk.has_service_binding,
        })
    }

    /// Bytes that keeping it takes, roughly.
    pub(crate) fn weight(&self) -> usize {
        self.message.len()
            + self.ttls.len() * size_of::<(u32, u32)>()
            + self.answer_ends.len() * size_of::<u32>()
            + (self.addresses.len() + self.glue.len()) * size_of::<IpAddr>()
            + size_of::<Answer>()
    }

    /// The IPv4 addresses in the answer section.
    pub(crate) fn ipv4(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.addresses.iter().filter_map(|address| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Answer,
    Authority,
    Additional,
}

/// What is gathered on the way through a message.
struct Walk {
    qtype: u16,
    ttls: Vec<(u32, u32)>,
    addresses: Vec<IpAddr>,
    glue: Vec<IpAddr>,
    has_service_binding: bool,
    /// Some record answers the question itself, not only an alias of the name.
    answered: bool,
    lowest_answer_ttl: Option<u32>,
    /// RFC 2308 §5: the lower one of the SOA's own TTL and its MINIMUM field.
    negative_ttl: Option<u32>,
}

impl Walk {
    fn new(qtype: u16) -> Walk {
        Walk {
            qtype,
            ttls: Vec::with_capacity(8),
            addresses: Vec::new(),
            glue: Vec::new(),
            has_service_binding: false,
            answered: false,
            lowest_answer_ttl: None,
            negative_ttl: None,
        }
    }

    /// Takes in the record at `at`; says where the next one starts.
    fn record(&mut self, message: &[u8], at: usize, section: Section) -> Result<usize, WireError> {
        let record = RecordAt::read(message, at)?;
        if record.rtype == rtype::OPT {
            return Err(WireError::Edns);
        }
        // RFC 2181 §8: a TTL with its highest bit set is zero.
        let ttl = if record.ttl > i32::MAX as u32 {
            0
        } else {
            record.ttl
        };
        self.ttls.push((record.ttl_at as u32, ttl));
        let data = message.get(record.rdata.clone()).ok_or(WireError::Short)?;
        if let Some(address) = address(record.rtype, data)? {
            match section {
                Section::Answer => self.addresses.push(address),
                Section::Authority | Section::Additional => self.glue.push(address),
            }
        }
        self.has_service_binding |= matches!(record.rtype, rtype::SVCB | rtype::HTTPS);
        match section {
            Section::Answer => {
                self.answered |= record.rtype == self.qtype || self.qtype == rtype::ANY;
                self.lowest_answer_ttl = Some(self.lowest_answer_ttl.map_or(ttl, |t| t.min(ttl)));
            }
            Section::Authority if record.rtype == rtype::SOA => {
                let minimum = wire::u32_at(data, data.len().saturating_sub(4))?;
                self.negative_ttl = Some(ttl.min(minimum));
            }
            Section::Authority | Section::Additional => {}
        }
        Ok(record.rdata.end)
    }

    /// How long the whole may be kept.
    fn keep_for(&self, code: u16) -> Duration {
        let seconds = |ttl: Option<u32>| Duration::from_secs(ttl.unwrap_or(0).into());
        match code {
            rcode::NO_ERROR if self.answered => {
                seconds(self.lowest_answer_ttl).min(MAX_POSITIVE_TTL)
            }
            rcode::NO_ERROR | rcode::NX_DOMAIN => {
                let alias = self.lowest_answer_ttl.unwrap_or(u32::MAX);
                seconds(self.negative_ttl.map(|ttl| ttl.min(alias))).min(MAX_NEGATIVE_TTL)
            }
            _ => Duration::ZERO,
        }
    }
}

/// The address in a record's data, if its type has one.
fn address(rtype: u16, data: &[u8]) -> Result<Option<IpAddr>, WireError> {
    match rtype {
        rtype::A => {
            let octets: [u8; 4] = data.try_into().map_err(|_| WireError::RecordData)?;
            Ok(Some(Ipv4Addr::from(octets).into()))
        }
        rtype::AAAA => {
            let octets: [u8; 16] = data.try_into().map_err(|_| WireError::RecordData)?;
            Ok(Some(Ipv6Addr::from(octets).into()))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests;
