//! A node with a primary network and agent-cni in front of it, and libcni's `cnitool`.

use std::{
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output},
};

use serde_json::{Value, json};

use crate::support::{
    Answer, Cnitool, Node, PLUGIN, bridge_plugin, link_plugins, pod_arguments, programs,
};

/// A node with a primary network (bridge, host-local, portmap) and agent-cni in front of it, for pods with `agent=yes`.
pub(crate) struct Shared {
    pub(crate) node: Node,
    pub(crate) programs: PathBuf,
    /// Our configuration, written by [`Shared::install`].
    pub(crate) conf: Value,
}

impl Shared {
    pub(crate) fn new(ours: &str, primary: &str) -> Self {
        let programs = programs();
        let mut node = Node::new();
        for folder in ["net.d", "bin", "ipam"] {
            std::fs::create_dir(node.files().join(folder)).unwrap();
        }
        let bin = node.files().join("bin");
        std::os::unix::fs::symlink(PLUGIN, bin.join("agent-cni")).unwrap();
        link_plugins(&programs, &bin);
        node.conf["cniVersion"] = ours.into();
        let mut conf = node.conf.clone();
        conf["workloadSelector"] =
            json!({"matchExpressions": [{"key": "agent", "operator": "In", "values": ["yes"]}]});
        conf["workloadsFile"] = json!(node.files().join("workloads.json"));
        conf["primary"] = json!({"confDir": node.files().join("net.d")});
        conf["capabilities"] = json!({"portMappings": true});
        let shared = Self {
            node,
            programs,
            conf,
        };
        shared.install();
        shared.primary(primary, &[]);
        shared.workloads(&json!({
            "agents/agent": {"labels": {"agent": "yes"}},
            "agents/plain": {"labels": {"app": "web"}},
            "agents/other": {},
        }));
        shared
    }

    pub(crate) fn net_d(&self, name: &str) -> PathBuf {
        self.node.files().join("net.d").join(name)
    }

    pub(crate) fn install(&self) {
        std::fs::write(self.net_d("00-agent-cni.conf"), self.conf.to_string()).unwrap();
    }

    /// The primary network, with further plugins behind its own.
    pub(crate) fn primary(&self, version: &str, more: &[Value]) {
        let mut plugins = vec![
            bridge_plugin("cni0", &self.node.files().join("ipam"), "10.77.0.0/24"),
            json!({"type": "portmap", "capabilities": {"portMappings": true}}),
        ];
        plugins.extend_from_slice(more);
        let list = json!({"cniVersion": version, "name": "primary", "plugins": plugins});
        std::fs::write(self.net_d("10-primary.conflist"), list.to_string()).unwrap();
    }

    pub(crate) fn workloads(&self, value: &Value) {
        std::fs::write(self.node.files().join("workloads.json"), value.to_string()).unwrap();
    }

    /// A plugin of the test's own.
    pub(crate) fn plugin(&self, name: &str, script: &str) {
        let file = self.node.files().join("bin").join(name);
        std::fs::write(&file, format!("#!/bin/bash\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn command(&self, verb: &str, pod: &str) -> Command {
        let files = self.node.files();
        let libcni = Cnitool {
            program: self.programs.join("cnitool"),
            network: "agents",
            conf_dir: files.join("net.d"),
            bin_dir: files.join("bin"),
        };
        libcni.command(&self.node, verb, pod)
    }

    pub(crate) fn call(&self, verb: &str, pod: &str) -> Output {
        self.command(verb, pod).output().unwrap()
    }

    #[track_caller]
    pub(crate) fn ok(&self, verb: &str, pod: &str) -> String {
        let output = self.call(verb, pod);
        assert!(output.status.success(), "{verb} {pod}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What the call said; it must have failed.
    #[track_caller]
    pub(crate) fn refused(&self, verb: &str, pod: &str) -> String {
        let output = self.call(verb, pod);
        assert!(!output.status.success(), "{verb} {pod}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout)
    }

    /// Calls the plugin itself, for what libcni would not let through.
    pub(crate) fn direct(&self, verb: &str, pod: &str) -> Answer {
        let (netns, args) = (format!("/run/netns/{pod}"), pod_arguments(pod));
        let path = self.node.files().join("bin");
        let variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "direct"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", &netns),
            ("CNI_ARGS", &args),
            ("CNI_PATH", path.to_str().unwrap()),
        ];
        self.node.raw(&variables, self.conf.to_string().as_bytes())
    }

    #[track_caller]
    pub(crate) fn added(&self, pod: &str) -> Value {
        self.node.pod(pod);
        serde_json::from_str(&self.ok("add", pod)).unwrap()
    }

    /// What the primary network has of pods: addresses, links, port mappings, our records.
    pub(crate) fn primary_traces(&self) -> String {
        let files = self.node.files().display().to_string();
        self.node.sh(&format!(
            "ls {files}/ipam/primary 2>/dev/null | grep ^10.77 || true; ip -o link show master cni0 2>/dev/null || true; \
             (iptables -t nat -S; nft list ruleset) 2>/dev/null | grep 8088 || true; ls {files}/state/delegated 2>/dev/null || true"
        ))
    }
}
