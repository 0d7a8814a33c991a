//! What is decided and dialled by address: needs an address that is neither loopback nor the node's,
//! so each test has a network namespace of its own (needs root), on a thread of its own.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::process::Command;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use crate::support::*;
use crate::tls::{ACCESS_DENIED, client_hello};

const FAR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);

/// Runs `test` where `FAR` exists, on loopback.
fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
            .expect("these tests make a network namespace; run them as root");
        for args in [
            &["link", "set", "lo", "up"][..],
            &["address", "add", "203.0.113.9/32", "dev", "lo"],
        ] {
            assert!(
                Command::new("ip").args(args).status().unwrap().success(),
                "ip {args:?}"
            );
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(local(test()));
    });
    thread.join().unwrap();
}

fn node(rules: &Value, config: &Value) -> Node {
    Node::with_foreign_address(&policy(rules), config, "203.0.113.9/32")
}

async fn far_server<F, S>(port: u16, serve: S)
where
    S: Fn(TcpStream) -> F + 'static,
    F: Future<Output = ()> + 'static,
{
    let listener = TcpListener::bind((FAR, port)).await.unwrap();
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::task::spawn_local(serve(stream));
        }
    });
}

/// A DNS server that gives every name these addresses.
async fn dns(addresses: &'static [Ipv4Addr]) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        let mut query = [0; 1500];
        while let Ok((_, from)) = socket.recv_from(&mut query).await {
            let mut end = 12;
            while query[end] != 0 {
                end += usize::from(query[end]) + 1;
            }
            let mut reply = query[..2].to_vec();
            reply.extend([
                0x81,
                0x80,
                0,
                1,
                0,
                u8::try_from(addresses.len()).unwrap(),
                0,
                0,
                0,
                0,
            ]);
            reply.extend_from_slice(&query[12..end + 5]);
            for ip in addresses {
                reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                reply.extend(ip.octets());
            }
            socket.send_to(&reply, from).await.unwrap();
        }
    });
    address
}

fn rules() -> Value {
    json!([
        {"name": "ssh", "kind": "allow", "cidr": "203.0.113.0/24", "port": 22},
        {"name": "api", "kind": "allow", "host": "api.test"},
    ])
}

#[test]
fn a_server_that_speaks_first_is_heard_by_a_rule_on_network_and_port() {
    in_namespace(|| async {
        far_server(22, |mut stream| async move {
            stream.write_all(b"SSH-2.0-far\r\n").await.unwrap();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).await.unwrap();
            stream.write_all(&got).await.unwrap();
        })
        .await;
        let node = node(&rules(), &json!({}));
        for first in [&b""[..], b"SSH-2.0-pod\r\n"] {
            let before = node.audit(0).await.len();
            let mut pod = node.dial(SocketAddrV4::new(FAR, 22)).await;
            pod.write_all(first).await.unwrap();
            let mut hello = [0; 13];
            pod.read_exact(&mut hello).await.unwrap();
            pod.write_all(b"bytes").await.unwrap();
            pod.shutdown().await.unwrap();
            assert_eq!(
                read_to_end(&mut pod).await.unwrap(),
                [first, b"bytes"].concat()
            );
            let line = node.audit(before + 1).await[before].clone();
            assert_eq!(line["rule"], "ssh");
            assert_eq!(line["destination"]["protocol"], "tcp");
            assert_eq!(line["destination"]["ip"], "203.0.113.9");
            assert_eq!(line["bytes_out"], 13 + first.len() + 5);
        }
        let mut pod = node.dial(SocketAddrV4::new(FAR, 23)).await;
        assert!(read_to_end(&mut pod).await.is_err());
    });
}

#[test]
fn tls_without_a_name_goes_out_only_by_a_rule_on_network_and_port() {
    in_namespace(|| async {
        for port in [22, 443] {
            far_server(port, |mut stream| async move {
                let mut got = [0; 6];
                stream.read_exact(&mut got).await.unwrap();
                stream.write_all(b"heard").await.unwrap();
            })
            .await;
        }
        let node = node(&rules(), &json!({}));
        for (port, expected) in [(22, &b"heard"[..]), (443, &[21, 3, 3, 0, 2, 2, 49])] {
            let mut pod = node.dial(SocketAddrV4::new(FAR, port)).await;
            pod.write_all(&[22, 3, 1, 0, 1, 9]).await.unwrap();
            let mut got = vec![0; expected.len()];
            pod.read_exact(&mut got).await.unwrap();
            assert_eq!(got, expected, "port {port}");
        }
    });
}

