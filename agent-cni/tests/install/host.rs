//! A node that is taken over by the installer, and what the tests ask of it.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{Node, PLUGIN, POOL};

/// How soon after its cause is gone everything must be right again.
pub(crate) const REPAIRED_WITHIN: Duration = Duration::from_secs(5);

/// The mode that redirects with iptables.
pub(crate) const COMPAT: &str = "iptables-compat";

/// A node with the directories that a runtime has.
pub(crate) struct Host {
    pub(crate) node: Node,
    /// What `--mode` says.
    pub(crate) mode: &'static str,
    /// What `--cni-version` says.
    pub(crate) cni_version: &'static str,
    /// Further flags of the installer.
    pub(crate) flags: Vec<String>,
}

/// An installer that runs until it is dropped.
pub(crate) struct Installer {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl Host {
    pub(crate) fn new() -> Self {
        let node = Node::new();
        let host = Self {
            node,
            mode: "auto",
            cni_version: "1.1.0",
            flags: Vec::new(),
        };
        std::fs::create_dir_all(host.bin_dir()).unwrap();
        std::fs::create_dir_all(host.conf_dir()).unwrap();
        std::fs::write(
            host.conf_dir().join("10-primary.conflist"),
            r#"{"cniVersion": "1.0.0", "name": "primary", "plugins": [{"type": "bridge"}]}"#,
        )
        .unwrap();
        host
    }

    /// The same in another mode.
    pub(crate) fn in_mode(mut self, mode: &'static str) -> Self {
        self.mode = mode;
        self
    }

    /// A host with an uplink: `outside` is a namespace at 192.0.2.1, and the default route leads there.
    pub(crate) fn with_uplink() -> Self {
        let host = Self::new();
        host.node.sh(
            "ip netns add outside; ip link add up0 type veth peer name eth0 netns outside; \
             ip addr add 192.0.2.2/24 dev up0; ip link set up0 up; ip route add default via 192.0.2.1; \
             ip -n outside addr add 192.0.2.1/24 dev eth0; ip -n outside link set eth0 up; \
             ip -n outside link set lo up",
        );
        host
    }

    pub(crate) fn bin_dir(&self) -> PathBuf {
        self.node.files().join("bin")
    }

    pub(crate) fn conf_dir(&self) -> PathBuf {
        self.node.files().join("net.d")
    }

    pub(crate) fn binary(&self) -> PathBuf {
        self.bin_dir().join("agent-cni")
    }

    pub(crate) fn conf(&self) -> PathBuf {
        self.conf_dir().join("00-agent-cni.conf")
    }

    pub(crate) fn pins(&self) -> PathBuf {
        self.node.files().join("bpf/agent-network")
    }

    pub(crate) fn claim(&self) -> PathBuf {
        self.node.files().join("state.installer")
    }

    /// Where things lie, for `install` and `rollback`.
    fn places(&self) -> Vec<String> {
        [
            ("--bin-dir", self.bin_dir()),
            ("--conf-dir", self.conf_dir()),
            ("--state-dir", self.node.state()),
            ("--pin-dir", self.pins()),
        ]
        .iter()
        .map(|(flag, path)| format!("{flag}={}", path.display()))
        .collect()
    }

    pub(crate) fn install_arguments(&self) -> Vec<String> {
        let mut arguments = vec!["install".to_owned()];
        arguments.extend(self.places());
        arguments.extend(
            [
                "--service-cidrs=10.96.0.0/12",
                &format!("--fake-ip-cidr={POOL}"),
                "--node-name=worker-1",
                &format!("--cni-version={}", self.cni_version),
                &format!("--mode={}", self.mode),
            ]
            .map(str::to_owned),
        );
        arguments.extend(self.flags.iter().cloned());
        arguments
    }

    pub(crate) fn rollback_arguments(&self) -> Vec<String> {
        let mut arguments = vec!["rollback".to_owned()];
        arguments.extend(self.places());
        arguments
    }

    /// `agent-cni install`, by a program that may be a copy of the plugin.
    pub(crate) fn install_by(&self, program: &str) -> Command {
        let mut command = self.node.command(program);
        command.args(self.install_arguments());
        command
    }

    /// `agent-cni install --once`; answers its output.
    pub(crate) fn try_once(&self) -> Output {
        self.install_by(PLUGIN).arg("--once").output().unwrap()
    }

    /// `agent-cni install --once`, which must work. From here on pods are added with the configuration that it wrote.
    #[track_caller]
    pub(crate) fn once(&mut self) {
        self.complete();
        self.adopt_conf();
    }

    /// `agent-cni install --once`, which must work.
    #[track_caller]
    pub(crate) fn complete(&self) {
        let output = self.try_once();
        assert!(output.status.success(), "{}", text(&output));
    }

    /// Adds pods with the installed configuration from now on.
    #[track_caller]
    pub(crate) fn adopt_conf(&mut self) {
        let conf = std::fs::read(self.conf()).unwrap();
        self.node.conf = serde_json::from_slice(&conf).unwrap();
    }

    /// Starts an installer and waits until the node is ready.
    #[track_caller]
    pub(crate) fn keep(&mut self) -> Installer {
        let installer = self.start(PLUGIN);
        self.until("the node is ready", || self.ready());
        self.adopt_conf();
        installer
    }

