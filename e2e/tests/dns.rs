//! The DNS proxy, asked by dig and by the C library.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use e2e::addresses::MANY_COUNT;
use e2e::patience::slowdown;

mod support;
use support::node_and_pod;

#[test]
fn any_server_that_a_pod_asks_answers_from_its_own_address() {
    let Some((node, pod)) = node_and_pod("dns") else {
        return;
    };
    for server in [
        "10.96.0.10",
        "8.8.8.8",
        "198.51.100.53",
        "203.0.113.99",
        &pod.gateway.to_string(),
    ] {
        for transport in ["+notcp", "+tcp"] {
            let done = pod
                .sh(&format!(
                    "dig +tries=1 +time={} {transport} @{server} docs.example.com",
                    3 * slowdown()
                ))
                .unwrap();
            assert!(
                done.stdout.contains("203.0.113.10"),
                "{server} {transport}: {done}"
            );
            assert!(
                done.stdout.contains(&format!("SERVER: {server}#53")),
                "{server} {transport}: {done}"
            );
        }
    }
    // the C library, with kubelet's search list
    let done = pod.sh("time getent ahostsv4 docs.example.com").unwrap();
    assert!(done.stdout.contains("203.0.113.10"), "{done}");
    assert!(
        node.outside
            .dns_queries()
            .iter()
            .all(|q| !q.contains("docs.example.com.agents")),
        "search expansions left the node"
    );
}

#[test]
fn a_large_answer_is_truncated_and_whole_over_tcp_and_edns() {
    let Some((_node, pod)) = node_and_pod("dns") else {
        return;
    };
    let many = usize::from(MANY_COUNT);
    let time = 5 * slowdown();
    let small = pod
        .sh(&format!(
            "dig +noedns +ignore +tries=1 +time={time} many.example.com"
        ))
        .unwrap()
        .stdout;
    assert!(small.contains(" tc "), "{small}");
    let size = small
        .lines()
        .find_map(|l| l.split("MSG SIZE  rcvd: ").nth(1))
        .unwrap();
    assert!(size.trim().parse::<usize>().unwrap() <= 512, "{small}");
    for options in ["+noedns", "+tcp", "+bufsize=4096"] {
        let done = pod
            .sh(&format!(
                "dig {options} +tries=1 +time={time} +short many.example.com"
            ))
            .unwrap();
        assert_eq!(done.stdout.lines().count(), many, "{options}: {done}");
    }
}

#[test]
fn a_name_that_no_rule_has_is_refused_here_and_asked_nowhere() {
    let Some((node, pod)) = node_and_pod("dns") else {
        return;
    };
    let time = 3 * slowdown();
    for question in [
        "evil.example.com",
        "TXT aGVsbG8.tunnel.example.com",
        "NS example.com",
        "ANY evil.example.com",
        "-x 203.0.113.10",
    ] {
        let done = pod
            .sh(&format!("dig +tries=1 +time={time} {question}"))
            .unwrap();
        assert!(
            done.stdout.contains("status: NXDOMAIN"),
            "{question}: {done}"
        );
    }
    let asked = node.outside.dns_queries();
    assert!(
        asked
            .iter()
            .all(|q| !q.contains("evil") && !q.contains("tunnel")),
        "{asked:?}"
    );
}

#[test]
fn answers_are_the_upstreams_with_case_kept_and_sensitive_addresses_taken_out() {
    let Some((_node, pod)) = node_and_pod("dns") else {
        return;
    };
    let dig = |what: &str| {
        pod.sh(&format!("dig +tries=1 +time=3 {what}"))
            .unwrap()
            .stdout
    };
    let mixed = dig("dOcS.ExAmPlE.cOm");
    assert!(
        mixed.contains("dOcS.ExAmPlE.cOm.") && mixed.contains("203.0.113.10"),
        "{mixed}"
    );
    assert!(dig("TXT docs.example.com").contains("hello from dnsmasq"));
    let v6 = dig("AAAA docs.example.com");
    assert!(v6.contains("NOERROR") && v6.contains("ANSWER: 0"), "{v6}");
    let rebind = dig("rebind.example.com");
    assert!(!rebind.contains("169.254.169.254"), "{rebind}");
    assert!(dig("nothing.default.svc.cluster.local").contains("NXDOMAIN"));
    assert!(dig("web.default.svc.cluster.local").contains("10.96.0.80"));
}

#[test]
fn broken_queries_disturb_nobody() {
    let Some((_node, pod)) = node_and_pod("dns") else {
        return;
    };
    let script = r#"
import os, socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(500):
    s.sendto(os.urandom(i % 80), ('10.96.0.10', 53))
s.sendto(b'\0\1\1\0\0\1\0\0\0\0\0\0\xc0\x0c\0\1\0\1', ('10.96.0.10', 53))   # a name that points at itself
s.sendto(b'\0\1\1\0\xff\xff\xff\xff\xff\xff\xff\xff' + b'\x3f' + b'a' * 63, ('10.96.0.10', 53))
t = socket.create_connection(('10.96.0.10', 53), 3)
t.send(b'\xff\xff' + os.urandom(100)); t.close()
"#;
    pod.place()
        .run(&["/usr/bin/python3", "-c", script])
        .unwrap()
        .success()
        .unwrap();
    let done = pod
        .sh("dig +short +tries=1 +time=3 docs.example.com")
        .unwrap();
    assert_eq!(done.stdout.trim(), "203.0.113.10", "{done}");
}
