use std::net::{Ipv4Addr, Ipv6Addr};

use hickory_proto::op::Message;
use hickory_proto::rr::rdata::svcb::{Alpn, EchConfigList, IpHint, Mandatory};
use hickory_proto::rr::rdata::{A, HTTPS};
use hickory_proto::rr::{RData, Record, RecordType};

use super::*;
use crate::dns::testing::{a, aaaa, cname, name, parsed, question, question_of, response};

/// Denies 169.254.169.254 in every form.
fn denied(address: IpAddr) -> bool {
    let metadata = Ipv4Addr::new(169, 254, 169, 254);
    match address {
        IpAddr::V4(v4) => v4 == metadata,
        IpAddr::V6(v6) => v6.to_ipv4_mapped() == Some(metadata),
    }
}

fn https(params: Vec<(SvcParamKey, SvcParamValue)>) -> Record {
    let binding = SVCB::new(1, name("."), params);
    Record::from_rdata(name("www.example"), 60, RData::HTTPS(HTTPS(binding)))
}

fn hint(address: [u8; 4]) -> (SvcParamKey, SvcParamValue) {
    (
        SvcParamKey::Ipv4Hint,
        SvcParamValue::Ipv4Hint(IpHint(vec![A(address.into())])),
    )
}

fn alpn() -> (SvcParamKey, SvcParamValue) {
    (
        SvcParamKey::Alpn,
        SvcParamValue::Alpn(Alpn(vec!["h2".into()])),
    )
}

fn scrubbed_https(params: Vec<(SvcParamKey, SvcParamValue)>) -> Option<Scrubbed> {
    let mut message = response("www.example", RecordType::HTTPS);
    message.add_answer(https(params));
    let asked = question_of("www.example", RecordType::HTTPS);
    scrub(&parsed(&message, &asked), &asked, denied).unwrap()
}

fn params_of(answer: &Answer) -> Vec<SvcParamKey> {
    let message = Message::from_vec(&answer.message).unwrap();
    match &message.answers[0].data {
        RData::HTTPS(binding) => binding.0.svc_params.iter().map(|(key, _)| *key).collect(),
        other => panic!("{other}"),
    }
}

#[test]
fn an_answer_without_denied_addresses_is_not_touched() {
    let mut message = response("www.example", RecordType::A);
    message.add_answer(a("www.example", 60, [192, 0, 2, 7]));
    let asked = question("www.example");
    assert!(
        scrub(&parsed(&message, &asked), &asked, denied)
            .unwrap()
            .is_none()
    );
}

#[test]
fn denied_addresses_go_and_the_others_and_the_ttl_stay() {
    let mut message = response("www.example", RecordType::A);
    message.add_answer(cname("www.example", 60, "cdn.example"));
    message.add_answer(a("cdn.example", 60, [169, 254, 169, 254]));
    message.add_answer(a("cdn.example", 60, [192, 0, 2, 7]));
    let asked = question("www.example");
    let left = scrub(&parsed(&message, &asked), &asked, denied)
        .unwrap()
        .unwrap();
    assert_eq!(
        left.answer.ipv4().collect::<Vec<_>>(),
        [Ipv4Addr::new(192, 0, 2, 7)]
    );
    assert_eq!(
        (left.removed, left.emptied, left.answer.ttl.as_secs()),
        (1, false, 60)
    );
    assert_eq!(left.answer.answer_ends.len(), 2);
}

#[test]
fn an_answer_of_denied_addresses_only_is_emptied() {
    let mut message = response("www.example", RecordType::AAAA);
    let mapped = Ipv4Addr::new(169, 254, 169, 254).to_ipv6_mapped();
    message.add_answer(aaaa("www.example", 60, mapped));
    let asked = question_of("www.example", RecordType::AAAA);
    let left = scrub(&parsed(&message, &asked), &asked, denied)
        .unwrap()
        .unwrap();
    assert!(left.emptied && left.answer.addresses.is_empty());
}

#[test]
fn glue_is_looked_at_too() {
    let mut message = response("www.example", RecordType::MX);
    message.add_additional(a("mail.example", 60, [169, 254, 169, 254]));
    message.add_additional(aaaa("mail.example", 60, Ipv6Addr::LOCALHOST));
    let asked = question_of("www.example", RecordType::MX);
    let left = scrub(&parsed(&message, &asked), &asked, denied)
        .unwrap()
        .unwrap();
    assert_eq!(left.answer.glue.len(), 1);
    assert!(!left.emptied);
}

#[test]
fn denied_hints_and_encrypted_hello_keys_are_taken_out_of_service_bindings() {
    let keys = (
        SvcParamKey::EchConfigList,
        SvcParamValue::EchConfigList(EchConfigList(vec![1, 2])),
    );
    let left = scrubbed_https(vec![alpn(), hint([169, 254, 169, 254]), keys]).unwrap();
    assert_eq!(params_of(&left.answer), [SvcParamKey::Alpn]);
    assert!(scrubbed_https(vec![alpn(), hint([192, 0, 2, 7])]).is_none());
}

#[test]
fn a_service_binding_that_needs_what_was_taken_out_goes_whole() {
    let needed = Mandatory(vec![SvcParamKey::Ipv4Hint]);
    let left = scrubbed_https(vec![
        (SvcParamKey::Mandatory, SvcParamValue::Mandatory(needed)),
        hint([169, 254, 169, 254]),
    ]);
    assert!(left.unwrap().answer.answer_ends.is_empty());
}

#[test]
fn hinted_addresses_are_found() {
    let mut message = response("www.example", RecordType::HTTPS);
    message.add_answer(https(vec![alpn(), hint([192, 0, 2, 7])]));
    let answer = parsed(&message, &question_of("www.example", RecordType::HTTPS));
    assert_eq!(hinted_addresses(&answer), [IpAddr::from([192, 0, 2, 7])]);
}
