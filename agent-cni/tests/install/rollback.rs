//! Giving a node back, whatever state it is in: nothing of ours is left, settings are as they were, and no pod was
//! uncontrolled on the way.

use std::{fs::File, thread, time::Duration};

use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;

use crate::{
    host::{COMPAT, Host, Installer, text},
    support::{Node, PLUGIN},
    witness::Witness,
};

/// That nothing is left, by our own look and by other programs'.
#[track_caller]
fn assert_clean(host: &Host) {
    let (clean, residues) = host.residues();
    assert!(clean, "{residues:#}");
    assert_eq!(host.traces_of_us(), "");
    assert!(!host.node.state().exists() && !host.claim().exists());
    // what is others' stays
    assert!(host.conf_dir().join("10-primary.conflist").exists());
}

fn kinds(residues: &Value) -> Vec<String> {
    let mut kinds: Vec<String> = residues["residues"]
        .as_array()
        .unwrap()
        .iter()
        .map(|residue| residue["kind"].as_str().unwrap().to_owned())
        .collect();
    kinds.dedup();
    kinds
}

#[test]
fn a_healthy_node_with_pods_is_given_back_and_says_which_pods_to_recreate() {
    let mut host = Host::with_uplink();
    host.node
        .sh("echo 2 > /proc/sys/net/ipv4/conf/default/rp_filter; echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter");
    let before = host.sysctls();
    host.once();
    assert_ne!(host.sysctls(), before);
    host.node.added("c1");
    host.node.added("c2");
    host.node.sh(
        "conntrack -I -s 169.254.9.2 -d 10.96.0.10 -p tcp --sport 9 --dport 80 --state ESTABLISHED -t 100",
    );
    let mut witness = Witness::start(&host, "c1");
    let (clean, residues) = host.residues();
    assert!(!clean);
    assert_eq!(
        kinds(&residues),
        [
            "conf",
            "pod_links",
            "bridge",
            "pins",
            "policy_route",
            "drop_rules",
            "pool_route",
            "nft_tables",
            "sysctls",
            "binary",
            "state"
        ]
    );
    let said = host.rollback();
    assert_eq!(
        said["recreate"],
        serde_json::json!(["agents/c1", "agents/c2"])
    );
    assert_clean(&host);
    assert_eq!(host.sysctls(), before);
    assert_eq!(host.node.sh("conntrack -L --src 169.254.9.2"), "");
    witness.assert_controlled("after the rollback");
    // twice
    let said = host.rollback();
    assert_eq!(said["recreate"], serde_json::json!([]));
    assert_clean(&host);
}

#[test]
fn a_node_in_the_iptables_compat_mode_is_given_back() {
    let mut host = Host::with_uplink().in_mode(COMPAT);
    let before = host.sysctls();
    host.once();
    host.assert_installed();
    host.node.added("c1");
    let mut witness = Witness::start(&host, "c1");
    assert!(!host.residues().0);
    host.rollback();
    assert_clean(&host);
    assert_eq!(host.sysctls(), before);
    witness.assert_controlled("after the rollback");
}

#[test]
fn a_look_changes_nothing() {
    let mut host = Host::new();
    host.once();
    host.node.added("c1");
    let before = host.traces_of_us();
    assert!(!host.residues().0);
    assert_eq!(host.traces_of_us(), before);
    host.assert_installed();
}

#[test]
fn a_node_that_was_never_installed_is_clean() {
    let host = Host::new();
    assert!(host.residues().0);
    host.rollback();
    assert_clean(&host);
}

#[test]
fn a_half_installed_node_is_given_back() {
    for remove in [
        "rm {conf}",
        "rm {conf} {bin}; : > {bin}.x; rm {bin}.x",
        "rm {state}/node.json {state}/sysctls",
        "rm -r {state}",
        "ip link del agentcni0",
        "nft delete table ip agent_network; ip rule del pref 100",
        "rm -r {pins}/v1/links",
        "rm {pins}/v1/ENDPOINTS {pins}/v1/programs/*",
        "rm -r {pins}",
        "echo garbage > {state}/node.json; echo garbage > {state}/c1_eth0.json; mkdir {state}/x.json",
    ] {
        let mut host = Host::new();
        host.once();
        host.node.added("c1");
        let line = remove
            .replace("{conf}", &host.conf().display().to_string())
            .replace("{bin}", &host.binary().display().to_string())
            .replace("{state}", &host.node.state().display().to_string())
            .replace("{pins}", &host.pins().display().to_string());
        host.node.sh(&line);
        let (clean, said) = host.try_rollback();
        assert!(clean, "{remove}: {said:#}");
        assert_clean(&host);
    }
}

