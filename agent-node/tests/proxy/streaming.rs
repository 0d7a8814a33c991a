use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::*;

fn allow_api() -> serde_json::Value {
    policy(&json!([{"name": "api", "kind": "allow", "host": "api.test"}]))
}

#[tokio::test]
async fn small_chunks_pass_at_once() {
    local(async {
        let api = upstream(|mut stream| async move {
            read_head(&mut stream, &mut Vec::new()).await;
            let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all(head).await.unwrap();
            for i in 0..3 {
                stream.write_all(format!("8\r\ndata: {i}\n\r\n").as_bytes()).await.unwrap();
                tokio::time::sleep(Duration::from_millis(150)).await;
            }
            stream.write_all(b"0\r\n\r\n").await.unwrap();
        })
        .await;
        let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
        let mut pod = node.dial(DIALLED).await;
        pod.write_all(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await.unwrap();
        let mut held = Vec::new();
        read_head(&mut pod, &mut held).await.unwrap();
        let begun = std::time::Instant::now();
        while !held.windows(7).any(|w| w == b"data: 0") {
            let mut piece = [0; 256];
            let n = pod.read(&mut piece).await.unwrap();
            held.extend_from_slice(&piece[..n]);
        }
        assert!(begun.elapsed() < Duration::from_millis(120), "{:?}", begun.elapsed());
        let body = read_body(&mut pod, &mut held, "Transfer-Encoding: chunked").await;
        assert_eq!(body, b"data: 0\ndata: 1\ndata: 2\n");
    })
    .await;
}

#[tokio::test]
async fn a_request_body_streams_before_it_is_complete_and_trailers_follow() {
    local(async {
        let api = echo().await;
        let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
        let mut pod = node.dial(DIALLED).await;
        let head = b"POST / HTTP/1.1\r\nHost: api.test\r\nTrailer: Sum\r\nTransfer-Encoding: chunked\r\n\r\n";
        pod.write_all(head).await.unwrap();
        for _ in 0..3 {
            pod.write_all(b"3\r\nabc\r\n").await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        pod.write_all(b"0\r\nSum: 9\r\n\r\n").await.unwrap();
        let reply = Reply::read(&mut pod).await;
        assert!(reply.body.ends_with("abcabcabc|trailer sum: 9"), "{}", reply.body);
        let line = &node.audit(1).await[0];
        assert_eq!(line["bytes_in"], 9);
    })
    .await;
}

#[tokio::test]
async fn a_large_body_passes_both_ways_whole() {
    local(async {
        const SIZE: usize = 24 << 20;
        let api = upstream(|mut stream| async move {
            let mut held = Vec::new();
            let head = read_head(&mut stream, &mut held).await.unwrap();
            assert_eq!(
                header(&head, "content-length"),
                Some(SIZE.to_string().as_str())
            );
            stream
                .write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n").as_bytes())
                .await
                .unwrap();
            stream.write_all(&held).await.unwrap();
            let mut left = SIZE - held.len();
            let mut piece = vec![0; 65536];
            while left > 0 {
                let n = stream.read(&mut piece).await.unwrap();
                assert!(n > 0);
                left -= n;
                stream.write_all(&piece[..n]).await.unwrap();
            }
        })
        .await;
        let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
        let pod = node.dial(DIALLED).await;
        let (mut read, mut write) = pod.into_split();
        tokio::task::spawn_local(async move {
            write
                .write_all(
                    format!("PUT / HTTP/1.1\r\nHost: api.test\r\nContent-Length: {SIZE}\r\n\r\n")
                        .as_bytes(),
                )
                .await
                .unwrap();
            let piece: Vec<u8> = (0..65536).map(|i| (i % 251) as u8).collect();
            for _ in 0..SIZE / piece.len() {
                write.write_all(&piece).await.unwrap();
            }
            std::future::pending::<()>().await;
        });
        let mut all = Vec::new();
        let mut piece = vec![0; 65536];
        let head = loop {
            let n = read.read(&mut piece).await.unwrap();
            all.extend_from_slice(&piece[..n]);
            if let Some(at) = all.windows(4).position(|w| w == b"\r\n\r\n") {
                break all.drain(..at + 4).collect::<Vec<u8>>();
            }
        };
        assert!(head.starts_with(b"HTTP/1.1 200"));
        while all.len() < SIZE {
            let n = read.read(&mut piece).await.unwrap();
            assert!(n > 0);
            all.extend_from_slice(&piece[..n]);
        }
        assert!(
            all.iter()
                .enumerate()
                .all(|(i, b)| *b == (i % 65536 % 251) as u8)
        );
        let line = &node.audit(1).await[0];
        assert_eq!(line["bytes_in"], SIZE);
        assert_eq!(line["bytes_out"], SIZE);
    })
    .await;
}

#[tokio::test]
async fn continue_is_said_when_the_upstream_says_it() {
    local(async {
        let api = upstream(|mut stream| async move {
            let mut held = Vec::new();
            let head = read_head(&mut stream, &mut held).await.unwrap();
            assert_eq!(header(&head, "expect"), Some("100-continue"));
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(held.is_empty());
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
            let body = read_body(&mut stream, &mut held, &head).await;
            let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(&[reply.as_bytes(), &body].concat()).await.unwrap();
        })
        .await;
        let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
        let mut pod = node.dial(DIALLED).await;
        pod.write_all(b"PUT / HTTP/1.1\r\nHost: api.test\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n").await.unwrap();
        let begun = std::time::Instant::now();
        let mut held = Vec::new();
        let interim = read_head(&mut pod, &mut held).await.unwrap();
        assert!(interim.starts_with("HTTP/1.1 100"), "{interim}");
        assert!(begun.elapsed() >= Duration::from_millis(90) && begun.elapsed() < Duration::from_millis(600));
        pod.write_all(b"body").await.unwrap();
        let reply = Reply::read_held(&mut pod, &mut held).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, "body"));
    })
    .await;
}

