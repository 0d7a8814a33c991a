use std::net::SocketAddrV4;
use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::support::*;

const DIALLED_TLS: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::new(203, 0, 113, 9), 443);
pub(crate) const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

struct Ca {
    pem: String,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

fn ca(names: &[&str]) -> Ca {
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    let key = rcgen::generate_simple_self_signed(names).unwrap();
    let certificate = key.cert.der().clone();
    let private = PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], private)
        .unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ca {
        pem: key.cert.pem(),
        acceptor: TlsAcceptor::from(Arc::new(server)),
        connector: TlsConnector::from(Arc::new(client)),
    }
}

async fn tls_echo(ca: &Ca) -> std::net::SocketAddr {
    let acceptor = ca.acceptor.clone();
    upstream(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                return;
            };
            let mut piece = [0; 4096];
            while let Ok(n) = stream.read(&mut piece).await {
                if n == 0 {
                    break;
                }
                stream.write_all(&piece[..n]).await.unwrap();
            }
            let _ = stream.shutdown().await;
        }
    })
    .await
}

fn allow(names: &[&str]) -> Value {
    let rules: Vec<Value> = names
        .iter()
        .map(|n| json!({"name": n.to_string(), "kind": "allow", "host": *n}))
        .collect();
    policy(&json!(rules))
}

fn bind(node: &Node, name: &str) {
    let shared = &node.worker.shared;
    let pod = shared.workloads.known(POD).unwrap();
    shared.bindings.record(
        &pod,
        name,
        &[*DIALLED_TLS.ip()],
        std::time::Duration::from_secs(60),
    );
}

/// The bytes of a ClientHello for `name`.
pub(crate) fn client_hello(name: &str) -> Vec<u8> {
    let ca = ca(&["x.test"]);
    let config = ca.connector.config().clone();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut connection = rustls::ClientConnection::new(config, name).unwrap();
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

#[tokio::test]
async fn tls_to_a_name_that_was_given_goes_through_untouched() {
    local(async {
        let ca = ca(&["api.test"]);
        let api = tls_echo(&ca).await;
        let node = Node::new(&allow(&["api.test"]), &upstreams(&[("api.test", api)]));
        bind(&node, "api.test");
        let pod = node.dial(DIALLED_TLS).await;
        let name = ServerName::try_from("api.test").unwrap();
        let mut tls = ca.connector.connect(name, pod).await.unwrap();
        tls.write_all(b"hello").await.unwrap();
        let mut got = [0; 5];
        tls.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"hello");
        tls.shutdown().await.unwrap();
        assert_eq!(tls.read(&mut got).await.unwrap(), 0);
        drop(tls);
        let line = &node.audit(1).await[0];
        assert_eq!(line["destination"]["protocol"], "tls");
        assert_eq!(line["destination"]["host"], "api.test");
        assert_eq!(line["reason"], "EGRESS_ALLOWED_BY_POLICY");
        assert!(line["bytes_in"].as_u64().unwrap() > 100);
    })
    .await;
}

async fn refused(node: &Node, bytes: &[u8], piece: usize) -> Vec<u8> {
    let mut pod = node.dial(DIALLED_TLS).await;
    for part in bytes.chunks(piece) {
        pod.write_all(part).await.unwrap();
        tokio::task::yield_now().await;
    }
    read_to_end(&mut pod).await.unwrap()
}

#[tokio::test]
async fn names_that_cannot_be_believed_get_the_alert_access_denied() {
    local(async {
        let node = Node::new(&allow(&["api.test"]), &json!({}));
        bind(&node, "other.test");
        let cases: Vec<(Vec<u8>, &str)> = vec![
            (client_hello("other.test"), "EGRESS_DENIED_BY_POLICY"),
            (client_hello("api.test"), "SNI_MISMATCH"),
            (client_hello("192.0.2.1"), "SNI_MISSING"),
            (vec![22, 3, 1, 0, 1, 9], "SNI_MISSING"),
        ];
        for (i, (bytes, reason)) in cases.iter().enumerate() {
            for (j, piece) in [bytes.len(), 1].into_iter().enumerate() {
                assert_eq!(
                    refused(&node, bytes, piece).await,
                    ACCESS_DENIED,
                    "{reason}"
                );
                let at = 2 * i + j;
                let line = node.audit(at + 1).await[at].clone();
                assert_eq!(line["reason"], *reason);
                assert_eq!(line["decision"], "deny");
            }
        }
    })
    .await;
}

