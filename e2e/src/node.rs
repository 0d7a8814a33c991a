//! A whole node: a world with an outside, kube-proxy's rules, the real CNI plugin and the real proxy.
//!
//! Owns the order in which these come up, and the files that an installer and a controller would write. What a pod
//! is and does is in [`crate::pod`].

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::addresses::{DNS_SERVER, address_of};
use crate::cni::{self, Plugin};
use crate::machine::program;
use crate::outside::Outside;
use crate::patience::patience;
use crate::place::Place;
use crate::pod::{Pod, PodSpec};
use crate::policy::Policy;
use crate::process::Process;
use crate::secrets::Secrets;
use crate::service;
use crate::world::World;

mod proxy_api;

/// Where the node's files lie, inside the world.
pub const FILES: &str = "/run/agent-network";
/// The proxy's local endpoints.
pub const PROXY: &str = "127.0.0.1:18080";

/// What a client on the node shows to use the proxy explicitly; no secret, as it is in command lines.
pub const LOCAL_TOKEN: &str = "local-client";

/// What the proxy logs once the pods' traffic reaches it.
const REGISTERED: &str = "listeners are registered";

/// A running node.
pub struct Node {
    proxy: Option<Process>,
    /// The rest of the internet.
    pub outside: Outside,
    /// What the credential files hold.
    pub secrets: Secrets,
    /// The CNI plugin as a runtime calls it.
    pub plugin: Plugin,
    config: Value,
    workloads: serde_json::Map<String, Value>,
    starts: u32,
    world: World,
}

impl Node {
    /// Brings up everything but the proxy and pods, with the demo's policy.
    ///
    /// # Errors
    /// When something is missing on this machine.
    pub fn start(hostname: &str) -> Result<Node> {
        let world = World::create(hostname)?;
        let secrets = Secrets::draw()?;
        let outside = Outside::start(&world, &secrets)?;
        service::install(&world.node())?;
        install_plugin(&world)?;
        let plugin = Plugin::new(world.node(), cni::default_conf());
        let config = default_config(&outside);
        let node = Node {
            proxy: None,
            outside,
            secrets,
            plugin,
            config,
            workloads: serde_json::Map::new(),
            starts: 0,
            world,
        };
        node.write_credentials()?;
        node.write_policy(&Policy::demo().document())?;
        node.write("workloads.json", b"{}")?;
        Ok(node)
    }

    /// As [`Node::start`], and `agent-cni setup` has prepared the node as an installer would, and the proxy runs.
    ///
    /// # Errors
    /// As [`Node::start`], and when the proxy doesn't become ready.
    pub fn start_with_proxy(hostname: &str) -> Result<Node> {
        let mut node = Node::start(hostname)?;
        node.place().run(&[cni::PLUGIN, "setup"])?.success()?;
        node.start_proxy()?;
        Ok(node)
    }

    /// The node's own place.
    pub fn place(&self) -> Place {
        self.world.node()
    }

    /// The world it is in.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The proxy's configuration; a change has effect at the next start.
    pub fn config(&mut self) -> &mut Value {
        &mut self.config
    }

    /// Starts the proxy and waits until it is ready; on a node that has had no setup and no ADD yet, until it
    /// is alive.
    ///
    /// # Errors
    /// When it ends, or isn't ready within 20 seconds.
    pub fn start_proxy(&mut self) -> Result<()> {
        let had_pods = self.world.inside(cni::STATE_DIR).join("node.json").exists();
        self.spawn_proxy_and_wait(if had_pods { "/readyz" } else { "/healthz" })
    }

    /// Starts the proxy and waits until `endpoint` says that all is well.
    ///
    /// # Errors
    /// As [`Node::start_proxy`].
    pub fn spawn_proxy_and_wait(&mut self, endpoint: &str) -> Result<()> {
        self.proxy = Some(self.spawn_proxy()?);
        self.wait_for(endpoint)
    }

