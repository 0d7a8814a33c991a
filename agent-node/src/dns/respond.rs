//! Writes what a pod gets: query and facts in, reply bytes out (RFC 1035, RFC 2181 §9, RFC 6891, RFC 8914).
//!
//! Every reply has the query's ID, its question in the very case it came in (0x20), and an EDNS
//! record if and only if the query had one.

use super::answer::{Answer, rcode};
use super::query::{MIN_UDP_PAYLOAD, Query};
use super::wire::{self, CLASS_IN, HEADER_LEN, Header, MAX_MESSAGE_LEN, flag, rtype};

/// The largest UDP reply that is sent, in bytes, however much the client takes: it passes every
/// path unfragmented (DNS flag day 2020). It is also what our EDNS record says we take.
pub(crate) const MAX_UDP_PAYLOAD: u16 = 1232;

/// Bytes of an EDNS record without options.
const OPT_LEN: usize = 11;

/// How a reply travels, which says how long it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// One datagram.
    Udp,
    /// A stream with two-byte lengths.
    Tcp,
}

impl Transport {
    /// The longest reply to `query`, in bytes.
    fn limit(self, query: &Query) -> usize {
        match self {
            Transport::Udp => {
                let asked = query.edns.map_or(MIN_UDP_PAYLOAD, |edns| edns.payload);
                usize::from(asked.clamp(MIN_UDP_PAYLOAD, MAX_UDP_PAYLOAD))
            }
            Transport::Tcp => MAX_MESSAGE_LEN,
        }
    }
}

/// An extended error (RFC 8914): why, in a number and in words. Only clients that speak EDNS get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extended {
    /// The registered code.
    pub(crate) code: u16,
    /// A sentence for a person.
    pub(crate) text: &'static str,
}

impl Extended {
    /// No rule of the pod's lets the name through.
    pub(crate) const BLOCKED: Extended = Extended {
        code: 15,
        text: "agent-network: no egress rule of this pod names this host",
    };
    /// The asker is no pod of this node.
    pub(crate) const PROHIBITED: Extended = Extended {
        code: 18,
        text: "agent-network: the source address belongs to no pod of this node",
    };
    /// The answer held only addresses that the pod may not have.
    pub(crate) const FILTERED: Extended = Extended {
        code: 17,
        text: "agent-network: the name's addresses are in a range that is denied to pods",
    };
    /// No upstream answered.
    pub(crate) const UNREACHABLE: Extended = Extended {
        code: 22,
        text: "agent-network: no DNS server of the node answered in time",
    };
    /// The pod has too many queries waiting.
    pub(crate) const BUSY: Extended = Extended {
        code: 14,
        text: "agent-network: this pod has too many DNS queries waiting",
    };
    /// A kind of question that isn't forwarded.
    pub(crate) const NOT_SUPPORTED: Extended = Extended {
        code: 21,
        text: "agent-network: this class or type of question is not forwarded",
    };
}

/// A reply without a question, to a message that couldn't be read.
pub(crate) fn bare_error(id: u16, flags: u16, code: u16) -> Vec<u8> {
    let header = Header {
        id,
        flags: flag::QR | (flags & (flag::OPCODE | flag::RD)) | code,
        questions: 0,
        answers: 0,
        authorities: 0,
        additionals: 0,
    };
    let mut out = Vec::with_capacity(HEADER_LEN);
    header.write(&mut out);
    out
}

/// A reply of the proxy's own, without records.
pub(crate) fn local(query: &Query, code: u16, why: Option<Extended>) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN + query.name.len() + 4 + 96);
    let header = Header {
        id: query.id,
        flags: reply_flags(query, code),
        questions: 1,
        answers: 0,
        authorities: 0,
        additionals: 0,
    };
    header.write(&mut out);
    out.extend_from_slice(&query.name);
    out.extend_from_slice(&query.qtype.to_be_bytes());
    out.extend_from_slice(&query.qclass.to_be_bytes());
    push_edns(&mut out, query, code, why);
    out
}

/// An upstream's answer for `query`, `age` seconds after it came.
///
/// When it doesn't fit, it has as many answer records as do and the TC bit, and the client comes
/// back over TCP; old musl, which doesn't, gets addresses that work. Additional records are left
/// out first and without TC (RFC 2181 §9).
pub(crate) fn from_answer(query: &Query, answer: &Answer, age: u32, by: Transport) -> Vec<u8> {
    let question_end = HEADER_LEN + query.name.len() + 4;
    if answer.message.len() < question_end {
        return local(query, answer.rcode, None);
    }
    let room = by.limit(query) - if query.edns.is_some() { OPT_LEN } else { 0 };
    let mut out = Vec::with_capacity(answer.message.len().min(room) + OPT_LEN);
    let cut = Cut::choose(answer, room, question_end);
    out.extend_from_slice(answer.message.get(..cut.end).unwrap_or_default());

    let mut flags = reply_flags(query, answer.rcode);
    if answer.authentic && (query.ad || query.dnssec_ok()) {
        flags |= flag::AD;
    }
    if cut.truncated {
        flags |= flag::TC;
    }
    wire::put_u16(&mut out, 0, query.id);
    wire::put_u16(&mut out, 2, flags);
    if let Some(answers) = cut.answers {
        wire::put_u16(&mut out, 6, answers);
        wire::put_u16(&mut out, 8, 0);
    }
    if cut.drops_additionals {
        wire::put_u16(&mut out, 10, 0);
    }
    // Owner names are mostly pointers to the question: they get the client's case with it.
    if let Some(place) = out.get_mut(HEADER_LEN..HEADER_LEN + query.name.len()) {
        place.copy_from_slice(&query.name);
    }
    for &(at, ttl) in &answer.ttls {
        if at as usize >= cut.end {
            break;
        }
        wire::put_u32(&mut out, at as usize, ttl.saturating_sub(age));
    }
    push_edns(&mut out, query, answer.rcode, None);
    out
}

