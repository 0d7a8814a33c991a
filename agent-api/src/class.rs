//! `AgentNetworkClass`: what the nodes' networks are made of. Owns the shape and what the API server can hold against it;
//! which node gets which part of the pool is the business of whoever derives node settings.
//!
//! The doc comments of the fields are what `kubectl explain` shows.

#![expect(
    clippy::duplicated_attributes,
    reason = "every printer column has its own name, type and path"
)]
#![expect(
    unreachable_pub,
    reason = "KubeSchema derives from copies of the types inside of functions"
)]

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

pub use agent_core::node_settings::{Connectivity, DataPathMode, FailMode};
use agent_core::policy::cidr::IpCidr;
use agent_core::policy::selector::LabelSelector;

use crate::schema;
use crate::status::NodeCount;

/// The pool that Fake IPs come from unless a class says otherwise: link-local, so that no route leads there.
pub const DEFAULT_POOL: (Ipv4Addr, u8) = (Ipv4Addr::new(169, 254, 0, 0), 16);
/// The length of a node's part of the pool unless a class says otherwise: as many addresses as kubelet runs pods, twice.
pub const DEFAULT_NODE_PREFIX_LENGTH: u8 = 24;
/// The port of ZeroProxy (see reference, "Parameters").
pub const DEFAULT_PROXY_PORT: u16 = 18080;
/// The port of the DNS proxy (see reference, "Parameters").
pub const DEFAULT_DNS_PORT: u16 = 18053;

/// What the networks of some nodes are made of: Fake IPs, Service CIDRs, ports, and what happens without the proxy.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "agent.tke.cloud.tencent.com",
    version = "v1alpha1",
    kind = "AgentNetworkClass",
    plural = "agentnetworkclasses",
    singular = "agentnetworkclass",
    shortname = "anc",
    category = "agent-network",
    status = "ClassStatus",
    derive = "PartialEq",
    doc = "What the networks of some nodes are made of: Fake IPs, Service CIDRs, ports, and what happens without the proxy.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.fakeIPCIDR"),
    printcolumn(
        name = "Nodes",
        type_ = "string",
        json_path = ".status.nodes.summary",
        description = "Nodes that follow the class / nodes that have to"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = (
        "!isCIDR(self.fakeIPCIDR) || cidr(self.fakeIPCIDR).prefixLength() <= self.nodePrefixLength",
        "nodePrefixLength is the length of one node's part of fakeIPCIDR; write a larger number, or a larger fakeIPCIDR"
    ),
    validation = (
        "!isCIDR(self.fakeIPCIDR) || cidr(self.fakeIPCIDR).prefixLength() < self.nodePrefixLength || !cidr(self.fakeIPCIDR).containsIP('169.254.169.254')",
        "169.254.169.254 is the metadata address, and nothing of the range would be left; write one without it, or 169.254.0.0/16"
    ),
    validation = (
        "!has(self.serviceCIDRs) || !isCIDR(self.fakeIPCIDR) || self.serviceCIDRs.all(net, !isCIDR(net) || !(cidr(net).containsCIDR(cidr(self.fakeIPCIDR)) || cidr(self.fakeIPCIDR).containsCIDR(cidr(net))))",
        "fakeIPCIDR overlaps serviceCIDRs; write a range that nothing else in the cluster uses"
    )
)]
pub struct ClassSpec {
    /// The nodes that the class is for, by their labels; empty selects all nodes.
    #[serde(default)]
    #[schemars(schema_with = "schema::label_selector")]
    pub node_selector: LabelSelector,
    /// The range that Fake IPs come from; every node gets a part of it. Nothing else in the cluster may use it, and a
    /// Service can have agent pods behind it only when it is not link-local.
    #[serde(rename = "fakeIPCIDR", default = "default_pool")]
    #[schemars(schema_with = "schema::fake_ip_cidr")]
    pub fake_ip_cidr: Ipv4Net,
    /// The length of a node's part of fakeIPCIDR: 24 gives 253 pods a node, 29 gives 5.
    #[serde(default = "default_node_prefix_length")]
    #[schemars(schema_with = "schema::node_prefix_length")]
    pub node_prefix_length: u8,
    /// The ranges of the cluster's Services. Traffic to them passes by the proxy to kube-proxy, so that they must be right.
    /// Not given: what the chart was installed with.
    #[serde(
        rename = "serviceCIDRs",
        default,
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "schema::service_cidrs")]
    pub service_cidrs: Vec<Ipv4Net>,
    /// Where the proxy listens, and what happens without it.
    #[serde(default)]
    pub proxy: ProxySettings,
    /// How pods are attached.
    #[serde(default)]
    pub cni: CniSettings,
    /// The pods that become agent pods, by their labels; the others stay with the primary CNI. Not given: every new pod of
    /// the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub workload_selector: Option<LabelSelector>,
    /// Ranges that no policy can open, beside 169.254.169.254/32 and 100.64.0.0/10, which always are.
    #[serde(
        rename = "sensitiveCIDRs",
        default,
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "schema::sensitive_cidrs")]
    pub sensitive_cidrs: Vec<IpCidr>,
}