#[test]
fn what_older_versions_left_is_found_and_removed() {
    let host = Host::new();
    let state = host.node.state();
    host.node.sh(&format!(
        "for t in iptables-nft iptables-legacy; do \
           $t -t nat -N AGENT-CNI-PREROUTING; $t -t nat -A PREROUTING -i agentcni0 -j AGENT-CNI-PREROUTING; \
           $t -t nat -A AGENT-CNI-PREROUTING -m mark --mark 0x77 -j RETURN; \
           $t -t nat -A AGENT-CNI-PREROUTING -p tcp -j REDIRECT --to-ports 18080; \
           $t -t mangle -N AGENT-CNI-MANGLE; $t -t mangle -A PREROUTING -i agentcni0 -j AGENT-CNI-MANGLE; \
           $t -t filter -N AGENT-CNI-FORWARD; $t -t filter -N AGENT-CNI-OLD; \
           $t -t filter -A AGENT-CNI-FORWARD -j AGENT-CNI-OLD; $t -A FORWARD -j AGENT-CNI-FORWARD; \
           $t -t nat -N KUBE-SERVICES; $t -t nat -A PREROUTING -j KUBE-SERVICES; done; \
         ipset create agent-cni-services hash:net; \
         iptables-nft -t mangle -A AGENT-CNI-MANGLE -m set --match-set agent-cni-services dst -j MARK --set-mark 0x77; \
         nft add table bridge agent_network; nft add table inet agent_network; \
         ip link add agentcni0 type bridge; ip link add oldveth type veth peer name oldpeer; \
         ip link set oldveth master agentcni0; \
         ip rule add pref 99 fwmark 1 lookup 18080; ip route add local default dev lo table 18080; \
         mkdir -p {pins}/v0/links {state} ; bpftool map create {pins}/v0/OLD type array key 4 value 4 entries 1 name old; \
         echo '{{}}' > {state}/node.json; echo x > {bin}/agent-cni; echo x > {bin}/.agent-cni.staged; \
         echo x > {conf}/00-agent-cni.conf.staged",
        pins = host.pins().display(),
        state = state.display(),
        bin = host.bin_dir().display(),
        conf = host.conf_dir().display(),
    ));
    let (clean, residues) = host.residues();
    assert!(!clean);
    assert_eq!(
        kinds(&residues),
        [
            "conf",
            "pod_links",
            "bridge",
            "pins",
            "policy_route",
            "nft_tables",
            "iptables_chains",
            "ipset",
            "binary",
            "state"
        ]
    );
    for backend in ["iptables-nft chain", "iptables-legacy chain"] {
        assert!(residues.to_string().contains(backend), "{residues:#}");
    }
    host.rollback();
    assert_clean(&host);
    for tool in ["iptables-nft-save", "iptables-legacy-save"] {
        let rules = host.node.sh(tool);
        assert_eq!(rules.matches("KUBE-SERVICES").count(), 2, "{rules}");
    }
}

/// What a reboot does to a node: links, rules and pins are gone, files stay, and the boot is another one.
fn reboot(host: &Host) {
    host.node.sh(&format!(
        "for l in $(ip -o link | grep -o 'agt[0-9a-f]*' | sort -u) agentcni0; do ip link del $l; done; \
         nft flush ruleset; ip rule del pref 100; ip route flush table 18080; rm -r {pins}; \
         echo 0 > /proc/sys/net/ipv4/ip_forward; sed -i 's/\"bootId\": \".*\"/\"bootId\": \"another\"/' {state}/*_eth0.json",
        pins = host.pins().display(),
        state = host.node.state().display(),
    ));
}

#[test]
fn after_a_reboot_what_is_left_goes() {
    let mut host = Host::new();
    host.once();
    host.node.added("c1");
    reboot(&host);
    let said = host.rollback();
    assert_eq!(said["recreate"], serde_json::json!([]));
    assert_clean(&host);
}

