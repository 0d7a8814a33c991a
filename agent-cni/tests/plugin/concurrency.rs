//! Many calls at once.

use std::{collections::BTreeSet, thread};

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
