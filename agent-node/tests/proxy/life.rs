use std::time::Duration;

use agent_core::attachment::Mode;
use agent_node::metrics::Counter;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::*;

fn allow_api() -> serde_json::Value {
    policy(&json!([{"name": "api", "kind": "allow", "host": "api.test"}]))
}

fn deny_all() -> serde_json::Value {
    policy(&json!([{"name": "none", "kind": "deny", "host": "*"}]))
}

/// An upstream that begins an endless answer, or an upgrade.
async fn endless() -> std::net::SocketAddr {
    upstream(|mut stream| async move {
        let head = read_head(&mut stream, &mut Vec::new()).await.unwrap();
        let reply: &[u8] = if head.contains("/ws") {
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        } else {
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        };
        stream.write_all(reply).await.unwrap();
        loop {
            if stream.write_all(b"1\r\nx\r\n").await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

const ASK: [&str; 2] = [
    "GET /stream HTTP/1.1\r\nHost: api.test\r\n\r\n",
    "GET /ws HTTP/1.1\r\nHost: api.test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
];

#[tokio::test]
async fn the_next_request_of_a_connection_is_decided_under_the_new_policy() {
    local(async {
        let api = echo().await;
        let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
        let mut pod = node.dial(DIALLED).await;
        for status in [200, 403] {
            pod.write_all(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
                .await
                .unwrap();
            assert_eq!(Reply::read(&mut pod).await.status, status);
            node.set_policy(&deny_all()).await;
        }
    })
    .await;
}

#[tokio::test]
async fn streams_and_tunnels_that_a_new_policy_denies_are_cut() {
    local(async {
        for ask in ASK {
            let api = endless().await;
            let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
            let mut pod = node.dial(DIALLED).await;
            pod.write_all(ask.as_bytes()).await.unwrap();
            let mut piece = [0; 4096];
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(pod.read(&mut piece).await.unwrap() > 0);
            node.set_policy(&deny_all()).await;
            let begun = std::time::Instant::now();
            while pod.read(&mut piece).await.is_ok_and(|n| n > 0) {}
            assert!(
                begun.elapsed() < Duration::from_millis(600),
                "{:?}",
                begun.elapsed()
            );
            let lines = node.audit(1).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(
                lines.iter().any(|l| l["reason"] == "POLICY_REVOKED"),
                "{lines:#?}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn what_a_mode_brought_is_broken_off_when_the_node_leaves_it() {
    local(async {
        for ask in ASK {
            let api = endless().await;
            let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
            node.set_mode(Mode::Ebpf);
            let mut old = node.dial(DIALLED).await;
            // it came in the new way before this process has read of the change
            let mut early = node.dial_by(Mode::IptablesCompat, POD, DIALLED).await;
            let mut piece = [0; 4096];
            for pod in [&mut old, &mut early] {
                pod.write_all(ask.as_bytes()).await.unwrap();
                assert!(pod.read(&mut piece).await.unwrap() > 0);
            }
            node.set_mode(Mode::IptablesCompat);
            let end = loop {
                match old.read(&mut piece).await {
                    Ok(n) if n > 0 => {}
                    end => break end,
                }
            };
            // an orderly end would lie about what it cut off
            assert_eq!(
                end.unwrap_err().kind(),
                std::io::ErrorKind::ConnectionReset,
                "{ask}"
            );
            let cut = || node.worker.shared.metrics.total(Counter::ModeLeft);
            assert_eq!(cut(), 1);
            tokio::time::sleep(Duration::from_millis(100)).await;
            for _ in 0..3 {
                assert!(early.read(&mut piece).await.unwrap() > 0);
            }
            node.set_mode(Mode::Ebpf);
            while early.read(&mut piece).await.is_ok_and(|n| n > 0) {}
            assert_eq!(cut(), 2);
        }
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_is_deleted_loses_what_it_has_open() {
    local(async {
        for ask in ASK {
            let api = endless().await;
            let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
            let mut pod = node.dial(DIALLED).await;
            pod.write_all(ask.as_bytes()).await.unwrap();
            let mut piece = [0; 4096];
            assert!(pod.read(&mut piece).await.unwrap() > 0);
            std::fs::remove_file(node.path("state/c1_eth0.json")).unwrap();
            node.follower.borrow_mut().refresh();
            let ended = async { while pod.read(&mut piece).await.is_ok_and(|n| n > 0) {} };
            tokio::time::timeout(Duration::from_millis(500), ended)
                .await
                .unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn idle_connections_end_and_silent_upstreams_are_told() {
    local(async {
        let silent = upstream(|mut stream| async move {
            read_head(&mut stream, &mut Vec::new()).await;
            tokio::time::sleep(Duration::from_secs(30)).await;
        })
        .await;
        let mut config = upstreams(&[("api.test", silent)]);
        config["limits"] = json!({"idleTimeoutSeconds": 1});
        let node = Node::new(&allow_api(), &config);
        let mut pod = node.dial(DIALLED).await;
        pod.write_all(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
            .await
            .unwrap();
        let reply = Reply::read(&mut pod).await;
        assert_eq!(reply.status, 504);
        assert_eq!(reply.json()["reason"], "UPSTREAM_TIMEOUT");
        let begun = std::time::Instant::now();
        assert_eq!(read_to_end(&mut pod).await.unwrap(), b"");
        assert!(begun.elapsed() > Duration::from_millis(500));

        let mut pod = node.dial(DIALLED).await;
        pod.write_all(b"POST / HTTP/1.1\r\nHost: api.test\r\nContent-Length: 10\r\n\r\nhalf")
            .await
            .unwrap();
        let reply = Reply::read(&mut pod).await;
        assert_eq!(reply.status, 408);
    })
    .await;
}

#[tokio::test]
async fn a_drain_closes_idle_connections_and_lets_requests_finish() {
    local(async {
        let slow = upstream(|mut stream| async move {
            read_head(&mut stream, &mut Vec::new()).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .await
                .unwrap();
        })
        .await;
        let node = Node::new(&allow_api(), &upstreams(&[("api.test", slow)]));
        let mut idle = node.dial(DIALLED).await;
        idle.write_all(b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n")
            .await
            .unwrap();
        assert_eq!(Reply::read(&mut idle).await.status, 403);
        let mut busy = node.dial(DIALLED).await;
        busy.write_all(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        node.worker.shared.drain.begin();
        let begun = std::time::Instant::now();
        assert_eq!(read_to_end(&mut idle).await.unwrap(), b"");
        assert!(begun.elapsed() < Duration::from_millis(200));
        let reply = Reply::read(&mut busy).await;
        assert_eq!(
            (reply.status, reply.header("connection")),
            (200, Some("close"))
        );
        assert_eq!(read_to_end(&mut busy).await.unwrap(), b"");
    })
    .await;
}

#[tokio::test]
async fn a_request_that_has_begun_when_the_drain_begins_is_answered() {
    local(async {
        let api = echo().await;
        let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
        let (half, rest) = (&b"GET / HTTP/1.1\r\nHo"[..], &b"st: api.test\r\n\r\n"[..]);
        let mut fresh = node.dial(DIALLED).await;
        fresh.write_all(half).await.unwrap();
        let mut kept = node.dial(DIALLED).await;
        kept.write_all(&[half, rest].concat()).await.unwrap();
        assert_eq!(Reply::read(&mut kept).await.status, 200);
        kept.write_all(half).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut silent = node.dial(DIALLED).await;
        node.worker.shared.drain.begin();
        tokio::time::sleep(Duration::from_millis(20)).await;
        silent.write_all(half).await.unwrap();
        for pod in [&mut fresh, &mut kept, &mut silent] {
            pod.write_all(rest).await.unwrap();
            let reply = Reply::read(pod).await;
            assert_eq!(
                (reply.status, reply.header("connection")),
                (200, Some("close"))
            );
            assert_eq!(read_to_end(pod).await.unwrap(), b"");
        }
    })
    .await;
}

#[tokio::test]
async fn a_thousand_connections_at_once_all_get_their_own_answer() {
    local(async {
        let api = echo().await;
        let node = std::rc::Rc::new(Node::new(&allow_api(), &upstreams(&[("api.test", api)])));
        let tasks: Vec<_> = (0..1000)
            .map(|i| {
                let node = node.clone();
                tokio::task::spawn_local(async move {
                    let reply = node
                        .ask(&format!("GET /{i} HTTP/1.1\r\nHost: api.test\r\n\r\n"))
                        .await;
                    assert!(
                        reply.body.starts_with(&format!("GET /{i} ")),
                        "{}",
                        reply.body
                    );
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(node.audit(1000).await.len(), 1000);
    })
    .await;
}
