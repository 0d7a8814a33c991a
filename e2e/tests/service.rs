//! Services: past the proxy with mark 0x77, and no further than kube-proxy takes them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::net::SocketAddrV4;

use e2e::addresses::{NODE, SERVICE_BACKEND, SERVICE_IP, UNSERVED_IP};
use e2e::capture::Capture;
use e2e::outside::DOWNLINK;
use e2e::patience::slowdown;
use e2e::service::{UDP_PORT, marked_packets};
use e2e::traffic::Pong;

mod support;
use support::{assert_empty, node_and_pod, status};

#[test]
fn a_service_is_reached_with_the_mark_and_from_the_nodes_address() {
    let Some((node, pod)) = node_and_pod("service") else {
        return;
    };
    let before = marked_packets(&node.place()).unwrap();
    let done = pod.curl(&[&format!("http://{SERVICE_IP}/")]).unwrap();
    assert!(
        done.stdout
            .contains(&format!("hello from the service to {NODE}")),
        "{done}"
    );
    let after = marked_packets(&node.place()).unwrap();
    assert!(
        after.0 > before.0 && after.1 > before.1,
        "{before:?} {after:?}"
    );
    let egress = node
        .audit()
        .unwrap()
        .into_iter()
        .filter(|l| l["direction"] == "egress")
        .count();
    assert_eq!(egress, 0, "the proxy had it");
}

#[test]
fn a_udp_service_works_and_its_reply_comes_from_the_service() {
    let Some((node, pod)) = node_and_pod("service") else {
        return;
    };
    let backend = SocketAddrV4::new(SERVICE_BACKEND, UDP_PORT);
    let _pong = Pong::start(node.outside.place(), backend).unwrap();
    let done = pod
        .sh(&format!(
            "echo ping | timeout {} socat -t {} - UDP4:{SERVICE_IP}:{UDP_PORT}",
            5 * slowdown(),
            2 * slowdown()
        ))
        .unwrap();
    assert_eq!(done.stdout.trim(), "pong", "{done}");
}

#[test]
fn a_service_address_that_kube_proxy_does_not_serve_is_no_way_out() {
    let Some((node, pod)) = node_and_pod("service") else {
        return;
    };
    let capture = Capture::start(node.outside.place(), "uplink", DOWNLINK, "").unwrap();
    let done = pod.sh(&format!(
        "curl -sS -m 2 http://{UNSERVED_IP}/; curl -sS -m 2 http://{SERVICE_IP}:81/; echo x > /dev/udp/{UNSERVED_IP}/443; ping -c 1 -W 1 {SERVICE_IP}"
    ));
    done.unwrap();
    assert_empty(&node, capture, "an address that nobody serves");
}

#[test]
fn the_clusters_dns_service_is_answered_by_the_proxy_and_never_reached() {
    let Some((node, pod)) = node_and_pod("service") else {
        return;
    };
    let capture = Capture::start(node.outside.place(), "uplink", DOWNLINK, "port 53").unwrap();
    for transport in ["+notcp", "+tcp"] {
        let done = pod
            .sh(&format!(
                "dig {transport} +tries=1 +time={} @10.96.0.10 evil.example.com",
                3 * slowdown()
            ))
            .unwrap();
        assert!(done.stdout.contains("status: NXDOMAIN"), "{done}");
        assert!(done.stdout.contains("SERVER: 10.96.0.10#53"), "{done}");
    }
    let out = capture.stop().unwrap().packets("").unwrap();
    assert!(out.is_empty(), "{}", out.join("\n"));
}

#[test]
fn the_node_reaches_a_pod_for_probes_and_the_pod_does_not_reach_the_node() {
    let Some((node, pod)) = node_and_pod("service") else {
        return;
    };
    let serve = [
        "/usr/bin/python3",
        "-m",
        "http.server",
        "--directory",
        "/tmp",
        "8080",
    ];
    let _server = pod.place().spawn("pod-server", &serve, &[]).unwrap();
    e2e::outside::wait_for_port(pod.place(), "127.0.0.1:8080").unwrap();
    let url = format!("http://{}:8080/", pod.ip);
    let limit = (5 * slowdown()).to_string();
    let done = node
        .place()
        .run(&["curl", "-sS", "-i", "-m", &limit, &url])
        .unwrap();
    assert_eq!(status(&done), 200, "{done}");
    // the proxy's own endpoints are for the node alone
    for to in [
        format!("http://{}:18080/metrics", pod.gateway),
        format!("http://{NODE}:18080/metrics"),
        "http://127.0.0.1:18080/metrics".to_owned(),
    ] {
        let done = pod.curl(&["-m", "3", &to]).unwrap();
        assert!(!done.stdout.contains("agent_network_"), "{to}: {done}");
        if done.stdout.contains("HTTP/") {
            assert_eq!(status(&done), 403, "{to}: {done}");
        }
    }
}

#[test]
fn the_node_reaches_a_pod_through_a_service_and_hears_its_answer() {
    let Some((node, pod)) = node_and_pod("service") else {
        return;
    };
    let _server = pod
        .network()
        .spawn("server", &["python3", "-m", "http.server", "8080"], &[])
        .unwrap();
    // as kube-proxy does for a client on the node: to the pod, from the gateway, with another port
    let (service, backend) = ("10.96.0.99", pod.ip);
    node.place()
        .sh(&format!(
            "iptables -t nat -I OUTPUT -d {service} -p tcp --dport 80 -j DNAT --to {backend}:8080; \
             iptables -t nat -I POSTROUTING -d {backend} -p tcp --dport 8080 -j MASQUERADE --random-fully"
        ))
        .unwrap()
        .success()
        .unwrap();
    e2e::outside::wait_for_port(&node.place(), &format!("{backend}:8080")).unwrap();
    for _ in 0..5 {
        let done = node
            .place()
            .run(&[
                "curl",
                "-sS",
                "-i",
                "--max-time",
                &(10 * slowdown()).to_string(),
                &format!("http://{service}/"),
            ])
            .unwrap();
        assert_eq!(status(&done), 200, "{done}");
    }
}