#[test]
fn a_name_is_resolved_by_the_proxy_and_sensitive_answers_are_left_out() {
    in_namespace(|| async {
        far_server(80, |mut stream| async move {
            let mut held = Vec::new();
            while read_head(&mut stream, &mut held).await.is_some() {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nfar")
                    .await
                    .unwrap();
            }
        })
        .await;
        const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
        const FAKE: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 3);
        let cases: [(&'static [Ipv4Addr], u16, &str); 5] = [
            (&[METADATA, FAR], 200, "EGRESS_ALLOWED_BY_POLICY"),
            (&[METADATA], 403, "SENSITIVE_ADDRESS_DENIED_BY_ZEROPROXY"),
            (&[FAKE], 403, "DIRECT_BYPASS_DENIED_BY_ZEROPROXY"),
            (
                &[Ipv4Addr::LOCALHOST],
                403,
                "NODE_ADDRESS_DENIED_BY_ZEROPROXY",
            ),
            (&[], 502, "NAME_NOT_RESOLVED"),
        ];
        for (answers, status, reason) in cases {
            let server = dns(answers).await;
            let node = node(
                &rules(),
                &json!({"dns": {"upstreams": [server.to_string()]}}),
            );
            // Whatever address the pod dialled: it is the name that is resolved.
            let mut pod = node.dial("198.51.100.1:80".parse().unwrap()).await;
            pod.write_all(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
                .await
                .unwrap();
            let reply = Reply::read(&mut pod).await;
            assert_eq!(reply.status, status, "{answers:?}: {}", reply.body);
            drop(pod);
            assert_eq!(node.audit(1).await[0]["reason"], reason, "{answers:?}");
        }
    });
}

#[test]
fn a_reset_of_the_server_reaches_the_pod_as_a_reset() {
    in_namespace(|| async {
        far_server(22, |mut stream| async move {
            stream.write_all(b"x").await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            socket2::SockRef::from(&stream)
                .set_linger(Some(std::time::Duration::ZERO))
                .unwrap();
        })
        .await;
        let node = node(&rules(), &json!({}));
        let mut pod = node.dial(SocketAddrV4::new(FAR, 22)).await;
        assert!(read_to_end(&mut pod).await.is_err());
        assert_eq!(node.audit(1).await[0]["detail"], "reset");
    });
}

/// What the proxy answers to a ClientHello for `name`, dialled at `dst`.
async fn answer_to_hello(node: &Node, name: &str, dst: SocketAddrV4) -> Vec<u8> {
    let mut pod = node.dial(dst).await;
    pod.write_all(&client_hello(name)).await.unwrap();
    read_to_end(&mut pod).await.unwrap()
}

#[test]
fn unverified_names_go_to_the_dialled_address_only_when_the_operator_says_so() {
    in_namespace(async || {
        far_server(443, |mut stream| async move {
            let mut hello = [0; 4096];
            assert_ne!(stream.read(&mut hello).await.unwrap(), 0);
            stream.write_all(b"reached").await.unwrap();
        })
        .await;
        let rules = json!([{"name": "api", "kind": "allow", "host": "api.test"}]);
        let far = SocketAddrV4::new(FAR, 443);
        let metadata = SocketAddrV4::new(Ipv4Addr::new(169, 254, 169, 254), 443);
        let open = node(&rules, &json!({"tls": {"allowUnverifiedSNI": true}}));
        for (name, dst, answer) in [
            ("api.test", far, &b"reached"[..]),
            ("other.test", far, &ACCESS_DENIED),
            ("192.0.2.1", far, &ACCESS_DENIED),
            ("api.test", metadata, &ACCESS_DENIED),
        ] {
            assert_eq!(
                answer_to_hello(&open, name, dst).await,
                answer,
                "{name} {dst}"
            );
        }
        let strict = node(&rules, &json!({}));
        assert_eq!(
            answer_to_hello(&strict, "api.test", far).await,
            ACCESS_DENIED
        );
    });
}

#[test]
fn an_upstream_without_a_port_leads_neither_to_this_node_nor_to_an_agent_pod() {
    in_namespace(async || {
        far_server(80, |mut stream| async move {
            read_head(&mut stream, &mut Vec::new()).await;
            let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            stream.write_all(reply).await.unwrap();
        })
        .await;
        let config = json!({"upstreams": {
            "open.test": {"addresses": ["203.0.113.9"]},
            "shut.test": {"addresses": ["203.0.113.9"], "port": 80},
            "key.test:80": {"addresses": ["203.0.113.9"]},
            "pod.test": {"addresses": ["169.254.9.7"]},
        }});
        let rules = policy(&json!([{"name": "all", "kind": "allow", "host": "*"}]));
        // Here `FAR` is an address of the node's own.
        let node = Node::new(&rules, &config);
        let dst = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 1), 80);
        for (host, status, reason) in [
            ("open.test", 403, "NODE_ADDRESS_DENIED_BY_ZEROPROXY"),
            ("pod.test", 403, "DIRECT_BYPASS_DENIED_BY_ZEROPROXY"),
            ("shut.test", 200, ""),
            ("key.test", 200, ""),
        ] {
            let mut pod = node.dial(dst).await;
            let ask = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            pod.write_all(ask.as_bytes()).await.unwrap();
            let reply = Reply::read(&mut pod).await;
            assert_eq!(reply.status, status, "{host} {}", reply.body);
            if status != 200 {
                assert_eq!(reply.json()["reason"], reason);
            }
        }
    });
}

#[test]
fn a_targets_port_is_the_operators_or_the_schemes_and_never_the_pods() {
    in_namespace(async || {
        for (port, body) in [(80, "80"), (8080, "no")] {
            far_server(port, move |mut stream| async move {
                read_head(&mut stream, &mut Vec::new()).await;
                let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{body}");
                stream.write_all(reply.as_bytes()).await.unwrap();
            })
            .await;
        }
        let rules = json!([{
            "name": "in", "kind": "allow", "direction": "ingress", "caller": "*", "target": "*",
        }]);
        let config = json!({"upstreams": {"agent-server": {"addresses": ["203.0.113.9"]}}});
        let node = node(&rules, &config);
        let mut pod = node.dial(SocketAddrV4::new(FAR, 8080)).await;
        pod.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nX-Agent-Target: agent-server\r\n\r\n")
            .await
            .unwrap();
        assert_eq!(Reply::read(&mut pod).await.body, "80");
    });
}
