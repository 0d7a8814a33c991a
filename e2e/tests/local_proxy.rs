//! The node itself at the proxy's documented port: the local endpoints, and the proxy as an explicit one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use e2e::node::{LOCAL_TOKEN, PROXY};
use e2e::place::Finished;
use e2e::{Node, PodSpec};

mod support;
use support::{body, node, status};

/// curl on the node, with the proxy named explicitly and `arguments` behind it.
fn by_proxy(node: &Node, token: &str, arguments: &[&str]) -> Finished {
    let proxy = format!("http://{PROXY}");
    let user = format!("e2e:{token}");
    let mut argv = vec!["curl", "-sS", "-i", "--max-time", "10", "-x", &proxy];
    if !token.is_empty() {
        argv.extend(["--proxy-user", &user]);
    }
    argv.extend(arguments);
    node.place().run(&argv).unwrap()
}

#[test]
fn the_node_may_use_the_proxy_under_the_configured_identity_and_its_rules() {
    let Some(node) = node("local-proxy") else {
        return;
    };
    let token = LOCAL_TOKEN.to_owned();
    let reason = |done: &Finished, reason: &str| {
        assert_eq!(status(done), 403, "{done}");
        assert!(body(done).contains(reason), "{done}");
    };

    let done = by_proxy(&node, &token, &["http://docs.example.com/"]);
    assert_eq!(status(&done), 200, "{done}");
    let done = by_proxy(&node, &token, &["http://api.example.com/v1/models"]);
    assert_eq!(status(&done), 200, "{done}");
    let seen = node.outside.requests_to("api.example.com").unwrap();
    assert_eq!(seen.last().unwrap().auth, "right");
    let done = by_proxy(&node, &token, &["http://prod-db.internal.example.com/"]);
    reason(&done, "EGRESS_DENIED_BY_POLICY");
    let done = by_proxy(
        &node,
        &token,
        &["-H", "X-Agent-Target: agent-server", "http://agent-server/"],
    );
    assert_eq!(status(&done), 200, "{done}");
    assert!(body(&done).contains("sa:agents:planner"), "{done}");
    let done = by_proxy(
        &node,
        &token,
        &["-H", "X-Agent-Target: nobody", "http://nobody/"],
    );
    reason(&done, "INGRESS_DENIED_BY_ZEROPROXY");
    let metadata = by_proxy(&node, &token, &["http://169.254.169.254/"]);
    reason(&metadata, "SENSITIVE_ADDRESS_DENIED_BY_ZEROPROXY");

    // TLS inside CONNECT, whose requests can't show a token
    let ca = node.outside.pki().ca.to_string_lossy().into_owned();
    let done = by_proxy(
        &node,
        &token,
        &["--cacert", &ca, "https://secure.example.com/"],
    );
    assert!(
        done.ok()
            && done
                .stdout
                .contains("hello over tls from secure.example.com"),
        "{done}"
    );
    node.audit_line("the node's own request", |line| {
        line["pod"]["name"] == "http-e2e" && line["destination"]["host"] == "docs.example.com"
    })
    .unwrap();
    assert!(node.leaked_secrets().unwrap().is_empty());
}

#[test]
fn nobody_uses_the_proxy_from_the_node_without_the_token() {
    let Some(mut node) = node("local-proxy") else {
        return;
    };
    let before = node.outside.requests().unwrap().len();
    for token in ["", "wrong"] {
        let done = by_proxy(&node, token, &["http://docs.example.com/"]);
        assert_eq!(status(&done), 407, "{done}");
        assert!(
            done.stdout
                .to_lowercase()
                .contains("proxy-authenticate: bearer"),
            "{done}"
        );
        let done = by_proxy(&node, token, &["https://secure.example.com/"]);
        assert!(!done.ok() && done.all().contains("407"), "{done}");
    }
    node.audit_line("a client without the token", |line| {
        line["reason"] == "UNKNOWN_SOURCE_DENIED_BY_ZEROPROXY" && line["status"] == 407
    })
    .unwrap();
    // a pod has no use for the token: it is who it is
    let stranger = node.add_pod(&PodSpec::named("stranger")).unwrap();
    let token = format!("e2e:{LOCAL_TOKEN}");
    let gateway = stranger
        .network()
        .sh("ip route | sed -n 's/^default via \\([0-9.]*\\).*/\\1/p'")
        .unwrap();
    let proxy = format!("http://{}:18080", gateway.stdout.trim());
    let done = stranger
        .curl(&[
            "-x",
            &proxy,
            "--proxy-user",
            &token,
            "http://docs.example.com/",
        ])
        .unwrap();
    assert_eq!(status(&done), 403, "{done}");
    assert!(
        body(&done).contains("DIRECT_BYPASS_DENIED_BY_ZEROPROXY"),
        "{done}"
    );
    for endpoint in ["healthz", "metrics", "policy/version"] {
        let done = stranger.curl(&[&format!("{proxy}/{endpoint}")]).unwrap();
        assert_eq!(status(&done), 403, "{endpoint}: {done}");
    }
    assert_eq!(node.outside.requests().unwrap().len(), before);

    node.config().as_object_mut().unwrap().remove("localClient");
    node.stop_proxy(nix::sys::signal::Signal::SIGTERM).unwrap();
    node.start_proxy().unwrap();
    let done = by_proxy(&node, LOCAL_TOKEN, &["http://docs.example.com/"]);
    assert_eq!(status(&done), 403, "{done}");
    assert!(body(&done).contains("localClient"), "{done}");
    assert_eq!(node.outside.requests().unwrap().len(), before);
}
