//! The plugin called by libcni itself, through its `cnitool`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on should say where"
)]

mod support;

use std::{
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use support::{Node, PLUGIN, address};

/// cnitool, built from its Go module when the cache doesn't have it.
fn cnitool() -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../e2e/cluster/build-bins.sh");
    let built = Command::new(script).stdin(Stdio::null()).output().unwrap();
    assert!(
        built.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&built.stderr)
    );
    let folder = String::from_utf8(built.stdout).unwrap();
    PathBuf::from(folder.lines().next().unwrap()).join("cnitool")
}

struct Tool {
    node: Node,
    program: PathBuf,
}

impl Tool {
    fn new(version: &str) -> Self {
        let program = cnitool();
        let mut node = Node::new();
        node.conf["cniVersion"] = version.into();
        let (conf, bin) = (node.files().join("net.d"), node.files().join("bin"));
        std::fs::create_dir(&conf).unwrap();
        std::fs::create_dir(&bin).unwrap();
        std::fs::write(conf.join("00-agent-cni.conf"), node.conf.to_string()).unwrap();
        std::os::unix::fs::symlink(PLUGIN, bin.join("agent-cni")).unwrap();
        Self { node, program }
    }

    fn call(&self, verb: &str, pod: &str) -> Output {
        let files = self.node.files();
        let mut command = self.node.command(self.program.to_str().unwrap());
        command
            .args([verb, "agents", &format!("/run/netns/{pod}")])
            .env("NETCONFPATH", files.join("net.d"))
            .env("CNI_PATH", files.join("bin"))
            .env("CNI_IFNAME", "eth0")
            .env(
                "CNI_ARGS",
                format!("K8S_POD_NAMESPACE=agents;K8S_POD_NAME={pod}"),
            );
        command.output().unwrap()
    }

    #[track_caller]
    fn ok(&self, verb: &str, pod: &str) -> String {
        let output = self.call(verb, pod);
        assert!(output.status.success(), "{verb} {pod}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn cnitool_adds_checks_and_deletes_with_every_version() {
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let tool = Tool::new(version);
        tool.node.pod("p1");
        let result: Value = serde_json::from_str(&tool.ok("add", "p1")).unwrap();
        assert_eq!(result["cniVersion"], version);
        assert_eq!(address(&result), "169.254.9.2");
        if version != "0.3.1" {
            tool.ok("check", "p1");
            tool.node.in_pod("p1", "ip route del default");
            assert!(!tool.call("check", "p1").status.success());
        }
        if version == "1.1.0" {
            tool.ok("status", "p1");
        }
        tool.ok("del", "p1");
        tool.ok("del", "p1");
        assert_eq!(tool.node.traces(), "");
    }
}

#[test]
fn cnitool_shows_our_errors() {
    let tool = Tool::new("1.1.0");
    tool.node.pod("p1");
    tool.node
        .in_pod("p1", "ip link add eth0 type veth peer name x");
    let output = tool.call("add", "p1");
    let text = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success());
    assert!(text.contains("cannot create veth"), "{text}");
}
