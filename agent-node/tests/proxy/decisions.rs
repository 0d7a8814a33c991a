use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::support::*;

async fn node() -> Node {
    let api = echo().await;
    Node::new(
        &policy(&json!([
            {"name": "api", "kind": "allow", "host": "api.test"},
            {"name": "no-admin", "kind": "deny", "host": "api.test", "paths": ["/admin/*"]},
            {"name": "read-only", "kind": "allow", "host": "ro.test", "methods": ["GET"]},
        ])),
        &upstreams(&[("api.test", api), ("ro.test", api), ("other.test", api)]),
    )
}

#[tokio::test]
async fn what_a_rule_allows_goes_out_and_is_audited() {
    local(async {
        let node = node().await;
        let reply = node
            .ask("GET /x?q=1 HTTP/1.1\r\nHost: API.test:80\r\nX-Y: z\r\n\r\n")
            .await;
        assert_eq!(reply.status, 200);
        assert!(
            reply.body.starts_with("GET /x?q=1 HTTP/1.1\r\n"),
            "{}",
            reply.body
        );
        // The Host header as the client meant it.
        assert!(
            reply.body.contains("host: API.test:80\r\n"),
            "{}",
            reply.body
        );
        let line = &node.audit(1).await[0];
        assert_eq!(line["reason"], "EGRESS_ALLOWED_BY_POLICY");
        assert_eq!(line["decision"], "allow");
        assert_eq!(line["rule"], "api");
        assert_eq!(line["policy"], "agents/p");
        assert_eq!(line["direction"], "egress");
        assert_eq!(line["destination"]["host"], "api.test");
        assert_eq!(line["destination"]["path_without_query"], "/x");
        assert_eq!(line["destination"]["port"], 80);
        assert_eq!(line["pod"]["service_account"], "planner");
        assert_eq!(line["status"], 200);
        assert!(!line.to_string().contains("q=1"));
    })
    .await;
}

#[tokio::test]
async fn a_denial_says_which_host_rule_and_policy() {
    local(async {
        let node = node().await;
        let reply = node
            .ask("GET /admin/x HTTP/1.1\r\nHost: api.test\r\n\r\n")
            .await;
        assert_eq!(reply.status, 403);
        assert_eq!(reply.header("content-type"), Some("application/json"));
        let decision = reply.header("x-agent-network-decision").unwrap();
        assert_eq!(decision, "deny; rule=no-admin; policy=agents/p");
        let body = reply.json();
        assert_eq!(body["error"], "denied");
        assert_eq!(body["host"], "api.test");
        assert_eq!(body["rule"], "no-admin");
        assert_eq!(body["policy"], "agents/p");
        assert_eq!(body["reason"], "EGRESS_DENIED_BY_POLICY");
        assert!(body["remedy"].as_str().unwrap().len() > 20);
        let line = &node.audit(1).await[0];
        assert_eq!(line["request_id"], body["request_id"]);
        assert_eq!(line["status"], 403);

        let reply = node.ask("GET / HTTP/1.1\r\nHost: other.test\r\n\r\n").await;
        assert_eq!(reply.status, 403);
        assert_eq!(reply.json()["rule"], json!(null));
    })
    .await;
}

#[tokio::test]
async fn the_path_that_is_decided_is_the_path_that_is_sent() {
    local(async {
        let node = node().await;
        for path in [
            "/public/../admin/x",
            "/%61dmin/x",
            "//admin//x",
            "/x/%2e%2e/admin/x",
            "/./admin/x",
        ] {
            let reply = node
                .ask(&format!("GET {path} HTTP/1.1\r\nHost: api.test\r\n\r\n"))
                .await;
            assert_eq!(reply.status, 403, "{path}");
        }
        for path in ["/a/..;/admin", "/%00", "/../x", "/a\\..\\admin"] {
            let reply = node
                .ask(&format!("GET {path} HTTP/1.1\r\nHost: api.test\r\n\r\n"))
                .await;
            assert_eq!(reply.status, 400, "{path}");
        }
        let reply = node
            .ask("GET /a/./b/../@scope%2Fpkg?x=%2e HTTP/1.1\r\nHost: api.test\r\n\r\n")
            .await;
        assert!(
            reply
                .body
                .starts_with("GET /a/@scope%2Fpkg?x=%2e HTTP/1.1\r\n"),
            "{}",
            reply.body
        );
    })
    .await;
}

