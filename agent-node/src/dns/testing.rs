//! Messages for the tests of this module, made by hickory-proto: an encoder that isn't ours.

use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query as ProtoQuery, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::answer::{Answer, Question, Reply};

pub(crate) mod mock;

/// The ID of messages made here.
pub(crate) const ID: u16 = 0x4d2;

pub(crate) fn name(text: &str) -> Name {
    let mut name = Name::from_ascii(text).unwrap();
    name.set_fqdn(true);
    name
}

/// A name in wire form.
pub(crate) fn wire_name(text: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    for label in text.split('.').filter(|label| !label.is_empty()) {
        wire.push(label.len() as u8);
        wire.extend_from_slice(label.as_bytes());
    }
    wire.push(0);
    wire
}

/// The A question for `text`.
pub(crate) fn question(text: &str) -> Question {
    question_of(text, RecordType::A)
}

pub(crate) fn question_of(text: &str, qtype: RecordType) -> Question {
    Question {
        name: wire_name(text).into(),
        qtype: qtype.into(),
        dnssec_ok: false,
        checking_disabled: false,
    }
}

/// A client's query.
pub(crate) fn client_query(text: &str, qtype: RecordType, edns: Option<u16>) -> Message {
    let mut message = Message::new(ID, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(ProtoQuery::query(name(text), qtype));
    if let Some(size) = edns {
        let mut edns = Edns::new();
        edns.set_max_payload(size);
        message.set_edns(edns);
    }
    message
}

/// A response to `question` without records.
pub(crate) fn response(text: &str, qtype: RecordType) -> Message {
    let mut message = Message::response(ID, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.metadata.recursion_available = true;
    message.add_query(ProtoQuery::query(name(text), qtype));
    message
}

pub(crate) fn a(owner: &str, ttl: u32, address: [u8; 4]) -> Record {
    Record::from_rdata(name(owner), ttl, RData::A(A(Ipv4Addr::from(address))))
}

pub(crate) fn aaaa(owner: &str, ttl: u32, address: Ipv6Addr) -> Record {
    Record::from_rdata(name(owner), ttl, RData::AAAA(AAAA(address)))
}

pub(crate) fn cname(owner: &str, ttl: u32, target: &str) -> Record {
    Record::from_rdata(name(owner), ttl, RData::CNAME(CNAME(name(target))))
}

pub(crate) fn soa(owner: &str, ttl: u32, minimum: u32) -> Record {
    let data = SOA::new(
        name("ns.example"),
        name("admin.example"),
        1,
        7200,
        900,
        86400,
        minimum,
    );
    Record::from_rdata(name(owner), ttl, RData::SOA(data))
}

/// What `message` is to whoever asked `question`.
pub(crate) fn parsed(message: &Message, question: &Question) -> Answer {
    let Reply::Whole(answer) = Reply::parse(&message.to_vec().unwrap(), ID, question).unwrap()
    else {
        panic!("truncated");
    };
    answer
}

/// An answer of one address.
pub(crate) fn answer_to(question: &Question, ttl: u32) -> Answer {
    let text = super::wire::display_name(&question.name);
    let mut message = response(&text, RecordType::A);
    message.add_answer(a(&text, ttl, [192, 0, 2, 7]));
    parsed(&message, question)
}

/// "No such name", with a SOA.
pub(crate) fn nxdomain(text: &str, qtype: RecordType, ttl: u32, minimum: u32) -> Message {
    let mut message = response(text, qtype);
    message.metadata.response_code = ResponseCode::NXDomain;
    message.add_authority(soa("example", ttl, minimum));
    message
}

/// Runs a test on a current-thread runtime's `LocalSet`, as workers run.
pub(crate) fn on_a_worker<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test)
}
