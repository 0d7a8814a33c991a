//! Taking a node over: what is looked at first, what is there afterwards, and that ending removes nothing.

use std::process::Stdio;

use crate::{
    host::{Host, text},
    support::PLUGIN,
};

#[test]
fn a_fresh_node_is_taken_over_and_pods_can_be_added() {
    let mut host = Host::new();
    host.once();
    host.assert_installed();
    assert!(host.ready());
    assert_eq!(host.status()["ready"], true);
    assert_eq!(host.status()["problems"], serde_json::json!([]));
    assert_eq!(host.node.added("c1"), "169.254.9.2");
    let answer = host.node.sh(&format!(
        "echo '{{\"cniVersion\": \"1.1.0\"}}' | CNI_COMMAND=VERSION {}",
        host.binary().display()
    ));
    assert!(answer.contains("supportedVersions"), "{answer}");
}

#[test]
fn a_second_run_changes_nothing() {
    let mut host = Host::new();
    host.once();
    let look = |host: &Host| {
        host.node.sh(&format!(
            "stat -c '%n %i %z' {} {}; ip -o link show agentcni0; nft -a list ruleset; bpftool prog show pinned {}/v1/programs/pod_ingress",
            host.binary().display(),
            host.conf().display(),
            host.pins().display()
        ))
    };
    let before = look(&host);
    host.once();
    assert_eq!(look(&host), before);
    assert_eq!(host.status()["repairs"], serde_json::json!({}));
}

#[test]
fn a_node_that_cannot_be_taken_over_is_told_everything_at_once_and_not_touched() {
    let host = Host::new();
    std::fs::write(host.conf_dir().join("00-aaa.conf"), "{}").unwrap();
    std::fs::remove_dir(host.bin_dir()).unwrap();
    let mut blocker = host
        .node
        .command("python3")
        .args([
            "-c",
            "open('/proc/self/comm','w').write('blocker'); import socket,time; s=socket.socket(); s.bind(('127.0.0.1',18080)); s.listen(); print('up',flush=True); time.sleep(60)",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 3];
    std::io::Read::read_exact(blocker.stdout.as_mut().unwrap(), &mut first).unwrap();
    host.node
        .sh("ip link add svc0 type veth peer name svc1; ip addr add 10.100.0.1/16 dev svc0");
    let before = host.node.sh("ip -o link; ip rule; nft list ruleset");
    let output = host.try_once();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for needed in [
        "00-aaa.conf comes before 00-agent-cni.conf",
        "bin is missing",
        "18080/tcp is needed by the proxy and taken by blocker",
        "overlaps 10.100.0.0/16",
    ] {
        assert!(said.contains(needed), "{needed}: {said}");
    }
    assert_eq!(
        host.node.sh("ip -o link; ip rule; nft list ruleset"),
        before
    );
    assert!(!host.conf().exists() && !host.node.state().exists());
    assert!(!host.ready());
    let _ = blocker.kill();
    let _ = blocker.wait();
}

#[test]
fn what_the_kernel_refuses_is_said_and_no_configuration_is_written() {
    let host = Host::new();
    // a bridge of our name that is none
    host.node.sh("ip link add agentcni0 type veth peer name x0");
    let output = host.try_once();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("agentcni0 exists but is not a bridge"),
        "{said}"
    );
    assert!(!host.conf().exists() && !host.binary().exists());
}

#[test]
fn a_problem_that_goes_away_is_no_problem_any_more() {
    let host = Host::new();
    std::fs::write(host.conf_dir().join("00-aaa.conf"), "{}").unwrap();
    let installer = host.start(PLUGIN);
    host.until("it says so", || installer.log().contains("00-aaa.conf"));
    assert!(!host.conf().exists());
    std::fs::remove_file(host.conf_dir().join("00-aaa.conf")).unwrap();
    host.until("the node is ready", || host.ready());
    host.assert_installed();
}

#[test]
fn ending_the_installer_removes_nothing() {
    let mut host = Host::new();
    let installer = host.keep();
    host.node.added("c1");
    assert_eq!(installer.terminate(), Some(0));
    host.assert_installed();
    assert!(!host.ready(), "nobody keeps the node any more");
    host.node.added("c2");
}

#[test]
fn a_newer_installer_takes_over_and_the_older_one_does_nothing() {
    let mut host = Host::new();
    let first = host.keep();
    let second = host.start(PLUGIN);
    host.until("the first one gives way", || {
        first.log().contains("another installer has started since")
    });
    host.until("the node is ready", || host.ready());
    std::fs::remove_file(host.conf()).unwrap();
    host.until("the second one mends", || host.conf().exists());
    host.until("it says so", || second.log().contains("repaired"));
    assert!(!first.log().contains("repaired"), "{}", first.log());
}

#[test]
fn a_host_below_a_root_is_installed_with_the_hosts_own_paths() {
    let host = Host::new();
    let root = host.node.files().join("host");
    for dir in ["opt/cni/bin", "etc/cni/net.d", "var/lib", "sys/fs/bpf"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    host.node
        .sh(&format!("mount -t bpf bpf {}/sys/fs/bpf", root.display()));
    let run = |arguments: &[&str]| {
        host.node
            .command(PLUGIN)
            .args(arguments)
            .arg(format!("--host-root={}", root.display()))
            .output()
            .unwrap()
    };
    let output = run(&["install", "--once", "--service-cidrs=10.96.0.0/12"]);
    assert!(output.status.success(), "{}", text(&output));
    let conf = std::fs::read_to_string(root.join("etc/cni/net.d/00-agent-cni.conf")).unwrap();
    assert!(!conf.contains("host/"), "{conf}");
    let state = root.join("var/lib/tke-agent-network/agent-cni/node.json");
    let node: serde_json::Value = serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
    assert_eq!(node["pinDir"], "/sys/fs/bpf/agent-network");
    host.node.sh(&format!(
        "test -e {}/sys/fs/bpf/agent-network/v1/BUILD",
        root.display()
    ));
    let output = run(&["rollback"]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(!root.join("var/lib/tke-agent-network").exists());
}
