use std::time::Duration;

use agent_node::metrics::Counter;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::*;

fn allow_ws() -> serde_json::Value {
    policy(&json!([{"name": "ws", "kind": "allow", "host": "ws.test"}]))
}

const ASK: &str = "GET /chat HTTP/1.1\r\nHost: ws.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n";

#[tokio::test]
async fn a_websocket_is_relayed_raw_after_101() {
    local(async {
        let ws = upstream(|mut stream| async move {
            let head = read_head(&mut stream, &mut Vec::new()).await.unwrap();
            assert_eq!(header(&head, "upgrade"), Some("websocket"));
            assert_eq!(header(&head, "connection"), Some("upgrade"));
            let reply = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: y\r\n\r\nfirst";
            stream.write_all(reply).await.unwrap();
            let mut piece = [0; 64];
            loop {
                let n = stream.read(&mut piece).await.unwrap();
                if n == 0 {
                    return;
                }
                stream.write_all(&piece[..n]).await.unwrap();
            }
        })
        .await;
        let node = Node::new(&allow_ws(), &upstreams(&[("ws.test", ws)]));
        let mut pod = node.dial(DIALLED).await;
        pod.write_all(ASK.as_bytes()).await.unwrap();
        let mut held = Vec::new();
        let head = read_head(&mut pod, &mut held).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        assert_eq!(header(&head, "sec-websocket-accept"), Some("y"));
        assert_eq!(header(&head, "upgrade"), Some("websocket"));
        // What looks like a request is no request any more.
        let frame = b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n";
        pod.write_all(frame).await.unwrap();
        while held.len() < 5 + frame.len() {
            let mut piece = [0; 64];
            let n = pod.read(&mut piece).await.unwrap();
            assert!(n > 0);
            held.extend_from_slice(&piece[..n]);
        }
        assert_eq!(held, [b"first", &frame[..]].concat());
        drop(pod);
        let line = &node.audit(1).await[0];
        assert_eq!(line["status"], 101);
        assert_eq!(line["bytes_in"], frame.len());
    })
    .await;
}

#[tokio::test]
async fn an_upgrade_that_is_not_taken_closes_behind_its_answer() {
    local(async {
        let ws = upstream(|mut stream| async move {
            read_head(&mut stream, &mut Vec::new()).await;
            stream
                .write_all(b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\nno")
                .await
                .unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
        })
        .await;
        let node = Node::new(&allow_ws(), &upstreams(&[("ws.test", ws)]));
        let mut pod = node.dial(DIALLED).await;
        pod.write_all(format!("{ASK}GET / HTTP/1.1\r\nHost: ws.test\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut held = Vec::new();
        let reply = Reply::read_held(&mut pod, &mut held).await;
        assert_eq!(reply.status, 400);
        assert_eq!(reply.header("connection"), Some("close"));
        held.extend(read_to_end(&mut pod).await.unwrap());
        assert_eq!(held, b"");
    })
    .await;
}

#[tokio::test]
async fn h2c_is_not_passed_on_and_the_request_is_served() {
    local(async {
        let api = echo().await;
        let node = Node::new(&allow_ws(), &upstreams(&[("ws.test", api)]));
        let mut pod = node.dial(DIALLED).await;
        let ask = "GET / HTTP/1.1\r\nHost: ws.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n\r\n";
        for _ in 0..2 {
            pod.write_all(ask.as_bytes()).await.unwrap();
            let reply = Reply::read(&mut pod).await;
            assert_eq!(reply.status, 200);
            assert!(!reply.body.to_lowercase().contains("h2c"), "{}", reply.body);
            assert!(!reply.body.to_lowercase().contains("settings"), "{}", reply.body);
        }
    })
    .await;
}

#[tokio::test]
async fn a_101_that_nobody_asked_for_is_refused() {
    local(async {
        let ws = upstream(|mut stream| async move {
            let head = read_head(&mut stream, &mut Vec::new()).await.unwrap();
            let protocol = if head.contains("/other") { "h2c" } else { "websocket" };
            let reply = format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n");
            stream.write_all(reply.as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
        })
        .await;
        let node = Node::new(&allow_ws(), &upstreams(&[("ws.test", ws)]));
        let reply = node.ask("GET / HTTP/1.1\r\nHost: ws.test\r\n\r\n").await;
        assert_eq!(reply.status, 502);
        assert_eq!(reply.json()["reason"], "UPSTREAM_FAILED");
        let reply = node.ask(&ASK.replace("/chat", "/other")).await;
        assert_eq!(reply.status, 502);
    })
    .await;
}

#[tokio::test]
async fn a_credential_that_is_echoed_in_the_101_is_redacted() {
    local(async {
        let ws = upstream(|mut stream| async move {
            read_head(&mut stream, &mut Vec::new()).await.unwrap();
            let reply = format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Echo: got {SECRET}\r\n\r\n");
            stream.write_all(reply.as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
        })
        .await;
        let rules = json!([{
            "name": "token", "kind": "credential", "host": "ws.test",
            "header": "Authorization", "prefix": "Bearer ", "valueFromFile": "repo/token",
        }]);
        let node = Node::new(&policy(&rules), &upstreams(&[("ws.test", ws)]));
        let mut pod = node.dial(DIALLED).await;
        pod.write_all(ASK.as_bytes()).await.unwrap();
        let head = read_head(&mut pod, &mut Vec::new()).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        assert_eq!(header(&head, "x-echo"), Some("got [redacted]"));
        assert!(!head.contains(SECRET), "{head}");
        let counted = node.worker.metrics().get(Counter::CredentialsRedacted);
        assert_eq!(counted, 1);
    })
    .await;
}
