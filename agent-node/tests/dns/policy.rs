//! Which names pass, and what a pod is told about them.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use agent_node::metrics::Counter;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use serde_json::json;

use crate::client::{SERVER, addresses, ask, connect, query, receive, send, tcp, udp};
use crate::node::{Node, OTHER, POD, STRANGER, allowing, own_namespace, until};
use crate::upstream::{Upstream, a, no_such_name};

#[test]
fn an_allowed_name_is_resolved_and_a_denied_one_reaches_no_upstream() {
    own_namespace();
    let upstream = Upstream::one_address();
    let node = Node::start(
        &allowing(&["api.example.com", "*.wild.example"]),
        &[upstream.address],
        json!({}),
    );
    assert_eq!(
        addresses(&ask(POD, "api.example.com")),
        [Ipv4Addr::new(192, 0, 2, 7)]
    );
    assert_eq!(addresses(&ask(POD, "a.b.wild.example")).len(), 1);
    for name in [
        "evil.example.com",
        "wild.example",
        "api.example.com.evil.example",
        "x.api.example.com",
        "com",
        "localhost",
    ] {
        let reply = ask(POD, name);
        assert_eq!(
            reply.metadata.response_code,
            ResponseCode::NXDomain,
            "{name}"
        );
        assert!(reply.answers.is_empty());
        let reply = tcp(POD, &query(name, RecordType::TXT, None));
        assert_eq!(
            reply.metadata.response_code,
            ResponseCode::NXDomain,
            "{name}"
        );
    }
    assert_eq!(upstream.names(), ["api.example.com.", "a.b.wild.example."]);

    let allowed = node.audited(|line| line["destination"]["host"] == "api.example.com");
    assert_eq!(allowed["decision"], "allow");
    assert_eq!(allowed["reason"], "DNS_ALLOWED_BY_POLICY");
    assert_eq!(allowed["direction"], "dns");
    assert_eq!(allowed["pod"]["name"], "planner");
    assert_eq!(allowed["destination"]["ip"], SERVER.ip().to_string());
    assert_eq!(allowed["destination"]["method"], "A");
    let denied = node.audited(|line| line["destination"]["host"] == "evil.example.com");
    assert_eq!(
        (&denied["decision"], &denied["status"]),
        (&json!("deny"), &json!(3))
    );
    assert_eq!(denied["reason"], "DNS_DENIED_BY_POLICY");
    assert_eq!(node.count(Counter::DnsDenied), 12);
}

#[test]
fn the_denied_code_can_be_refused() {
    own_namespace();
    let upstream = Upstream::one_address();
    let _node = Node::start(
        &allowing(&[]),
        &[upstream.address],
        json!({"deniedRcode": "REFUSED"}),
    );
    assert_eq!(
        ask(POD, "evil.example").metadata.response_code,
        ResponseCode::Refused
    );
}

#[test]
fn without_enforcement_every_name_is_forwarded_and_sensitive_addresses_are_still_held_back() {
    own_namespace();
    let upstream = Upstream::start(|message, _| {
        let name = message.queries[0].name().clone();
        message.add_answer(a(&name, 60, Ipv4Addr::new(169, 254, 169, 254)));
        message.add_answer(a(&name, 60, Ipv4Addr::new(192, 0, 2, 7)));
        true
    });
    let _node = Node::start(
        &allowing(&[]),
        &[upstream.address],
        json!({"enforce": false}),
    );
    assert_eq!(
        addresses(&ask(POD, "any.example")),
        [Ipv4Addr::new(192, 0, 2, 7)]
    );
}

#[test]
fn cluster_names_are_forwarded_and_search_list_expansions_end_at_once() {
    own_namespace();
    let upstream = Upstream::start(|message, _| {
        let name = message.queries[0].name().clone();
        if name.to_ascii() == "db.shop.svc.cluster.local." {
            message.add_answer(a(&name, 5, Ipv4Addr::new(10, 96, 0, 20)));
        } else {
            no_such_name(message);
        }
        true
    });
    let _node = Node::start(
        &allowing(&["api.github.com"]),
        &[upstream.address],
        json!({}),
    );
    assert_eq!(
        addresses(&ask(POD, "db.shop.svc.cluster.local")),
        [Ipv4Addr::new(10, 96, 0, 20)]
    );
    // What a resolver with ndots:5 makes of api.github.com in namespace `agents`.
    let start = Instant::now();
    for name in [
        "api.github.com.agents.svc.cluster.local",
        "api.github.com.svc.cluster.local",
        "api.github.com.cluster.local",
    ] {
        assert_eq!(
            ask(POD, name).metadata.response_code,
            ResponseCode::NXDomain,
            "{name}"
        );
    }
    assert!(
        start.elapsed() < Duration::from_millis(300),
        "{:?}",
        start.elapsed()
    );
    let forwarded = upstream.names();
    assert_eq!(
        forwarded,
        [
            "db.shop.svc.cluster.local.",
            "api.github.com.svc.cluster.local."
        ]
    );
}

#[test]
fn an_address_that_no_pod_has_is_refused_and_audited() {
    own_namespace();
    let upstream = Upstream::one_address();
    let node = Node::start(&allowing(&["*"]), &[upstream.address], json!({}));
    let reply = ask(STRANGER, "api.example.com");
    assert_eq!(reply.metadata.response_code, ResponseCode::Refused);
    let mut stream = connect(STRANGER);
    send(
        &mut stream,
        &query("api.example.com", RecordType::A, None)
            .to_vec()
            .unwrap(),
    );
    assert!(receive(&mut stream).is_none());
    assert!(upstream.names().is_empty());
    let line = node.audited(|line| line["reason"] == "UNKNOWN_SOURCE_DENIED_BY_ZEROPROXY");
    assert_eq!(line["pod"]["fake_ip"], STRANGER.to_string());
    until("both are counted", || {
        node.count(Counter::UnknownSource) == 2
    });
}

