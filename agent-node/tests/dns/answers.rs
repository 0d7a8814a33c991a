//! That answers arrive whole: size, case, types, codes, TTLs, transports.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use agent_node::metrics::Counter;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::NULL;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use serde_json::json;

use crate::client::{addresses, ask, connect, query, receive, send, tcp, udp};
use crate::node::{Node, POD, allowing, own_namespace};
use crate::upstream::{Upstream, a, no_such_name};

fn node(upstream: &Upstream) -> Node {
    Node::start(&allowing(&["*.example"]), &[upstream.address], json!({}))
}

#[test]
fn an_answer_too_large_for_udp_is_truncated_and_comes_whole_over_tcp() {
    own_namespace();
    let upstream = Upstream::start(|message, tcp| {
        let name = message.queries[0].name().clone();
        message.metadata.truncation = !tcp;
        if tcp {
            for n in 0..200 {
                message.add_answer(a(&name, 60, Ipv4Addr::new(192, 0, 2, n)));
            }
        }
        true
    });
    let node = node(&upstream);
    for (edns, limit) in [(None, 512), (Some(512), 512), (Some(4096), 1232)] {
        let reply = udp(POD, &query("big.example", RecordType::A, edns));
        assert!(reply.metadata.truncation);
        assert!(reply.to_vec().unwrap().len() <= limit);
        assert_eq!(reply.edns.is_some(), edns.is_some());
    }
    let reply = tcp(POD, &query("big.example", RecordType::A, None));
    assert_eq!(
        (reply.metadata.truncation, reply.answers.len()),
        (false, 200)
    );
    let by_tcp: Vec<bool> = upstream.seen().iter().map(|seen| seen.tcp).collect();
    assert_eq!(
        by_tcp,
        [false, true],
        "asked over UDP, again over TCP, then cached"
    );
    assert_eq!(node.count(Counter::DnsTruncated), 3);
}

#[test]
fn the_case_of_the_question_comes_back_and_goes_no_further() {
    own_namespace();
    let upstream = Upstream::one_address();
    let _node = node(&upstream);
    for name in ["WwW.eXaMpLe.", "wWw.ExAmPlE."] {
        let reply = ask(POD, name);
        assert_eq!(reply.queries[0].name().to_ascii(), name);
        assert_eq!(reply.answers[0].name.to_ascii(), name);
    }
    assert_eq!(upstream.names(), ["www.example."]);
}

#[test]
fn negative_answers_keep_their_code_and_soa_and_are_remembered() {
    own_namespace();
    let upstream = Upstream::start(|message, _| {
        if message.queries[0].name().to_ascii().starts_with("none") {
            no_such_name(message);
        } else {
            no_such_name(message);
            message.metadata.response_code = ResponseCode::NoError;
        }
        true
    });
    let _node = node(&upstream);
    for _ in 0..3 {
        let reply = ask(POD, "none.example");
        assert_eq!(
            (reply.metadata.response_code, reply.authorities.len()),
            (ResponseCode::NXDomain, 1)
        );
        let reply = udp(POD, &query("v4only.example", RecordType::AAAA, None));
        assert_eq!(
            (reply.metadata.response_code, reply.authorities.len()),
            (ResponseCode::NoError, 1)
        );
        assert!(reply.authorities[0].ttl <= 60);
    }
    assert_eq!(upstream.names().len(), 2);
}

#[test]
fn a_type_that_nobody_knows_passes_byte_for_byte() {
    own_namespace();
    let data = vec![0, 1, 2, 0xc0, 0x0c, 255];
    let sent = data.clone();
    let upstream = Upstream::start(move |message, _| {
        let name = message.queries[0].name().clone();
        let code = RecordType::Unknown(65399);
        let rdata = NULL::with(sent.clone());
        message.add_answer(Record::from_rdata(name, 60, RData::Unknown { code, rdata }));
        true
    });
    let _node = node(&upstream);
    let reply = udp(
        POD,
        &query("odd.example", RecordType::Unknown(65399), Some(1232)),
    );
    let RData::Unknown { rdata, .. } = &reply.answers[0].data else {
        panic!("{reply}");
    };
    assert_eq!(rdata.anything, data);
}

