//! What pods do all day, with the programs they do it with: curl, python requests, git, openssl.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use serde_json::{Value, json};

use e2e::patience::slowdown;
use e2e::policy::Policy;

mod support;
use support::{body, header, node_and_pod, status};

#[test]
fn a_refusal_says_in_words_what_was_refused_by_which_rule() {
    let Some((node, pod)) = node_and_pod("egress") else {
        return;
    };
    let resolve = "prod-db.internal.example.com:80:203.0.113.15";
    let done = pod
        .curl(&["--resolve", resolve, "http://prod-db.internal.example.com/"])
        .unwrap();
    assert_eq!(status(&done), 403);
    assert_eq!(header(&done, "content-type"), Some("application/json"));
    let decision = header(&done, "x-agent-network-decision").expect("the decision header");
    assert!(
        decision.starts_with("deny") && decision.contains("rule=production-db"),
        "{decision}"
    );
    let text: Value = serde_json::from_str(body(&done)).expect("a JSON body");
    for wanted in [
        "prod-db.internal.example.com",
        "production-db",
        "agents/e2e",
    ] {
        assert!(text.to_string().contains(wanted), "{text} lacks {wanted}");
    }
    let line = node
        .audit_line("deny", |l| l["rule"] == "production-db")
        .unwrap();
    let id = line["request_id"].as_str().unwrap();
    assert!(
        text.to_string().contains(id),
        "{text} lacks the audit line's request id {id}"
    );
}

#[test]
fn python_requests_works_with_a_session_and_sees_refusals() {
    let Some((node, pod)) = node_and_pod("egress") else {
        return;
    };
    let script = r#"
import requests
s = requests.Session()
for i in range(20):
    r = s.get('http://docs.example.com/page/%d' % i, timeout=5)
    assert r.status_code == 200 and 'hello from docs' in r.text, r.text
r = s.post('http://echo.example.com/upload', data=b'x' * 3000000, timeout=10)
assert r.status_code == 200, r.status_code
def chunks():
    for i in range(50):
        yield b'y' * 1000
r = s.post('http://echo.example.com/chunked', data=chunks(), timeout=10)
assert r.status_code == 200, r.status_code
r = s.head('http://docs.example.com/', timeout=5)
assert r.status_code == 200 and r.text == ''
r = s.get('http://203.0.113.16/', timeout=5)
assert r.status_code == 403 and 'request' in r.text.lower(), r.text
print('fine')
"#;
    let done = pod
        .place()
        .run(&["/usr/bin/python3", "-c", script])
        .unwrap();
    assert!(done.ok() && done.stdout.contains("fine"), "{done}");
    assert_eq!(
        node.outside.requests_to("docs.example.com").unwrap().len(),
        21
    );
}

#[test]
fn git_clones_and_pushes_over_http_with_a_credential_it_does_not_have() {
    let Some((node, pod)) = node_and_pod("egress") else {
        return;
    };
    let script = r#"set -e; cd /tmp; export GIT_TERMINAL_PROMPT=0
        git clone -q http://git.example.com/public.git
        git clone -q http://git.internal.example.com/private.git; cd private
        head -c 3000000 /dev/urandom > big; git add big
        git -c user.name=a -c user.email=a@example.com commit -qm big; git push -q; git ls-remote -q | head -1; git rev-parse HEAD"#;
    let done = pod.sh(script).unwrap().success().unwrap();
    let ids: Vec<&str> = done
        .stdout
        .split_whitespace()
        .filter(|w| w.len() == 40)
        .collect();
    assert_eq!(ids[0], ids[1], "the push didn't arrive: {done}");
    let seen = node
        .outside
        .requests_to("git.internal.example.com")
        .unwrap();
    assert!(seen.iter().any(|s| s.request.contains("git-receive-pack")));
    assert!(seen.iter().all(|s| s.auth == "right"), "{seen:?}");
    assert!(
        node.outside
            .requests_to("git.example.com")
            .unwrap()
            .iter()
            .all(|s| s.auth == "none")
    );
    assert!(node.leaked_secrets().unwrap().is_empty());
}

#[test]
fn tls_goes_by_the_verified_name_alone() {
    let refused = |said: &str| said.contains("access denied") || said.contains("alert number 49");
    let Some((node, pod)) = node_and_pod("egress") else {
        return;
    };
    let client = |options: &str| {
        pod.sh(&format!(
            "echo | timeout {} openssl s_client {options} 2>&1",
            10 * slowdown()
        ))
        .unwrap()
        .all()
    };
    // allowed, and the pod sees the server's own certificate
    let ca = std::fs::read(&node.outside.pki().ca).unwrap();
    let keep = ["bash", "-c", "cat > /tmp/ca.pem"];
    pod.place()
        .run_with(&keep, &[], &ca, 5 * slowdown())
        .unwrap();
    let done = pod
        .curl(&["--cacert", "/tmp/ca.pem", "https://secure.example.com/"])
        .unwrap();
    assert!(
        done.stdout
            .contains("hello over tls from secure.example.com"),
        "{done}"
    );
    let said = client("-connect secure.example.com:443 -servername secure.example.com");
    assert!(said.contains("subject=CN = secure.example.com"), "{said}");
    // a name that no rule has: alert access_denied (49)
    let said = client("-connect 203.0.113.21:443 -servername other-secure.example.com");
    assert!(refused(&said), "{said}");
    // no name
    let said = client("-connect 203.0.113.20:443 -noservername");
    assert!(refused(&said), "{said}");
    // an allowed name at an address that DNS never gave for it
    pod.sh("dig +short secure.example.com").unwrap();
    let said = client("-connect 203.0.113.21:443 -servername secure.example.com");
    assert!(refused(&said), "{said}");
    node.audit_line("SNI mismatch", |l| {
        l["reason"] == "SNI_MISMATCH" && l["decision"] == "deny"
    })
    .unwrap();
    // an address instead of a name
    let done = pod.curl(&["-k", "https://203.0.113.20/"]).unwrap();
    assert!(
        !done.ok() && !done.all().contains("hello over tls"),
        "{done}"
    );
}

