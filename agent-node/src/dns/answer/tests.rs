use hickory_proto::op::{Edns, Message, MessageType, ResponseCode};
use hickory_proto::rr::rdata::NULL;
use hickory_proto::rr::{RData, Record, RecordType};
use proptest::prelude::*;

use super::*;
use crate::dns::testing::{
    ID, a, aaaa, answer_to, cname, name, nxdomain, parsed, question, question_of, response, soa,
};

fn ttl_of(message: &Message, qtype: RecordType) -> u64 {
    parsed(message, &question_of("www.example", qtype))
        .ttl
        .as_secs()
}

#[test]
fn addresses_and_the_lowest_ttl_of_the_answer_section_are_found() {
    let mut message = response("www.example", RecordType::A);
    message.add_answer(cname("www.example", 30, "cdn.example"));
    message.add_answer(a("cdn.example", 60, [192, 0, 2, 7]));
    message.add_answer(a("cdn.example", 50, [192, 0, 2, 8]));
    message.add_additional(a("ns.example", 5, [192, 0, 2, 53]));
    let answer = parsed(&message, &question("www.example"));
    assert_eq!(answer.ttl.as_secs(), 30);
    assert_eq!(
        answer.ipv4().map(|ip| ip.octets()[3]).collect::<Vec<_>>(),
        [7, 8]
    );
    assert_eq!(*answer.glue, [IpAddr::from([192, 0, 2, 53])]);
    assert_eq!(answer.answer_ends.len(), 3);
    assert_eq!(answer.ttls.len(), 4);
}

#[test]
fn negative_answers_are_kept_by_the_soa_and_without_one_not_at_all() {
    for (ttl, minimum, kept) in [(3600, 30, 30), (20, 300, 20), (3600, 3600, 300), (0, 60, 0)] {
        assert_eq!(
            ttl_of(
                &nxdomain("www.example", RecordType::A, ttl, minimum),
                RecordType::A
            ),
            kept
        );
    }
    let mut bare = nxdomain("www.example", RecordType::A, 60, 60);
    bare.authorities.clear();
    assert_eq!(ttl_of(&bare, RecordType::A), 0);
    let mut nodata = response("www.example", RecordType::AAAA);
    nodata.add_authority(soa("example", 60, 30));
    assert_eq!(ttl_of(&nodata, RecordType::AAAA), 30);
}

#[test]
fn an_alias_that_ends_in_nothing_is_a_negative_answer() {
    let mut message = response("www.example", RecordType::AAAA);
    message.add_answer(cname("www.example", 10, "cdn.example"));
    assert_eq!(ttl_of(&message, RecordType::AAAA), 0);
    message.add_authority(soa("example", 60, 30));
    assert_eq!(ttl_of(&message, RecordType::AAAA), 10);
}

#[test]
fn long_ttls_are_capped_and_negative_numbers_are_zero() {
    let mut message = response("www.example", RecordType::A);
    message.add_answer(a("www.example", 1_000_000, [192, 0, 2, 7]));
    assert_eq!(ttl_of(&message, RecordType::A), 3600);
    message.answers[0].ttl = 0x8000_0000;
    let answer = parsed(&message, &question("www.example"));
    assert_eq!((answer.ttl.as_secs(), answer.ttls[0].1), (0, 0));
}

#[test]
fn server_failures_are_not_kept() {
    let mut message = response("www.example", RecordType::A);
    message.metadata.response_code = ResponseCode::ServFail;
    let answer = parsed(&message, &question("www.example"));
    assert!(!answer.is_conclusive());
    assert!(answer.ttl.is_zero());
}

#[test]
fn a_message_that_answers_something_else_is_foreign() {
    let asked = question("www.example");
    let right = {
        let mut message = response("WWW.example", RecordType::A);
        message.add_answer(a("www.example", 60, [192, 0, 2, 7]));
        message
    };
    assert!(Reply::parse(&right.to_vec().unwrap(), ID, &asked).is_ok());
    let mut other_id = right.clone();
    other_id.metadata.id = ID + 1;
    let mut a_query = right.clone();
    a_query.metadata.message_type = MessageType::Query;
    let mut other_name = right.clone();
    other_name.queries[0].set_name(name("ww.example"));
    let mut other_type = right.clone();
    other_type.queries[0].set_query_type(RecordType::AAAA);
    let mut no_question = right.clone();
    no_question.queries.clear();
    for message in [other_id, a_query, other_name, other_type, no_question] {
        let bytes = message.to_vec().unwrap();
        assert_eq!(Reply::parse(&bytes, ID, &asked), Err(NotAnAnswer::Foreign));
    }
}