#[tokio::test]
async fn head_goes_where_get_goes_and_post_does_not() {
    local(async {
        let node = node().await;
        let mut pod = node.dial(DIALLED).await;
        pod.write_all(b"HEAD / HTTP/1.1\r\nHost: ro.test\r\n\r\n")
            .await
            .unwrap();
        let head = read_head(&mut pod, &mut Vec::new()).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(
            header(&head, "content-length")
                .unwrap()
                .parse::<u64>()
                .unwrap()
                > 0
        );
        let reply = node
            .ask("POST / HTTP/1.1\r\nHost: ro.test\r\nContent-Length: 0\r\n\r\n")
            .await;
        assert_eq!(reply.status, 403);
    })
    .await;
}

#[tokio::test]
async fn an_unknown_source_is_denied_in_words() {
    local(async {
        let node = node().await;
        let mut pod = node
            .dial_from("169.254.9.77".parse().unwrap(), DIALLED)
            .await;
        pod.write_all(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
            .await
            .unwrap();
        let reply = Reply::read(&mut pod).await;
        assert_eq!(reply.status, 403);
        assert_eq!(reply.json()["reason"], "UNKNOWN_SOURCE_DENIED_BY_ZEROPROXY");
        let line = &node.audit(1).await[0];
        assert_eq!(line["pod"]["fake_ip"], "169.254.9.77");
    })
    .await;
}

#[tokio::test]
async fn direct_bypass_and_sensitive_addresses_are_denied_before_any_rule() {
    local(async {
        let node = node().await;
        for (dst, reason, direction) in [
            (
                "169.254.9.3:80",
                "DIRECT_BYPASS_DENIED_BY_ZEROPROXY",
                "bypass",
            ),
            (
                "169.254.169.254:80",
                "SENSITIVE_ADDRESS_DENIED_BY_ZEROPROXY",
                "egress",
            ),
            (
                "100.64.1.1:80",
                "SENSITIVE_ADDRESS_DENIED_BY_ZEROPROXY",
                "egress",
            ),
            (
                "127.0.0.1:18080",
                "NODE_ADDRESS_DENIED_BY_ZEROPROXY",
                "egress",
            ),
        ] {
            let before = node.audit(0).await.len();
            let mut pod = node.dial(dst.parse().unwrap()).await;
            pod.write_all(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
                .await
                .unwrap();
            let reply = Reply::read(&mut pod).await;
            assert_eq!(reply.status, 403, "{dst}");
            assert_eq!(reply.json()["reason"], reason, "{dst}");
            let line = node.audit(before + 1).await[before].clone();
            assert_eq!(line["direction"], direction, "{dst}");
            assert_eq!(line["reason"], reason, "{dst}");
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_no_protocol_of_ours_is_reset_and_silence_does_not_hang() {
    local(async {
        let node = node().await;
        for first in [&b"SSH-2.0-x\r\n"[..], b""] {
            let before = node.audit(0).await.len();
            let mut pod = node.dial("169.254.9.3:22".parse().unwrap()).await;
            pod.write_all(first).await.unwrap();
            let error = read_to_end(&mut pod).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            let line = node.audit(before + 1).await[before].clone();
            assert_eq!(line["reason"], "DIRECT_BYPASS_DENIED_BY_ZEROPROXY");
            assert_eq!(line["destination"]["protocol"], "tcp");
        }
    })
    .await;
}

#[tokio::test]
async fn http2_without_tls_is_told_to_use_http1() {
    local(async {
        let node = node().await;
        let mut pod = node.dial(DIALLED).await;
        pod.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
            .await
            .unwrap();
        let got = read_to_end(&mut pod).await.unwrap();
        assert_eq!(got.len(), 26);
        assert_eq!(got[25], 13);
    })
    .await;
}

#[tokio::test]
async fn audit_mode_lets_through_and_says_what_it_would_have_denied() {
    local(async {
        let api = echo().await;
        let rules = json!([{"name": "no", "kind": "deny", "host": "api.test"}]);
        let node = Node::new(
            &policy_in("audit", &rules),
            &upstreams(&[("api.test", api)]),
        );
        let reply = node.ask("GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
        assert_eq!(reply.status, 200);
        let line = &node.audit(1).await[0];
        assert_eq!(line["decision"], "would_deny");
        assert_eq!(line["would_deny"]["rule"], "no");
    })
    .await;
}

#[tokio::test]
async fn a_redirect_is_given_back_and_not_followed() {
    local(async {
        let api = upstream(|mut stream| async move {
            read_head(&mut stream, &mut Vec::new()).await;
            let reply =
                b"HTTP/1.1 302 Found\r\nLocation: http://other.test/\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(reply).await.unwrap();
        })
        .await;
        let rules = json!([{"name": "api", "kind": "allow", "host": "api.test"}]);
        let node = Node::new(&policy(&rules), &upstreams(&[("api.test", api)]));
        let reply = node.ask("GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
        assert_eq!(reply.status, 302);
        assert_eq!(reply.header("location"), Some("http://other.test/"));
    })
    .await;
}

#[tokio::test]
async fn upstreams_that_fail_are_told_apart() {
    local(async {
        let closed = {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            listener.local_addr().unwrap()
        };
        let rude = upstream(|stream| async move { drop(stream) }).await;
        let node = Node::new(
            &policy(&json!([{"name": "all", "kind": "allow", "host": "*"}])),
            &upstreams(&[("closed.test", closed), ("rude.test", rude)]),
        );
        for (host, status, reason) in [
            ("closed.test", 502, "UPSTREAM_UNREACHABLE"),
            ("rude.test", 502, "UPSTREAM_FAILED"),
            ("nowhere.test", 502, "NAME_NOT_RESOLVED"),
        ] {
            let reply = node
                .ask(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"))
                .await;
            assert_eq!(reply.status, status, "{host}");
            assert_eq!(reply.json()["reason"], reason, "{host}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_local_endpoints_are_nobodys_upstream() {
    local(async {
        let admin = echo().await;
        let rules = json!([{"name": "all", "kind": "allow", "host": "*"}]);
        for (listen, status) in [
            (admin.to_string(), 403),
            (format!("0.0.0.0:{}", admin.port()), 403),
            ("127.0.0.1:1".into(), 200),
        ] {
            let mut config = upstreams(&[("api.test", admin)]);
            config["listen"] = json!(listen);
            let node = Node::new(&policy(&rules), &config);
            let reply = node.ask("GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
            assert_eq!(reply.status, status, "{listen}");
            if status == 403 {
                assert_eq!(reply.json()["reason"], "NODE_ADDRESS_DENIED_BY_ZEROPROXY");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn while_the_nodes_networks_are_unknown_everything_is_denied() {
    local(async {
        let api = echo().await;
        let mut config = upstreams(&[("api.test", api)]);
        config["fakeCidrs"] = json!([]);
        let rules = json!([
            {"name": "all", "kind": "allow", "host": "*"},
            {"name": "net", "kind": "allow", "cidr": "0.0.0.0/0"},
        ]);
        let node = Node::new(&policy(&rules), &config);
        let reply = node.ask("GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
        assert_eq!(reply.status, 503);
        assert_eq!(reply.json()["reason"], "INTERNAL_ERROR");
        let mut pod = node.dial(DIALLED).await;
        pod.write_all(&crate::tls::client_hello("api.test"))
            .await
            .unwrap();
        assert_eq!(
            read_to_end(&mut pod).await.unwrap(),
            crate::tls::ACCESS_DENIED
        );
        let mut pod = node.dial(DIALLED).await;
        assert!(read_to_end(&mut pod).await.is_err());
        for line in node.audit(3).await {
            assert_eq!(line["decision"], "deny");
            assert_eq!(line["reason"], "INTERNAL_ERROR");
            let detail = line["detail"].as_str().unwrap();
            assert!(detail.contains("networks are not known"), "{detail}");
        }
    })
    .await;
}

#[tokio::test]
async fn http_1_0_without_host_leaves_with_the_authority_that_was_decided_on() {
    local(async {
        let api = echo().await;
        let rules = json!([{"name": "api", "kind": "allow", "host": "api.test"}]);
        let node = Node::new(&policy(&rules), &upstreams(&[("api.test", api)]));
        for (authority, host) in [
            ("api.test", "api.test"),
            ("api.test:80", "api.test"),
            ("api.test:8080", "api.test:8080"),
        ] {
            let reply = node
                .ask(&format!("GET http://{authority}/ HTTP/1.0\r\n\r\n"))
                .await;
            assert_eq!(reply.status, 200, "{}", reply.body);
            assert!(
                reply.body.contains(&format!("host: {host}\r\n")),
                "{}",
                reply.body
            );
        }
    })
    .await;
}
