use std::process::Command;

use nix::sched::{CloneFlags, unshare};

use super::{ruleset::Parts, testing::node, *};
use crate::network::{NodeNetwork, WithoutProxy};

const EBPF: Parts = Parts {
    ebpf: true,
    compat: false,
    early: false,
};

fn table_of(node: &NodeNetwork) -> Table {
    ruleset::table(node, EBPF)
}

/// Runs on a thread of its own in a network namespace of its own, which ends with the thread.
fn in_new_namespace(test: impl FnOnce() + Send + 'static) {
    std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET)
            .expect("these tests make network namespaces: run them as root");
        test();
    })
    .join()
    .unwrap();
}

fn nft(arguments: &[&str]) -> String {
    let output = Command::new("nft")
        .args(arguments)
        .output()
        .expect("nft is installed");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn listing() -> String {
    nft(&["--stateless", "list", "table", "ip", "agent_network"])
}

/// What nft shows, without the hash in each comment.
const EXPECTED: &str = r#"table ip agent_network {
	chain raw_prerouting {
		type filter hook prerouting priority raw; policy accept;
		ip saddr 169.254.9.0/24 iifname != "agentcni0" iifname != "lo" counter drop comment "nobody but a pod has a pod's address"
		iifname "agentcni0" fib daddr type broadcast counter drop comment "no broadcast reaches the node's servers"
		iifname "agentcni0" meta mark & 0x0f000000 == 0x0a000000 udp dport 53 fib daddr type local ip daddr != 169.254.9.1 accept comment "DNS to an address of the node is translated below"
		iifname "agentcni0" meta mark & 0x0f000000 == 0x0a000000 tcp dport 53 fib daddr type local ip daddr != 169.254.9.1 accept comment "DNS to an address of the node is translated below"
		iifname "agentcni0" meta mark & 0x0f000000 == 0x0a000000 notrack comment "the proxy's packets keep their destination"
	}

	chain input {
		type filter hook input priority 101; policy accept;
		iifname "agentcni0" meta mark & 0x000000ff == 0x00000077 counter drop comment "no service is a way to the node itself"
		iifname "agentcni0" meta mark & 0x0f000000 == 0x0a000000 accept comment "to the proxy"
		iifname "agentcni0" ct state established,related accept comment "answers to the node, as to kubelet's probes"
		iifname "agentcni0" counter drop comment "nothing else from a pod to the node"
	}

	chain forward {
		type filter hook forward priority filter; policy accept;
		iifname "agentcni0" oifname "agentcni0" counter drop comment "no service is a way around the proxy to another pod"
		iifname "agentcni0" ip daddr 169.254.169.254 counter drop comment "no service is a way to a sensitive range"
		iifname "agentcni0" ip daddr 100.64.0.0/10 counter drop comment "no service is a way to a sensitive range"
		iifname "agentcni0" meta mark & 0x000000ff == 0x00000077 ct status dnat accept comment "what kube-proxy gave a backend"
		iifname "agentcni0" counter drop comment "nothing else from a pod through the node"
		oifname "agentcni0" ct state established,related accept comment "answers to a pod"
		oifname "agentcni0" counter drop comment "nothing else through the node to a pod"
	}

	chain leaving {
		type filter hook postrouting priority srcnat - 1; policy accept;
		ip daddr 169.254.9.0/24 oifname != "agentcni0" oifname != "lo" counter drop comment "nothing for a pod leaves by another interface"
		ip saddr 169.254.9.0/24 meta mark & 0x0f000000 == 0x0a000000 counter drop comment "what is for the proxy goes nowhere else"
		ip saddr 169.254.9.0/24 meta mark & 0x000000ff == 0x00000077 oifname "agentcni0" counter drop comment "no service is a way around the proxy to another pod"
		ip saddr 169.254.9.0/24 meta mark & 0x000000ff == 0x00000077 ip daddr 169.254.169.254 counter drop comment "no service is a way to a sensitive range"
		ip saddr 169.254.9.0/24 meta mark & 0x000000ff == 0x00000077 ip daddr 100.64.0.0/10 counter drop comment "no service is a way to a sensitive range"
	}

	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr 169.254.9.0/24 meta mark & 0x000000ff == 0x00000077 counter masquerade fully-random comment "to a service's backend with the node's address"
	}

	chain mangle_prerouting {
		type filter hook prerouting priority mangle; policy accept;
		iifname "agentcni0" ip daddr 169.254.9.1 meta l4proto tcp ct state established,related meta mark set meta mark & 0xfbffffff | 0x0b000000 comment "answers to the node"
		iifname "agentcni0" ip daddr 169.254.9.1 meta l4proto tcp ct state ! established,related socket transparent 1 meta mark set meta mark & 0xfaffffff | 0x0a000000 comment "what follows on a connection of the proxy's to the gateway"
	}

	chain past_ipvs {
		type nat hook prerouting priority dstnat - 1; policy accept;
		iifname "agentcni0" meta mark & 0x0f000000 == 0x0a000000 udp dport 53 fib daddr type local counter redirect to :53 comment "DNS to an address of the node, to the proxy on the gateway"
		iifname "agentcni0" meta mark & 0x0f000000 == 0x0a000000 tcp dport 53 fib daddr type local counter redirect to :53 comment "DNS to an address of the node, to the proxy on the gateway"
	}
}
"#;

