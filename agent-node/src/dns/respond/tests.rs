use hickory_proto::op::{Message, MessageType, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsCode;
use hickory_proto::rr::{RData, RecordType};
use proptest::prelude::*;

use super::*;
use crate::dns::answer::Question;
use crate::dns::query::Unanswerable;
use crate::dns::testing::{ID, a, client_query, cname, parsed, question, response, soa};

fn query(text: &str, edns: Option<u16>) -> Query {
    Query::parse(&client_query(text, RecordType::A, edns).to_vec().unwrap()).unwrap()
}

/// An answer of `count` addresses, 16 bytes each.
fn answer_of(count: u8) -> Answer {
    let mut message = response("many.example", RecordType::A);
    for n in 0..count {
        message.add_answer(a("many.example", 300, [192, 0, 2, n]));
    }
    parsed(&message, &question("many.example"))
}

fn decoded(bytes: &[u8]) -> Message {
    Message::from_vec(bytes).unwrap()
}

#[test]
fn the_reply_has_the_clients_id_and_case_and_decremented_ttls() {
    let answer = answer_of(2);
    let mut asked = query("MaNy.eXample", None);
    asked.id = 77;
    let bytes = from_answer(&asked, &answer, 100, Transport::Udp);
    let reply = decoded(&bytes);
    assert_eq!(reply.metadata.id, 77);
    assert_eq!(reply.metadata.message_type, MessageType::Response);
    assert!(reply.metadata.recursion_desired && reply.metadata.recursion_available);
    assert!(!reply.metadata.authoritative && !reply.metadata.truncation);
    assert_eq!(reply.queries[0].name().to_ascii(), "MaNy.eXample.");
    assert_eq!(reply.answers[1].name.to_ascii(), "MaNy.eXample.");
    assert!(reply.answers.iter().all(|record| record.ttl == 200));
    assert!(reply.edns.is_none());
    let late = decoded(&from_answer(&asked, &answer, 1000, Transport::Udp));
    assert!(late.answers.iter().all(|record| record.ttl == 0));
}

#[test]
fn forty_two_addresses_without_edns_are_cut_to_512_bytes_with_tc() {
    let answer = answer_of(42);
    let bytes = from_answer(&query("many.example", None), &answer, 0, Transport::Udp);
    assert!(bytes.len() <= 512 && bytes.len() > 490, "{}", bytes.len());
    let reply = decoded(&bytes);
    assert!(reply.metadata.truncation);
    assert_eq!(reply.answers.len(), (512 - 30) / 16);
    let whole = decoded(&from_answer(
        &query("many.example", None),
        &answer,
        0,
        Transport::Tcp,
    ));
    assert!(!whole.metadata.truncation);
    assert_eq!(whole.answers.len(), 42);
}

#[test]
fn edns_clients_get_what_they_take_but_never_more_than_1232_bytes() {
    for (says, limit, fits) in [(600, 600, false), (1232, 1232, true), (65535, 1232, true)] {
        let asked = query("many.example", Some(says));
        let reply = from_answer(&asked, &answer_of(42), 0, Transport::Udp);
        assert!(reply.len() <= limit);
        assert_eq!(decoded(&reply).metadata.truncation, !fits, "{says}");
        let more = from_answer(&asked, &answer_of(100), 0, Transport::Udp);
        assert!(more.len() <= limit && decoded(&more).metadata.truncation);
        assert_eq!(decoded(&more).edns.unwrap().max_payload(), 1232);
    }
}

#[test]
fn additional_records_are_left_out_before_anything_is_truncated() {
    let mut message = response("many.example", RecordType::A);
    for n in 0..20 {
        message.add_answer(a("many.example", 300, [192, 0, 2, n]));
        message.add_additional(a("ns.example", 300, [192, 0, 2, n]));
    }
    message.add_authority(soa("example", 60, 60));
    let answer = parsed(&message, &question("many.example"));
    let bytes = from_answer(&query("many.example", None), &answer, 0, Transport::Udp);
    let reply = decoded(&bytes);
    assert!(!reply.metadata.truncation);
    let counts = (
        reply.answers.len(),
        reply.authorities.len(),
        reply.additionals.len(),
    );
    assert_eq!(counts, (20, 1, 0));
}

#[test]
fn negative_answers_keep_their_code_and_their_soa() {
    let message = crate::dns::testing::nxdomain("many.example", RecordType::A, 60, 30);
    let answer = parsed(&message, &question("many.example"));
    let reply = decoded(&from_answer(
        &query("many.example", Some(1232)),
        &answer,
        0,
        Transport::Udp,
    ));
    assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(reply.authorities.len(), 1);
}

#[test]
fn authentic_data_is_told_only_to_who_understands_it() {
    let mut message = response("many.example", RecordType::A);
    message.metadata.authentic_data = true;
    message.add_answer(a("many.example", 300, [192, 0, 2, 1]));
    let answer = parsed(&message, &question("many.example"));
    let mut asked = query("many.example", Some(1232));
    assert!(
        !decoded(&from_answer(&asked, &answer, 0, Transport::Udp))
            .metadata
            .authentic_data
    );
    asked.ad = true;
    assert!(
        decoded(&from_answer(&asked, &answer, 0, Transport::Udp))
            .metadata
            .authentic_data
    );
}

#[test]
fn a_local_denial_says_why_to_clients_that_speak_edns() {
    let reply = local(
        &query("No.Example", Some(1232)),
        rcode::NX_DOMAIN,
        Some(Extended::BLOCKED),
    );
    let reply = decoded(&reply);
    assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(reply.queries[0].name().to_ascii(), "No.Example.");
    assert!(reply.edns.unwrap().option(EdnsCode::Unknown(15)).is_some());
    let plain = local(
        &query("no.example", None),
        rcode::NX_DOMAIN,
        Some(Extended::BLOCKED),
    );
    assert!(decoded(&plain).edns.is_none());
}

#[test]
fn the_do_bit_is_copied() {
    let mut message = client_query("a.example", RecordType::A, Some(1232));
    message.edns.as_mut().unwrap().set_dnssec_ok(true);
    let asked = Query::parse(&message.to_vec().unwrap()).unwrap();
    let reply = decoded(&local(&asked, rcode::NO_ERROR, None));
    assert!(reply.edns.unwrap().flags().dnssec_ok);
}

#[test]
fn messages_that_cannot_be_answered_get_their_error() {
    let asked = query("a.example", Some(1232));
    for (why, code) in [
        (
            Unanswerable::FormErr {
                id: ID,
                flags: 0x0100,
            },
            ResponseCode::FormErr,
        ),
        (
            Unanswerable::NotImp {
                id: ID,
                flags: 0x2900,
            },
            ResponseCode::NotImp,
        ),
        (
            Unanswerable::Refused(Box::new(asked.clone())),
            ResponseCode::Refused,
        ),
        (
            Unanswerable::BadVers(Box::new(asked)),
            ResponseCode::BADVERS,
        ),
    ] {
        let reply = decoded(&to_unanswerable(&why).unwrap());
        // 16 is BADVERS here and BADSIG to hickory: one number, two names.
        let got = u16::from(reply.metadata.response_code);
        assert_eq!((reply.metadata.id, got), (ID, u16::from(code)));
        assert_eq!(reply.metadata.message_type, MessageType::Response);
    }
    assert_eq!(to_unanswerable(&Unanswerable::Drop), None);
}

#[test]
fn upstream_queries_hold_nothing_of_the_pods_message_but_name_type_and_two_bits() {
    let asked = Question {
        dnssec_ok: true,
        ..question("a.example")
    };
    let bytes = upstream_query(9, &asked, false);
    let sent = decoded(&bytes);
    assert_eq!(sent.metadata.id, 9);
    assert!(sent.metadata.recursion_desired && sent.metadata.authentic_data);
    let edns = sent.edns.unwrap();
    assert!(edns.flags().dnssec_ok && edns.options().as_ref().is_empty());
    assert_eq!(edns.max_payload(), 1232);
    assert!(decoded(&upstream_query(9, &asked, true)).edns.is_none());
}

proptest! {
    #[test]
    fn every_cut_of_an_answer_is_a_message_within_the_limit(
        answers in 0usize..80, additionals in 0usize..20, size in prop::option::of(0u16..3000),
    ) {
        let mut message = response("many.example", RecordType::A);
        message.add_answer(cname("many.example", 60, "other.example"));
        for n in 0..answers {
            message.add_answer(a("other.example", 300, [192, 0, 2, n as u8]));
        }
        for n in 0..additionals {
            message.add_additional(a("ns.other.example", 300, [192, 0, 2, n as u8]));
        }
        let answer = parsed(&message, &question("many.example"));
        let asked = query("many.example", size);
        let bytes = from_answer(&asked, &answer, 1, Transport::Udp);
        let limit = usize::from(size.unwrap_or(512).clamp(512, 1232));
        prop_assert!(bytes.len() <= limit);
        let reply = decoded(&bytes);
        prop_assert_eq!(reply.edns.is_some(), size.is_some());
        if !reply.metadata.truncation {
            prop_assert_eq!(reply.answers.len(), answers + 1);
        }
        let data_is_whole = reply.answers.iter().skip(1).all(|record| matches!(record.data, RData::A(_)));
        prop_assert!(data_is_whole);
    }
}