#[test]
fn ttls_count_down_in_the_cache() {
    own_namespace();
    let upstream = Upstream::one_address();
    let node = node(&upstream);
    assert_eq!(ask(POD, "a.example").answers[0].ttl, 60);
    std::thread::sleep(Duration::from_millis(2100));
    let ttl = ask(POD, "a.example").answers[0].ttl;
    assert!((57..=58).contains(&ttl), "{ttl}");
    assert_eq!(
        (
            node.count(Counter::DnsForwarded),
            node.count(Counter::DnsCached)
        ),
        (1, 1)
    );
}

#[test]
fn many_queries_on_one_connection_are_answered_out_of_order() {
    own_namespace();
    let upstream = Upstream::start(|message, _| {
        let name = message.queries[0].name().clone();
        if name.to_ascii().starts_with("silent") {
            return false;
        }
        message.add_answer(a(&name, 60, Ipv4Addr::new(192, 0, 2, 7)));
        true
    });
    let _node = node(&upstream);
    let mut stream = connect(POD);
    let slow = query("silent.example", RecordType::A, None);
    send(&mut stream, &slow.to_vec().unwrap());
    let mut waiting = Vec::new();
    for n in 0..60 {
        let message = query(&format!("n{n}.example"), RecordType::A, None);
        waiting.push(message.metadata.id);
        send(&mut stream, &message.to_vec().unwrap());
    }
    let start = Instant::now();
    for _ in 0..60 {
        let reply = receive(&mut stream).expect("the connection stays open");
        let at = waiting
            .iter()
            .position(|id| *id == reply.metadata.id)
            .expect("an ID of ours");
        waiting.swap_remove(at);
        assert_eq!(addresses(&reply).len(), 1);
    }
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let last = receive(&mut stream).expect("what was asked before the half-close is answered");
    assert_eq!(last.metadata.id, slow.metadata.id);
    assert_eq!(last.metadata.response_code, ResponseCode::ServFail);
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
    assert!(receive(&mut stream).is_none());
}

#[test]
fn the_second_server_answers_for_a_dead_first_one() {
    own_namespace();
    let silent = Upstream::start(|_, _| false);
    let good = Upstream::one_address();
    let servers = [silent.address, good.address];
    let _node = Node::start(&allowing(&["*.example"]), &servers, json!({}));
    let start = Instant::now();
    assert_eq!(addresses(&ask(POD, "a.example")).len(), 1);
    assert!(
        start.elapsed() < Duration::from_millis(1500),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn without_any_server_the_pod_gets_servfail_in_time_and_it_is_audited() {
    own_namespace();
    let silent = Upstream::start(|_, _| false);
    let node = node(&silent);
    let start = Instant::now();
    assert_eq!(
        ask(POD, "a.example").metadata.response_code,
        ResponseCode::ServFail
    );
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
    let start = Instant::now();
    assert_eq!(
        ask(POD, "a.example").metadata.response_code,
        ResponseCode::ServFail
    );
    assert!(
        start.elapsed() < Duration::from_millis(300),
        "{:?}",
        start.elapsed()
    );
    node.audited(|line| line["reason"] == "DNS_UPSTREAM_FAILED" && line["status"] == 2);
}

#[test]
fn questions_that_are_not_forwarded_get_their_code() {
    own_namespace();
    let upstream = Upstream::one_address();
    let _node = node(&upstream);
    let mut chaos = query("version.bind", RecordType::TXT, None);
    chaos.queries[0].set_query_class(DNSClass::CH);
    assert_eq!(
        udp(POD, &chaos).metadata.response_code,
        ResponseCode::Refused
    );
    let transfer = query("a.example", RecordType::AXFR, None);
    assert_eq!(
        tcp(POD, &transfer).metadata.response_code,
        ResponseCode::Refused
    );
    let mut version = query("a.example", RecordType::A, Some(1232));
    version.edns.as_mut().unwrap().set_version(1);
    assert_eq!(u16::from(udp(POD, &version).metadata.response_code), 16);
    let mut update = query("a.example", RecordType::A, None);
    update.metadata.op_code = hickory_proto::op::OpCode::Status;
    assert_eq!(
        udp(POD, &update).metadata.response_code,
        ResponseCode::NotImp
    );
    let mut two = query("a.example", RecordType::A, None);
    two.add_query(two.queries[0].clone());
    assert_eq!(udp(POD, &two).metadata.response_code, ResponseCode::FormErr);
    assert!(upstream.names().is_empty());
}
