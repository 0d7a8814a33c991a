//! Garbage, floods and clients that don't go away.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use agent_node::metrics::Counter;
use hickory_proto::op::MessageType;
use hickory_proto::rr::RecordType;
use serde_json::json;

use crate::client::{
    addresses, ask, ask_as_a_stub_resolver, connect, query, receive, send, socket, try_udp,
};
use crate::node::{Node, OTHER, POD, allowing, own_namespace, until};
use crate::upstream::Upstream;

#[test]
fn garbage_disturbs_nobody() {
    own_namespace();
    let upstream = Upstream::one_address();
    let node = Node::start(&allowing(&["*.example"]), &[upstream.address], json!({}));
    let mut random = fastrand::Rng::with_seed(4);
    let sender = socket(POD);
    let valid = query("a.example", RecordType::A, Some(1232))
        .to_vec()
        .unwrap();
    for n in 0..3000 {
        let mut bytes = valid.clone();
        if n % 2 == 0 {
            bytes = (0..random.usize(0..700)).map(|_| random.u8(..)).collect();
        } else {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
            bytes.truncate(random.usize(..=bytes.len()));
        }
        sender.send(&bytes).unwrap();
        if n % 100 == 0 {
            // What came before it has been read by then.
            assert_eq!(addresses(&ask(OTHER, "b.example")).len(), 1);
        }
    }
    for n in 0..20 {
        let mut stream = connect(POD);
        let bytes: Vec<u8> = (0..random.usize(1..2000)).map(|_| random.u8(..)).collect();
        let _ = stream.write_all(&bytes);
        if n % 2 == 0 {
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
    }
    assert_eq!(addresses(&ask(OTHER, "b.example")).len(), 1);
    assert!(node.count(Counter::DnsMalformed) > 1000);
}

#[test]
fn a_response_is_never_answered() {
    own_namespace();
    let upstream = Upstream::one_address();
    let _node = Node::start(&allowing(&["*.example"]), &[upstream.address], json!({}));
    let mut message = query("a.example", RecordType::A, None);
    message.metadata.message_type = MessageType::Response;
    let bytes = message.to_vec().unwrap();
    assert_eq!(try_udp(POD, &bytes, Duration::from_millis(300)), None);
}

#[test]
fn one_pods_flood_starves_no_other_pod() {
    own_namespace();
    let upstream = Upstream::start(|message, _| {
        let name = message.queries[0].name().clone();
        if name.to_ascii().starts_with("slow") {
            return false;
        }
        message.add_answer(crate::upstream::a(&name, 60, [192, 0, 2, 7].into()));
        true
    });
    let node = Node::start(&allowing(&["*.example"]), &[upstream.address], json!({}));
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let until_stopped = stop.clone();
    let flood = std::thread::spawn(move || {
        let sender = socket(POD);
        let mut n = 0;
        while !until_stopped.load(std::sync::atomic::Ordering::Relaxed) {
            n += 1;
            let message = query(&format!("slow{n}.example"), RecordType::A, None);
            let _ = sender.send(&message.to_vec().unwrap());
        }
        n
    });
    std::thread::sleep(Duration::from_millis(500));
    for n in 0..20 {
        let reply = ask_as_a_stub_resolver(OTHER, &format!("n{n}.example"));
        assert_eq!(addresses(&reply).len(), 1);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let sent: u64 = flood.join().unwrap();
    assert!(node.count(Counter::DnsShed) > sent / 10, "{sent} sent");
    let lines = node.audit_lines();
    let excess = |line: &&serde_json::Value| {
        line["reason"] == "LIMIT_EXCEEDED" && line["pod"]["name"] == "planner"
    };
    assert!(lines.iter().any(|line| excess(&line)));
}

#[test]
fn a_connection_without_queries_is_closed() {
    own_namespace();
    let upstream = Upstream::one_address();
    let _node = Node::start(&allowing(&["*.example"]), &[upstream.address], json!({}));
    let mut quiet = connect(POD);
    let mut dripping = connect(POD);
    quiet
        .set_read_timeout(Some(Duration::from_secs(12)))
        .unwrap();
    dripping
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let start = Instant::now();
    dripping.write_all(&[1]).unwrap();
    let mut byte = [0];
    while dripping.write_all(&[0]).is_ok() && start.elapsed() < Duration::from_secs(12) {
        if matches!(dripping.read(&mut byte), Ok(0)) {
            break;
        }
    }
    assert!(
        start.elapsed() < Duration::from_secs(12),
        "a drip does not keep a connection"
    );
    assert_eq!(quiet.read(&mut byte).unwrap(), 0);
}

#[test]
fn an_overlong_message_ends_the_connection_at_once() {
    own_namespace();
    let upstream = Upstream::one_address();
    let _node = Node::start(&allowing(&["*.example"]), &[upstream.address], json!({}));
    let mut stream = connect(POD);
    stream.write_all(&[0xff, 0xff]).unwrap();
    assert!(receive(&mut stream).is_none());
}

#[test]
fn a_pod_has_a_bounded_number_of_connections_and_others_have_theirs() {
    own_namespace();
    let upstream = Upstream::one_address();
    let node = Node::start(&allowing(&["*.example"]), &[upstream.address], json!({}));
    let held: Vec<_> = (0..40).map(|_| connect(POD)).collect();
    until("the excess is refused", || {
        node.count(Counter::DnsShed) >= 8
    });
    let mut stream = connect(OTHER);
    send(
        &mut stream,
        &query("a.example", RecordType::A, None).to_vec().unwrap(),
    );
    assert!(receive(&mut stream).is_some());
    drop(held);
    until("its places are free again", || {
        let mut stream = connect(POD);
        send(
            &mut stream,
            &query("a.example", RecordType::A, None).to_vec().unwrap(),
        );
        receive(&mut stream).is_some()
    });
}

#[test]
fn connections_of_a_deleted_pod_are_closed() {
    own_namespace();
    let upstream = Upstream::one_address();
    let node = Node::start(&allowing(&["*.example"]), &[upstream.address], json!({}));
    let mut stream = connect(POD);
    send(
        &mut stream,
        &query("a.example", RecordType::A, None).to_vec().unwrap(),
    );
    assert!(receive(&mut stream).is_some());
    node.delete("planner");
    assert!(receive(&mut stream).is_none());
    let reply = ask(POD, "a.example");
    assert_eq!(
        reply.metadata.response_code,
        hickory_proto::op::ResponseCode::Refused
    );
}

#[test]
fn a_drain_ends_idle_connections() {
    own_namespace();
    let upstream = Upstream::one_address();
    let node = Node::start(&allowing(&["*.example"]), &[upstream.address], json!({}));
    let mut stream = connect(POD);
    send(
        &mut stream,
        &query("a.example", RecordType::A, None).to_vec().unwrap(),
    );
    assert!(receive(&mut stream).is_some());
    node.context.drain.begin();
    assert!(receive(&mut stream).is_none());
}