/// How much of an answer fits.
struct Cut {
    end: usize,
    /// The number of answer records when not all sections are kept.
    answers: Option<u16>,
    drops_additionals: bool,
    truncated: bool,
}

impl Cut {
    fn choose(answer: &Answer, room: usize, question_end: usize) -> Cut {
        if answer.message.len() <= room {
            return Cut {
                end: answer.message.len(),
                answers: None,
                drops_additionals: false,
                truncated: false,
            };
        }
        if answer.authority_end <= room {
            return Cut {
                end: answer.authority_end,
                answers: None,
                drops_additionals: true,
                truncated: false,
            };
        }
        let fitting = answer
            .answer_ends
            .partition_point(|&end| end as usize <= room);
        let end = match fitting.checked_sub(1) {
            Some(last) => answer
                .answer_ends
                .get(last)
                .map_or(question_end, |&end| end as usize),
            None => question_end,
        };
        Cut {
            end,
            answers: Some(fitting as u16),
            drops_additionals: true,
            truncated: true,
        }
    }
}

/// The flags of a reply to `query`. The proxy is no authority, and always offers recursion.
fn reply_flags(query: &Query, code: u16) -> u16 {
    let mut flags = flag::QR | flag::RA | (code & flag::RCODE);
    if query.rd {
        flags |= flag::RD;
    }
    if query.cd {
        flags |= flag::CD;
    }
    flags
}

/// Appends an EDNS record when the client sent one, and counts it in the header.
fn push_edns(out: &mut Vec<u8>, query: &Query, code: u16, why: Option<Extended>) {
    let Some(edns) = query.edns else { return };
    out.push(0);
    out.extend_from_slice(&rtype::OPT.to_be_bytes());
    out.extend_from_slice(&MAX_UDP_PAYLOAD.to_be_bytes());
    // Extended code, version 0, and the DO bit copied from the query (RFC 3225 §3).
    out.push((code >> 4) as u8);
    out.push(0);
    out.extend_from_slice(&[if edns.dnssec_ok { 0x80 } else { 0 }, 0]);
    match why {
        None => out.extend_from_slice(&[0, 0]),
        Some(why) => {
            let text = why.text.as_bytes();
            let option_len = 2 + text.len() as u16;
            out.extend_from_slice(&(option_len + 4).to_be_bytes());
            out.extend_from_slice(&EXTENDED_ERROR_OPTION.to_be_bytes());
            out.extend_from_slice(&option_len.to_be_bytes());
            out.extend_from_slice(&why.code.to_be_bytes());
            out.extend_from_slice(text);
        }
    }
    let count = wire::u16_at(out, 10).unwrap_or(0);
    wire::put_u16(out, 10, count.saturating_add(1));
}

/// The EDNS option of an extended error.
const EXTENDED_ERROR_OPTION: u16 = 15;

/// A query to an upstream: recursion desired, one question, one EDNS record unless `plain`.
///
/// Nothing of the pod's own message is in it but name, type and two bits: options, padding, the
/// letters' case and the ID would be ways out for what a pod must not send.
pub(crate) fn upstream_query(id: u16, question: &super::answer::Question, plain: bool) -> Vec<u8> {
    let mut flags = flag::RD | flag::AD;
    if question.checking_disabled {
        flags |= flag::CD;
    }
    let mut out = Vec::with_capacity(HEADER_LEN + question.name.len() + 4 + OPT_LEN);
    let header = Header {
        id,
        flags,
        questions: 1,
        answers: 0,
        authorities: 0,
        additionals: u16::from(!plain),
    };
    header.write(&mut out);
    out.extend_from_slice(&question.name);
    out.extend_from_slice(&question.qtype.to_be_bytes());
    out.extend_from_slice(&CLASS_IN.to_be_bytes());
    if !plain {
        out.push(0);
        out.extend_from_slice(&rtype::OPT.to_be_bytes());
        out.extend_from_slice(&MAX_UDP_PAYLOAD.to_be_bytes());
        out.extend_from_slice(&[0, 0, if question.dnssec_ok { 0x80 } else { 0 }, 0, 0, 0]);
    }
    out
}

/// The reply to a message that can't be answered; nothing when it is dropped.
pub(crate) fn to_unanswerable(why: &super::query::Unanswerable) -> Option<Vec<u8>> {
    use super::query::Unanswerable as Why;
    match why {
        Why::Drop => None,
        Why::FormErr { id, flags } => Some(bare_error(*id, *flags, rcode::FORM_ERR)),
        Why::NotImp { id, flags } => Some(bare_error(*id, *flags, rcode::NOT_IMP)),
        Why::BadVers(query) => Some(local(query, rcode::BAD_VERS, None)),
        Why::Refused(query) => Some(local(query, rcode::REFUSED, Some(Extended::NOT_SUPPORTED))),
    }
}

#[cfg(test)]
mod tests;
