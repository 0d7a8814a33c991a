//! The network configuration on stdin: the specification's keys and ours, checked.
//!
//! Keys that runtimes may add are let through; a key that looks like one of ours misspelt is refused, because it would
//! silently have no effect. What depends on the node (routes, earlier choices) is `node`'s to check.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use agent_core::{node_settings::FailMode, policy::LabelSelector};
use agent_datapath::{
    network::ProxyPorts,
    probe::{Requested, UnknownMode},
};
use ipnet::Ipv4Net;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::version::{SpecVersion, UnknownVersion};

mod selective;

pub(crate) use selective::{Primary, Selective};

/// Where attachments, reservations and the node's choices are kept.
pub(crate) const DEFAULT_STATE_DIR: &str = "/var/lib/tke-agent-network/agent-cni";
/// Where programs, maps and links are pinned.
pub(crate) const DEFAULT_PIN_DIR: &str = "/sys/fs/bpf/agent-network";

/// The configuration, with defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NetConf {
    /// The version of the specification that the result must follow.
    pub(crate) version: SpecVersion,
    /// The network's name; empty only for VERSION and STATUS of sloppy callers.
    pub(crate) name: String,
    /// The node's name, which the Fake IP CIDR is derived from; the host name when absent.
    pub(crate) node_name: Option<String>,
    /// The pool, when the operator chose one.
    pub(crate) fake_ip_cidr: Option<Ipv4Net>,
    /// Destinations that kube-proxy serves.
    pub(crate) service_cidrs: Vec<Ipv4Net>,
    /// Bytes of IP a frame may carry; the uplink's when absent.
    pub(crate) mtu: Option<u32>,
    /// The state directory.
    pub(crate) state_dir: PathBuf,
    /// The pins' directory.
    pub(crate) pin_dir: PathBuf,
    /// Below which this process sees the host's files: `/` but for an installer in a container.
    pub(crate) host_root: PathBuf,
    /// Seconds an address rests after DEL.
    pub(crate) cool_down_seconds: u64,
    /// Where the proxy listens.
    pub(crate) ports: ProxyPorts,
    /// How traffic is redirected.
    pub(crate) mode: Requested,
    /// Whether pods go out without the proxy while none listens.
    pub(crate) fail_open: bool,
    /// Ranges that stay closed whatever is open.
    pub(crate) sensitive_cidrs: Vec<Ipv4Net>,
    /// Which pods are ours; all of them when absent.
    pub(crate) selective: Option<Selective>,
    /// The network of the pods that are not.
    pub(crate) primary: Primary,
    /// What the runtime passes for the capabilities that our configuration declares.
    pub(crate) runtime_config: Map<String, Value>,
    /// The addresses and sandboxes of an earlier result, where one was passed.
    pub(crate) prev_result: Option<Value>,
    /// GC: the attachments to keep, where the key was there.
    pub(crate) valid_attachments: Option<Vec<ValidAttachment>>,
}

impl NetConf {
    /// The same configuration for a process that sees the host's files below `root`.
    pub(crate) fn seen_below(mut self, root: &Path) -> Self {
        for path in [&mut self.state_dir, &mut self.pin_dir] {
            *path = root.join(path.strip_prefix("/").unwrap_or(path));
        }
        self.host_root = root.to_owned();
        self
    }

    /// The pins' directory as the host's processes name it, which is what is told to them.
    pub(crate) fn pin_dir_on_host(&self) -> PathBuf {
        match self.pin_dir.strip_prefix(&self.host_root) {
            Ok(below) => Path::new("/").join(below),
            Err(_) => self.pin_dir.clone(),
        }
    }
}

