use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::support::*;

async fn node() -> Node {
    let agent = echo().await;
    Node::new(
        &policy(&json!([
            {"name": "in", "kind": "allow", "direction": "ingress",
             "caller": "sa:agents:planner", "target": "agent-server"},
            {"name": "shut", "kind": "deny", "direction": "ingress", "caller": "*", "target": "vault"},
            {"name": "nowhere", "kind": "allow", "direction": "ingress", "caller": "*", "target": "ghost"},
        ])),
        &upstreams(&[("agent-server", agent), ("vault", agent)]),
    )
}

fn call(target: &str, claim: &str) -> String {
    format!("GET /t HTTP/1.1\r\nHost: whatever.test\r\nX-Agent-Target: {target}\r\n{claim}\r\n")
}

#[tokio::test]
async fn a_permitted_call_reaches_the_target_with_a_verified_caller() {
    local(async {
        let node = node().await;
        for claim in ["", "X-Agent-Caller: sa:agents:planner\r\n"] {
            let reply = node.ask(&call("Agent-Server", claim)).await;
            assert_eq!(reply.status, 200, "{}", reply.body);
            assert!(
                reply.body.contains("x-agent-caller: sa:agents:planner\r\n"),
                "{}",
                reply.body
            );
            assert_eq!(reply.body.matches("x-agent-caller").count(), 1);
        }
        let line = &node.audit(1).await[0];
        assert_eq!(line["reason"], "INGRESS_ALLOWED_BY_ZEROPROXY");
        assert_eq!(line["direction"], "ingress");
        assert_eq!(line["caller"], "sa:agents:planner");
        assert_eq!(line["destination"]["host"], "agent-server");
    })
    .await;
}

#[tokio::test]
async fn a_false_claim_is_an_identity_mismatch() {
    local(async {
        let node = node().await;
        for claim in ["sa:agents:other", "nonsense", "*", "pod:agents:planner-0"] {
            let reply = node
                .ask(&call(
                    "agent-server",
                    &format!("X-Agent-Caller: {claim}\r\n"),
                ))
                .await;
            assert_eq!(reply.status, 403, "{claim}");
            assert_eq!(reply.json()["reason"], "IDENTITY_MISMATCH", "{claim}");
        }
        let two = "X-Agent-Caller: sa:agents:planner\r\nX-Agent-Caller: sa:agents:other\r\n";
        assert_eq!(node.ask(&call("agent-server", two)).await.status, 403);
    })
    .await;
}

#[tokio::test]
async fn denied_unknown_and_several_targets_are_refused() {
    local(async {
        let node = node().await;
        for (target, status, reason) in [
            ("vault", 403, "INGRESS_DENIED_BY_ZEROPROXY"),
            ("unheard-of", 403, "INGRESS_DENIED_BY_ZEROPROXY"),
            ("ghost", 502, "NAME_NOT_RESOLVED"),
            ("a\r\nX-Agent-Target: b", 400, "BAD_REQUEST"),
        ] {
            let reply = node.ask(&call(target, "")).await;
            assert_eq!(reply.status, status, "{target}");
            assert_eq!(reply.json()["reason"], reason, "{target}");
        }
    })
    .await;
}

/// An upstream that answers with the number of the connection.
async fn numbered() -> std::net::SocketAddr {
    let connections = std::rc::Rc::new(std::cell::Cell::new(0));
    upstream(move |mut stream| {
        connections.set(connections.get() + 1);
        let body = connections.get().to_string();
        async move {
            let mut held = Vec::new();
            while read_head(&mut stream, &mut held).await.is_some() {
                let reply = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                if stream.write_all(reply.as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_connection_made_for_a_target_serves_that_target_only() {
    local(async {
        let agent = numbered().await;
        let node = Node::new(
            &policy(&json!([
                {"name": "in", "kind": "allow", "direction": "ingress", "caller": "*", "target": "*"},
                {"name": "out", "kind": "allow", "host": "*"},
            ])),
            &upstreams(&[("agent-a", agent), ("agent-b", agent), ("whatever.test", agent)]),
        );
        // The same address and Host each time; what differs is whom the pod calls.
        for (request, connection) in [
            (call("agent-a", ""), "1"),
            (call("agent-b", ""), "2"),
            ("GET / HTTP/1.1\r\nHost: whatever.test\r\n\r\n".into(), "3"),
            ("GET / HTTP/1.1\r\nHost: agent-a\r\n\r\n".into(), "4"),
            (call("agent-a", ""), "1"),
            (call("agent-b", ""), "2"),
            ("GET / HTTP/1.1\r\nHost: agent-a\r\n\r\n".into(), "4"),
        ] {
            let reply = node.ask(&request).await;
            assert_eq!(reply.status, 200, "{request} {}", reply.body);
            assert_eq!(reply.body, connection, "{request}");
        }
    })
    .await;
}
