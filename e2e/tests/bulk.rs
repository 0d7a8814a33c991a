//! Many and much: thousands of connections at once, a gigabyte each way. Runs alone (`.config/nextest.toml`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use e2e::procfs::resident_kib;
use e2e::traffic::{AddressServer, Sink, dial_all, dial_from};
use e2e::{Node, Pod};

mod support;
use support::{node_and_pod, status};

/// How much the proxy may grow while a gigabyte passes, in KiB.
const GROWTH: u64 = 24 * 1024;
const PORTS: [u16; 4] = [7001, 7002, 7003, 7004];

/// `count` different destinations: every address of the anycast range, on several ports.
fn targets(count: usize) -> Vec<SocketAddrV4> {
    let all = (0..128u8)
        .flat_map(|i| PORTS.map(|p| SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 128 + i), p)));
    all.cycle().take(count).collect()
}

fn start(name: &str) -> Option<(Node, Pod, AddressServer)> {
    let (node, pod) = node_and_pod(name)?;
    let server = AddressServer::start(node.outside.place(), &PORTS).unwrap();
    Some((node, pod, server))
}

#[test]
fn bulk_two_thousand_connections_at_once_each_reach_the_address_that_was_dialled() {
    let Some((node, pod, server)) = start("bulk-2000") else {
        return;
    };
    let dialled = dial_all(pod.place(), &targets(2000), 8).unwrap();
    let mut wrong = BTreeMap::new();
    for d in &dialled {
        let got = d
            .line
            .as_ref()
            .map_or_else(|e| format!("{e:#}"), Clone::clone);
        if got != d.target.to_string() {
            *wrong
                .entry(format!("{} instead of an address like {}", got, d.target))
                .or_insert(0) += 1;
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of 2000: {:?}\n{}",
        wrong.values().sum::<i32>(),
        wrong.keys().take(5).collect::<Vec<_>>(),
        node.proxy()
            .unwrap()
            .log_text()
            .lines()
            .filter(|l| l.contains("ERROR") || l.contains("WARN"))
            .take(10)
            .collect::<Vec<_>>()
            .join("\n")
    );
    assert_eq!(server.accepted(), 2000);
    let open = dialled.iter().filter(|d| d.stream.is_some()).count();
    assert_eq!(open, 2000, "all of them were open at the same time");
    // and the node is as before
    drop(dialled);
    assert_eq!(
        status(&pod.curl(&["http://docs.example.com/"]).unwrap()),
        200
    );
}

#[test]
fn bulk_a_source_port_serves_several_destinations_and_is_used_again() {
    let Some((_node, pod, _server)) = start("bulk-ports") else {
        return;
    };
    let source = |port| SocketAddrV4::new(pod.ip, port);
    for port in 40_000..40_050 {
        // the same source port to three destinations at the same time
        let held: Vec<_> = targets(3)
            .into_iter()
            .map(|t| dial_from(pod.place(), source(port), t).unwrap())
            .collect();
        for d in &held {
            assert_eq!(d.line.as_ref().unwrap(), &d.target.to_string());
        }
    }
    let mut served = 0;
    for round in 0..40 {
        // the same pair of ports again and again: the client closes first, so its old connections linger
        for target in targets(6) {
            let d = dial_from(pod.place(), source(41_000 + round % 2), target).unwrap();
            match &d.line {
                Ok(line) => {
                    assert_eq!(line, &target.to_string(), "round {round}");
                    served += 1;
                }
                // the client's own kernel may still hold the pair in TIME_WAIT
                Err(e) => assert!(
                    format!("{e:#}").contains("EADDRNOTAVAIL"),
                    "round {round}: {e:#}"
                ),
            }
        }
    }
    // two ports to six destinations at least once each
    assert!(served >= 12, "{served}");
}

#[test]
fn bulk_a_gigabyte_passes_each_way_with_the_proxys_memory_flat() {
    let Some((node, pod)) = node_and_pod("bulk-gigabyte") else {
        return;
    };
    let _sink = Sink::start(node.outside.place(), 8088).unwrap();
    let pid = node.proxy().unwrap().pid();
    // warm up
    assert_eq!(
        status(
            &pod.curl(&[
                "-o",
                "/dev/null",
                "-D",
                "-",
                "http://bulk.example.com/megabyte"
            ])
            .unwrap()
        ),
        200
    );
    let (before, _) = resident_kib(pid).unwrap();

    let down = "curl -sS -m 100 -o /dev/null -w '%{http_code} %{size_download} %{speed_download}' http://bulk.example.com/gigabyte";
    let done = pod
        .place()
        .run_with(&["bash", "-c", down], &[], b"", 110)
        .unwrap();
    assert!(done.stdout.starts_with("200 1073741824 "), "{done}");
    println!("down: {} bytes/s", done.stdout.split(' ').nth(2).unwrap());
    let (after, peak) = resident_kib(pid).unwrap();
    println!("resident KiB: before {before}, after {after}, peak {peak}");
    assert!(
        peak < before + GROWTH,
        "a gigabyte down: from {before} to {peak} KiB"
    );

    let up = "truncate -s 1G /tmp/gigabyte; curl -sS -m 100 -T /tmp/gigabyte -H Expect: -w ' %{http_code} %{speed_upload}' http://bulk.example.com:8088/upload";
    let done = pod
        .place()
        .run_with(&["bash", "-c", up], &[], b"", 110)
        .unwrap();
    assert!(
        done.stdout.contains("received 1073741824") && done.stdout.contains(" 200 "),
        "{done}"
    );
    println!("up: {done}");
    let (after, peak) = resident_kib(pid).unwrap();
    println!("resident KiB: before {before}, after {after}, peak {peak}");
    assert!(
        peak < before + GROWTH,
        "a gigabyte up: from {before} to {peak} KiB"
    );
}
