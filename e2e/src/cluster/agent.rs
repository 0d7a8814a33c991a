//! This project on a node of the cluster: takes it over from the primary CNI, and gives it back.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{CLUSTER_DNS, Kubectl, Member, SERVICE_CIDR, eventually};
use crate::cni::{CONF, STATE_DIR};
use crate::machine::program;
use crate::node::{FILES, PROXY};
use crate::place::{Finished, Place};
use crate::process::Process;

/// A node that is taken over.
pub struct Agent {
    place: Place,
    root: PathBuf,
    node: String,
    program: String,
    installer: Process,
    proxy: Process,
}

impl Agent {
    /// Takes `member` over, with the policies of a YAML file's text and further flags for the installer: proxy and installer are started as their DaemonSets
    /// would start them, in no order, and both say that they are ready.
    ///
    /// # Errors
    /// When a step fails, or containerd doesn't take the network up.
    pub fn take_over(
        member: &Member,
        kubectl: &Kubectl,
        policies: &str,
        flags: &[&str],
    ) -> Result<Agent> {
        let (place, root) = (member.place(), member.world().inside(""));
        let files = PathBuf::from(format!("{}{FILES}", root.display()));
        fs::create_dir_all(files.join("credentials"))?;
        compile(&place, &files, policies)?;
        let proxy = start_proxy(&place, &files, member.name(), kubectl.kubeconfig())?;
        let program = program("agent-cni")?.to_string_lossy().into_owned();
        let installer = start_installer(&place, &program, member.name(), flags)?;
        let mut agent = Agent {
            place,
            root,
            node: member.name().to_owned(),
            program,
            installer,
            proxy,
        };
        agent.wait_until_ready()?;
        wait_for_network(&agent.place, "agent-network")?;
        Ok(agent)
    }

    /// Starts the installer anew with other flags, which it is to carry out with the pods that run.
    ///
    /// # Errors
    /// When the old one doesn't end, or the new one doesn't say that the node is ready.
    pub fn switch(&mut self, flags: &[&str]) -> Result<()> {
        self.installer.signal(Signal::SIGTERM)?;
        eventually("the installer ends", Duration::from_secs(20), || {
            anyhow::ensure!(!self.installer.is_running(), "it runs");
            Ok(())
        })?;
        self.installer = start_installer(&self.place, &self.program, &self.node, flags)?;
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let (installer, proxy) = (&mut self.installer, &mut self.proxy);
        let url = format!("http://{PROXY}/readyz");
        let ready = [&self.program, "install", "--ready"];
        eventually("the node is ready", Duration::from_secs(30), || {
            anyhow::ensure!(installer.is_running() && proxy.is_running(), "one ended");
            self.place.run(&ready)?.success()?;
            self.place
                .run(&["curl", "-sS", "-f", "-m", "2", &url])?
                .success()?;
            Ok(())
        })
        .with_context(|| format!("{}\n{}", installer.log_text(), proxy.log_text()))
    }

    /// What doctor says of the node.
    ///
    /// # Errors
    /// Only when it can't be started.
    pub fn doctor(&self) -> Result<Finished> {
        self.place.run(&[&self.program, "doctor"])
    }

    /// The pool that the node's agent pods have their addresses from.
    ///
    /// # Errors
    /// When `node.json` can't be read.
    pub fn pool(&self) -> Result<String> {
        self.chosen("fakeIpCidr")
    }

    /// The mode that the node is in.
    ///
    /// # Errors
    /// When `node.json` can't be read.
    pub fn mode(&self) -> Result<String> {
        self.chosen("mode")
    }

    fn chosen(&self, key: &str) -> Result<String> {
        let text = fs::read_to_string(self.inside(STATE_DIR).join("node.json"))?;
        let node: Value = serde_json::from_str(&text)?;
        let value = node[key].as_str();
        Ok(value
            .with_context(|| format!("no {key} in {text}"))?
            .to_owned())
    }

    /// The audit lines so far.
    ///
    /// # Errors
    /// When one isn't JSON.
    pub fn audit(&self) -> Result<Vec<Value>> {
        let text = fs::read_to_string(self.inside(FILES).join("audit.jsonl"))?;
        text.lines()
            .map(|l| serde_json::from_str(l).with_context(|| format!("no JSON: {l}")))
            .collect()
    }

    /// Gives the node back: new pods are the primary CNI's. Returns what rollback said.
    ///
    /// # Errors
    /// When a step fails, something is left, or containerd doesn't take the primary network up.
    pub fn give_back(self) -> Result<String> {
        let limit = Duration::from_secs(20);
        self.installer.stop(Signal::SIGTERM, limit)?;
        let conf = PathBuf::from(format!("{}{CONF}", self.root.display()));
        anyhow::ensure!(conf.exists(), "an installer that ends must remove nothing");
        let said = self.place.run(&[&self.program, "rollback"])?.success()?;
        self.proxy.stop(Signal::SIGTERM, limit)?;
        self.place
            .run(&[&self.program, "rollback", "--check"])?
            .success()?;
        wait_for_network(&self.place, "primary")?;
        Ok(said.all())
    }

    fn inside(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("{}{path}", self.root.display()))
    }
}

/// Until containerd, which watches the folder, has the network as its first.
fn wait_for_network(place: &Place, name: &str) -> Result<()> {
    let bins = crate::containerd::programs()?;
    let crictl = bins.join("crictl").to_string_lossy().into_owned();
    eventually(
        "containerd has the network",
        Duration::from_secs(20),
        || {
            let info = place.run(&[&crictl, "info"])?.success()?;
            let info: Value = serde_json::from_str(&info.stdout)?;
            let networks = &info["cniconfig"]["Networks"];
            let first = networks
                .as_array()
                .into_iter()
                .flatten()
                .find(|n| n["IFName"] == "eth0");
            let first = first.and_then(|n| n["Config"]["Name"].as_str());
            anyhow::ensure!(first == Some(name), "containerd has {networks}");
            Ok(())
        },
    )
}

/// What a controller would do: YAML to the runtime policy.
fn compile(place: &Place, files: &Path, policies: &str) -> Result<()> {
    let compiler = program("agent-controller")?.to_string_lossy().into_owned();
    fs::write(files.join("policies.yaml"), policies)?;
    let (from, to) = (
        format!("{FILES}/policies.yaml"),
        format!("{FILES}/policy.json"),
    );
    place
        .run(&[&compiler, "compile", &from, "-o", &to])?
        .success()?;
    Ok(())
}

fn start_installer(place: &Place, program: &str, node: &str, flags: &[&str]) -> Result<Process> {
    let fixed = [
        program,
        "install",
        "--service-cidrs",
        SERVICE_CIDR,
        "--node-name",
        node,
    ];
    place.spawn("installer", &[&fixed[..], flags].concat(), &[])
}

fn start_proxy(place: &Place, files: &Path, node: &str, kubeconfig: &Path) -> Result<Process> {
    let config = json!({
        "policyFile": format!("{FILES}/policy.json"),
        "cluster": {"nodeName": node, "kubeconfig": kubeconfig},
        "credentialsDir": format!("{FILES}/credentials"),
        "audit": {"file": format!("{FILES}/audit.jsonl")},
        "dns": {"upstreams": [CLUSTER_DNS]},
        "workers": 2,
        "drainSeconds": 5,
    });
    fs::write(files.join("zeroproxy.json"), config.to_string())?;
    let node = program("agent-node")?.to_string_lossy().into_owned();
    let file = format!("{FILES}/zeroproxy.json");
    place.spawn("zeroproxy", &[&node, "zeroproxy", "--config", &file], &[])
}