/// The same handshake bytes in records of `size`.
fn in_records(hello: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for part in hello[5..].chunks(size) {
        out.extend([22, 3, 1]);
        out.extend(u16::try_from(part.len()).unwrap().to_be_bytes());
        out.extend_from_slice(part);
    }
    out
}

#[tokio::test]
async fn a_hello_in_many_small_records_gets_the_alert() {
    local(async {
        let node = Node::new(&allow(&["api.test"]), &json!({}));
        let hello = client_hello("other.test");
        let sixteenth = (hello.len() - 5).div_ceil(16);
        for (size, reason) in [
            (1, "SNI_MISSING"),
            (sixteenth - 1, "SNI_MISSING"),
            (sixteenth, "EGRESS_DENIED_BY_POLICY"),
        ] {
            let before = node.audit(0).await.len();
            let bytes = in_records(&hello, size);
            assert_eq!(refused(&node, &bytes, 7).await, ACCESS_DENIED, "{size}");
            let line = node.audit(before + 1).await[before].clone();
            assert_eq!(line["reason"], reason, "{size}");
        }
    })
    .await;
}

#[tokio::test]
async fn tls_inside_a_tunnel_must_name_the_tunnels_host() {
    local(async {
        let ca = ca(&["api.test", "b.test"]);
        let api = tls_echo(&ca).await;
        let node = Node::new(
            &allow(&["api.test", "b.test"]),
            &upstreams(&[("api.test", api), ("b.test", api)]),
        );
        for (name, fine) in [("api.test", true), ("b.test", false)] {
            let mut pod = node.dial(DIALLED).await;
            pod.write_all(b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n")
                .await
                .unwrap();
            let mut held = Vec::new();
            assert!(
                read_head(&mut pod, &mut held)
                    .await
                    .unwrap()
                    .starts_with("HTTP/1.1 200")
            );
            let name = ServerName::try_from(name).unwrap();
            assert_eq!(ca.connector.connect(name, pod).await.is_ok(), fine);
        }
    })
    .await;
}

/// An HTTPS upstream that answers with the request's head.
async fn https(ca: &Ca) -> std::net::SocketAddr {
    let acceptor = ca.acceptor.clone();
    upstream(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                return;
            };
            let mut held = Vec::new();
            let mut piece = [0; 4096];
            while !held.windows(4).any(|w| w == b"\r\n\r\n") {
                let Ok(n) = stream.read(&mut piece).await else {
                    return;
                };
                held.extend_from_slice(&piece[..n]);
            }
            let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", held.len());
            stream
                .write_all(&[reply.as_bytes(), &held].concat())
                .await
                .unwrap();
            let _ = stream.shutdown().await;
        }
    })
    .await
}

async fn originating(ca: &Ca, host: &str, trusted: bool) -> (Node, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ca.pem");
    std::fs::write(&file, &ca.pem).unwrap();
    let api = https(ca).await;
    let mut config = upstreams(&[(host, api)]);
    if trusted {
        config["tls"] = json!({ "extraCaFile": file });
    }
    let rules = json!([{
        "name": "token", "kind": "credential", "host": host, "tls": "originate",
        "header": "authorization", "prefix": "Bearer ", "valueFromFile": "repo/token",
    }]);
    (Node::new(&policy(&rules), &config), dir)
}

#[tokio::test]
async fn an_http_request_leaves_as_https_with_its_credential() {
    local(async {
        let ca = ca(&["api.test"]);
        let (node, _dir) = originating(&ca, "api.test", true).await;
        let reply = node.ask("GET /x HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert!(
            reply
                .body
                .contains(&format!("authorization: Bearer {SECRET}"))
        );
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_is_not_trusted_or_not_the_host_gets_nothing() {
    local(async {
        let good = ca(&["api.test"]);
        for (host, trusted) in [("api.test", false), ("other.test", true)] {
            let (node, _dir) = originating(&good, host, trusted).await;
            let reply = node
                .ask(&format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n"))
                .await;
            assert_eq!(reply.status, 502);
            assert_eq!(reply.json()["reason"], "UPSTREAM_TLS_FAILED");
        }
    })
    .await;
}
