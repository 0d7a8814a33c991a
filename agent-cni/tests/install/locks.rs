//! What controls pods is gone all at once, while a pod sends all it can: not one packet reaches the uplink, before the repair
//! and after, and then the pod's traffic works again.

use std::process::{Child, Stdio};

use serde_json::Value;

use crate::{
    host::{COMPAT, Host},
    support::PLUGIN,
};

/// The proxy's part in either mode is not needed: what is looked at is where packets go.
struct Flood {
    children: Vec<Child>,
}

impl Flood {
    /// A pod that sends to addresses of the outside, of services and of the node, as fast as it can.
    fn start(host: &Host, pod: &str) -> Self {
        let udp = "import socket\n\
             s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.setblocking(False)\n\
             while True:\n\
             \x20for to in ('203.0.113.9',443),('192.0.2.1',53),('10.96.0.80',80),('192.0.2.2',9999):\n\
             \x20\x20try: s.sendto(b'leak',to)\n\
             \x20\x20except OSError: pass";
        let tcp = "import socket\n\
             while True:\n\
             \x20for to in ('203.0.113.9',80),('192.0.2.1',443),('10.96.0.80',80),('192.0.2.2',9999):\n\
             \x20\x20s=socket.socket(); s.setblocking(False)\n\
             \x20\x20try: s.connect_ex(to)\n\
             \x20\x20except OSError: pass\n\
             \x20\x20s.close()";
        let start = |program: &str| {
            host.node
                .command("nsenter")
                .args([&format!("--net=/run/netns/{pod}"), "python3", "-c", program])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        Self {
            children: [udp, tcp].map(start).into(),
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Counts every IPv4 packet that comes out of the node, in the namespace behind its uplink.
fn watch_the_uplink(host: &Host) {
    host.node.sh(
        "nsenter --net=/run/netns/outside nft 'add table netdev seen; \
         add chain netdev seen c { type filter hook ingress device eth0 priority 0; }; \
         add rule netdev seen c meta protocol ip counter'",
    );
}

fn on_the_uplink(host: &Host) -> u64 {
    let listing = host
        .node
        .sh("nsenter --net=/run/netns/outside nft list table netdev seen");
    let count = listing.split("packets ").nth(1).unwrap();
    count.split(' ').next().unwrap().parse().unwrap()
}

/// Packets that the pod's link has brought.
fn sent(host: &Host, veth: &str) -> u64 {
    let said = host.node.sh(&format!("ip -j -s link show dev {veth}"));
    let said: Value = serde_json::from_str(&said).unwrap();
    said[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
}

/// Whether what the pod sends to the outside is counted as on its way to the proxy.
fn proxied(host: &Host) -> u64 {
    let said = host
        .node
        .sh("nft list chain ip watching c | grep -o 'packets [0-9]*'");
    said.trim().trim_start_matches("packets ").parse().unwrap()
}

fn watch_the_way_to_the_proxy(host: &Host) {
    host.node.sh(
        "nft 'add table ip watching; add chain ip watching c { type filter hook input priority 50; }; \
         add rule ip watching c iifname agentcni0 meta mark and 0x0f000000 == 0x0a000000 tcp dport { 80, 443, 18080 } counter'",
    );
}

fn attached(host: &Host) -> (Value, String) {
    host.node.pod("c1");
    let result = host.node.add("c1").ok();
    let state = std::fs::read(host.node.state().join("c1_eth0.json")).unwrap();
    let state: Value = serde_json::from_slice(&state).unwrap();
    (result, state["hostVeth"].as_str().unwrap().to_owned())
}

fn open_both_locks(host: Host, opens: &str, kinds: &[&str]) {
    let mut host = host;
    let installer = host.keep();
    let (result, veth) = attached(&host);
    watch_the_uplink(&host);
    watch_the_way_to_the_proxy(&host);
    let flood = Flood::start(&host, "c1");
    host.until("the pod sends to the proxy", || proxied(&host) > 100);
    assert_eq!(on_the_uplink(&host), 0, "before");
    let opens = opens
        .replace("VETH", &veth)
        .replace("PINS", &host.pins().join("v1").display().to_string());
    for round in 0..5 {
        let before: Vec<u64> = kinds.iter().map(|kind| host.repairs(kind)).collect();
        let sent_before = sent(&host, &veth);
        host.node.sh(&opens);
        host.until("it is repaired", || {
            kinds
                .iter()
                .zip(&before)
                .all(|(kind, before)| host.repairs(kind) > *before)
        });
        host.until("the pod is right", || {
            host.node.check("c1", &result).exit == 0
        });
        assert!(sent(&host, &veth) > sent_before + 100, "the pod sends");
        assert_eq!(on_the_uplink(&host), 0, "round {round}: {opens}");
        // the flush took this too
        host.node
            .sh("nft delete table ip watching 2>/dev/null || true");
        watch_the_way_to_the_proxy(&host);
        host.until("the pod sends to the proxy again", || proxied(&host) > 100);
    }
    assert_eq!(on_the_uplink(&host), 0, "after");
    drop(flood);
    drop(installer);
    // and nobody repairs
    let flood = Flood::start(&host, "c1");
    host.node.sh(&opens);
    let sent_before = sent(&host, &veth);
    host.until("the pod has sent all it can", || {
        sent(&host, &veth) > sent_before + 1000
    });
    assert_eq!(on_the_uplink(&host), 0, "without a repair");
    drop(flood);
    // what is counted would have been seen
    host.node.sh("ping -c 1 -W 2 192.0.2.1");
    assert!(on_the_uplink(&host) > 0);
}

#[test]
fn nft_flush_ruleset_in_the_iptables_compat_mode() {
    open_both_locks(
        Host::with_uplink().in_mode(COMPAT),
        "nft flush ruleset",
        &["rules", "programs", "pod"],
    );
}

#[test]
fn the_program_detached_and_the_table_deleted_in_the_ebpf_mode() {
    open_both_locks(
        Host::with_uplink().in_mode("ebpf"),
        "rm PINS/links/VETH; nft delete table ip agent_network",
        &["rules", "pod"],
    );
}

#[test]
fn the_table_deleted_and_the_program_detached_in_the_ebpf_mode() {
    open_both_locks(
        Host::with_uplink().in_mode("ebpf"),
        "nft flush ruleset; rm PINS/links/VETH",
        &["rules", "pod"],
    );
}

/// kube-proxy's rules are gone too, so what the program lets through to a Service is not translated by anybody.
#[test]
fn nft_flush_ruleset_in_the_ebpf_mode() {
    open_both_locks(
        Host::with_uplink().in_mode("ebpf"),
        "nft flush ruleset",
        &["rules"],
    );
}

/// The node's routes no longer lead to the bridge, while the node sends to a pod, as the proxy answers: none of it leaves by
/// the uplink, though the default route is there.
#[test]
fn what_is_for_a_pod_leaves_by_no_other_interface_whatever_the_routes_say() {
    for mode in ["ebpf", COMPAT] {
        let mut host = Host::with_uplink().in_mode(mode);
        let installer = host.keep();
        let (result, _) = attached(&host);
        let pod = crate::support::address(&result);
        let pool = host
            .node
            .sh("ip -4 -o route show dev agentcni0 proto kernel")
            .split(' ')
            .next()
            .unwrap()
            .to_owned();
        watch_the_uplink(&host);
        let sender = format!(
            "import socket\n\
             s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.setblocking(False)\n\
             while True:\n\
             \x20try: s.sendto(b'secret',('{pod}',9999))\n\
             \x20except OSError: pass"
        );
        let answers = host
            .node
            .command("python3")
            .args(["-c", &sender])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let _answers = Flood {
            children: vec![answers],
        };
        let sent = || {
            let said = host.node.sh("ip -j -s link show dev agentcni0");
            let said: Value = serde_json::from_str(&said).unwrap();
            said[0]["stats64"]["tx"]["packets"].as_u64().unwrap_or(0)
        };
        host.until("the pod is sent to", || sent() > 100);
        for opens in [
            format!("ip route del {pool} dev agentcni0"),
            format!("ip route replace {pool} via 192.0.2.1 dev up0"),
            format!("ip route add {pod}/32 via 192.0.2.1 dev up0"),
            "ip rule del pref 102".into(),
            "nft delete table ip agent_network".into(),
            format!("nft delete table ip agent_network; ip route del {pool} dev agentcni0"),
            format!("ip rule del pref 102; ip route replace {pool} via 192.0.2.1 dev up0"),
            "ip link set agentcni0 down".into(),
            "ip link del agentcni0".into(),
        ] {
            host.node.sh(&opens);
            host.until("the node is right", || {
                // asked of the kernel: readiness may be of the pass before
                let said = host.node.sh(
                    "ip route show dev agentcni0 proto kernel; ip rule show pref 102; \
                     nft list tables | grep 'ip agent_network$' || true",
                );
                said.lines().count() == 3 && host.node.check("c1", &result).exit == 0
            });
            let before = sent();
            host.until("the pod is sent to again", || sent() > before + 100);
            assert_eq!(on_the_uplink(&host), 0, "{mode}: {opens}");
            // not ours: it stays, and harms nobody
            host.node.sh(&format!(
                "ip route del {pod}/32 via 192.0.2.1 dev up0 2>/dev/null || true"
            ));
        }
        drop(installer);
        // and nobody repairs
        host.node.sh(&format!(
            "ip route del {pool} dev agentcni0; ip route add {pod}/32 via 192.0.2.1 dev up0"
        ));
        let before = sent();
        host.until("the pod is sent to still", || sent() > before + 1000);
        host.node.sh("ip link set agentcni0 down; sleep 0.2");
        assert_eq!(on_the_uplink(&host), 0, "{mode}: without a repair");
        host.node.sh("ping -c 1 -W 2 192.0.2.1");
        assert!(on_the_uplink(&host) > 0);
    }
}

#[test]
fn setup_gives_pods_back_what_they_lost_with_the_bridge_down_or_their_entries_flushed() {
    for mode in ["ebpf", COMPAT] {
        let mut host = Host::with_uplink().in_mode(mode);
        host.once();
        let pods = ["c1", "c2"].map(|pod| {
            host.node.pod(pod);
            (pod, host.node.add(pod).ok())
        });
        let setup = format!("{PLUGIN} setup --config {}", host.conf().display());
        let entries = || {
            host.node
                .sh("ip neigh show dev agentcni0 nud permanent | sort; \
                 bridge fdb show br agentcni0 | grep -v permanent | sort")
        };
        let before = entries();
        assert_eq!(before.matches("0a:58:").count(), 4, "{before}");
        for line in [
            "ip link set agentcni0 down",
            "ip neigh flush dev agentcni0 nud all",
            "bridge fdb show br agentcni0 | grep '^0a:58' | while read mac _ port _; do bridge fdb del $mac dev $port master; done",
            "ip link set agentcni0 down; ip link set agentcni0 up",
            "ip link del agentcni0",
        ] {
            host.node.sh(line);
            assert_ne!(entries(), before, "{mode}: {line}");
            let said = host.node.sh(&setup);
            assert_eq!(
                said.matches("mended: pod").count(),
                2,
                "{mode}: {line}: {said}"
            );
            assert_eq!(entries(), before, "{mode}: {line}");
            for (pod, result) in &pods {
                let check = host.node.check(pod, result);
                assert_eq!(check.exit, 0, "{mode}: {line}: {pod}: {check:?}");
            }
        }
        let said = host.node.sh(&setup);
        assert!(!said.contains("mended"), "{mode}: {said}");
    }
}
