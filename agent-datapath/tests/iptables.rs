//! The rules of iptables in namespaces of the test's own, in both iptables: written, left alone, broken, mended, moved,
//! removed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::{path::PathBuf, process::Command};

use agent_core::attachment::Mode;
use agent_datapath::{
    iptables::{self, Backend, Why},
    network::NodeNetwork,
};
use support::{in_new_netns, node_network};

const BACKENDS: [Backend; 2] = [Backend::Nft, Backend::Legacy];

fn node() -> NodeNetwork {
    node_network(Mode::IptablesCompat, PathBuf::new())
}

fn sh(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// All rules with their counters, without the lines that name the time.
fn saved(backend: Backend) -> String {
    sh(&format!(
        "{}-save -c | grep -v '^#' || true",
        backend.name()
    ))
}

/// Makes this the node's iptables, as kubelet does.
fn hint(backend: Backend) {
    sh(&format!(
        "{} -w -t mangle -N KUBE-IPTABLES-HINT",
        backend.name()
    ));
}

fn other(backend: Backend) -> Backend {
    match backend {
        Backend::Nft => Backend::Legacy,
        Backend::Legacy => Backend::Nft,
    }
}

#[test]
fn rules_are_written_once_where_kubelet_says_and_then_left_alone() {
    for backend in BACKENDS {
        in_new_netns(move || {
            hint(backend);
            let ensured = iptables::ensure(&node()).unwrap();
            assert_eq!(
                (ensured.choice.backend, ensured.choice.why),
                (backend, Why::KubeletHint)
            );
            assert!(!ensured.choice.both_in_use);
            assert!(!ensured.mended.is_empty());
            assert!(!saved(other(backend)).contains("AGENT-CNI"));
            // a counter that a rule written anew would have lost
            sh(&format!(
                "{} -w -t nat -R AGENT-CNI-PREROUTING 4 -c 5 500 -p tcp -j REDIRECT --to-ports 18080",
                backend.name()
            ));
            let before = saved(backend);
            assert!(before.contains("[5:500] -A AGENT-CNI-PREROUTING -p tcp -j REDIRECT"));
            let handles = sh("nft -a list ruleset");
            for _ in 0..3 {
                assert_eq!(iptables::ensure(&node()).unwrap().mended, [""; 0]);
            }
            iptables::check(&node()).unwrap();
            assert_eq!(saved(backend), before);
            assert_eq!(sh("nft -a list ruleset"), handles);
        });
    }
}

#[test]
fn whatever_is_done_to_the_rules_is_found_and_mended_and_others_rules_stay() {
    for backend in BACKENDS {
        in_new_netns(move || {
            let iptables = format!("{} -w", backend.name());
            hint(backend);
            // kube-proxy was first, or comes later, or again
            sh(&format!(
                "{iptables} -t nat -N KUBE-SERVICES; {iptables} -t nat -A PREROUTING -j KUBE-SERVICES; \
                 {iptables} -t nat -A KUBE-SERVICES -d 10.96.0.1 -j RETURN; {iptables} -A INPUT -i eth7 -j ACCEPT"
            ));
            iptables::ensure(&node()).unwrap();
            for change in [
                "-t nat -F",
                "-t mangle -F",
                "-F",
                "-t nat -F PREROUTING",
                "-t nat -F AGENT-CNI-PREROUTING",
                "-t nat -I PREROUTING -j KUBE-SERVICES",
                "-t mangle -I PREROUTING -j ACCEPT",
                "-I FORWARD -j ACCEPT",
                "-t nat -D AGENT-CNI-PREROUTING 1",
                "-I AGENT-CNI-FORWARD -j ACCEPT",
                "-t nat -A PREROUTING -i agentcni0 -j AGENT-CNI-PREROUTING",
                "-t mangle -A AGENT-CNI-MANGLE -d 203.0.113.0/24 -j MARK --set-xmark 0x77/0xff",
                "-D INPUT -i agentcni0 -j AGENT-CNI-INPUT",
            ] {
                sh(&format!("{iptables} {change}"));
                let foreign = |text: &str| -> Vec<String> {
                    let lines = text.lines().filter(|line| line.contains(" -A "));
                    lines
                        .filter(|line| !line.contains("AGENT-CNI"))
                        .map(str::to_owned)
                        .collect()
                };
                let before = foreign(&saved(backend));
                let found = iptables::check(&node()).unwrap_err();
                assert_eq!(found.reason(), "differs", "{change}: {found}");
                iptables::ensure(&node()).unwrap();
                iptables::check(&node()).unwrap();
                let after = saved(backend);
                assert_eq!(foreign(&after), before, "{change}");
                for (table, chain, parent) in iptables::CHAINS {
                    let rules = sh(&format!("{iptables} -t {table} -S {parent}"));
                    let first = rules.lines().nth(1);
                    let jump = format!("-A {parent} -i agentcni0 -j {chain}");
                    assert_eq!(first, Some(jump.as_str()), "{change}");
                    assert_eq!(rules.matches(chain).count(), 1, "{change}");
                }
            }
        });
    }
}

#[test]
fn rules_move_to_the_other_iptables_with_kube_proxy_and_go_without_a_trace() {
    for backend in BACKENDS {
        in_new_netns(move || {
            let to = other(backend);
            hint(backend);
            iptables::ensure(&node()).unwrap();
            sh(&format!(
                "{0} -w -t nat -N KUBE-SERVICES; {0} -w -t nat -A KUBE-SERVICES -d 10.96.0.1 -j RETURN",
                to.name()
            ));
            assert!(iptables::check(&node()).is_err());
            let ensured = iptables::ensure(&node()).unwrap();
            assert_eq!(
                (ensured.choice.backend, ensured.choice.why),
                (to, Why::KubeProxy)
            );
            assert!(!saved(backend).contains("AGENT-CNI"));
            assert!(saved(to).contains("-A AGENT-CNI-PREROUTING -p tcp -j REDIRECT"));
            assert_eq!(iptables::remains().unwrap().len(), 4);
            iptables::remove().unwrap();
            iptables::remove().unwrap();
            for backend in BACKENDS {
                assert!(!saved(backend).contains("AGENT-CNI"));
            }
            assert!(saved(to).contains("KUBE-SERVICES"));
            assert!(iptables::remains().unwrap().is_empty());
        });
    }
}

#[test]
fn many_service_cidrs_are_one_rule_and_one_set() {
    for backend in BACKENDS {
        in_new_netns(move || {
            hint(backend);
            let few = node();
            let many = NodeNetwork {
                service_cidrs: (0..600)
                    .map(|i| {
                        format!("10.{}.{}.0/24", 100 + i / 256, i % 256)
                            .parse()
                            .unwrap()
                    })
                    .collect(),
                ..node()
            };
            iptables::ensure(&few).unwrap();
            iptables::ensure(&many).unwrap();
            iptables::check(&many).unwrap();
            assert_eq!(iptables::ensure(&many).unwrap().mended, [""; 0]);
            assert_eq!(saved(backend).matches("0x77/0xff -A").count(), 0);
            assert_eq!(saved(backend).matches("--set-xmark").count(), 1);
            let members = || sh("ipset save agent-cni-services | grep -c ^add || true");
            assert_eq!(members().trim(), "600");
            sh("ipset flush agent-cni-services");
            assert!(iptables::check(&many).is_err());
            iptables::ensure(&many).unwrap();
            assert_eq!(members().trim(), "600");
            assert_eq!(sh("ipset list -n").trim(), "agent-cni-services");
            iptables::ensure(&few).unwrap();
            iptables::check(&few).unwrap();
            assert_eq!(sh("ipset list -n"), "");
            iptables::ensure(&many).unwrap();
            iptables::remove().unwrap();
            assert_eq!(sh("ipset list -n"), "");
        });
    }
}
