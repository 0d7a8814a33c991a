//! A node changes its mode while pods talk: what went through the proxy is broken off at once, in both directions of the
//! change, and what begins after it works.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::{Duration, Instant};

use e2e::patience::patience;

mod support;
use support::{node_and_pod, status};

/// Reads a tunnel whose other side says nothing more, and says how it ended.
const SILENT_TUNNEL: &str = r#"
import socket
s = socket.create_connection(('203.0.113.30', 2525), 5)
s.settimeout(60)
print(s.recv(1000), flush=True)
try:
    print('end' if s.recv(1000) == b'' else 'more', flush=True)
except ConnectionResetError:
    print('reset', flush=True)
"#;

/// Reads a long answer slowly, and says how it ended.
const DOWNLOAD: &str = r#"
import socket, time
s = socket.create_connection(('bulk.example.com', 80), 5)
s.settimeout(60)
s.sendall(b'GET /gigabyte HTTP/1.1\r\nHost: bulk.example.com\r\n\r\n')
print(s.recv(12), flush=True)
try:
    while s.recv(10000): time.sleep(0.02)
    print('end', flush=True)
except ConnectionResetError:
    print('reset', flush=True)
"#;

#[test]
fn connections_of_the_mode_that_a_node_leaves_are_reset_and_new_ones_work() {
    let Some((mut node, pod)) = node_and_pod("mode-change") else {
        return;
    };
    let mode_of = |node: &e2e::Node| {
        ["ebpf", "iptables-compat"].into_iter().find(|mode| {
            let label = format!("mode=\"{mode}\"");
            let found = node.metric("agent_network_data_path_mode", &[&label]);
            found.unwrap() > 0.0
        })
    };
    let mut cut = 0.0;
    for _ in 0..2 {
        let from = mode_of(&node).unwrap();
        let to = match from {
            "ebpf" => "iptables-compat",
            _ => "ebpf",
        };
        std::thread::scope(|s| {
            let clients = [SILENT_TUNNEL, DOWNLOAD].map(|script| {
                let place = pod.place();
                s.spawn(move || place.run(&["/usr/bin/python3", "-c", script]).unwrap())
            });
            std::thread::sleep(Duration::from_secs(2));
            node.change_mode(to).unwrap();
            let changed = Instant::now();
            let ends = clients.map(|client| client.join().unwrap());
            let took = changed.elapsed();
            for end in ends {
                assert!(end.stdout.ends_with("reset\n"), "{from} -> {to}: {end}");
            }
            assert!(
                took < patience(Duration::from_secs(5)),
                "{from} -> {to}: connections outlived their mode, the last one by {took:?}"
            );
        });
        let done = pod
            .sh("curl -sSi -m 10 --retry 3 --retry-all-errors http://docs.example.com/")
            .unwrap();
        assert_eq!(status(&done), 200, "{from} -> {to}: {done}");
        let label = "reason=\"mode_left\"";
        let counted = node
            .metric("agent_network_connections_cut_total", &[label])
            .unwrap();
        assert!(counted >= cut + 2.0, "{from} -> {to}: {counted}");
        cut = counted;
        assert_eq!(mode_of(&node), Some(to));
    }
}
