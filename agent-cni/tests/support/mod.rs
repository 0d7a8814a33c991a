//! A node of the test's own: network and mount namespaces with their own bpf file system, /var/lib (where libcni keeps results)
//! and /run/netns, in which the
//! real plugin is called as a runtime calls it. Everything ends with the test's process, however that ends.

#![allow(dead_code, reason = "each test binary uses its part")]

#[path = "../../../agent-datapath/tests/support/refuse.rs"]
pub(crate) mod refuse;
pub(crate) mod strace;

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

/// The plugin under test.
pub(crate) const PLUGIN: &str = env!("CARGO_BIN_EXE_agent-cni");
/// The node's pool, unless a test chooses.
pub(crate) const POOL: &str = "169.254.9.0/24";

/// cnitool and the plugins, built from their Go modules when the cache doesn't have them.
pub(crate) fn programs() -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../e2e/cluster/build-bins.sh");
    let built = Command::new(script).stdin(Stdio::null()).output().unwrap();
    assert!(
        built.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&built.stderr)
    );
    let folder = String::from_utf8(built.stdout).unwrap();
    folder.lines().next().unwrap().into()
}

/// Makes plugins of the CNI project be in the runtime's directory.
pub(crate) fn link_plugins(programs: &Path, bin_dir: &Path) {
    for name in ["bridge", "host-local", "portmap"] {
        std::os::unix::fs::symlink(programs.join(name), bin_dir.join(name)).unwrap();
    }
}

/// A primary network's first plugin: a bridge whose pods get addresses of `subnet`.
pub(crate) fn bridge_plugin(bridge: &str, addresses: &Path, subnet: &str) -> Value {
    json!({
        "type": "bridge", "bridge": bridge, "isGateway": true,
        "ipam": {
            "type": "host-local", "dataDir": addresses,
            "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}],
        },
    })
}

/// What calls plugins as a runtime does, by libcni.
pub(crate) struct Cnitool {
    /// The program.
    pub(crate) program: PathBuf,
    /// The network's name.
    pub(crate) network: &'static str,
    /// Where configurations are.
    pub(crate) conf_dir: PathBuf,
    /// Where plugins are.
    pub(crate) bin_dir: PathBuf,
}

impl Cnitool {
    /// A verb on a pod of the namespace `agents`, which wants a port mapping where that is declared.
    pub(crate) fn command(&self, node: &Node, verb: &str, pod: &str) -> Command {
        let mut command = node.command(self.program.to_str().unwrap());
        command
            .args([verb, self.network, &format!("/run/netns/{pod}")])
            .env("NETCONFPATH", &self.conf_dir)
            .env("CNI_PATH", &self.bin_dir)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_ARGS", pod_arguments(pod))
            .env(
                "CAP_ARGS",
                r#"{"portMappings": [{"hostPort": 8088, "containerPort": 80, "protocol": "tcp"}]}"#,
            );
        command
    }
}

/// `CNI_ARGS` of a pod of the namespace `agents`.
pub(crate) fn pod_arguments(pod: &str) -> String {
    format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=agents;K8S_POD_NAME={pod}")
}

/// A node; see the module.
pub(crate) struct Node {
    holder: Child,
    files: TempDir,
    /// The configuration, for a test to change.
    pub(crate) conf: Value,
}

/// What a call of the plugin came to.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The exit code.
    pub(crate) exit: i32,
    /// stdout as JSON; null when there was none.
    pub(crate) json: Value,
    /// stderr.
    pub(crate) log: String,
}

impl Answer {
    /// The answer, which must be a success.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.exit, 0, "{self:?}");
        self.json
    }

    /// The error's code and message; the call must have failed, in the protocol's form.
    #[track_caller]
    pub(crate) fn error(self) -> (u64, String) {
        assert_eq!(self.exit, 1, "{self:?}");
        let code = self.json["code"].as_u64();
        let message = format!(
            "{}: {}",
            self.json["msg"].as_str().unwrap_or_default(),
            self.json["details"].as_str().unwrap_or_default()
        );
        assert!(self.json["cniVersion"].is_string(), "{self:?}");
        (
            code.unwrap_or_else(|| panic!("no error object: {self:?}")),
            message,
        )
    }
}