    /// Waits until the proxy is ready: on a node without setup that is shortly after the first ADD.
    ///
    /// # Errors
    /// When it ends, or isn't ready within 20 seconds.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        self.wait_for("/readyz")
    }

    fn wait_for(&mut self, endpoint: &str) -> Result<()> {
        let deadline = Instant::now() + patience(Duration::from_secs(20));
        loop {
            let answer = self.get(endpoint)?;
            if answer.ok() {
                return Ok(());
            }
            let process = self.proxy.as_mut().context("the proxy doesn't run")?;
            if !process.is_running() || Instant::now() > deadline {
                let log = process.log_text();
                bail!(
                    "the proxy isn't ready ({}): {}",
                    answer.all().trim(),
                    log.trim()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts the proxy without waiting for anything.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn spawn_proxy(&mut self) -> Result<Process> {
        let config = serde_json::to_vec_pretty(&self.config)?;
        self.write("zeroproxy.json", &config)?;
        self.starts += 1;
        let program = program("agent-node")?.to_string_lossy().into_owned();
        let file = format!("{FILES}/zeroproxy.json");
        let name = format!("zeroproxy-{}", self.starts);
        // all that it can say: the tests look for secrets in it
        let env = [("AGENT_NODE_LOG", "trace"), ("RUST_BACKTRACE", "1")];
        self.place()
            .spawn(&name, &[&program, "zeroproxy", "--config", &file], &env)
    }

    /// The running proxy.
    ///
    /// # Errors
    /// When none runs.
    pub fn proxy(&self) -> Result<&Process> {
        self.proxy.as_ref().context("the proxy doesn't run")
    }

    /// Starts a second proxy, waits until it has the pods' traffic, and returns the first one, which still runs.
    ///
    /// # Errors
    /// When none runs, or the new one doesn't become ready.
    pub fn replace_proxy(&mut self) -> Result<Process> {
        let old = self.proxy.take().context("the proxy doesn't run")?;
        let mut new = self.spawn_proxy()?;
        if let Err(error) = new.wait_for_output(REGISTERED, Duration::from_secs(20)) {
            self.proxy = Some(old);
            return Err(error);
        }
        self.proxy = Some(new);
        Ok(old)
    }

    /// Stops the proxy: `SIGTERM` as kubelet would, or `SIGKILL` as an out-of-memory kill would.
    ///
    /// # Errors
    /// When it doesn't end.
    pub fn stop_proxy(&mut self, signal: Signal) -> Result<i32> {
        let proxy = self.proxy.take().context("the proxy doesn't run")?;
        proxy.stop(signal, Duration::from_secs(40))
    }

    /// Takes the node into `mode`, pods and all, as an operator does: the configuration, then `agent-cni setup`.
    ///
    /// # Errors
    /// When that mode doesn't work here, or a step fails.
    pub fn change_mode(&mut self, mode: &str) -> Result<()> {
        let conf = self.plugin.set_mode(mode).to_string();
        fs::write(self.world.inside(cni::CONF), conf)?;
        let setup = self.place().run(&[cni::PLUGIN, "setup"])?;
        setup.success().map(|_| ())
    }

    /// Adds a pod: its network namespace, ADD, its processes.
    ///
    /// # Errors
    /// When ADD fails.
    pub fn add_pod(&mut self, spec: &PodSpec) -> Result<Pod> {
        self.introduce(spec)?;
        self.world.namespace(&spec.netns_name())?;
        let got = self.plugin.add(spec)?;
        Pod::start(&self.world, spec, got.ip, got.gateway)
    }

    /// Removes a pod as a runtime does: DEL, then its namespace.
    ///
    /// # Errors
    /// When DEL fails.
    pub fn remove_pod(&mut self, pod: Pod) -> Result<()> {
        let spec = pod.spec.clone();
        self.plugin.del(&spec)?;
        drop(pod);
        self.place()
            .run(&["ip", "netns", "del", &spec.netns_name()])?
            .success()?;
        Ok(())
    }

    /// Tells the proxy who a pod is, before it exists.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn introduce(&mut self, spec: &PodSpec) -> Result<()> {
        let labels: serde_json::Map<String, Value> = spec
            .labels
            .iter()
            .map(|(k, v)| (k.clone(), json!(v)))
            .collect();
        let key = format!("{}/{}", spec.namespace, spec.name);
        let facts = json!({"serviceAccount": spec.service_account, "labels": labels});
        self.workloads.insert(key, facts);
        let text = serde_json::to_vec_pretty(&self.workloads)?;
        self.write("workloads.json", &text)
    }

    /// Replaces the policy document, as a projected ConfigMap would.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write_policy(&self, document: &Value) -> Result<()> {
        self.write("policy.json", document.to_string().as_bytes())
    }

    /// Replaces a file under [`FILES`] in one step.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.file(name);
        let folder = path.parent().context("no folder")?;
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let staged = path.with_extension("new");
        fs::write(&staged, bytes).with_context(|| format!("write {}", staged.display()))?;
        fs::rename(&staged, &path).with_context(|| format!("rename to {}", path.display()))
    }

    /// A file under [`FILES`], as this process reaches it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.world.inside(&format!("{FILES}/{name}"))
    }

    /// The audit lines so far.
    ///
    /// # Errors
    /// When a line isn't JSON.
    pub fn audit(&self) -> Result<Vec<Value>> {
        let text = fs::read_to_string(self.file("audit.jsonl")).unwrap_or_default();
        text.lines()
            .map(|l| {
                serde_json::from_str(l).with_context(|| format!("an audit line is no JSON: {l}"))
            })
            .collect()
    }

    /// The first audit line for which `wanted` holds, waiting up to three seconds for it.
    ///
    /// # Errors
    /// When there is none in time; the message has the last lines.
    pub fn audit_line(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + patience(Duration::from_secs(3));
        loop {
            let lines = self.audit()?;
            if let Some(line) = lines.iter().find(|l| wanted(l)) {
                return Ok(line.clone());
            }
            if Instant::now() > deadline {
                let last: Vec<String> = lines.iter().rev().take(10).map(Value::to_string).collect();
                bail!(
                    "no audit line says {what}; the last ones:\n{}",
                    last.join("\n")
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Files in which a secret appears, among all that any process printed and all audit lines.
    ///
    /// # Errors
    /// When a file can't be read.
    pub fn leaked_secrets(&self) -> Result<Vec<PathBuf>> {
        let logs = self.world.logs();
        self.secrets.found_in(&[
            &logs,
            &self.file("audit.jsonl"),
            &self.world.inside(cni::STATE_DIR),
        ])
    }

    /// Lets the node and `pods` outlive this process; returns the world's folder.
    ///
    /// # Errors
    /// When the world is closing already.
    pub fn keep(mut self, pods: Vec<Pod>) -> Result<PathBuf> {
        if let Some(proxy) = self.proxy.take() {
            proxy.detach();
        }
        pods.into_iter().for_each(Pod::detach);
        self.outside.detach();
        self.world.keep()
    }

    fn write_credentials(&self) -> Result<()> {
        let s = &self.secrets;
        // a trailing newline, as people make Secrets
        self.write(
            "credentials/api/API_TOKEN",
            format!("{}\n", s.api_token).as_bytes(),
        )?;
        self.write(
            "credentials/zeroproxy-credentials/REPO_TOKEN",
            s.repo_token.as_bytes(),
        )?;
        self.write(
            "credentials/zeroproxy-credentials/RAG_TOKEN",
            s.rag_token.as_bytes(),
        )?;
        self.write("local-token", LOCAL_TOKEN.as_bytes())?;
        self.write("reload-token", s.reload_token.as_bytes())
    }
}

fn default_config(outside: &Outside) -> Value {
    let agent_server = address_of("agent-server.internal.example.com").map(|a| a.to_string());
    json!({
        "policyFile": format!("{FILES}/policy.json"),
        "workloadsFile": format!("{FILES}/workloads.json"),
        "credentialsDir": format!("{FILES}/credentials"),
        "reloadTokenFile": format!("{FILES}/reload-token"),
        "localClient": {
            "tokenFile": format!("{FILES}/local-token"),
            "namespace": "agents", "name": "http-e2e", "serviceAccount": "planner",
        },
        "audit": {"file": format!("{FILES}/audit.jsonl")},
        "dns": {"upstreams": [format!("{DNS_SERVER}:53")]},
        "tls": {"extraCaFile": outside.pki().ca},
        "upstreams": {"agent-server": {"addresses": [agent_server], "port": 80}},
        "workers": 2,
        "drainSeconds": 5,
    })
}

fn install_plugin(world: &World) -> Result<()> {
    let to = world.inside(cni::PLUGIN);
    fs::copy(program("agent-cni")?, &to).context("install agent-cni on the node")?;
    fs::write(world.inside(cni::CONF), cni::default_conf().to_string())?;
    Ok(())
}