#[test]
fn an_http_request_leaves_as_https_when_the_rule_says_so() {
    let Some((node, pod)) = node_and_pod("egress") else {
        return;
    };
    let policy = Policy::new().credential(
        "api",
        "api.example.com",
        json!({"header": "Authorization", "prefix": "Bearer ", "valueFromFile": "api/API_TOKEN", "tls": "originate"}),
    );
    node.apply_policy(&policy.document()).unwrap();
    let done = pod.curl(&["http://api.example.com:443/v1"]).unwrap();
    assert_eq!(status(&done), 200, "{done}");
    let seen = node.outside.requests_to("api.example.com").unwrap();
    assert!(
        seen.iter()
            .all(|s| s.scheme == "https" && s.auth == "right")
            && seen.len() == 1,
        "{seen:?}"
    );
}

#[test]
fn a_server_that_speaks_first_works_by_a_rule_for_its_address_and_port() {
    let Some((_node, pod)) = node_and_pod("egress") else {
        return;
    };
    let talk = |to: &str| {
        pod.sh(&format!(
            "(sleep 2; echo bye; sleep 1) | timeout {} socat -t {} - TCP:{to} 2>&1",
            8 * slowdown(),
            slowdown()
        ))
        .unwrap()
        .all()
    };
    let said = talk("203.0.113.30:2525");
    assert!(
        said.contains("220 banner ready") && said.contains("bye"),
        "{said}"
    );
    let said = talk("203.0.113.30:80");
    assert!(!said.contains("220"), "{said}");
}

#[test]
fn two_readings_of_one_request_are_no_request() {
    let Some((node, pod)) = node_and_pod("egress") else {
        return;
    };
    let requests = [
        (
            "two hosts",
            "GET / HTTP/1.1\r\nHost: docs.example.com\r\nHost: evil.example.com\r\n\r\n",
        ),
        ("no host", "GET / HTTP/1.1\r\nX: y\r\n\r\n"),
        (
            "both lengths",
            "POST / HTTP/1.1\r\nHost: docs.example.com\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "two lengths",
            "POST / HTTP/1.1\r\nHost: docs.example.com\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
        ),
        (
            "folded header",
            "GET / HTTP/1.1\r\nHost: docs.example.com\r\nX: a\r\n b\r\n\r\n",
        ),
        (
            "space in a name",
            "GET / HTTP/1.1\r\nHost: docs.example.com\r\nX : a\r\n\r\n",
        ),
        (
            "another host in the target",
            "GET http://evil.example.com/ HTTP/1.1\r\nHost: docs.example.com\r\n\r\n",
        ),
        ("garbage", "GET / HTTP/1.1\r\nHost docs.example.com\r\n\r\n"),
    ];
    for (what, request) in requests {
        let line = [
            "timeout",
            "5",
            "socat",
            "-t",
            "2",
            "-",
            "TCP:203.0.113.10:80",
        ];
        let done = pod
            .place()
            .run_with(&line, &[], request.as_bytes(), 10 * slowdown())
            .unwrap();
        let first = done.stdout.lines().next().unwrap_or_default();
        assert!(first.contains(" 400 "), "{what}: {done}");
    }
    assert!(
        node.outside.requests().unwrap().is_empty(),
        "{:?}",
        node.outside.requests()
    );
    // and the next request is served
    assert_eq!(
        status(&pod.curl(&["http://docs.example.com/"]).unwrap()),
        200
    );
}

#[test]
fn the_second_request_of_a_connection_is_decided_too() {
    let Some((node, pod)) = node_and_pod("egress") else {
        return;
    };
    let two = "GET /one HTTP/1.1\r\nHost: docs.example.com\r\n\r\nGET /two HTTP/1.1\r\nHost: evil.example.com\r\n\r\n";
    let line = [
        "timeout",
        "5",
        "socat",
        "-t",
        "2",
        "-",
        "TCP:203.0.113.10:80",
    ];
    let done = pod
        .place()
        .run_with(&line, &[], two.as_bytes(), 10 * slowdown())
        .unwrap();
    assert!(
        done.stdout.contains(" 200 ") && done.stdout.contains(" 403 "),
        "{done}"
    );
    assert!(
        node.outside
            .requests_to("evil.example.com")
            .unwrap()
            .is_empty()
    );
}