/// An attachment that GC keeps.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct ValidAttachment {
    /// Its container.
    #[serde(rename = "containerID")]
    pub(crate) container_id: String,
    /// Its interface.
    pub(crate) ifname: String,
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfError {
    /// Not JSON, or a key with a value of another type.
    #[error("the network configuration on stdin cannot be read")]
    Decode(#[source] serde_json::Error),
    /// `cniVersion` is not spoken.
    #[error(transparent)]
    Version(#[from] UnknownVersion),
    /// The verb came with a later version of the specification.
    #[error("{verb} needs cniVersion {since} or later; the configuration says {version}")]
    VerbTooNew {
        /// The verb.
        verb: &'static str,
        /// Since when it is there.
        since: &'static str,
        /// What the configuration says.
        version: &'static str,
    },
    /// A key that this plugin cannot honour.
    #[error("\"{key}\": {value} is not supported: {why}")]
    Unsupported {
        /// The key.
        key: &'static str,
        /// Its value, as JSON, shortened.
        value: String,
        /// What to do instead.
        why: &'static str,
    },
    /// A key that looks like one of ours.
    #[error("unknown key \"{found}\"; did you mean \"{meant}\"?")]
    Misspelt {
        /// As written.
        found: String,
        /// As it should be.
        meant: &'static str,
    },
    /// A value out of range, or keys that contradict each other.
    #[error("{0}")]
    Invalid(String),
}

/// Ours, as they are spelt.
const OUR_KEYS: [&str; 14] = [
    "nodeName",
    "fakeIPCIDR",
    "serviceCIDRs",
    "mtu",
    "stateDir",
    "pinDir",
    "coolDownSeconds",
    "proxy",
    "mode",
    "failMode",
    "sensitiveCIDRs",
    "workloadSelector",
    "workloadsFile",
    "primary",
];

/// The specification's, and libcni's.
const SPEC_KEYS: [&str; 14] = [
    "cniVersion",
    "cniVersions",
    "name",
    "type",
    "args",
    "capabilities",
    "runtimeConfig",
    "ipMasq",
    "ipam",
    "dns",
    "prevResult",
    "disableCheck",
    "disableGC",
    "loadOnlyInlinedPlugins",
];

/// The keys as they are in the file, before anything is checked.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Raw {
    name: Option<String>,
    node_name: Option<String>,
    #[serde(rename = "fakeIPCIDR")]
    fake_ip_cidr: Option<String>,
    #[serde(rename = "serviceCIDRs")]
    service_cidrs: Option<Vec<String>>,
    mtu: Option<u32>,
    state_dir: Option<PathBuf>,
    pin_dir: Option<PathBuf>,
    cool_down_seconds: Option<u64>,
    proxy: Option<RawProxy>,
    mode: Option<String>,
    fail_mode: Option<FailMode>,
    #[serde(rename = "sensitiveCIDRs")]
    sensitive_cidrs: Option<Vec<String>>,
    ip_masq: Option<bool>,
    ipam: Option<Map<String, Value>>,
    workload_selector: Option<LabelSelector>,
    workloads_file: Option<PathBuf>,
    primary: Option<selective::RawPrimary>,
    runtime_config: Option<Map<String, Value>>,
    prev_result: Option<Value>,
    #[serde(rename = "cni.dev/valid-attachments")]
    valid_attachments: Option<Vec<ValidAttachment>>,
}

/// Ports of the proxy, which iptables redirects to in iptables-compat mode. In ebpf mode the proxy's sockets are found
/// through a map and the ports have no effect on the way of packets.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct RawProxy {
    port: Option<u16>,
    dns_port: Option<u16>,
}

/// `cniVersion` alone, for VERSION and for errors about the rest.
pub(crate) fn version_of(stdin: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Versioned {
        cni_version: String,
    }
    serde_json::from_slice::<Versioned>(stdin)
        .ok()
        .map(|versioned| versioned.cni_version)
}