/// Where the proxy listens, and what happens without it.
#[derive(KubeSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = (
    "self.port != self.dnsPort",
    "port and dnsPort are two listeners; write two different ports"
))]
pub struct ProxySettings {
    /// The port of ZeroProxy on the node.
    #[serde(default = "default_proxy_port")]
    #[schemars(schema_with = "schema::listener_port")]
    pub port: u16,
    /// The port of the DNS proxy on the node, UDP and TCP.
    #[serde(default = "default_dns_port")]
    #[schemars(schema_with = "schema::listener_port")]
    pub dns_port: u16,
    /// What happens to agent pods' traffic while no proxy listens. Closed: it is dropped. Open: it passes without a policy.
    #[serde(default)]
    #[schemars(schema_with = "schema::fail_mode")]
    pub fail_mode: FailMode,
}

/// How pods are attached.
#[derive(KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CniSettings {
    /// What pods may reach for which no policy applies. Zero: nothing. Passthrough: everything but what is always denied.
    #[serde(default)]
    #[schemars(schema_with = "schema::connectivity")]
    pub default_connectivity: Connectivity,
    /// How packets get to the proxy: ebpf, iptables-compat, or auto for what the node's kernel can do, eBPF first.
    #[serde(default)]
    #[schemars(schema_with = "schema::data_path_mode")]
    pub mode: DataPathMode,
}

/// What became of a class. The controller writes it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassStatus {
    /// Pending: not on all nodes yet. Active: all of them follow. Degraded: something waits for pods to go, or is missing.
    /// Invalid: left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::class_phase")]
    pub phase: Option<ClassPhase>,
    /// The metadata.generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::count")]
    pub observed_generation: Option<i64>,
    /// Accepted (the class can be followed), Programmed (every node of it follows).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// How many nodes follow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::node_count")]
    pub nodes: Option<NodeCount>,
    /// What is wrong and what to do, or what is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::message")]
    pub message: Option<String>,
}

/// Where a class is on its way to the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClassPhase {
    /// Not on all nodes yet.
    Pending,
    /// All nodes follow.
    Active,
    /// Something waits for pods to go, or is missing.
    Degraded,
    /// Left out.
    Invalid,
}

impl Default for ClassSpec {
    fn default() -> Self {
        Self {
            node_selector: LabelSelector::default(),
            fake_ip_cidr: default_pool(),
            node_prefix_length: DEFAULT_NODE_PREFIX_LENGTH,
            service_cidrs: Vec::new(),
            proxy: ProxySettings::default(),
            cni: CniSettings::default(),
            workload_selector: None,
            sensitive_cidrs: Vec::new(),
        }
    }
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            port: DEFAULT_PROXY_PORT,
            dns_port: DEFAULT_DNS_PORT,
            fail_mode: FailMode::default(),
        }
    }
}

fn default_pool() -> Ipv4Net {
    let (address, length) = DEFAULT_POOL;
    Ipv4Net::new_assert(address, length)
}

fn default_node_prefix_length() -> u8 {
    DEFAULT_NODE_PREFIX_LENGTH
}

fn default_proxy_port() -> u16 {
    DEFAULT_PROXY_PORT
}

fn default_dns_port() -> u16 {
    DEFAULT_DNS_PORT
}
