//! Services by kube-proxy's IPVS mode, which takes a service's packets out of the input hook and sends them from there:
//! other hooks see them than in its other modes.
//!
//! Few machines that build software have IPVS. `cargo xtask kernel-matrix` runs these tests on kernels that do.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::net::SocketAddrV4;

use e2e::addresses::{CLUSTER_DNS, METADATA, NODE, SERVICE_BACKEND, SERVICE_IP};
use e2e::capture::Capture;
use e2e::cni::STATE_DIR;
use e2e::outside::DOWNLINK;
use e2e::service::{
    UDP_PORT,
    ipvs::{BALANCER_IP, EMPTY_IP, Ipvs, NODE_PORT, ODD_IP},
    marked_packets,
};
use e2e::traffic::Pong;
use e2e::{Node, Pod, PodSpec};

mod support;
use support::{assert_empty, node_and_pod};

/// A port of the node's own, on all its addresses; in this mode a Service's address is one of them.
const TRAP: u16 = 9997;

fn ipvs_node() -> Option<(Node, Pod, Ipvs)> {
    let (node, pod) = node_and_pod("ipvs")?;
    let ipvs = Ipvs::install(&node.place()).unwrap();
    Some((node, pod, ipvs))
}

#[test]
#[ignore = "needs IPVS in the kernel: cargo xtask kernel-matrix runs it"]
fn services_by_ipvs_are_reached_from_the_nodes_address_and_answer() {
    let Some((node, pod, _ipvs)) = ipvs_node() else {
        return;
    };
    let before = marked_packets(&node.place()).unwrap();
    let done = pod.curl(&[&format!("http://{SERVICE_IP}/")]).unwrap();
    let greeting = format!("hello from the service to {NODE}");
    assert!(done.stdout.contains(&greeting), "{done}");
    let after = marked_packets(&node.place()).unwrap();
    assert!(
        after.0 > before.0 && after.1 > before.1,
        "{before:?} {after:?}"
    );
    let backend = SocketAddrV4::new(SERVICE_BACKEND, UDP_PORT);
    let _pong = Pong::start(node.outside.place(), backend).unwrap();
    let done = pod
        .sh(&format!(
            "echo ping | timeout 20 socat -t 10 - UDP4:{SERVICE_IP}:{UDP_PORT}"
        ))
        .unwrap();
    assert_eq!(done.stdout.trim(), "pong", "{done}");
}

#[test]
#[ignore = "needs IPVS in the kernel: cargo xtask kernel-matrix runs it"]
fn a_service_by_ipvs_is_no_way_out_to_the_node_to_a_pod_or_to_a_sensitive_range() {
    let Some((mut node, pod, ipvs)) = ipvs_node() else {
        return;
    };
    let other = node.add_pod(&PodSpec::named("other")).unwrap();
    let listen = format!("TCP4-LISTEN:{TRAP},fork,reuseaddr");
    let traps = [("node", node.place()), ("other", other.place().clone())].map(|(who, place)| {
        let command = ["socat", "-u", &listen, "SYSTEM:cat"];
        place.spawn(&format!("trap-{who}"), &command, &[]).unwrap()
    });
    e2e::outside::wait_for_port(&node.place(), &format!("127.0.0.1:{TRAP}")).unwrap();
    e2e::outside::wait_for_port(other.place(), &format!("127.0.0.1:{TRAP}")).unwrap();

    let connect = |to: &str| {
        pod.sh(&format!("echo leak | timeout 6 socat -t 1 - TCP4:{to}"))
            .unwrap()
    };
    ipvs.serve(&format!("{SERVICE_BACKEND}:8080")).unwrap();
    let done = pod.curl(&[&format!("http://{ODD_IP}/")]).unwrap();
    assert!(done.stdout.contains("hello from the service"), "{done}");
    let capture = Capture::start(node.outside.place(), "uplink", DOWNLINK, "").unwrap();
    // after a Service that works, so that a failure means something: no endpoints, a port that is not served, a port of
    // the node's own
    for to in [
        format!("{EMPTY_IP}:80"),
        format!("{SERVICE_IP}:81"),
        format!("{SERVICE_IP}:{TRAP}"),
    ] {
        assert!(!connect(&to).ok(), "{to} was reached");
    }
    // endpoints that nobody may have
    for endpoint in [
        format!("{METADATA}:80"),
        "100.64.0.1:80".to_owned(),
        format!("{}:{TRAP}", other.ip),
        format!("{NODE}:{TRAP}"),
    ] {
        ipvs.serve(&endpoint).unwrap();
        assert!(
            !connect(&format!("{ODD_IP}:80")).ok(),
            "{endpoint} was reached"
        );
    }
    assert_empty(&node, capture, "a service of IPVS");
    for trap in &traps {
        assert!(!trap.log_text().contains("leak"), "{}", trap.log_text());
    }
}

#[test]
#[ignore = "needs IPVS in the kernel: cargo xtask kernel-matrix runs it"]
fn what_is_for_the_proxy_gets_there_and_nowhere_else_though_ipvs_serves_its_address() {
    let Some((node, pod, _ipvs)) = ipvs_node() else {
        return;
    };
    // that these are served is seen from the node itself, or their silence would mean nothing
    for to in [format!("{BALANCER_IP}"), format!("{NODE}:{NODE_PORT}")] {
        let url = format!("http://{to}/");
        let command = ["curl", "-sS", "-m", "30", &url];
        let done = node.place().run_with(&command, &[], b"", 60).unwrap();
        assert!(
            done.stdout.contains("hello from the service"),
            "{to}: {done}"
        );
    }
    let capture = Capture::start(node.outside.place(), "uplink", DOWNLINK, "").unwrap();
    for transport in ["+notcp", "+tcp"] {
        let done = pod
            .sh(&format!(
                "dig {transport} +tries=3 +time=10 @{CLUSTER_DNS} evil.example.com"
            ))
            .unwrap();
        assert!(done.stdout.contains("status: NXDOMAIN"), "{done}");
        let server = format!("SERVER: {CLUSTER_DNS}#53");
        assert!(done.stdout.contains(&server), "{done}");
    }
    for to in [format!("{BALANCER_IP}"), format!("{NODE}:{NODE_PORT}")] {
        let done = pod
            .sh(&format!("curl -sS -m 6 http://{to}/ || true"))
            .unwrap();
        assert!(
            !done.stdout.contains("hello from the service"),
            "{to}: {done}"
        );
    }
    assert_empty(&node, capture, "what is for the proxy");
    // in ebpf mode that is our rules' doing: IPVS had the packets to both
    let node_state =
        std::fs::read_to_string(node.world().inside(STATE_DIR).join("node.json")).unwrap();
    if node_state.contains("\"ebpf\"") {
        let list = ["nft", "list", "table", "ip", "agent_network"];
        let rules = node.place().run(&list).unwrap().success().unwrap().stdout;
        for purpose in [
            "what is for the proxy goes nowhere else",
            "DNS to an address of the node, to the proxy",
        ] {
            let of_purpose = rules.lines().filter(|line| line.contains(purpose));
            let used = of_purpose.filter(|line| !line.contains("packets 0 "));
            assert!(used.count() > 0, "{purpose}: {rules}");
        }
    }
}
