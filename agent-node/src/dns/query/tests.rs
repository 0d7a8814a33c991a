use hickory_proto::op::{Message, MessageType, OpCode, Query as ProtoQuery};
use hickory_proto::rr::{DNSClass, RecordType};
use proptest::prelude::*;

use super::*;
use crate::dns::testing::{ID, a, client_query, name};

fn parse(message: &Message) -> Result<Query, Unanswerable> {
    Query::parse(&message.to_vec().unwrap())
}

#[test]
fn a_plain_query_is_read_with_its_case() {
    let query = parse(&client_query("wWw.ExAmple.com", RecordType::A, None)).unwrap();
    assert_eq!(query.name, b"\x03wWw\x07ExAmple\x03com\x00");
    assert_eq!(query.lower_name(), b"\x03www\x07example\x03com\x00");
    assert_eq!(
        (query.id, query.qtype, query.qclass, query.rd),
        (ID, 1, 1, true)
    );
    assert_eq!(query.edns, None);
}

#[test]
fn edns_is_read_and_small_sizes_mean_512() {
    let mut message = client_query("a.example", RecordType::A, Some(4096));
    message.edns.as_mut().unwrap().set_dnssec_ok(true);
    let edns = parse(&message).unwrap().edns.unwrap();
    assert_eq!((edns.payload, edns.dnssec_ok), (4096, true));
    let mut bytes = client_query("a.example", RecordType::A, Some(512))
        .to_vec()
        .unwrap();
    let class_at = bytes.len() - 8;
    bytes[class_at..class_at + 2].copy_from_slice(&100u16.to_be_bytes());
    assert_eq!(Query::parse(&bytes).unwrap().edns.unwrap().payload, 512);
}

#[test]
fn responses_and_short_messages_are_dropped() {
    let mut message = client_query("a.example", RecordType::A, None);
    message.metadata.message_type = MessageType::Response;
    assert_eq!(parse(&message), Err(Unanswerable::Drop));
    for length in 0..HEADER_LEN {
        assert_eq!(Query::parse(&vec![0; length]), Err(Unanswerable::Drop));
    }
}

#[test]
fn other_operations_are_not_implemented() {
    for code in [OpCode::Status, OpCode::Notify, OpCode::Update] {
        let mut message = client_query("a.example", RecordType::A, None);
        message.metadata.op_code = code;
        assert!(
            matches!(parse(&message), Err(Unanswerable::NotImp { id: ID, .. })),
            "{code}"
        );
    }
}

#[test]
fn no_question_two_questions_and_answers_are_format_errors() {
    let mut none = client_query("a.example", RecordType::A, None);
    none.queries.clear();
    let mut two = client_query("a.example", RecordType::A, None);
    two.add_query(ProtoQuery::query(name("b.example"), RecordType::A));
    let mut answered = client_query("a.example", RecordType::A, None);
    answered.add_answer(a("a.example", 1, [192, 0, 2, 1]));
    let mut with_authority = client_query("a.example", RecordType::A, None);
    with_authority.add_authority(a("a.example", 1, [192, 0, 2, 1]));
    for message in [none, two, answered, with_authority] {
        assert!(matches!(
            parse(&message),
            Err(Unanswerable::FormErr { id: ID, .. })
        ));
    }
}

#[test]
fn a_question_name_made_of_pointers_is_a_format_error() {
    let mut bytes = client_query("a.example", RecordType::A, None)
        .to_vec()
        .unwrap();
    bytes.truncate(HEADER_LEN);
    bytes.extend_from_slice(b"\xc0\x0c\x00\x01\x00\x01");
    assert!(matches!(
        Query::parse(&bytes),
        Err(Unanswerable::FormErr { .. })
    ));
}

#[test]
fn two_edns_records_and_broken_options_are_format_errors() {
    let opt = |rdata: &[u8]| {
        let mut record = b"\x00\x00\x29\x04\xd0\x00\x00\x00\x00".to_vec();
        record.extend_from_slice(&(rdata.len() as u16).to_be_bytes());
        record.extend_from_slice(rdata);
        record
    };
    let with = |records: &[Vec<u8>]| {
        let mut bytes = client_query("a.example", RecordType::A, None)
            .to_vec()
            .unwrap();
        bytes[11] = records.len() as u8;
        bytes.extend(records.iter().flatten());
        Query::parse(&bytes)
    };
    assert!(with(&[opt(b"")]).is_ok());
    assert!(with(&[opt(b"\x00\x0a\x00\x02ab")]).is_ok());
    for records in [
        vec![opt(b""), opt(b"")],
        vec![opt(b"\x00\x0a\x00\x03ab")],
        vec![opt(b"\x00\x0a\x00")],
    ] {
        assert!(
            matches!(with(&records), Err(Unanswerable::FormErr { .. })),
            "{records:?}"
        );
    }
}

#[test]
fn an_unknown_edns_version_is_bad_version() {
    let mut message = client_query("a.example", RecordType::A, Some(1232));
    message.edns.as_mut().unwrap().set_version(1);
    assert!(matches!(parse(&message), Err(Unanswerable::BadVers(_))));
}

#[test]
fn other_classes_and_zone_transfers_are_refused_and_unknown_types_are_not() {
    let mut chaos = client_query("version.bind", RecordType::TXT, None);
    chaos.queries[0].set_query_class(DNSClass::CH);
    assert!(matches!(parse(&chaos), Err(Unanswerable::Refused(_))));
    for (qtype, refused) in [
        (252, true),
        (251, true),
        (41, true),
        (0, true),
        (255, false),
        (65399, false),
        (257, false),
    ] {
        let message = client_query("a.example", RecordType::from(qtype), None);
        assert_eq!(
            matches!(parse(&message), Err(Unanswerable::Refused(_))),
            refused,
            "{qtype}"
        );
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = Query::parse(&bytes);
    }

    #[test]
    fn a_damaged_query_is_read_or_refused_without_panic(
        at in 0usize..60, to in any::<u8>(), length in 0usize..80,
    ) {
        let mut bytes = client_query("www.example.com", RecordType::HTTPS, Some(1232)).to_vec().unwrap();
        if let Some(byte) = bytes.get_mut(at) {
            *byte = to;
        }
        bytes.truncate(length);
        if let Ok(query) = Query::parse(&bytes) {
            prop_assert!(query.name.len() <= wire::MAX_NAME_LEN);
        }
    }
}
