//! Many calls at once.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::support::{Node, address};

#[test]
fn two_hundred_parallel_adds_get_two_hundred_addresses() {
    const PODS: usize = 200;
    let node = Node::new();
    node.sh(&format!(
        "for n in $(seq {PODS}); do ip netns add p$n; done"
    ));
    let results: Vec<_> = thread::scope(|scope| {
        let calls: Vec<_> = (1..=PODS)
            .map(|n| {
                let node = &node;
                scope.spawn(move || node.add(&format!("p{n}")).ok())
            })
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let addresses: BTreeSet<String> = results.iter().map(address).collect();
    assert_eq!(addresses.len(), PODS);
    for (n, result) in results.iter().enumerate() {
        node.check(&format!("p{}", n + 1), result).ok();
    }
    thread::scope(|scope| {
        for n in 1..=PODS {
            let node = &node;
            scope.spawn(move || node.del(&format!("p{n}")).ok());
        }
    });
    assert_eq!(node.traces(), "");
}

#[test]
fn the_same_add_twenty_times_at_once_makes_one_attachment() {
    let node = Node::new();
    node.pod("c1");
    let addresses: BTreeSet<String> = thread::scope(|scope| {
        let calls: Vec<_> = (0..20)
            .map(|_| scope.spawn(|| address(&node.add("c1").ok())))
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert_eq!(addresses.len(), 1);
    assert_eq!(node.sh("ip -o link | grep -c agt[0-9a-f]").trim(), "1");
}

#[test]
fn adds_dels_and_gcs_at_once_leave_what_was_added_last() {
    let node = Node::new();
    node.sh("for n in $(seq 12); do ip netns add p$n; done");
    let keep: Vec<_> = (1..=12)
        .map(|n| json!({"containerID": format!("p{n}"), "ifname": "eth0"}))
        .collect();
    let gc = node.with("cni.dev/valid-attachments", json!(keep));
    thread::scope(|scope| {
        for n in 1..=12 {
            let node = &node;
            scope.spawn(move || {
                let name = format!("p{n}");
                for _ in 0..3 {
                    node.add(&name).ok();
                    node.del(&name).ok();
                }
                let result = node.add(&name).ok();
                node.check(&name, &result).ok();
            });
        }
        scope.spawn(|| {
            for _ in 0..10 {
                node.call("GC", "", &gc).ok();
            }
        });
    });
    for n in 1..=12 {
        let name = format!("p{n}");
        let result = node.add(&name).ok();
        node.check(&name, &result).ok();
    }
}

/// What the node has that belongs to no pod, without counters.
fn foundations(node: &Node) -> String {
    node.sh(
        "ip rule; ip route show table all; ip -o link | sed 's/^[0-9]*: //' | sort; bridge -d link; sysctl -a -e 2>/dev/null \
         | grep -E '^net.ipv4.(ip_forward|conf.(all|default|agentcni0)\\.)' ; \
         nft list ruleset 2>/dev/null | sed -E 's/packets [0-9]+ bytes [0-9]+//'; iptables-save | grep -v '^[#:]' || true",
    )
}

#[test]
fn two_hundred_callers_that_add_and_delete_without_pause_leave_nothing() {
    const CALLERS: usize = 200;
    // ten minutes and more by hand
    let seconds = std::env::var("AGENT_NETWORK_CHURN_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(10);
    let mut node = Node::new();
    // addresses rest for a while after a DEL: with as many as a node usually has, callers would wait for them
    node.conf["fakeIPCIDR"] = json!("10.222.0.0/16");
    node.sh(&format!(
        "for n in $(seq {CALLERS}); do ip netns add p$n; done"
    ));
    node.add("p1").ok();
    node.del("p1").ok();
    let (before, files) = (foundations(&node), node.state_files());
    let end = Instant::now() + Duration::from_secs(seconds);
    let rounds: usize = thread::scope(|scope| {
        let callers: Vec<_> = (1..=CALLERS)
            .map(|n| {
                let node = &node;
                scope.spawn(move || {
                    let name = format!("p{n}");
                    let mut rounds = 0;
                    while rounds == 0 || Instant::now() < end {
                        node.add(&name).ok();
                        node.del(&name).ok();
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        callers
            .into_iter()
            .map(|caller| caller.join().unwrap())
            .sum()
    });
    println!("{rounds} times ADD and DEL in {seconds} seconds and what was under way");
    assert_eq!(node.traces(), "");
    assert_eq!(node.state_files(), files);
    assert_eq!(foundations(&node), before);
    // the gateway, 10.222.0.1, is the node's own
    let tracked = "conntrack -L 2>/dev/null | grep -oE '(src|dst)=10\\.222\\.[0-9.]+' | grep -v '=10.222.0.1$' || true";
    assert_eq!(node.sh(tracked), "");
    // every address is free again
    let addresses: BTreeSet<String> = (1..=CALLERS)
        .map(|n| address(&node.add(&format!("p{n}")).ok()))
        .collect();
    assert_eq!(addresses.len(), CALLERS);
}
