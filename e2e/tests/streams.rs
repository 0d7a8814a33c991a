//! Answers that take their time, change the protocol or end too early pass as they are.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::{Duration, Instant};

use e2e::process::Process;
use e2e::{Node, Pod};

mod support;
use support::{body, node_and_pod, status};

fn start() -> Option<(Node, Pod, Process)> {
    let (node, pod) = node_and_pod("streams")?;
    let script = include_str!("streams.py");
    let line = ["/usr/bin/python3", "-c", script, "203.0.113.40", "8090"];
    let mut server = node.outside.place().spawn("streams", &line, &[]).unwrap();
    server
        .wait_for_output("listening", Duration::from_secs(10))
        .unwrap();
    Some((node, pod, server))
}

/// Runs a Python client in the pod, with `s` connected and `head(path, more)` making a request's head.
fn client(pod: &Pod, script: &str) -> String {
    let prelude = r#"
import socket, time
s = socket.create_connection(('203.0.113.40', 8090), 5)
s.settimeout(5)
def head(path, more=''):
    return ('GET %s HTTP/1.1\r\nHost: bulk.example.com:8090\r\n%s\r\n' % (path, more)).encode()
"#;
    let done = pod
        .place()
        .run(&["/usr/bin/python3", "-c", &format!("{prelude}{script}")])
        .unwrap();
    assert!(done.ok(), "{done}");
    done.stdout
}

#[test]
fn events_arrive_as_they_are_sent() {
    let Some((_node, pod, _server)) = start() else {
        return;
    };
    let said = client(
        &pod,
        r#"
s.sendall(head('/events'))
start, data, times = time.time(), b'', []
while b'data: 4' not in data:
    data += s.recv(4096)
    while len(times) < data.count(b'data: '): times.append(time.time() - start)
print(' '.join('%.2f' % t for t in times))
"#,
    );
    let times: Vec<f64> = said
        .split_whitespace()
        .map(|t| t.parse().unwrap())
        .collect();
    assert_eq!(times.len(), 5, "{said}");
    assert!(times[0] < 0.25 && times[4] > 1.0, "held back: {said}");
    assert!(
        times.windows(2).all(|w| w[1] - w[0] > 0.15),
        "bundled: {said}"
    );
}

#[test]
fn an_upgrade_that_was_asked_for_becomes_a_tunnel_and_another_does_not() {
    let Some((node, pod, server)) = start() else {
        return;
    };
    let said = client(
        &pod,
        r#"
s.sendall(head('/echo', 'Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n'))
data = b''
while b'\r\n\r\n' not in data: data += s.recv(4096)
print(data.split(b'\r\n')[0].decode())
for word in (b'hello', b'again'):
    s.sendall(word); print(s.recv(100).decode())
"#,
    );
    assert!(said.starts_with("HTTP/1.1 101"), "{said}");
    assert!(said.contains("HELLO") && said.contains("AGAIN"), "{said}");
    node.audit_line("the upgrade", |l| {
        l["destination"]["path_without_query"] == "/echo"
    })
    .unwrap();
    let done = pod.curl(&["http://bulk.example.com:8090/rogue"]).unwrap();
    assert!(
        status(&done) >= 500 && !done.stdout.contains("rogue\n"),
        "{done}"
    );
    // HTTP/2 in cleartext by upgrade would be a way past the decision on each request
    client(
        &pod,
        r"
s.sendall(head('/echo', 'Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n'))
print(s.recv(4096).decode(errors='replace'))
",
    );
    assert!(!server.log_text().contains("h2c"), "{}", server.log_text());
}

#[test]
fn early_ends_empty_answers_and_expectations_are_kept() {
    let Some((_node, pod, _server)) = start() else {
        return;
    };
    let done = pod.curl(&["http://bulk.example.com:8090/cut"]).unwrap();
    assert_eq!(status(&done), 200);
    assert!(!done.ok(), "an answer cut short looks whole: {done}");
    assert_eq!(
        status(&pod.curl(&["http://bulk.example.com:8090/nothing"]).unwrap()),
        204
    );
    let upload = "head -c 2000000 /dev/zero | curl -sS -i -m 15 -H 'Expect: 100-continue' -H 'Content-Length: 2000000' \
                  -X POST -T - -H 'Transfer-Encoding:' http://bulk.example.com:8090/upload";
    let done = pod.sh(upload).unwrap();
    assert_eq!(status(&done), 200, "{done}");
    assert!(body(&done).contains("got 2000000"), "{done}");
}

#[test]
fn a_deleted_pods_connections_end_and_its_address_rests() {
    let Some((mut node, pod, _server)) = start() else {
        return;
    };
    let script = r"
import socket, sys
s = socket.create_connection(('203.0.113.30', 2525), 5)
s.sendall(b'hi\n')
s.settimeout(15)
print(s.recv(100), flush=True)
try:
    while s.recv(100): pass
except ConnectionResetError: pass
print('ended', flush=True)
";
    let spec = pod.spec.clone();
    let mut tunnel = pod
        .network()
        .spawn("tunnel", &["/usr/bin/python3", "-c", script], &[])
        .unwrap();
    tunnel
        .wait_for_output("220 banner", Duration::from_secs(5))
        .unwrap();
    // DEL takes the link away, so that no FIN can arrive; what counts is the proxy's side
    let flows = || {
        node.place()
            .sh("ss -Htn state established '( dport = :2525 )'")
            .unwrap()
    };
    assert!(!flows().stdout.is_empty(), "the proxy's side of the tunnel");
    node.plugin.del(&spec).unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    while !flows().stdout.is_empty() {
        assert!(
            Instant::now() < until,
            "still there 5 s after DEL: {}",
            flows()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let next = node.add_pod(&e2e::PodSpec::named("next")).unwrap();
    assert_ne!(next.ip, pod.ip, "the address was given away at once");
}
