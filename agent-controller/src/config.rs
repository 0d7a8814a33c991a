//! What `agent-controller run` is told, read once into typed values.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use agent_api::{CREDENTIALS_SECRET, CompileOptions, SYSTEM_NAMESPACE};
use anyhow::Context;
use clap::Args;
use ipnet::Ipv4Net;

/// The port of `adminListen` that the chart gives ZeroProxy.
const PROXY_ADMIN_PORT: u16 = 18081;
/// The labels that the chart gives ZeroProxy's pods.
const PROXY_SELECTOR: &str = "app.kubernetes.io/component=zeroproxy";
/// What kube's client says of each failed call is said by us, once.
const DEFAULT_LOG: &str = "info,kube_client=off,kube_runtime=off";
/// kubelet brings a changed ConfigMap to a node within its sync period and the life of its cache: a minute and a half.
const PROJECTION_SECONDS: u64 = 90;

/// The flags of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The namespace of ZeroProxy, of the ConfigMaps and of the Lease, whose policies apply to agent pods of every
    /// namespace.
    #[arg(long, env = "AGENT_NETWORK_NAMESPACE", default_value = SYSTEM_NAMESPACE)]
    system_namespace: String,
    /// Further namespaces whose policies are followed, each for its own pods: a list with commas, or * for all.
    #[arg(long, value_delimiter = ',', value_name = "NAMESPACES")]
    watch_namespaces: Vec<String>,
    /// The Secrets that credential rules may name (those that are mounted into ZeroProxy), with commas. SECRET@NAMESPACE
    /// opens one to the policies of that namespace too.
    #[arg(long, value_delimiter = ',', default_value = CREDENTIALS_SECRET, value_name = "SECRETS")]
    credential_secrets: Vec<String>,
    /// The ranges of the cluster's Services, with commas: for classes that name none.
    #[arg(long = "service-cidrs", value_delimiter = ',', value_name = "CIDRS")]
    service_cidrs: Vec<Ipv4Net>,
    /// The labels of ZeroProxy's pods.
    #[arg(long, default_value = PROXY_SELECTOR)]
    proxy_selector: String,
    /// The port of ZeroProxy's adminListen.
    #[arg(long, default_value_t = PROXY_ADMIN_PORT)]
    proxy_admin_port: u16,
    /// The file with the token of ZeroProxy's /reload. Without it the controller only asks which version is active, and
    /// proxies find a new one by watching their file.
    #[arg(long)]
    reload_token_file: Option<PathBuf>,
    /// Where /healthz, /readyz and /metrics are.
    #[arg(long, default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// This replica's name in the Lease; made up when it is not given.
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    /// How long a leader that says nothing keeps the Lease, in seconds.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(3..=300))]
    lease_seconds: u64,
    /// How long a changed policy may take to reach every ready proxy before its status says Degraded, in seconds.
    #[arg(long, default_value_t = PROJECTION_SECONDS, value_parser = clap::value_parser!(u64).range(1..=3600))]
    degraded_after: u64,
    /// What is logged, as tracing filters have it: info, or agent_controller=debug,warn.
    #[arg(long, env = "AGENT_CONTROLLER_LOG", default_value = DEFAULT_LOG)]
    pub(crate) log: String,
}

/// The same, understood.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Which policies are followed.
    pub(crate) namespaces: Namespaces,
    /// What the compiler is told.
    pub(crate) compile: CompileOptions,
    pub(crate) service_cidrs: Vec<Ipv4Net>,
    /// A label selector.
    pub(crate) proxy_selector: String,
    pub(crate) proxy_admin_port: u16,
    pub(crate) reload_token_file: Option<PathBuf>,
    pub(crate) listen: SocketAddr,
    pub(crate) identity: String,
    pub(crate) lease: Duration,
    pub(crate) degraded_after: Duration,
}

/// The namespaces whose policies are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Namespaces {
    /// All of them.
    All,
    /// These; the system namespace is among them.
    These(BTreeSet<String>),
}

impl RunArgs {
    /// Understands the flags.
    ///
    /// # Errors
    /// The first that makes no sense.
    pub(crate) fn understand(self) -> anyhow::Result<Config> {
        let secrets = self.credential_secrets.iter().map(String::as_str);
        let compile = CompileOptions::with_secrets(&self.system_namespace, secrets)
            .context("--credential-secrets")?;
        let identity = self
            .identity
            .unwrap_or_else(|| format!("agent-controller-{:016x}", fastrand::u64(..)));
        Ok(Config {
            namespaces: namespaces(&self.watch_namespaces, &self.system_namespace)?,
            compile,
            service_cidrs: self.service_cidrs,
            proxy_selector: self.proxy_selector,
            proxy_admin_port: self.proxy_admin_port,
            reload_token_file: self.reload_token_file,
            listen: self.listen,
            identity,
            lease: Duration::from_secs(self.lease_seconds),
            degraded_after: Duration::from_secs(self.degraded_after),
        })
    }
}

impl Config {
    /// The namespace of everything that is ours.
    pub(crate) fn system_namespace(&self) -> &str {
        &self.compile.system_namespace
    }
}

fn namespaces(list: &[String], system: &str) -> anyhow::Result<Namespaces> {
    if list.iter().any(|name| name == "*") {
        anyhow::ensure!(
            list.len() == 1,
            "--watch-namespaces: * is every namespace; leave the others out"
        );
        return Ok(Namespaces::All);
    }
    let named = list.iter().filter(|name| !name.is_empty()).cloned();
    Ok(Namespaces::These(
        named.chain([system.to_owned()]).collect(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &[&str]) -> anyhow::Result<Namespaces> {
        let list: Vec<String> = list.iter().map(|name| (*name).to_owned()).collect();
        namespaces(&list, "system")
    }

    #[test]
    fn the_system_namespace_is_always_followed() {
        let these = |names: &[&str]| {
            Namespaces::These(names.iter().map(|name| (*name).to_owned()).collect())
        };
        assert_eq!(of(&[]).unwrap(), these(&["system"]));
        assert_eq!(of(&["", "a"]).unwrap(), these(&["a", "system"]));
        assert_eq!(of(&["*"]).unwrap(), Namespaces::All);
        assert!(of(&["a", "*"]).is_err());
    }
}
