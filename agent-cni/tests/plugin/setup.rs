//! `agent-cni setup`.

use std::{os::unix::process::CommandExt, process::Command};

use nix::libc;
use serde_json::{Value, json};

use crate::support::{Node, PLUGIN, refuse};

#[test]
fn setup_makes_the_node_ready_and_twice_is_once() {
    let node = Node::new();
    let file = node.files().join("00-agent-cni.conf");
    std::fs::write(&file, node.conf.to_string()).unwrap();
    let setup = || {
        node.command(PLUGIN)
            .args(["setup", "--config", file.to_str().unwrap()])
            .output()
            .unwrap()
    };
    let output = setup();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(
        text.contains("node is ready: Fake IP CIDR 169.254.9.0/24"),
        "{text}"
    );
    let state: Value =
        serde_json::from_slice(&std::fs::read(node.state().join("node.json")).unwrap()).unwrap();
    assert_eq!(state["gateway"], "169.254.9.1");
    assert_eq!(state["serviceCidrs"], json!(["10.96.0.0/12"]));
    let shown = || node.sh("ip -o addr; ip rule; nft list ruleset");
    let before = shown();
    assert!(setup().status.success());
    assert_eq!(shown(), before);
    node.call("STATUS", "", &node.conf).ok();
}

#[test]
fn auto_goes_to_compat_where_bpf_is_refused_and_stays_there_for_pods() {
    let mut node = Node::new();
    node.conf["mode"] = json!("auto");
    let file = node.files().join("00-agent-cni.conf");
    std::fs::write(&file, node.conf.to_string()).unwrap();
    let setup = |refused: bool| {
        let mut command = node.command(PLUGIN);
        command.args(["setup", "--config", file.to_str().unwrap()]);
        if refused {
            refuse_bpf(&mut command);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let mode = || {
        let text = std::fs::read(node.state().join("node.json")).unwrap();
        serde_json::from_slice::<Value>(&text).unwrap()["mode"].clone()
    };
    let text = setup(true);
    assert!(
        text.contains("mode:  iptables-compat: eBPF does not work here: programs:")
            && text.contains("a seccomp filter is in force"),
        "{text}"
    );
    assert_eq!(mode(), "iptables-compat");
    let stored = std::fs::read_to_string(node.state().join("node.json")).unwrap();
    assert!(stored.contains("a seccomp filter is in force"), "{stored}");
    // the pod keeps the mode that it was attached in, though eBPF works for this process
    node.added("c1");
    assert_eq!(mode(), "iptables-compat");
    let text = setup(false);
    assert!(text.contains("mode:  iptables-compat: kept"), "{text}");
    assert_eq!(mode(), "iptables-compat");
    // nobody is disturbed when it is gone
    node.del("c1").ok();
    let text = setup(false);
    assert!(text.contains("mode:  ebpf: eBPF works here"), "{text}");
    assert_eq!(mode(), "ebpf");
}

#[test]
fn a_mode_that_cannot_be_is_refused_before_anything_is_changed() {
    let mut node = Node::new();
    node.conf["mode"] = json!("ebpf");
    let file = node.files().join("00-agent-cni.conf");
    std::fs::write(&file, node.conf.to_string()).unwrap();
    let before = node.sh("ip -o link; nft list tables");
    let mut command = node.command(PLUGIN);
    command.args(["setup", "--config", file.to_str().unwrap()]);
    refuse_bpf(&mut command);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("mode ebpf does not work on this node") && text.contains("seccomp"),
        "{text}"
    );
    assert_eq!(node.sh("ip -o link; nft list tables"), before);
    assert!(!node.state().join("node.json").exists());
}

/// As a container runtime's default profile does.
#[expect(unsafe_code, reason = "the filter must be installed in the child")]
fn refuse_bpf(command: &mut Command) {
    // SAFETY: the closure makes one system call, on memory of its own stack, and allocates nothing unless that fails.
    unsafe {
        command.pre_exec(|| {
            refuse::bpf_calls(libc::EPERM);
            Ok(())
        });
    }
}

#[test]
fn setup_explains_a_file_it_cannot_use() {
    let node = Node::new();
    let file = node.files().join("conf");
    for (content, says) in [
        ("{", "it is not JSON"),
        (r#"{"cniVersion": "9"}"#, "use one of 0.3.1"),
        (
            r#"{"cniVersion": "1.1.0", "fakeIpCidr": "x"}"#,
            "did you mean",
        ),
    ] {
        std::fs::write(&file, content).unwrap();
        let output = node
            .command(PLUGIN)
            .args(["setup", "--config", file.to_str().unwrap()])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1));
        assert!(text.contains(says), "{content}: {text}");
    }
}

#[test]
fn setup_says_in_one_sentence_why_something_is_no_configuration() {
    let node = Node::new();
    let at = |name: &str| node.files().join(name);
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    std::fs::create_dir(at("directory")).unwrap();
    let huge = std::fs::File::create(at("huge")).unwrap();
    huge.set_len(3 << 30).unwrap();
    for (name, why) in [
        ("pipe", "it is a pipe"),
        ("directory", "it is a directory"),
        ("huge", "it is larger than 4 MiB"),
        ("absent", "No such file or directory (os error 2)"),
    ] {
        let path = at(name).display().to_string();
        let output = node
            .command(PLUGIN)
            .args(["setup", "--config", &path])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{name}: {text}");
        assert_eq!(
            text.trim_end(),
            format!("agent-cni: cannot read {path}: {why}")
        );
        assert_eq!(output.stdout, b"", "{name}");
        assert!(!node.state().exists(), "{name}: nothing was begun");
    }
}

#[test]
fn an_installer_without_the_hosts_root_says_so_and_makes_nothing() {
    let node = Node::new();
    let root = node.files().join("host");
    let output = node
        .command(PLUGIN)
        .args(["install", "--once", "--service-cidrs=10.96.0.0/12"])
        .arg(format!("--host-root={}", root.display()))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(
        text.trim_end(),
        format!(
            "agent-cni: --host-root {} is no directory; mount the host's root there",
            root.display()
        )
    );
    assert!(!root.exists());
}
