//! What the classes say for each node: `nodes.json`, which the controller writes (ConfigMap `agent-network-nodes`) and the
//! installer of each node reads. Owns the format; how it comes about is `agent-api`'s, and what a node does with it the
//! installer's and the proxy's.
//!
//! What nodes have in common stands once, with their class; a node has its name, its class and its range. So the file of
//! ten thousand nodes fits in a ConfigMap.

mod taken;

use std::collections::BTreeMap;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::policy::cidr::IpCidr;
use crate::policy::selector::LabelSelector;

pub use taken::TakenSettings;

/// The only schema version that this build writes and reads.
pub const SCHEMA_VERSION: u32 = 1;
/// The file's name, and the ConfigMap's key.
pub const FILE_NAME: &str = "nodes.json";

/// The whole file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeSettingsFile {
    /// Format of the file; [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The classes that some node follows.
    pub classes: BTreeMap<String, ClassSettings>,
    /// The nodes by name.
    pub nodes: BTreeMap<String, NodeEntry>,
}

/// What a class says for all its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClassSettings {
    /// The ranges of the cluster's Services; empty: what the node was installed with.
    #[serde(
        rename = "serviceCIDRs",
        default,
        skip_serializing_if = "Vec::is_empty"
    )]
    pub service_cidrs: Vec<Ipv4Net>,
    /// The port of ZeroProxy.
    pub proxy_port: u16,
    /// The port of the DNS proxy.
    pub dns_port: u16,
    /// What happens to traffic while no proxy listens.
    pub fail_mode: FailMode,
    /// What pods reach for which no policy applies.
    pub default_connectivity: Connectivity,
    /// How packets get to the proxy.
    pub mode: DataPathMode,
    /// The pods that become agent pods; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_selector: Option<LabelSelector>,
    /// Ranges that no policy can open.
    #[serde(
        rename = "sensitiveCIDRs",
        default,
        skip_serializing_if = "Vec::is_empty"
    )]
    pub sensitive_cidrs: Vec<IpCidr>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeEntry {
    /// Its class, a key of `classes`.
    pub class: String,
    /// The range that its pods get Fake IPs from.
    #[serde(rename = "fakeIPCIDR")]
    pub fake_ip_cidr: Ipv4Net,
}

/// What happens to traffic while no proxy listens.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub enum FailMode {
    /// It is dropped.
    #[default]
    Closed,
    /// It passes without a policy.
    Open,
}

/// What pods may reach for which no policy applies.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub enum Connectivity {
    /// Nothing.
    #[default]
    Zero,
    /// Everything but what is always denied.
    Passthrough,
}

/// How packets get to the proxy.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum DataPathMode {
    /// What the node's kernel can do, eBPF first.
    #[default]
    Auto,
    /// By eBPF programs.
    Ebpf,
    /// By nftables and iptables.
    IptablesCompat,
}

/// Why a text is no node settings.
#[derive(Debug, thiserror::Error)]
pub enum NodeSettingsError {
    /// Not JSON of this shape.
    #[error("it is no nodes.json of version {SCHEMA_VERSION}")]
    Syntax(#[source] serde_json::Error),
    /// Another version of this software wrote it.
    #[error("it has schema version {0}, this build reads {SCHEMA_VERSION}")]
    SchemaVersion(u32),
    /// A node follows a class that isn't there.
    #[error("node {node} follows class `{class}`, which the file doesn't have")]
    NoClass {
        /// The node.
        node: String,
        /// The class that it names.
        class: String,
    },
}

impl Default for NodeSettingsFile {
    fn default() -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            classes: BTreeMap::new(),
            nodes: BTreeMap::new(),
        }
    }
}

impl NodeSettingsFile {
    /// Reads the file's text.
    ///
    /// # Errors
    /// When it isn't JSON of this shape, or a node's class is missing.
    pub fn parse(text: &[u8]) -> Result<Self, NodeSettingsError> {
        let file: Self = serde_json::from_slice(text).map_err(NodeSettingsError::Syntax)?;
        if file.schema_version != SCHEMA_VERSION {
            return Err(NodeSettingsError::SchemaVersion(file.schema_version));
        }
        let astray = |entry: &NodeEntry| !file.classes.contains_key(&entry.class);
        if let Some((node, entry)) = file.nodes.iter().find(|(_, entry)| astray(entry)) {
            return Err(NodeSettingsError::NoClass {
                node: node.clone(),
                class: entry.class.clone(),
            });
        }
        Ok(file)
    }

    /// The text: the same settings always give the same bytes.
    pub fn to_json(&self) -> String {
        // Strings, numbers and maps with text keys always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What node `name` is to do; `None` when no class is for it.
    pub fn node(&self, name: &str) -> Option<(&NodeEntry, &ClassSettings)> {
        let entry = self.nodes.get(name)?;
        Some((entry, self.classes.get(&entry.class)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"schemaVersion":1,"classes":{"default":{"serviceCIDRs":["10.96.0.0/12"],"proxyPort":18080,"dnsPort":18053,"failMode":"Closed","defaultConnectivity":"Zero","mode":"iptables-compat","workloadSelector":{"matchLabels":{"app":"agent"}},"sensitiveCIDRs":["192.0.2.0/24"]}},"nodes":{"n1":{"class":"default","fakeIPCIDR":"169.254.3.0/24"}}}"#;

    #[test]
    fn a_file_is_read_and_written_to_the_same_bytes() {
        let file = NodeSettingsFile::parse(TEXT.as_bytes()).unwrap();
        assert_eq!(file.to_json(), TEXT);
        let (entry, class) = file.node("n1").unwrap();
        assert_eq!(entry.fake_ip_cidr.to_string(), "169.254.3.0/24");
        assert_eq!(class.mode, DataPathMode::IptablesCompat);
        assert!(file.node("n2").is_none());
    }

    #[test]
    fn what_is_no_such_file_is_refused() {
        for (from, to) in [
            ("\"schemaVersion\":1", "\"schemaVersion\":2"),
            ("\"class\":\"default\"", "\"class\":\"other\""),
            ("failMode", "failMod"),
            ("169.254.3.0/24", "169.254.3.0"),
        ] {
            assert!(
                NodeSettingsFile::parse(TEXT.replace(from, to).as_bytes()).is_err(),
                "{to}"
            );
        }
    }
}