impl NetConf {
    /// What a configuration without any key of ours means.
    pub(crate) fn defaults() -> Self {
        Self {
            version: SpecVersion::V1_1_0,
            name: String::new(),
            node_name: None,
            fake_ip_cidr: None,
            service_cidrs: Vec::new(),
            mtu: None,
            state_dir: DEFAULT_STATE_DIR.into(),
            pin_dir: DEFAULT_PIN_DIR.into(),
            host_root: "/".into(),
            cool_down_seconds: agent_core::ipam::DEFAULT_COOLDOWN_SECS,
            ports: ProxyPorts::default(),
            mode: Requested::Auto,
            fail_open: false,
            sensitive_cidrs: Vec::new(),
            selective: None,
            primary: Primary::default(),
            runtime_config: Map::new(),
            prev_result: None,
            valid_attachments: None,
        }
    }
}

/// Reads and checks the configuration.
///
/// # Errors
/// The first thing that is wrong with it, with what to write instead.
pub(crate) fn parse(stdin: &[u8]) -> Result<NetConf, ConfError> {
    let object: Map<String, Value> = serde_json::from_slice(stdin).map_err(ConfError::Decode)?;
    // libcni reads a missing version as 0.1.0
    let version = match object.get("cniVersion") {
        None => return Err(UnknownVersion("0.1.0 (no cniVersion)".into()).into()),
        Some(Value::String(text)) => text.parse()?,
        Some(other) => return Err(UnknownVersion(other.to_string()).into()),
    };
    for key in object.keys() {
        if let Some(meant) = misspelt(key) {
            return Err(ConfError::Misspelt {
                found: key.chars().take(60).collect(),
                meant,
            });
        }
    }
    let raw: Raw = serde_json::from_value(Value::Object(object)).map_err(ConfError::Decode)?;
    refuse_unsupported(&raw)?;
    let conf = NetConf {
        version,
        name: raw.name.unwrap_or_default(),
        node_name: raw.node_name.filter(|name| !name.is_empty()),
        fake_ip_cidr: raw.fake_ip_cidr.as_deref().map(pool).transpose()?,
        service_cidrs: networks("serviceCIDRs", raw.service_cidrs)?,
        mtu: raw.mtu.map(mtu).transpose()?,
        state_dir: directory("stateDir", raw.state_dir, DEFAULT_STATE_DIR)?,
        pin_dir: directory("pinDir", raw.pin_dir, DEFAULT_PIN_DIR)?,
        host_root: PathBuf::from("/"),
        cool_down_seconds: raw
            .cool_down_seconds
            .unwrap_or(agent_core::ipam::DEFAULT_COOLDOWN_SECS),
        ports: ports(raw.proxy.as_ref()),
        mode: mode(raw.mode.as_deref())?,
        fail_open: raw.fail_mode == Some(FailMode::Open),
        sensitive_cidrs: networks("sensitiveCIDRs", raw.sensitive_cidrs)?,
        selective: selective::selective(raw.workload_selector, raw.workloads_file)?,
        primary: selective::primary(raw.primary)?,
        runtime_config: raw.runtime_config.unwrap_or_default(),
        prev_result: raw.prev_result,
        valid_attachments: raw.valid_attachments,
    };
    if let Some(pool) = conf.fake_ip_cidr
        && let Some(service) = conf
            .service_cidrs
            .iter()
            .find(|service| overlap(**service, pool))
    {
        return Err(ConfError::Invalid(format!(
            "fakeIPCIDR {pool} overlaps {service} of serviceCIDRs; choose another range"
        )));
    }
    Ok(conf)
}

/// Refuses what this plugin does differently or not at all.
fn refuse_unsupported(raw: &Raw) -> Result<(), ConfError> {
    if raw.ip_masq == Some(true) {
        return Err(ConfError::Unsupported {
            key: "ipMasq",
            value: "true".into(),
            why: "pods reach the outside through the proxy only; remove the key",
        });
    }
    if let Some(ipam) = raw.ipam.as_ref().filter(|ipam| !ipam.is_empty()) {
        return Err(ConfError::Unsupported {
            key: "ipam",
            value: Value::Object(ipam.clone())
                .to_string()
                .chars()
                .take(120)
                .collect(),
            why: "addresses come from fakeIPCIDR; remove the key",
        });
    }
    if let Some(proxy) = &raw.proxy
        && (proxy.port == Some(0) || proxy.dns_port == Some(0))
    {
        return Err(ConfError::Invalid(
            "proxy.port and proxy.dnsPort must not be 0".into(),
        ));
    }
    Ok(())
}