/// The rules of one chain, as nft shows them, after what a node has that lets pods out without a proxy.
fn rules_of(node: &NodeNetwork, parts: Parts, chain: &str) -> Vec<String> {
    let table = ruleset::table(node, parts);
    ensure(&table).unwrap();
    let hash = format!(" [{:016x}]", encode::generation(&table));
    let listing = nft(&["--stateless", "list", "chain", "ip", "agent_network", chain]);
    let listing = listing.replace(&hash, "");
    let lines = listing.lines().map(str::trim);
    lines
        .filter(|line| line.contains("comment"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn without_a_proxy_pods_go_out_only_where_it_is_wanted() {
    in_new_namespace(|| {
        let compat = Parts {
            ebpf: false,
            compat: true,
            early: false,
        };
        let out = |node: &NodeNetwork, parts| {
            let rules = rules_of(node, parts, "raw_prerouting");
            rules
                .iter()
                .position(|rule| rule.contains("no proxy: out of the node"))
        };
        let mut node = node();
        for parts in [EBPF, compat] {
            assert_eq!(out(&node, parts), None);
        }
        node.sensitive = vec!["192.0.2.0/24".parse().unwrap()];
        node.without_proxy = WithoutProxy::Out { away: false };
        assert_eq!(out(&node, compat), None);
        let rules = rules_of(&node, EBPF, "raw_prerouting");
        let at = out(&node, EBPF).unwrap();
        assert_eq!(
            rules[at],
            r#"iifname "agentcni0" meta mark & 0x0f000000 == 0x0a000000 ip daddr != 169.254.9.0/24 counter meta mark set meta mark & 0xf0ffff77 | 0x00000077 comment "no proxy: out of the node past it""#
        );
        assert!(
            rules[at - 1].contains("socket transparent 1 notrack accept"),
            "{rules:#?}"
        );
        let forward = rules_of(&node, EBPF, "forward");
        let place = |what: &str| forward.iter().position(|rule| rule.contains(what)).unwrap();
        assert!(
            place("192.0.2.0/24 counter drop") < place("for want of a proxy"),
            "{forward:#?}"
        );
        node.without_proxy = WithoutProxy::Out { away: true };
        assert!(out(&node, compat).is_some());
        let input = rules_of(&node, compat, "input");
        assert!(
            input[0].contains("connections of a proxy that ends"),
            "{input:#?}"
        );
    });
}

#[test]
fn the_kernel_has_what_the_values_say() {
    in_new_namespace(|| {
        ensure(&table_of(&node())).unwrap();
        let hash = format!(" [{:016x}]", encode::generation(&table_of(&node())));
        assert_eq!(listing().replace(&hash, ""), EXPECTED);
    });
}

#[test]
fn a_table_that_is_right_is_not_written_again() {
    in_new_namespace(|| {
        let table = table_of(&node());
        ensure(&table).unwrap();
        let before = nft(&["--handle", "list", "table", "ip", "agent_network"]);
        ensure(&table).unwrap();
        assert_eq!(
            nft(&["--handle", "list", "table", "ip", "agent_network"]),
            before
        );
        check(&table).unwrap();
    });
}

#[test]
fn whatever_is_changed_in_the_table_is_found_and_mended() {
    in_new_namespace(|| {
        let table = table_of(&node());
        assert!(check(&table).is_err());
        ensure(&table).unwrap();
        let right = listing();
        for change in [
            "flush table ip agent_network",
            "delete table ip agent_network",
            "flush chain ip agent_network forward",
            "insert rule ip agent_network input accept",
            "add rule ip agent_network postrouting accept",
            "add table ip agent_network { flags dormant; }",
            "delete table ip agent_network; add table ip agent_network; add chain ip agent_network input",
        ] {
            nft(&[change]);
            assert!(check(&table).is_err(), "not found: {change}");
            ensure(&table).unwrap();
            check(&table).unwrap();
            assert_eq!(listing(), right, "not mended: {change}");
        }
    });
}

#[test]
fn another_configuration_replaces_the_table_and_leaves_others_alone() {
    in_new_namespace(|| {
        nft(&["add table ip other; add chain ip other c; add rule ip other c counter"]);
        ensure(&table_of(&node())).unwrap();
        let mut changed = node();
        changed.bridge.address = "10.9.0.1/16".parse().unwrap();
        let table = table_of(&changed);
        assert!(check(&table).is_err());
        ensure(&table).unwrap();
        assert!(listing().contains("ip saddr 10.9.0.0/16"));
        assert!(nft(&["list", "tables"]).contains("table ip other"));
        remove(Family::Ip, ruleset::TABLE).unwrap();
        remove(Family::Ip, ruleset::TABLE).unwrap();
        assert_eq!(nft(&["list", "tables"]), "table ip other\n");
    });
}
