use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::support::*;

fn rule(extra: &serde_json::Value) -> serde_json::Value {
    let mut rule = json!({
        "name": "token", "kind": "credential", "host": "api.test",
        "header": "Authorization", "prefix": "Bearer ", "valueFromFile": "repo/token",
    });
    for (key, value) in extra.as_object().unwrap() {
        rule[key] = value.clone();
    }
    json!([rule])
}

fn nothing_leaks(node: &Node, reply: &Reply) {
    assert!(!reply.head.contains(SECRET), "{}", reply.head);
    let audit = std::fs::read_to_string(node.path("audit.log")).unwrap_or_default();
    assert!(!audit.contains(SECRET));
}

#[tokio::test]
async fn the_credential_replaces_whatever_the_pod_sent() {
    local(async {
        let api = echo().await;
        let node = Node::new(&policy(&rule(&json!({}))), &upstreams(&[("api.test", api)]));
        let request = "GET / HTTP/1.1\r\nHost: api.test\r\nauthorization: Basic pod\r\n\
            AUTHORIZATION: again\r\nConnection: keep-alive, Authorization\r\n\
            X-Agent-Caller: sa:x:y\r\nX_Agent_Caller: sa:x:y\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n";
        let reply = node.ask(request).await;
        assert_eq!(reply.status, 200);
        let seen = &reply.body;
        assert_eq!(
            seen.to_lowercase().matches("authorization").count(),
            1,
            "{seen}"
        );
        assert!(
            seen.contains(&format!("authorization: Bearer {SECRET}\r\n")),
            "{seen}"
        );
        for gone in ["agent", "forwarded", "connection"] {
            assert!(!seen.to_lowercase().contains(gone), "{gone} in {seen}");
        }
        let line = &node.audit(1).await[0];
        assert_eq!(line["reason"], "CREDENTIAL_INJECTED_BY_ZEROPROXY");
        nothing_leaks(&node, &reply);
    })
    .await;
}

#[tokio::test]
async fn a_rule_without_its_credential_sends_nothing() {
    local(async {
        let api = echo().await;
        let node = Node::new(&policy(&rule(&json!({}))), &upstreams(&[("api.test", api)]));
        std::fs::remove_file(node.path("credentials/repo/token")).unwrap();
        let reply = node.ask("GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
        assert_eq!(reply.status, 502);
        assert_eq!(reply.json()["reason"], "CREDENTIAL_UNAVAILABLE");
        assert!(!reply.body.contains("repo/token"), "{}", reply.body);
        let line = &node.audit(1).await[0];
        assert_eq!(line["decision"], "deny");
        let detail = line["detail"].as_str().unwrap();
        assert!(detail.contains("`repo/token` is missing"), "{detail}");
    })
    .await;
}

#[tokio::test]
async fn where_an_upstream_is_is_told_to_the_operator_and_not_to_the_pod() {
    local(async {
        let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = gone.local_addr().unwrap();
        drop(gone);
        let config = upstreams(&[("api.test", address)]);
        let node = Node::new(&policy(&rule(&json!({}))), &config);
        let reply = node.ask("GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
        assert_eq!(reply.status, 502);
        let body = reply.json();
        assert_eq!(body["reason"], "UPSTREAM_UNREACHABLE");
        assert_eq!(body["message"], "the upstream can't be connected to");
        assert_eq!(body["rule"], "token");
        assert!(!reply.body.contains("127.0.0.1"), "{}", reply.body);
        let line = &node.audit(1).await[0];
        assert_eq!(line["request_id"], body["request_id"]);
        let detail = line["detail"].as_str().unwrap();
        assert!(detail.contains(&address.to_string()), "{detail}");
    })
    .await;
}

#[tokio::test]
async fn an_echoed_credential_is_redacted_in_headers_and_trailers() {
    local(async {
        let api = upstream(|mut stream| async move {
            let head = read_head(&mut stream, &mut Vec::new()).await.unwrap();
            let value = header(&head, "authorization").unwrap();
            let reply = format!(
                "HTTP/1.1 200 OK\r\nX-Echo: got {value}\r\nX-Raw: {SECRET}\r\nTrailer: X-Late\r\n\
                 Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Late: {SECRET}\r\n\r\n"
            );
            stream.write_all(reply.as_bytes()).await.unwrap();
        })
        .await;
        let node = Node::new(&policy(&rule(&json!({}))), &upstreams(&[("api.test", api)]));
        let reply = node
            .ask("GET / HTTP/1.1\r\nHost: api.test\r\nTE: trailers\r\n\r\n")
            .await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("x-echo"), Some("got [redacted]"));
        assert_eq!(reply.header("x-raw"), Some("[redacted]"));
        assert_eq!(reply.body, "ok|trailer x-late: [redacted]");
        nothing_leaks(&node, &reply);
    })
    .await;
}

#[tokio::test]
async fn an_echo_is_left_alone_where_the_rule_says_so() {
    local(async {
        let api = upstream(|mut stream| async move {
            read_head(&mut stream, &mut Vec::new()).await.unwrap();
            let reply = format!("HTTP/1.1 200 OK\r\nX-Raw: {SECRET}\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(reply.as_bytes()).await.unwrap();
        })
        .await;
        let rules = rule(&json!({"stripFromResponse": false}));
        let node = Node::new(&policy(&rules), &upstreams(&[("api.test", api)]));
        let reply = node.ask("GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
        assert_eq!(reply.header("x-raw"), Some(SECRET));
    })
    .await;
}

#[tokio::test]
async fn a_rotated_credential_is_used_within_a_second() {
    local(async {
        let api = echo().await;
        let node = Node::new(&policy(&rule(&json!({}))), &upstreams(&[("api.test", api)]));
        node.ask("GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
        std::fs::write(node.path("credentials/repo/token"), "fresh").unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(1000)).await;
        let reply = node.ask("GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
        assert!(
            reply.body.contains("authorization: Bearer fresh\r\n"),
            "{}",
            reply.body
        );
    })
    .await;
}

#[tokio::test]
async fn underscore_variants_of_the_credential_header_do_not_pass() {
    local(async {
        let api = echo().await;
        let rules = rule(&json!({"header": "X-API-Key", "prefix": ""}));
        let node = Node::new(&policy(&rules), &upstreams(&[("api.test", api)]));
        let request = "POST / HTTP/1.1\r\nHost: api.test\r\nX_Api_Key: a\r\nx-api_key: b\r\n\
            Trailer: X_API_KEY, Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
            2\r\nhi\r\n0\r\nX_API_KEY: late\r\nSum: 1\r\n\r\n";
        let reply = node.ask(request).await;
        assert!(
            reply.body.contains(&format!("x-api-key: {SECRET}\r\n")),
            "{}",
            reply.body
        );
        assert!(
            !reply.body.contains("x_api_key:") && !reply.body.contains("x-api_key:"),
            "{}",
            reply.body
        );
        assert!(reply.body.ends_with("hi|trailer sum: 1"), "{}", reply.body);
    })
    .await;
}