impl Node {
    /// Makes the namespaces.
    pub(crate) fn new() -> Self {
        let files = tempfile::tempdir().unwrap();
        let bpf = files.path().join("bpf");
        std::fs::create_dir(&bpf).unwrap();
        let script = format!(
            "set -e; mkdir -p /run/netns; mount -t tmpfs tmpfs /run/netns; mount -t tmpfs tmpfs /var/lib; mount -t bpf bpf {}; \
             ip link set lo up; echo ready; exec cat",
            bpf.display()
        );
        let mut holder = Command::new("unshare")
            .args([
                "--net",
                "--mount",
                "--propagation",
                "private",
                "--",
                "sh",
                "-c",
                &script,
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(holder.stdout.as_mut().unwrap())
            .read_line(&mut ready)
            .unwrap();
        assert_eq!(
            ready.trim(),
            "ready",
            "these tests make network and mount namespaces: run them as root, with iproute2 and util-linux"
        );
        let conf = json!({
            "cniVersion": "1.1.0",
            "name": "agents",
            "type": "agent-cni",
            "mode": mode(),
            "nodeName": "worker-1",
            "fakeIPCIDR": POOL,
            "serviceCIDRs": ["10.96.0.0/12"],
            "stateDir": files.path().join("state"),
            "pinDir": bpf.join("agent-network"),
            // never the developer's own network
            "primary": {"confDir": files.path().join("net.d")},
        });
        Self {
            holder,
            files,
            conf,
        }
    }

    /// As [`Node::new`], for what only the eBPF mode has.
    pub(crate) fn in_ebpf() -> Self {
        let mut node = Self::new();
        node.conf["mode"] = json!("ebpf");
        node
    }

    /// Where state is kept.
    pub(crate) fn state(&self) -> PathBuf {
        self.files.path().join("state")
    }

    /// A place for files of the test.
    pub(crate) fn files(&self) -> &Path {
        self.files.path()
    }

    /// A command inside the node.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let pid = self.holder.id().to_string();
        command.args(["--target", &pid, "--net", "--mount", "--", program]);
        // what the developer's shell has must not reach the plugin
        for name in ["CNI_COMMAND", "CNI_ARGS", "CNI_PATH", "AGENT_CNI_LOG"] {
            command.env_remove(name);
        }
        command
    }

    /// A shell line inside the node, which must succeed; answers its stdout.
    #[track_caller]
    pub(crate) fn sh(&self, line: &str) -> String {
        let output = self.command("sh").args(["-c", line]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A shell line inside the node, to be run again and again as long as the node is there.
    pub(crate) fn shell(&self, line: &'static str) -> Box<dyn Fn() -> String> {
        let pid = self.holder.id().to_string();
        Box::new(move || {
            let output = Command::new("nsenter")
                .args(["--target", &pid, "--net", "--mount", "--", "sh", "-c", line])
                .output()
                .unwrap();
            assert!(output.status.success(), "{line}: {output:?}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
    }

    /// Whether a shell line inside the node succeeds.
    pub(crate) fn succeeds(&self, line: &str) -> bool {
        self.command("sh")
            .args(["-c", line])
            .output()
            .unwrap()
            .status
            .success()
    }

    /// Makes a pod's namespace and answers its path.
    #[track_caller]
    pub(crate) fn pod(&self, name: &str) -> String {
        self.sh(&format!("ip netns add {name}"));
        format!("/run/netns/{name}")
    }

    /// A shell line inside a pod.
    #[track_caller]
    pub(crate) fn in_pod(&self, pod: &str, line: &str) -> String {
        self.sh(&format!("nsenter --net=/run/netns/{pod} sh -c '{line}'"))
    }

    /// Calls the plugin with these variables and this stdin.
    pub(crate) fn raw(&self, variables: &[(&str, &str)], stdin: &[u8]) -> Answer {
        let mut command = self.command(PLUGIN);
        command.envs(variables.iter().copied());
        answer(command, stdin)
    }

    /// Calls a verb for a container whose pod's namespace has the same name.
    pub(crate) fn call(&self, verb: &str, container: &str, conf: &Value) -> Answer {
        let netns = format!("/run/netns/{container}");
        self.call_in(verb, container, &netns, conf)
    }

    /// Calls a verb with a namespace.
    pub(crate) fn call_in(&self, verb: &str, container: &str, netns: &str, conf: &Value) -> Answer {
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=agents;K8S_POD_NAME={container};K8S_POD_UID=u-{container}"
        );
        self.raw(
            &[
                ("CNI_COMMAND", verb),
                ("CNI_CONTAINERID", container),
                ("CNI_IFNAME", "eth0"),
                ("CNI_NETNS", netns),
                ("CNI_ARGS", &args),
                ("CNI_PATH", "/opt/cni/bin"),
            ],
            conf.to_string().as_bytes(),
        )
    }

    /// ADD.
    pub(crate) fn add(&self, container: &str) -> Answer {
        self.call("ADD", container, &self.conf)
    }

    /// Makes the pod's namespace and adds it, which must work; answers its address.
    #[track_caller]
    pub(crate) fn added(&self, container: &str) -> String {
        self.pod(container);
        address(&self.add(container).ok())
    }

    /// DEL.
    pub(crate) fn del(&self, container: &str) -> Answer {
        self.call("DEL", container, &self.conf)
    }

    /// CHECK with the result of an ADD.
    pub(crate) fn check(&self, container: &str, result: &Value) -> Answer {
        let mut conf = self.conf.clone();
        conf["prevResult"] = result.clone();
        self.call("CHECK", container, &conf)
    }

    /// A variant of the configuration.
    pub(crate) fn with(&self, key: &str, value: Value) -> Value {
        let mut conf = self.conf.clone();
        conf[key] = value;
        conf
    }

    /// What the node has of pods: links, neighbours, forwarding entries, pins, endpoint entries, state. Empty when
    /// there is nothing of any pod.
    #[track_caller]
    pub(crate) fn traces(&self) -> String {
        self.sh(&format!(
            "ip -o link | grep -o 'agt[0-9a-f]*' || true; ip neigh | grep 0a:58 || true; \
             bridge fdb | grep 0a:58 || true; ls {pins}/links 2>/dev/null | grep agt || true; \
             bpftool map dump pinned {pins}/ENDPOINTS 2>/dev/null | grep key || true; \
             nft list chains bridge 2>/dev/null | grep -o 'chain pod_agt[0-9a-f]* ' || true; \
             ls {state} 2>/dev/null | grep '_eth0.json$' || true; ls {state}/pending 2>/dev/null || true",
            pins = self.files.path().join("bpf/agent-network/v1").display(),
            state = self.state().display(),
        ))
    }

    /// Names of files in the state directory.
    pub(crate) fn state_files(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.state())
            .map(|entries| {
                entries
                    .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .collect()
            })
            .unwrap_or_default();
        names.sort();
        names
    }
}

/// Whether a line breaks something that the tests' mode has.
pub(crate) fn concerns_mode(line: &str) -> bool {
    let ebpf_only = ["PINS", "pref 100", "table 18080"];
    mode() == "ebpf" || !ebpf_only.iter().any(|part| line.contains(part))
}

/// The mode that nodes are in unless a test chooses: all tests are to hold in both. `AGENT_NETWORK_TEST_MODE` says which.
pub(crate) fn mode() -> String {
    std::env::var("AGENT_NETWORK_TEST_MODE").unwrap_or_else(|_| "ebpf".into())
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Runs a prepared call of the plugin.
pub(crate) fn answer(mut command: Command, stdin: &[u8]) -> Answer {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // a plugin that answers without reading is fine
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    let text = String::from_utf8(stdout).unwrap();
    let json = match text.trim() {
        "" => Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|_| panic!("stdout is no JSON: {text}")),
    };
    Answer {
        exit: status.code().unwrap_or(-1),
        json,
        log: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// The first address of a result, without its length.
#[track_caller]
pub(crate) fn address(result: &Value) -> String {
    let address = result["ips"][0]["address"]
        .as_str()
        .unwrap_or_else(|| panic!("{result}"));
    address.split('/').next().unwrap().to_owned()
}

/// Reads a child's whole stdout.
pub(crate) fn read_all(mut from: impl Read) -> String {
    let mut text = String::new();
    from.read_to_string(&mut text).unwrap();
    text
}
