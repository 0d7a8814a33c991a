use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::support::*;

async fn node() -> Node {
    let api = echo().await;
    Node::new(
        &policy(&json!([{"name": "api", "kind": "allow", "host": "api.test"}])),
        &upstreams(&[("api.test", api)]),
    )
}

#[tokio::test]
async fn ambiguous_requests_get_400_close_and_an_audit_line() {
    local(async {
        let node = node().await;
        let cases = [
            "POST / HTTP/1.1\r\nHost: api.test\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: api.test\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nHost: api.test\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
            "GET / HTTP/1.1\r\nHost: api.test\r\nX: a\rb\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: api.test\r\nX: a\r\n b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : api.test\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: api.test\nX: y\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: api.test\r\nHost: api.test\r\n\r\n",
            "GET / HTTP/1.1\r\nHost:\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: api.test, other.test\r\n\r\n",
            "GET http://other.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n",
        ];
        for (i, case) in cases.iter().enumerate() {
            let mut pod = node.dial(DIALLED).await;
            pod.write_all(case.as_bytes()).await.unwrap();
            let reply = Reply::read(&mut pod).await;
            assert_eq!(reply.status, 400, "{case:?}");
            assert_eq!(reply.header("connection"), Some("close"), "{case:?}");
            assert_eq!(reply.json()["error"], "bad_request");
            assert_eq!(read_to_end(&mut pod).await.unwrap(), b"", "{case:?}");
            let line = node.audit(i + 1).await[i].clone();
            assert_eq!(line["reason"], "BAD_REQUEST", "{case:?}");
            assert_eq!(line["request_id"], reply.json()["request_id"]);
        }
    })
    .await;
}

#[tokio::test]
async fn an_ambiguous_request_behind_a_good_one_is_answered_behind_its_answer() {
    local(async {
        let node = node().await;
        let mut pod = node.dial(DIALLED).await;
        let both = "GET /1 HTTP/1.1\r\nHost: api.test\r\n\r\n\
            POST /2 HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n\
            0\r\n\r\nGET /3 HTTP/1.1\r\nHost: api.test\r\n\r\n";
        pod.write_all(both.as_bytes()).await.unwrap();
        let mut held = Vec::new();
        let first = Reply::read_held(&mut pod, &mut held).await;
        assert_eq!(first.status, 200);
        assert!(first.body.starts_with("GET /1 "));
        let second = Reply::read_held(&mut pod, &mut held).await;
        assert_eq!(second.status, 400);
        held.extend(read_to_end(&mut pod).await.unwrap());
        assert_eq!(held, b"");
    })
    .await;
}

#[tokio::test]
async fn pipelined_requests_are_decided_one_by_one() {
    local(async {
        let node = node().await;
        let mut pod = node.dial(DIALLED).await;
        let all = "GET /1 HTTP/1.1\r\nHost: api.test\r\n\r\n\
            GET /2 HTTP/1.1\r\nHost: other.test\r\n\r\n\
            POST /3 HTTP/1.1\r\nHost: api.test\r\nContent-Length: 3\r\n\r\nabc\
            GET /4 HTTP/1.1\r\nHost: other.test\r\n\r\n";
        pod.write_all(all.as_bytes()).await.unwrap();
        let mut held = Vec::new();
        for status in [200, 403, 200, 403] {
            assert_eq!(Reply::read_held(&mut pod, &mut held).await.status, status);
        }
        let lines = node.audit(4).await;
        let hosts: Vec<_> = lines
            .iter()
            .map(|l| l["destination"]["host"].as_str().unwrap())
            .collect();
        assert_eq!(hosts, ["api.test", "other.test", "api.test", "other.test"]);
    })
    .await;
}

#[tokio::test]
async fn a_head_byte_by_byte_is_read_as_one() {
    local(async {
        let node = node().await;
        let mut pod = node.dial(DIALLED).await;
        for byte in b"POST /x HTTP/1.1\r\nHost: api.test\r\nContent-Length: 2\r\n\r\nhi" {
            pod.write_all(&[*byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        let reply = Reply::read(&mut pod).await;
        assert_eq!(reply.status, 200);
        assert!(reply.body.ends_with("\r\n\r\nhi"), "{}", reply.body);
    })
    .await;
}

#[tokio::test]
async fn a_malformed_chunk_ends_the_request() {
    local(async {
        let node = node().await;
        let mut pod = node.dial(DIALLED).await;
        let bytes = "POST / HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n";
        pod.write_all(bytes.as_bytes()).await.unwrap();
        let reply = Reply::read(&mut pod).await;
        assert_eq!(reply.status, 400);
        assert_eq!(read_to_end(&mut pod).await.unwrap(), b"");
    })
    .await;
}

#[tokio::test]
async fn limits_are_told_with_431() {
    local(async {
        let api = echo().await;
        let mut config = upstreams(&[("api.test", api)]);
        config["limits"] = json!({"headerBytes": 16384, "headerCount": 20});
        let rules = json!([{"name": "api", "kind": "allow", "host": "api.test"}]);
        let node = Node::new(&policy(&rules), &config);
        let large = format!(
            "GET / HTTP/1.1\r\nHost: api.test\r\nX: {}\r\n\r\n",
            "y".repeat(20_000)
        );
        let many = format!(
            "GET / HTTP/1.1\r\nHost: api.test\r\n{}\r\n",
            "X: y\r\n".repeat(30)
        );
        for case in [large, many] {
            let reply = node.ask(&case).await;
            assert_eq!(reply.status, 431);
            assert_eq!(reply.json()["reason"], "LIMIT_EXCEEDED");
        }
        let fits = format!(
            "GET / HTTP/1.1\r\nHost: api.test\r\nX: {}\r\n\r\n",
            "y".repeat(15_000)
        );
        assert_eq!(node.ask(&fits).await.status, 200);
    })
    .await;
}
