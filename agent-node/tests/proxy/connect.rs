use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::support::*;

async fn node() -> Node {
    let api = echo().await;
    let raw = upstream(|mut stream| async move {
        stream.write_all(b"220 hello\r\n").await.unwrap();
        let mut held = Vec::new();
        let _ = read_head(&mut stream, &mut held).await;
    })
    .await;
    Node::new(
        &policy(&json!([
            {"name": "api", "kind": "allow", "host": "api.test"},
            {"name": "shut", "kind": "deny", "host": "other.test"},
            {"name": "mail", "kind": "allow", "host": "mail.test", "port": 25, "protocol": "tcp"},
        ])),
        &upstreams(&[("api.test", api), ("mail.test", raw), ("other.test", api)]),
    )
}

async fn connect(node: &Node, authority: &str) -> (tokio::net::TcpStream, u16) {
    let mut pod = node.dial(DIALLED).await;
    let ask = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    pod.write_all(ask.as_bytes()).await.unwrap();
    let head = read_head(&mut pod, &mut Vec::new()).await.unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (pod, status)
}

#[tokio::test]
async fn connect_to_what_no_rule_allows_is_denied_in_words() {
    local(async {
        let node = node().await;
        for authority in ["other.test:443", "mail.test:26", "203.0.113.7:443"] {
            let reply = node
                .ask(&format!(
                    "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n"
                ))
                .await;
            assert_eq!(reply.status, 403, "{authority}");
            assert_eq!(reply.header("connection"), Some("close"));
        }
        let reply = node
            .ask("CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: 169.254.169.254:80\r\n\r\n")
            .await;
        assert_eq!(
            reply.json()["reason"],
            "SENSITIVE_ADDRESS_DENIED_BY_ZEROPROXY"
        );
    })
    .await;
}

#[tokio::test]
async fn requests_inside_a_tunnel_are_decided_like_any_other() {
    local(async {
        let node = node().await;
        let (mut pod, status) = connect(&node, "api.test:80").await;
        assert_eq!(status, 200);
        for (path, host, status) in [
            ("/x", "api.test", 200),
            ("/x", "other.test", 403),
            ("/x", "mail.test", 403),
        ] {
            pod.write_all(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
                .await
                .unwrap();
            assert_eq!(Reply::read(&mut pod).await.status, status, "{path} {host}");
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_neither_http_nor_tls_in_a_tunnel_is_reset() {
    local(async {
        let node = node().await;
        for first in [&b"EHLO pod\r\n"[..], b""] {
            let before = node.audit(0).await.len();
            let (mut pod, status) = connect(&node, "mail.test:25").await;
            assert_eq!(status, 200);
            pod.write_all(first).await.unwrap();
            let error = read_to_end(&mut pod).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            let line = node.audit(before + 2).await[before + 1].clone();
            assert_eq!(line["destination"]["protocol"], "tcp");
            assert_eq!(line["destination"]["host"], "mail.test");
            assert_eq!(line["decision"], "deny");
        }
    })
    .await;
}

#[tokio::test]
async fn absolute_form_is_decided_by_its_own_authority() {
    local(async {
        let node = node().await;
        let proxy = "203.0.113.1:3128".parse().unwrap();
        for (target, status) in [("http://api.test/x", 200), ("http://other.test/x", 403)] {
            let host = target.split('/').nth(2).unwrap();
            let mut pod = node.dial(proxy).await;
            pod.write_all(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
                .await
                .unwrap();
            let reply = Reply::read(&mut pod).await;
            assert_eq!(reply.status, status, "{target}: {}", reply.body);
            if status == 200 {
                assert!(
                    reply.body.starts_with("GET /x HTTP/1.1\r\n"),
                    "{}",
                    reply.body
                );
            }
        }
        assert_eq!(node.audit(2).await[0]["destination"]["port"], 80);
    })
    .await;
}