#[test]
fn an_installer_that_runs_does_not_undo_a_rollback_and_leaves_nothing_when_it_ends() {
    let mut host = Host::new();
    let installer = host.keep();
    host.node.added("c1");
    let said = host.rollback();
    assert_eq!(said["installerRuns"], true);
    host.until("it knows", || {
        installer.log().contains("the node was rolled back")
    });
    // three times as long as it would take to repair
    thread::sleep(Duration::from_secs(3));
    let (clean, residues) = host.residues();
    assert!(clean, "{residues:#}");
    assert!(!host.conf().exists() && !host.node.state().exists());
    assert!(!host.ready());
    assert_eq!(installer.terminate(), Some(0));
    assert_clean(&host);
    // an explicit start takes the node over again
    let _installer = host.keep();
    host.assert_installed();
    host.node.added("c2");
}

/// An installer whose pass waits for a lock, until the guard is dropped.
fn installer_that_hangs_in_a_pass(host: &mut Host) -> (Installer, Flock<File>) {
    let installer = host.keep();
    let lock = File::open(host.node.state().join("mode.lock")).unwrap();
    let lock = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
    let pass = File::open(host.claim().join("lock")).unwrap();
    // between two passes its lock is free for a second or two
    host.until("a pass waits", || {
        (0..10).all(|_| {
            thread::sleep(Duration::from_millis(20));
            match Flock::lock(pass.try_clone().unwrap(), FlockArg::LockSharedNonblock) {
                Ok(taken) => {
                    drop(taken);
                    false
                }
                Err(_) => true,
            }
        })
    });
    (installer, lock)
}

#[test]
fn the_configuration_goes_at_once_while_a_pass_is_at_work_and_the_pass_does_not_bring_it_back() {
    for kill in [false, true] {
        let mut host = Host::new();
        let (installer, lock) = installer_that_hangs_in_a_pass(&mut host);
        let mut rollback = host
            .node
            .command(PLUGIN)
            .args(host.rollback_arguments())
            .spawn()
            .unwrap();
        host.until("the configuration is gone", || !host.conf().exists());
        // and nothing else, as the pass is at work still
        assert!(host.binary().exists() && host.node.state().join("node.json").exists());
        assert!(rollback.try_wait().unwrap().is_none());
        let (ready, said) = host.readiness();
        assert!(
            !ready && said.contains("a rollback of this node has begun"),
            "{said}"
        );
        if kill {
            rollback.kill().unwrap();
            rollback.wait().unwrap();
            // the status of the last pass is young still, and says that all is well
            assert_eq!(host.status()["ready"], true);
            let (ready, said) = host.readiness();
            assert!(!ready, "{said}");
            for part in [
                "a rollback of this node has begun",
                "run agent-cni rollback",
            ] {
                assert!(said.contains(part), "{said}");
            }
        }
        drop(lock);
        host.until("it knows", || {
            installer.log().contains("the node was rolled back")
        });
        assert!(!host.conf().exists());
        if kill {
            host.rollback();
        } else {
            assert!(rollback.wait().unwrap().success());
        }
        assert!(!host.ready());
        // two passes and more: it stands down, and says so once of each rollback
        thread::sleep(Duration::from_secs(3));
        let log = installer.log();
        let said = log.matches("the node was rolled back").count();
        assert_eq!(said, if kill { 2 } else { 1 }, "{log}");
        let brought_back = |line: &str| line.contains("repaired") && line.contains("kind=\"conf\"");
        assert!(!log.lines().any(brought_back), "{log}");
        assert_eq!(installer.terminate(), Some(0));
        assert_clean(&host);
    }
}

#[test]
fn a_rollback_after_an_installer_that_was_killed_leaves_nothing() {
    let mut host = Host::new();
    let installer = host.keep();
    host.node.sh(&format!("kill -9 {}", installer.pid()));
    drop(installer);
    host.rollback();
    assert_clean(&host);
}

#[test]
fn adds_that_a_runtime_still_makes_do_not_build_the_node_up_again() {
    let mut host = Host::new();
    host.once();
    let node = &host.node;
    let names: Vec<String> = (0..6).map(|i| format!("c{i}")).collect();
    for name in &names {
        node.pod(name);
    }
    thread::scope(|scope| {
        for name in &names {
            scope.spawn(move || {
                // with the configuration that the runtime has in memory
                for _ in 0..12 {
                    let answer = node.add(name);
                    assert!(
                        answer.exit == 0
                            || matches!(answer.json["code"].as_u64(), Some(11 | 101 | 102 | 5)),
                        "{answer:?}"
                    );
                }
            });
        }
        thread::sleep(Duration::from_millis(150));
        host.try_rollback();
    });
    host.rollback();
    assert_clean(&host);
}

