//! `agent-node credential-upstream`, what tests of a cluster talk to: served on the node, reached from a pod through the
//! proxy, by real clients.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use e2e::machine::{can_run, program};
use e2e::node::FILES;
use e2e::outside::wait_for_port;
use e2e::policy::Policy;
use e2e::{Node, PodSpec};
use serde_json::{Value, json};

mod support;
use support::{body, header, status};

const LISTEN: &str = "127.0.0.1:18090";
const NAMES: [&str; 6] = [
    "docs.example.com",
    "git.example.com",
    "git.internal.example.com",
    "vector-db.internal.example.com",
    "prod-db.internal.example.com",
    "agent-server",
];

/// What the upstream counted for a name, as the node asks it.
fn observed(node: &Node, name: &str) -> Value {
    let url = format!("http://{LISTEN}/observed/{name}");
    let done = node.place().run(&["curl", "-sS", &url]).unwrap();
    serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
}

#[test]
fn pods_reach_the_upstreams_of_tests_with_tokens_that_they_never_hold() {
    if !can_run().unwrap() {
        return;
    }
    let mut node = Node::start("upstream-node").unwrap();
    for name in NAMES {
        node.config()["upstreams"][name] = json!({"addresses": ["127.0.0.1"], "port": 18090});
    }
    node.write_policy(&Policy::demo().document()).unwrap();
    let agent_node = program("agent-node").unwrap();
    let credentials = format!("{FILES}/credentials/zeroproxy-credentials");
    let _upstream = node
        .place()
        .spawn(
            "credential-upstream",
            &[
                &agent_node.to_string_lossy(),
                "credential-upstream",
                "--listen",
                LISTEN,
                "--credentials-dir",
                &credentials,
            ],
            &[],
        )
        .unwrap();
    wait_for_port(&node.place(), LISTEN).unwrap();
    node.place()
        .run(&[e2e::cni::PLUGIN, "setup"])
        .unwrap()
        .success()
        .unwrap();
    node.start_proxy().unwrap();
    let pod = node.add_pod(&PodSpec::named("planner")).unwrap();

    let done = pod.curl(&["http://docs.example.com/guide"]).unwrap();
    assert_eq!(status(&done), 200, "{done}");
    assert_eq!(header(&done, "x-upstream-saw"), Some("none"), "{done}");

    // git's own way of a token, by the real git
    let clone = "cd /tmp && GIT_TERMINAL_PROMPT=0 git clone -q http://";
    let done = pod
        .sh(&format!(
            "{clone}git.example.com/public.git && cat public/README"
        ))
        .unwrap();
    assert!(done.stdout.contains("this is public"), "{done}");
    let done = pod
        .sh(&format!(
            "{clone}git.internal.example.com/private.git && cat private/README && git -C private fsck --strict 2>&1"
        ))
        .unwrap();
    assert!(
        done.ok() && done.stdout.contains("this is private"),
        "{done}"
    );
    let seen = observed(&node, "git.internal.example.com");
    assert!(seen["right"].as_u64() > Some(3), "{seen}");
    assert_eq!((&seen["wrong"], &seen["none"]), (&json!(0), &json!(0)));

    let query = r#"{"query": "who holds the credential?", "top": 1}"#;
    let done = pod
        .curl(&[
            "-H",
            "X-Api-Key: the-pods-own",
            "--data",
            query,
            "http://vector-db.internal.example.com/query",
        ])
        .unwrap();
    assert_eq!(header(&done, "x-upstream-saw"), Some("right"), "{done}");
    assert!(body(&done).contains(r#""id":"credential""#), "{done}");

    let call = [
        "--resolve",
        "agent-server:80:203.0.113.99",
        "-H",
        "X-Agent-Target: agent-server",
        "http://agent-server/task",
    ];
    let done = pod.curl(&call).unwrap();
    assert!(body(&done).contains("sa:agents:planner"), "{done}");

    // what is denied is not seen
    let denied = ["--resolve", "prod-db.internal.example.com:80:203.0.113.99"];
    let done = pod
        .curl(&[&denied[..], &["http://prod-db.internal.example.com/"]].concat())
        .unwrap();
    assert_eq!(status(&done), 403, "{done}");
    assert_eq!(
        observed(&node, "prod-db.internal.example.com")["requests"],
        0
    );
    assert!(node.leaked_secrets().unwrap().is_empty());
}