#[tokio::test]
async fn an_upload_that_is_denied_or_refused_is_never_asked_for() {
    local(async {
        let api = upstream(|mut stream| async move {
            read_head(&mut stream, &mut Vec::new()).await;
            stream.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno").await.unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
        })
        .await;
        let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
        for (host, status) in [("other.test", 403), ("api.test", 413)] {
            let request = format!("PUT / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
            let reply = node.ask(&request).await;
            assert_eq!(reply.status, status);
        }
    })
    .await;
}

#[tokio::test]
async fn connections_are_kept_alive_on_both_sides() {
    local(async {
        let accepted = std::rc::Rc::new(std::cell::Cell::new(0));
        let count = accepted.clone();
        let api = upstream(move |mut stream| {
            count.set(count.get() + 1);
            async move {
                let mut held = Vec::new();
                while read_head(&mut stream, &mut held).await.is_some() {
                    stream
                        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                        .await
                        .unwrap();
                }
            }
        })
        .await;
        let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
        let mut pod = node.dial(DIALLED).await;
        for _ in 0..50 {
            pod.write_all(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
                .await
                .unwrap();
            assert_eq!(Reply::read(&mut pod).await.body, "ok");
        }
        assert_eq!(
            node.ask("GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
                .await
                .status,
            200
        );
        assert_eq!(accepted.get(), 1);
    })
    .await;
}

#[tokio::test]
async fn an_idle_connection_that_the_server_closed_is_not_noticed_by_the_pod() {
    local(async {
        let api = upstream(|mut stream| async move {
            read_head(&mut stream, &mut Vec::new()).await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .await
                .unwrap();
        })
        .await;
        let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
        let mut pod = node.dial(DIALLED).await;
        for _ in 0..20 {
            pod.write_all(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
                .await
                .unwrap();
            assert_eq!(Reply::read(&mut pod).await.body, "ok");
        }
    })
    .await;
}

#[tokio::test]
async fn bodiless_answers_have_no_body_and_keep_the_connection() {
    local(async {
        let api = upstream(|mut stream| async move {
            let mut held = Vec::new();
            while let Some(head) = read_head(&mut stream, &mut held).await {
                let reply: &[u8] = match head.split(' ').nth(1).unwrap() {
                    "/204" => b"HTTP/1.1 204 No Content\r\n\r\n",
                    "/304" => b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\nETag: x\r\n\r\n",
                    _ => b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
                };
                stream.write_all(reply).await.unwrap();
            }
        })
        .await;
        let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
        let mut pod = node.dial(DIALLED).await;
        let mut held = Vec::new();
        for (line, status) in [
            ("GET /204", 204),
            ("GET /304", 304),
            ("HEAD /x", 200),
            ("GET /204", 204),
        ] {
            pod.write_all(format!("{line} HTTP/1.1\r\nHost: api.test\r\n\r\n").as_bytes())
                .await
                .unwrap();
            let head = read_head(&mut pod, &mut held).await.unwrap();
            assert!(
                head.starts_with(&format!("HTTP/1.1 {status}")),
                "{line}: {head}"
            );
            assert!(held.is_empty());
        }
    })
    .await;
}

#[tokio::test]
async fn http10_and_a_half_closed_client_get_their_answer() {
    local(async {
        let api = upstream(|mut stream| async move {
            let head = read_head(&mut stream, &mut Vec::new()).await.unwrap();
            assert!(head.contains(" HTTP/1.1\r\n"));
            tokio::time::sleep(Duration::from_millis(50)).await;
            stream
                .write_all(
                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
                )
                .await
                .unwrap();
        })
        .await;
        let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
        let mut pod = node.dial(DIALLED).await;
        pod.write_all(b"GET / HTTP/1.0\r\nHost: api.test\r\n\r\n")
            .await
            .unwrap();
        let all = String::from_utf8(read_to_end(&mut pod).await.unwrap()).unwrap();
        assert!(
            all.starts_with("HTTP/1.0 200") && all.ends_with("\r\n\r\nabc"),
            "{all}"
        );
        assert!(header(&all, "transfer-encoding").is_none());

        let mut pod = node.dial(DIALLED).await;
        pod.write_all(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
            .await
            .unwrap();
        pod.shutdown().await.unwrap();
        let all = String::from_utf8(read_to_end(&mut pod).await.unwrap()).unwrap();
        assert!(
            all.starts_with("HTTP/1.1 200") && all.contains("abc"),
            "{all}"
        );
    })
    .await;
}

#[tokio::test]
async fn an_answer_cut_short_is_not_passed_off_as_whole() {
    local(async {
        let api = upstream(|mut stream| async move {
            let head = read_head(&mut stream, &mut Vec::new()).await.unwrap();
            let reply: &[u8] = match head.split(' ').nth(1).unwrap() {
                "/chunked" => {
                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
                }
                _ => b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",
            };
            stream.write_all(reply).await.unwrap();
        })
        .await;
        let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
        for path in ["/chunked", "/length"] {
            let mut pod = node.dial(DIALLED).await;
            pod.write_all(format!("GET {path} HTTP/1.1\r\nHost: api.test\r\n\r\n").as_bytes())
                .await
                .unwrap();
            let all = String::from_utf8(read_to_end(&mut pod).await.unwrap()).unwrap();
            assert!(!all.ends_with("0\r\n\r\n"), "{all}");
        }
        let mut pod = node.dial(DIALLED).await;
        pod.write_all(b"GET /chunked HTTP/1.0\r\nHost: api.test\r\n\r\n")
            .await
            .unwrap();
        assert!(
            read_to_end(&mut pod).await.is_err(),
            "HTTP/1.0 needs a reset to tell"
        );
    })
    .await;
}

#[tokio::test]
async fn a_chunked_body_with_get_is_sent() {
    local(async {
        let api = echo().await;
        let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
        let reply = node.ask("GET / HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n").await;
        assert!(reply.body.ends_with("\r\n\r\nhi"), "{}", reply.body);
    })
    .await;
}

#[tokio::test]
async fn early_hints_pass_before_the_answer() {
    local(async {
        let api = upstream(|mut stream| async move {
            read_head(&mut stream, &mut Vec::new()).await;
            let hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: x\r\nX: 1\r\n\r\n";
            stream.write_all(hints).await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
            stream.write_all(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        })
        .await;
        let node = Node::new(&allow_api(), &upstreams(&[("api.test", api)]));
        let mut pod = node.dial(DIALLED).await;
        pod.write_all(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await.unwrap();
        let begun = std::time::Instant::now();
        let mut held = Vec::new();
        let hints = read_head(&mut pod, &mut held).await.unwrap();
        assert_eq!(hints, "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n");
        assert!(begun.elapsed() < Duration::from_millis(150));
        assert!(read_head(&mut pod, &mut held).await.unwrap().starts_with("HTTP/1.1 102"));
        assert_eq!(Reply::read_held(&mut pod, &mut held).await.body, "ok");
    })
    .await;
}
