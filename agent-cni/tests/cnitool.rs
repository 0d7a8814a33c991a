//! The plugin called by libcni itself, through its `cnitool`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on should say where"
)]

mod support;

use std::process::Output;

use serde_json::Value;
use support::{Cnitool, Node, PLUGIN, address, programs};

struct Tool {
    node: Node,
    libcni: Cnitool,
}

impl Tool {
    fn new(version: &str) -> Self {
        let mut node = Node::new();
        node.conf["cniVersion"] = version.into();
        let (conf_dir, bin_dir) = (node.files().join("net.d"), node.files().join("bin"));
        std::fs::create_dir(&conf_dir).unwrap();
        std::fs::create_dir(&bin_dir).unwrap();
        std::fs::write(conf_dir.join("00-agent-cni.conf"), node.conf.to_string()).unwrap();
        std::os::unix::fs::symlink(PLUGIN, bin_dir.join("agent-cni")).unwrap();
        let libcni = Cnitool {
            program: programs().join("cnitool"),
            network: "agents",
            conf_dir,
            bin_dir,
        };
        Self { node, libcni }
    }

    fn call(&self, verb: &str, pod: &str) -> Output {
        self.libcni.command(&self.node, verb, pod).output().unwrap()
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