#[test]
fn an_error_without_a_question_is_taken_from_the_asked_server() {
    let mut message = response("www.example", RecordType::A);
    message.queries.clear();
    message.metadata.response_code = ResponseCode::FormErr;
    assert_eq!(
        parsed(&message, &question("www.example")).rcode,
        rcode::FORM_ERR
    );
}

#[test]
fn truncation_is_reported_before_anything_else_is_read() {
    let mut message = response("www.example", RecordType::A);
    message.metadata.truncation = true;
    let mut bytes = message.to_vec().unwrap();
    bytes[7] = 9;
    assert_eq!(
        Reply::parse(&bytes, ID, &question("www.example")),
        Ok(Reply::Truncated)
    );
}

#[test]
fn the_edns_record_is_cut_off_and_all_other_types_stay_byte_for_byte() {
    let mut message = response("www.example", RecordType::Unknown(65399));
    let data = RData::Unknown {
        code: RecordType::Unknown(65399),
        rdata: NULL::with(vec![1, 2, 3, 0xc0, 0xff]),
    };
    message.add_answer(Record::from_rdata(name("www.example"), 60, data));
    let plain = message.to_vec().unwrap();
    message.set_edns(Edns::new());
    let asked = question_of("www.example", RecordType::Unknown(65399));
    assert_eq!(*parsed(&message, &asked).message, *plain);
}

#[test]
fn an_address_record_of_the_wrong_length_is_malformed() {
    let mut bytes = answer_to(&question("www.example"), 60).message.to_vec();
    let length_at = bytes.len() - 6;
    bytes[length_at + 1] = 3;
    bytes.truncate(bytes.len() - 1);
    assert_eq!(
        Reply::parse(&bytes, ID, &question("www.example")),
        Err(NotAnAnswer::Malformed(WireError::RecordData))
    );
}

#[test]
fn ipv6_addresses_are_found() {
    let mut message = response("www.example", RecordType::AAAA);
    message.add_answer(aaaa("www.example", 60, Ipv6Addr::LOCALHOST));
    let answer = parsed(&message, &question_of("www.example", RecordType::AAAA));
    assert_eq!(*answer.addresses, [IpAddr::V6(Ipv6Addr::LOCALHOST)]);
    assert_eq!(answer.ipv4().count(), 0);
}

proptest! {
    #[test]
    fn any_bytes_behind_the_right_question_are_read_or_refused(
        counts in prop::array::uniform3(0u16..6), rest in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let asked = question("www.example");
        let mut bytes = response("www.example", RecordType::A).to_vec().unwrap();
        for (place, count) in [6, 8, 10].into_iter().zip(counts) {
            wire::put_u16(&mut bytes, place, count);
        }
        bytes.extend_from_slice(&rest);
        if let Ok(Reply::Whole(answer)) = Reply::parse(&bytes, ID, &asked) {
            prop_assert!(answer.message.len() <= bytes.len());
            prop_assert!(answer.authority_end <= answer.message.len());
            for (at, _) in &answer.ttls {
                prop_assert!(*at as usize + 4 <= answer.message.len());
            }
        }
    }

    #[test]
    fn a_damaged_answer_is_read_or_refused(at in 0usize..200, to in any::<u8>()) {
        let mut message = response("www.example", RecordType::A);
        message.add_answer(cname("www.example", 30, "cdn.example"));
        message.add_answer(a("cdn.example", 60, [192, 0, 2, 7]));
        message.add_authority(soa("example", 60, 30));
        let mut bytes = message.to_vec().unwrap();
        if let Some(byte) = bytes.get_mut(at) {
            *byte = to;
        }
        let _ = Reply::parse(&bytes, ID, &question("www.example"));
    }
}