fn ports(proxy: Option<&RawProxy>) -> ProxyPorts {
    let default = ProxyPorts::default();
    ProxyPorts {
        proxy: proxy.and_then(|proxy| proxy.port).unwrap_or(default.proxy),
        dns: proxy
            .and_then(|proxy| proxy.dns_port)
            .unwrap_or(default.dns),
    }
}

fn mode(text: Option<&str>) -> Result<Requested, ConfError> {
    text.map_or(Ok(Requested::Auto), str::parse)
        .map_err(|error: UnknownMode| ConfError::Invalid(error.to_string()))
}

fn directory(key: &str, value: Option<PathBuf>, default: &str) -> Result<PathBuf, ConfError> {
    match value {
        None => Ok(default.into()),
        Some(path) if path.is_absolute() => Ok(path),
        Some(path) => Err(ConfError::Invalid(format!(
            "{key} \"{}\" must be an absolute path",
            path.display()
        ))),
    }
}

fn networks(key: &str, texts: Option<Vec<String>>) -> Result<Vec<Ipv4Net>, ConfError> {
    let texts = texts.unwrap_or_default();
    texts.iter().map(|text| network(key, text)).collect()
}

fn network(key: &str, text: &str) -> Result<Ipv4Net, ConfError> {
    let invalid = |why: &str| {
        let text: String = text.chars().take(60).collect();
        ConfError::Invalid(format!("{key}: \"{text}\" {why}"))
    };
    match text.parse::<Ipv4Net>() {
        Ok(net) if net.addr() == net.network() => Ok(net),
        Ok(net) => Err(invalid(&format!(
            "has bits beyond its length; write {}",
            net.trunc()
        ))),
        Err(_) if text.parse::<ipnet::Ipv6Net>().is_ok() || text.parse::<IpAddr>().is_ok() => Err(
            invalid("must be an IPv4 network with a length, such as 10.96.0.0/12"),
        ),
        Err(_) => Err(invalid("is not a network; write it like 10.96.0.0/12")),
    }
}

fn pool(text: &str) -> Result<Ipv4Net, ConfError> {
    let net = network("fakeIPCIDR", text)?;
    if (8..=30).contains(&net.prefix_len()) {
        Ok(net)
    } else {
        Err(ConfError::Invalid(format!(
            "fakeIPCIDR {net} must be between a /8 and a /30"
        )))
    }
}

/// IPv4 needs 68 (RFC 791); what a TCP connection needs to be of use is more, and 576 is what every host accepts.
fn mtu(value: u32) -> Result<u32, ConfError> {
    if (576..=65_535).contains(&value) {
        Ok(value)
    } else {
        Err(ConfError::Invalid(format!(
            "mtu {value} must be between 576 and 65535"
        )))
    }
}

fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

/// The key of ours that this one was probably meant to be. Keys with a dot or a slash are namespaced and nobody's typo.
fn misspelt(key: &str) -> Option<&'static str> {
    if OUR_KEYS.contains(&key) || SPEC_KEYS.contains(&key) || key.contains(['.', '/']) {
        return None;
    }
    let plain = |text: &str| -> String {
        text.chars()
            .filter(char::is_ascii_alphanumeric)
            .collect::<String>()
            .to_ascii_lowercase()
    };
    let found = plain(key);
    // short keys are a few letters from anything
    let allowed = if found.len() > 5 { 2 } else { 1 };
    OUR_KEYS
        .into_iter()
        .find(|ours| distance(&found, &plain(ours)) <= allowed)
}

/// Levenshtein distance of two short ASCII texts.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 40 {
        return a.len();
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substitution = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitution.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests;
