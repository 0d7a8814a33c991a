//! Credentials: set for the right host alone, changed without a restart, and seen by nobody else.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::time::Duration;

use e2e::capture::Capture;
use e2e::policy::Policy;
use serde_json::json;

mod support;
use support::{body, node_and_pod, status};

#[test]
fn whatever_the_pod_sends_under_the_header_is_replaced() {
    let Some((node, pod)) = node_and_pod("credentials") else {
        return;
    };
    for headers in [
        &["Authorization: Bearer own"][..],
        &["authorization: a", "AUTHORIZATION: b"],
        &["Connection: Authorization", "Authorization: c"],
        &["Proxy-Authorization: Basic eDp5"],
    ] {
        let mut arguments: Vec<&str> = headers.iter().flat_map(|h| ["-H", h]).collect();
        arguments.push("http://api.example.com/");
        let done = pod.curl(&arguments).unwrap();
        assert_eq!(status(&done), 200, "{headers:?}: {done}");
    }
    let seen = node.outside.requests_to("api.example.com").unwrap();
    assert!(
        seen.len() == 4 && seen.iter().all(|s| s.auth == "right"),
        "{seen:?}"
    );
    // another host gets nothing, also when it claims to be the first one by its address
    let done = pod.curl(&["http://docs.example.com/"]).unwrap();
    assert_eq!(status(&done), 200);
    let done = pod
        .curl(&[
            "--resolve",
            "api.example.com:80:203.0.113.16",
            "http://api.example.com/",
        ])
        .unwrap();
    assert_eq!(status(&done), 200);
    let all = node.outside.requests().unwrap();
    assert!(
        all.iter().all(|s| s.to != "203.0.113.16"),
        "the proxy went where the pod pointed: {all:?}"
    );
    assert!(
        all.iter()
            .filter(|s| s.host != "api.example.com")
            .all(|s| s.auth == "none"),
        "{all:?}"
    );
}

#[test]
fn a_changed_secret_is_used_within_a_second_and_a_missing_one_is_a_502() {
    let Some((node, pod)) = node_and_pod("credentials") else {
        return;
    };
    let ask = || status(&pod.curl(&["http://api.example.com/"]).unwrap());
    assert_eq!(ask(), 200);
    node.write("credentials/api/API_TOKEN", b"another-token")
        .unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(ask(), 401, "the old token was used");
    fs::remove_file(node.file("credentials/api/API_TOKEN")).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    let before = node.outside.requests_to("api.example.com").unwrap().len();
    for content in [
        None,
        Some(&b""[..]),
        Some(b"\n"),
        Some(b"line\r\nX-Evil: 1"),
        Some(b"nul\0nul"),
    ] {
        if let Some(content) = content {
            node.write("credentials/api/API_TOKEN", content).unwrap();
            std::thread::sleep(Duration::from_millis(1100));
        }
        let done = pod.curl(&["http://api.example.com/"]).unwrap();
        assert_eq!(status(&done), 502, "{content:?}: {done}");
        assert!(body(&done).contains("CREDENTIAL_UNAVAILABLE"), "{done}");
    }
    assert_eq!(
        node.outside.requests_to("api.example.com").unwrap().len(),
        before,
        "a request left without its credential"
    );
    node.write(
        "credentials/api/API_TOKEN",
        node.secrets.api_token.as_bytes(),
    )
    .unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(ask(), 200);
}

#[test]
fn a_credential_does_not_leave_in_cleartext_unless_the_rule_says_so() {
    let Some((node, pod)) = node_and_pod("credentials") else {
        return;
    };
    let rule =
        json!({"header": "Authorization", "prefix": "Bearer ", "valueFromFile": "api/API_TOKEN"});
    node.apply_policy(
        &Policy::new()
            .credential("api", "api.example.com", rule)
            .document(),
    )
    .unwrap();
    let done = pod.curl(&["http://api.example.com/"]).unwrap();
    assert!(status(&done) >= 400, "{done}");
    assert!(
        node.outside
            .requests_to("api.example.com")
            .unwrap()
            .is_empty()
    );
}

#[test]
fn the_secrets_are_nowhere_but_in_the_upstreams_request() {
    let Some((mut node, pod)) = node_and_pod("credentials") else {
        return;
    };
    let at_the_pod = Capture::start(pod.network(), "at-the-pod", "eth0", "").unwrap();
    let at_the_uplink = Capture::start(
        node.outside.place(),
        "at-the-uplink",
        "down0",
        "tcp port 80",
    )
    .unwrap();
    pod.curl(&["-v", "http://api.example.com/"]).unwrap();
    pod.curl(&["-v", "http://api.example.com/echo-token"])
        .unwrap();
    pod.curl(&["-v", "-X", "TRACE", "http://api.example.com/"])
        .unwrap();
    pod.sh("cd /tmp; GIT_CURL_VERBOSE=1 GIT_TRACE=1 git clone http://git.internal.example.com/private.git").unwrap();
    pod.place().run(&["/usr/bin/python3", "-c", "import requests; r = requests.get('http://vector-db.internal.example.com/'); print(r.headers, r.text)"]).unwrap();
    // a secret that can't be used must not be in the error either
    let bad = format!("{}\r\nX: y", node.secrets.rag_token);
    node.write(
        "credentials/zeroproxy-credentials/RAG_TOKEN",
        bad.as_bytes(),
    )
    .unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    pod.curl(&["http://vector-db.internal.example.com/"])
        .unwrap();
    node.get("/metrics").unwrap();
    node.get("/policy/version").unwrap();
    node.stop_proxy(nix::sys::signal::Signal::SIGTERM).unwrap();

    let uplink = at_the_uplink.stop().unwrap();
    let sent = uplink.bytes().unwrap();
    let token = node.secrets.api_token.as_bytes();
    assert!(
        sent.windows(token.len()).any(|w| w == token),
        "the search would find nothing anywhere"
    );
    fs::remove_file(uplink.file()).unwrap();
    assert!(at_the_pod.stop().unwrap().bytes().unwrap().len() > 2000);
    let found = node.leaked_secrets().unwrap();
    assert!(found.is_empty(), "{found:?}");
    // the pod's own memory and files: what its processes and its file systems hold
    let forms = node.secrets.forms().join("\\|");
    let grep = format!("grep -rl '{forms}' /tmp /run /etc /proc/[0-9]*/environ 2>/dev/null | head");
    let done = pod
        .place()
        .run_with(&["bash", "-s"], &[], grep.as_bytes(), 20)
        .unwrap();
    assert!(done.stdout.trim().is_empty(), "{done}");
}
