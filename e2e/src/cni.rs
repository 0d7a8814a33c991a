//! Calls the CNI plugin as a container runtime does: environment, network configuration on stdin, result on stdout
//! (CNI specification 1.1, sections 2 and 4).

use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::patience::slowdown;
use crate::place::{Finished, Place};
use crate::pod::PodSpec;

/// Where runtimes look for the plugin.
pub const PLUGIN: &str = "/opt/cni/bin/agent-cni";
/// Where runtimes look for the network configuration.
pub const CONF: &str = "/etc/cni/net.d/00-agent-cni.conf";
/// The plugin's state.
pub const STATE_DIR: &str = "/var/lib/tke-agent-network/agent-cni";
/// The interface's name in the pod.
pub const IFNAME: &str = "eth0";

/// The plugin on one node.
#[derive(Clone)]
pub struct Plugin {
    node: Place,
    conf: Value,
}

/// What a pod got from ADD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressed {
    /// Its Fake IP.
    pub ip: Ipv4Addr,
    /// Its gateway.
    pub gateway: Ipv4Addr,
}

/// The network configuration that the installer would write, with the mode that `AGENT_NETWORK_TEST_MODE` asks for:
/// the same tests are run in each.
pub fn default_conf() -> Value {
    let mut conf = json!({
        "cniVersion": "1.1.0",
        "name": "agent-network",
        "type": "agent-cni",
        "serviceCIDRs": [crate::addresses::SERVICE_CIDR],
    });
    if let Ok(mode) = std::env::var("AGENT_NETWORK_TEST_MODE")
        && !mode.is_empty()
    {
        conf["mode"] = mode.into();
    }
    conf
}

impl Plugin {
    /// The plugin on `node` with a network configuration.
    pub fn new(node: Place, conf: Value) -> Plugin {
        Plugin { node, conf }
    }

    /// The network configuration.
    pub fn conf(&self) -> &Value {
        &self.conf
    }

    /// Sets another mode, and answers the configuration.
    pub fn set_mode(&mut self, mode: &str) -> &Value {
        self.conf["mode"] = mode.into();
        &self.conf
    }

    /// Runs one command with the configuration as it is.
    ///
    /// # Errors
    /// Only when the plugin can't be started.
    pub fn call(&self, command: &str, pod: &PodSpec) -> Result<Finished> {
        self.call_with(command, pod, &self.conf)
    }

    /// Runs one command with another configuration.
    ///
    /// # Errors
    /// Only when the plugin can't be started.
    pub fn call_with(&self, command: &str, pod: &PodSpec, conf: &Value) -> Result<Finished> {
        let arguments = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
            pod.namespace,
            pod.name,
            pod.container_id(),
            pod.uid()
        );
        let env = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", &pod.container_id()),
            ("CNI_NETNS", &pod.netns_path()),
            ("CNI_IFNAME", IFNAME),
            ("CNI_ARGS", &arguments),
            ("CNI_PATH", "/opt/cni/bin"),
        ];
        self.raw(&env, conf.to_string().as_bytes())
    }

    /// Runs the plugin with any environment and input.
    ///
    /// # Errors
    /// Only when the plugin can't be started.
    pub fn raw(&self, env: &[(&str, &str)], stdin: &[u8]) -> Result<Finished> {
        self.node.run_with(&[PLUGIN], env, stdin, 120 * slowdown())
    }

    /// ADD; the network namespace must be there.
    ///
    /// # Errors
    /// When the plugin fails, or its result isn't one.
    pub fn add(&self, pod: &PodSpec) -> Result<Addressed> {
        addressed(&self.call("ADD", pod)?.success()?)
    }

    /// DEL.
    ///
    /// # Errors
    /// When the plugin fails.
    pub fn del(&self, pod: &PodSpec) -> Result<()> {
        self.call("DEL", pod)?.success().map(|_| ())
    }

    /// CHECK, with the result of ADD in the configuration as the specification wants it.
    ///
    /// # Errors
    /// Only when the plugin can't be started.
    pub fn check(&self, pod: &PodSpec, previous: &Value) -> Result<Finished> {
        let mut conf = self.conf.clone();
        conf["prevResult"] = previous.clone();
        self.call_with("CHECK", pod, &conf)
    }
}

/// The address and gateway of an ADD result.
///
/// # Errors
/// When the plugin's output isn't a result with one IPv4 address.
pub fn addressed(done: &Finished) -> Result<Addressed> {
    let result: Value =
        serde_json::from_str(&done.stdout).with_context(|| format!("not a CNI result: {done}"))?;
    let Some([ip]) = result["ips"].as_array().map(Vec::as_slice) else {
        bail!("a CNI result without exactly one address: {}", done.stdout);
    };
    let address = ip["address"].as_str().context("no address")?;
    Ok(Addressed {
        ip: address.split('/').next().unwrap_or_default().parse()?,
        gateway: ip["gateway"].as_str().context("no gateway")?.parse()?,
    })
}

/// The `code` and `msg` of a CNI error.
///
/// # Errors
/// When the plugin succeeded, or printed no error object.
pub fn error_of(done: &Finished) -> Result<(i64, String)> {
    if done.ok() {
        bail!("the plugin succeeded: {done}");
    }
    let error: Value =
        serde_json::from_str(&done.stdout).with_context(|| format!("not a CNI error: {done}"))?;
    let text = format!(
        "{} {}",
        error["msg"].as_str().context("no msg")?,
        error["details"].as_str().unwrap_or_default()
    );
    Ok((error["code"].as_i64().context("no code")?, text))
}