    /// Starts an installer.
    pub(crate) fn start(&self, program: &str) -> Installer {
        let mut child = self
            .install_by(program)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let collected = Arc::clone(&log);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                collected.lock().unwrap().push(line);
            }
        });
        Installer { child, log }
    }

    /// Whether the readiness probe answers yes.
    pub(crate) fn ready(&self) -> bool {
        self.readiness().0
    }

    /// What the readiness probe answers, and why.
    pub(crate) fn readiness(&self) -> (bool, String) {
        let output = self
            .node
            .command(PLUGIN)
            .args(self.install_arguments())
            .arg("--ready")
            .output()
            .unwrap();
        (output.status.success(), text(&output))
    }

    /// `install.json`; null when there is none.
    pub(crate) fn status(&self) -> Value {
        std::fs::read(self.node.state().join("install.json"))
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default()
    }

    /// How often something of a kind was repaired.
    pub(crate) fn repairs(&self, kind: &str) -> u64 {
        self.status()["repairs"][kind].as_u64().unwrap_or_default()
    }

    /// `agent-cni rollback`: exit code and what it says.
    pub(crate) fn try_rollback(&self) -> (bool, Value) {
        self.rollback_with(&["--output=json"])
    }

    /// `agent-cni rollback`, which must leave nothing.
    #[track_caller]
    pub(crate) fn rollback(&self) -> Value {
        let (clean, said) = self.try_rollback();
        assert!(clean, "{said:#}");
        said
    }

    /// `agent-cni rollback --check`: whether the node is clean, and the residues.
    pub(crate) fn residues(&self) -> (bool, Value) {
        self.rollback_with(&["--check", "--output=json"])
    }

    fn rollback_with(&self, arguments: &[&str]) -> (bool, Value) {
        let output = self
            .node
            .command(PLUGIN)
            .args(self.rollback_arguments())
            .args(arguments)
            .output()
            .unwrap();
        let said = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("no JSON: {}", text(&output)));
        (output.status.success(), said)
    }

    /// Waits, as long as a repair may take.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + REPAIRED_WITHIN;
        while !holds() {
            assert!(
                Instant::now() < deadline,
                "not within {REPAIRED_WITHIN:?}: {what}; the installer says {:#}",
                self.status()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What is there of us without looking by our own code: files, links, rules, routes, tables, chains.
    #[track_caller]
    pub(crate) fn traces_of_us(&self) -> String {
        self.node.sh(&format!(
            "ip -o link | grep -E 'agentcni0|agt[0-9a-f]' || true; ip rule | grep -E '1808[01]|agentcni0' || true; \
             for table in 18080 18081; do ip route show table $table 2>/dev/null || true; done; \
             nft list tables | grep agent_network || true; \
             iptables-nft-save 2>/dev/null | grep AGENT-CNI || true; \
             test ! -s /proc/net/ip_tables_names || iptables-legacy-save | grep AGENT-CNI || true; \
             ipset list -n | grep agent-cni || true; \
             ls -d {pins} {claim} 2>/dev/null || true; ls {state} 2>/dev/null || true; \
             ls -a {bin} {conf} | grep agent-cni || true",
            pins = self.pins().display(),
            claim = self.claim().display(),
            state = self.node.state().display(),
            bin = self.bin_dir().display(),
            conf = self.conf_dir().display(),
        ))
    }

    /// The settings that outlive our interfaces.
    pub(crate) fn sysctls(&self) -> String {
        self.node.sh(
            "cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/all/rp_filter /proc/sys/net/ipv4/conf/default/rp_filter",
        )
    }

    /// That everything is as an installation leaves it, as far as another look than the installer's own can tell.
    #[track_caller]
    pub(crate) fn assert_installed(&self) {
        let conf: Value = serde_json::from_slice(&std::fs::read(self.conf()).unwrap()).unwrap();
        assert_eq!(conf["agentVersion"], json!(env!("CARGO_PKG_VERSION")));
        let version = self
            .node
            .sh(&format!("{} --version", self.binary().display()));
        assert_eq!(
            version.trim(),
            concat!("agent-cni ", env!("CARGO_PKG_VERSION"))
        );
        let record = std::fs::read(self.node.state().join("version")).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        assert_eq!(record["version"], conf["agentVersion"]);
        for staged in [
            self.bin_dir().join(".agent-cni.staged"),
            self.conf_dir().join("00-agent-cni.conf.staged"),
        ] {
            assert!(!staged.exists(), "{}", staged.display());
        }
        self.node.sh(
            "ip -br addr show agentcni0 | grep -q 169.254.9.1/24 && nft list table ip agent_network >/dev/null",
        );
        self.node.sh(match self.mode {
            COMPAT => {
                "iptables-save -t nat | grep -q AGENT-CNI-PREROUTING && nft list table bridge agent_network >/dev/null && \
                 ! ip rule | grep 'lookup 18080'"
            }
            _ => {
                "ip rule | grep -q 'lookup 18080' && ip route show table 18080 type local | grep -q default && \
                 ! iptables-save | grep AGENT-CNI"
            }
        });
    }
}

impl Installer {
    /// Its events so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, as a kubelet does, and answers its exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status()
            .unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Installer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both outputs of a program, for a message.
pub(crate) fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