#[test]
fn a_node_installed_by_setup_and_adds_alone_is_given_back() {
    let host = Host::new();
    host.node.added("c1");
    host.rollback();
    assert_clean(&host);
    assert_eq!(host.node.in_pod("c1", "ip -br link").lines().count(), 1);
}

#[test]
fn the_answer_for_people_names_each_residue_and_what_removes_it() {
    let mut host = Host::new();
    host.once();
    let say = |node: &Node, arguments: &[String]| {
        let output = node.command(PLUGIN).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let mut arguments = host.rollback_arguments();
    arguments.push("--check".into());
    let said = say(&host.node, &arguments);
    assert!(
        said.contains("residue: agentcni0\n    mend: ip link del agentcni0"),
        "{said}"
    );
    arguments.pop();
    host.node.added("c1");
    let said = say(&host.node, &arguments);
    assert!(
        said.contains("pod agents/c1 has no network any more: recreate it"),
        "{said}"
    );
    assert!(
        said.contains("clean: nothing of agent-network is on this node"),
        "{said}"
    );
}

#[test]
fn a_directory_of_others_is_neither_emptied_nor_taken_for_ours() {
    let host = Host::new();
    let state = host.node.state();
    std::fs::create_dir_all(state.join("docker")).unwrap();
    std::fs::write(state.join("docker/file"), "theirs").unwrap();
    for check in [&["--check"][..], &[]] {
        let output = host
            .node
            .command(PLUGIN)
            .args(host.rollback_arguments())
            .args(check)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(
            text(&output).contains("it holds docker"),
            "{}",
            text(&output)
        );
    }
    let output = host.try_once();
    assert!(!output.status.success(), "{}", text(&output));
    assert!(
        text(&output).contains("name a directory of agent-network's own: --state-dir"),
        "{}",
        text(&output)
    );
    let left: Vec<_> = std::fs::read_dir(&state).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(state.join("docker/file").exists());
    assert!(!host.claim().exists());
}

#[test]
fn an_installation_that_could_not_begin_leaves_nothing() {
    let host = Host::new();
    std::fs::remove_dir(host.bin_dir()).unwrap();
    let output = host.try_once();
    assert!(!output.status.success(), "{}", text(&output));
    assert!(!host.claim().exists() && !host.node.state().exists());
    let (clean, residues) = host.residues();
    assert!(clean, "{residues:#}");
}

#[test]
fn a_state_directory_that_is_a_link_is_refused_until_the_directory_itself_is_there() {
    let mut host = Host::new();
    let state = host.node.state();
    let disk = host.node.files().join("disk");
    let refused = |arguments: &[String]| {
        let output = host.node.command(PLUGIN).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        let said = text(&output);
        assert!(said.contains("is a symbolic link"), "{said}");
        said
    };
    let rollback = host.rollback_arguments();
    let check: Vec<String> = rollback.iter().cloned().chain(["--check".into()]).collect();
    let once: Vec<String> = host
        .install_arguments()
        .into_iter()
        .chain(["--once".into()])
        .collect();
    // a fresh node: nothing is begun behind the link, wherever it leads
    std::os::unix::fs::symlink(&disk, &state).unwrap();
    for arguments in [&once, &rollback, &check] {
        refused(arguments);
    }
    std::fs::create_dir(&disk).unwrap();
    refused(&once);
    assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 0);
    assert!(!host.claim().exists() && !host.conf().exists());
    std::fs::remove_file(&state).unwrap();
    // a node whose directory was moved away with its pods
    host.complete();
    std::fs::rename(&state, &disk).unwrap();
    std::os::unix::fs::symlink(&disk, &state).unwrap();
    refused(&once);
    refused(&check);
    let said = refused(&rollback);
    assert!(host.conf().exists() && disk.join("node.json").exists());
    let remedy = said.split("there: ").nth(1).unwrap();
    host.node.sh(remedy.split(';').next().unwrap());
    host.once();
    host.assert_installed();
    host.rollback();
    assert_clean(&host);
    assert!(!disk.exists());
}