#[test]
fn answers_in_sensitive_fake_and_loopback_ranges_are_stripped() {
    own_namespace();
    let upstream = Upstream::start(|message, _| {
        let name = message.queries[0].name().clone();
        let bad = [
            [169, 254, 169, 254],
            [100, 64, 0, 1],
            [169, 254, 9, 3],
            [127, 0, 0, 1],
            [0, 0, 0, 0],
        ];
        match message.queries[0].query_type() {
            RecordType::A => {
                for octets in bad {
                    message.add_answer(a(&name, 60, octets.into()));
                }
                if name.to_ascii().starts_with("mixed") {
                    message.add_answer(a(&name, 60, Ipv4Addr::new(192, 0, 2, 9)));
                }
            }
            _ => {
                let mapped = Ipv4Addr::new(169, 254, 169, 254).to_ipv6_mapped();
                let data = RData::AAAA(hickory_proto::rr::rdata::AAAA(mapped));
                message.add_answer(Record::from_rdata(name, 60, data));
            }
        }
        true
    });
    let node = Node::start(
        &allowing(&["*.evil.example"]),
        &[upstream.address],
        json!({}),
    );
    assert_eq!(
        addresses(&ask(POD, "mixed.evil.example")),
        [Ipv4Addr::new(192, 0, 2, 9)]
    );
    for qtype in [RecordType::A, RecordType::AAAA] {
        let reply = udp(POD, &query("all.evil.example", qtype, None));
        assert_eq!(
            (reply.metadata.response_code, reply.answers.len()),
            (ResponseCode::NoError, 0)
        );
    }
    let line = node.audited(|line| line["destination"]["host"] == "all.evil.example");
    assert_eq!(
        (&line["decision"], &line["reason"]),
        (&json!("deny"), &json!("DNS_ADDRESS_STRIPPED"))
    );
    let line = node.audited(|line| line["destination"]["host"] == "mixed.evil.example");
    assert_eq!(
        (&line["decision"], &line["reason"]),
        (&json!("allow"), &json!("DNS_ADDRESS_STRIPPED"))
    );
    assert_eq!(node.count(Counter::DnsStripped), 5 + 5 + 1);
}

#[test]
fn an_alias_needs_no_rule_and_its_addresses_are_bound_to_the_asked_name_of_that_pod() {
    own_namespace();
    let upstream = Upstream::start(|message, _| {
        let name = message.queries[0].name().clone();
        let target = Name::from_ascii("cdn.elsewhere.example.").unwrap();
        let alias = RData::CNAME(hickory_proto::rr::rdata::CNAME(target.clone()));
        message.add_answer(Record::from_rdata(name, 60, alias));
        message.add_answer(a(&target, 60, Ipv4Addr::new(192, 0, 2, 7)));
        true
    });
    let node = Node::start(
        &allowing(&["www.example.com"]),
        &[upstream.address],
        json!({}),
    );
    assert_eq!(addresses(&ask(POD, "WWW.Example.com")).len(), 1);
    let bindings = &node.context.bindings;
    let given = Ipv4Addr::new(192, 0, 2, 7);
    assert!(bindings.knows(POD, "www.example.com", given));
    assert!(!bindings.knows(OTHER, "www.example.com", given));
    assert!(!bindings.knows(POD, "cdn.elsewhere.example", given));
    node.delete("planner");
    until("what a gone pod was given is forgotten", || {
        !bindings.knows(POD, "www.example.com", given)
    });
}

#[test]
fn a_policy_change_counts_for_the_next_query() {
    own_namespace();
    let upstream = Upstream::one_address();
    let node = Node::start(&allowing(&["a.example"]), &[upstream.address], json!({}));
    assert_eq!(addresses(&ask(POD, "a.example")).len(), 1);
    node.change_policy(&allowing(&["b.example"]));
    assert_eq!(
        ask(POD, "a.example").metadata.response_code,
        ResponseCode::NXDomain
    );
    assert_eq!(addresses(&ask(POD, "b.example")).len(), 1);
}

#[test]
fn policies_of_other_pods_open_nothing() {
    own_namespace();
    let upstream = Upstream::one_address();
    let policy = json!({
        "schemaVersion": 1,
        "policies": [{"namespace": "elsewhere", "name": "p", "subjects": {"namespaces": ["elsewhere"]}}],
        "rules": [{"policy": 0, "name": "all", "kind": "allow", "host": "*"}],
    });
    let _node = Node::start(&policy, &[upstream.address], json!({}));
    assert_eq!(
        ask(POD, "a.example").metadata.response_code,
        ResponseCode::NXDomain
    );
    assert!(upstream.names().is_empty());
}

#[test]
fn service_names_in_front_of_an_allowed_host_may_be_asked_for() {
    own_namespace();
    let upstream = Upstream::start(|_, _| true);
    let _node = Node::start(&allowing(&["example.com"]), &[upstream.address], json!({}));
    udp(
        POD,
        &query("_https._tcp.example.com", RecordType::SRV, None),
    );
    let reply = udp(POD, &query("_https._tcp.example.com", RecordType::A, None));
    assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(upstream.names(), ["_https._tcp.example.com."]);
}
