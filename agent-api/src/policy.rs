//! `AgentNetworkPolicy`, field by field as a person writes it. Owns the shape and what the API server can hold against it;
//! what the fields mean together is `compile`'s.
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

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use agent_core::policy::cidr::IpCidr;
use agent_core::policy::document::{
    BypassAction, CredentialFormat, PolicyMode, RuleProtocol, TlsMode,
};
use agent_core::policy::port::PortSpec;
use agent_core::policy::selector::LabelSelector;

use crate::schema;
use crate::status::NodeCount;

/// What agent pods may reach, with which credentials, and who may call them. What no policy allows is denied.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize,
)]
#[kube(
    group = "agent.tke.cloud.tencent.com",
    version = "v1alpha1",
    kind = "AgentNetworkPolicy",
    plural = "agentnetworkpolicies",
    singular = "agentnetworkpolicy",
    shortname = "anp",
    category = "agent-network",
    namespaced,
    status = "PolicyStatus",
    derive = "PartialEq",
    doc = "What agent pods may reach, with which credentials, and who may call them. What no policy allows is denied. A policy in the system namespace (tke-agent-network-real) is for agent pods of every namespace, another for those of its own.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Rules", type_ = "integer", json_path = ".status.rules"),
    printcolumn(
        name = "Nodes",
        type_ = "string",
        json_path = ".status.nodes.summary",
        description = "Nodes that enforce the policy / nodes that have to"
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
pub struct PolicySpec {
    /// The pods that the policy is for, by their labels; empty selects all agent pods.
    #[serde(default)]
    #[schemars(schema_with = "schema::label_selector")]
    pub pod_selector: LabelSelector,
    /// The namespaces whose pods the policy is for, by their labels. Only in the system namespace; when it is not given,
    /// pods of every namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub namespace_selector: Option<LabelSelector>,
    /// Among rules of one kind (deny, credential, allow) those of the policy with the higher priority are looked at first.
    #[serde(default)]
    #[schemars(schema_with = "schema::priority")]
    pub priority: i32,
    /// Whether denials are carried out: `enforce`, or `audit`, where what the policy would deny is let through and
    /// written to the audit log as would_deny.
    #[serde(default)]
    #[schemars(schema_with = "schema::mode")]
    pub mode: PolicyMode,
    /// What the pods may reach. The order is fixed: deny, credential, allow, and then what is left is denied.
    #[serde(default, skip_serializing_if = "Egress::is_empty")]
    pub egress: Egress,
    /// Who may call the pods' targets.
    #[serde(default, skip_serializing_if = "Ingress::is_empty")]
    pub ingress: Ingress,
    /// What happens to a pod that dials another agent's Fake IP instead of its target. Not given: the policy says nothing,
    /// and it is denied unless another policy allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::direct_bypass")]
    pub direct_bypass: Option<DirectBypass>,
}

/// Rules for what pods reach, by kind.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Egress {
    /// Where pods may go as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = schema::MAX_RULES),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub allow: Vec<EgressRule>,
    /// Where pods may go with a credential that the proxy puts in and that they never hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = schema::MAX_RULES),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub credential: Vec<CredentialRule>,
    /// Where pods may never go, whatever the other lists of any policy say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = schema::MAX_RULES),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    #[x_kube(validation = schema::NO_TLS_IN_DENY)]
    pub deny: Vec<EgressRule>,
}

/// Where a rule applies: a host or a range of addresses, and what narrows it.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = schema::HOST_OR_CIDR,
    validation = schema::HOST_XOR_CIDR,
    validation = schema::PORT_XOR_PORTS,
    validation = schema::HTTP_ONLY,
    validation = schema::TLS_NEEDS_HOST
)]
pub struct EgressRule {
    /// The rule's name, once in its list. Answers to denied requests and audit lines show it.
    #[schemars(schema_with = "schema::rule_name")]
    pub name: String,
    /// A name (git.example.com), every name below a suffix (*.example.com), or * for every host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::host")]
    pub host: Option<String>,
    /// A range of addresses instead of a host, such as 192.0.2.0/24. In deny it also covers what names resolve to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::cidr")]
    pub cidr: Option<IpCidr>,
    /// What is spoken: http, https, grpc, tls, or tcp for anything; not given: anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::protocol")]
    pub protocol: Option<RuleProtocol>,
    /// One port (443) or range ("8000-8999"); with neither port nor ports: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::port")]
    pub port: Option<PortSpec>,
    /// Several ports or ranges, instead of port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::ports")]
    pub ports: Vec<PortSpec>,
    /// HTTP methods in capitals; HEAD comes with GET; not given: any. Not for TLS that the proxy passes through unread.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::methods")]
    pub methods: Vec<String>,
    /// HTTP paths: exact (/v1/models), or everything under one (/v1/*); not given: any. Not for TLS that the proxy passes
    /// through unread.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::paths")]
    pub paths: Vec<String>,
    /// originate: the pod's http:// request leaves as HTTPS with a verified certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::tls")]
    pub tls: Option<TlsMode>,
}

/// An egress rule that puts a credential into the request.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = schema::PORT_XOR_PORTS,
    validation = schema::HTTP_ONLY,
    validation = schema::BASIC_NEEDS_USERNAME,
    validation = schema::USERNAME_NEEDS_BASIC,
    validation = schema::BASIC_HAS_NO_PREFIX
)]
pub struct CredentialRule {
    /// The rule's name, once in its list. Answers to denied requests and audit lines show it.
    #[schemars(schema_with = "schema::rule_name")]
    pub name: String,
    /// The name of the host that the credential is for, or *.suffix; never every host.
    #[schemars(schema_with = "schema::credential_host")]
    pub host: String,
    /// The header that carries the credential, such as Authorization. What the pod sends under this name is removed.
    #[schemars(schema_with = "schema::header")]
    pub header: String,
    /// The Secret and its key that hold the value. The Secret has to be mounted into ZeroProxy
    /// (zeroproxy.credentialSecrets); the pod never sees it.
    pub value_from: SecretKeyRef,
    /// Text before the value, such as "Bearer " (with its space).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::prefix")]
    pub prefix: Option<String>,
    /// raw: prefix and value as they are; basic: HTTP Basic authentication with username and the value as the password.
    #[serde(default)]
    #[schemars(schema_with = "schema::format")]
    pub format: CredentialFormat,
    /// The user name of format: basic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::username")]
    pub username: Option<String>,
    /// Whether a response header that echoes the value is redacted.
    #[serde(default = "yes")]
    pub strip_from_response: bool,
    /// Whether the credential may leave the node unencrypted. Without it, and without TLS, the request is denied.
    #[serde(default)]
    pub allow_cleartext: bool,
    /// What is spoken: http, https, grpc, tls, or tcp for anything; not given: anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::protocol")]
    pub protocol: Option<RuleProtocol>,
    /// One port (443) or range ("8000-8999"); with neither port nor ports: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::port")]
    pub port: Option<PortSpec>,
    /// Several ports or ranges, instead of port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::ports")]
    pub ports: Vec<PortSpec>,
    /// HTTP methods in capitals; HEAD comes with GET; not given: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::methods")]
    pub methods: Vec<String>,
    /// HTTP paths: exact (/v1/models), or everything under one (/v1/*); not given: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::paths")]
    pub paths: Vec<String>,
    /// originate: the pod's http:// request leaves as HTTPS with a verified certificate. The proxy can't put a credential
    /// into the pod's own TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::tls")]
    pub tls: Option<TlsMode>,
}

/// One key of a Secret that is mounted into the proxy.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretKeyRef {
    /// The Secret's name; it lies in the system namespace.
    #[schemars(schema_with = "schema::secret_name")]
    pub name: String,
    /// The key in it.
    #[schemars(schema_with = "schema::secret_key")]
    pub key: String,
}

/// Rules for who calls whom.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ingress {
    /// Calls that are let through.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = schema::MAX_RULES),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub allow: Vec<IngressRule>,
    /// Calls that are refused, whatever allow says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = schema::MAX_RULES),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub deny: Vec<IngressRule>,
}

/// One caller and one target.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngressRule {
    /// The rule's name, once in its list; made of caller and target when it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::rule_name")]
    pub name: Option<String>,
    /// Who calls: sa:<namespace>:<service-account>, ns:<namespace>, pod:<namespace>:<name>, or * for everybody.
    #[schemars(schema_with = "schema::caller")]
    pub caller: String,
    /// Who is called: the name of a Service, <namespace>/<name>, or * for every target.
    #[schemars(schema_with = "schema::target")]
    pub target: String,
}

/// What happens to a pod that dials an address of the Fake IP CIDR.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DirectBypass {
    /// deny, or allow: the connection is then decided by egress rules like any other.
    #[schemars(schema_with = "schema::bypass_action")]
    pub default_action: BypassAction,
}

/// What became of a policy. The controller writes it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStatus {
    /// Pending: not on all nodes yet. Active: enforced on all of them. Degraded: enforced, but something is missing.
    /// Invalid: left out, so that what it would allow is denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::policy_phase")]
    pub phase: Option<PolicyPhase>,
    /// The metadata.generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::count")]
    pub observed_generation: Option<i64>,
    /// Accepted (the policy can be run), Programmed (every ready proxy runs it), CredentialsResolved (the proxies can
    /// read its credentials).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// How many nodes run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::node_count")]
    pub nodes: Option<NodeCount>,
    /// How many rules it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::count")]
    pub rules: Option<i64>,
    /// The version of the runtime policy that it is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::policy_version")]
    pub policy_version: Option<String>,
    /// What is wrong and what to do, or what is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::message")]
    pub message: Option<String>,
}

/// Where a policy is on its way to the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyPhase {
    /// Not on all nodes yet.
    Pending,
    /// Enforced on all nodes that are ready.
    Active,
    /// Enforced, but something is missing.
    Degraded,
    /// Left out.
    Invalid,
}

impl Egress {
    /// True without a rule.
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.credential.is_empty() && self.deny.is_empty()
    }
}

impl Ingress {
    /// True without a rule.
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }
}

fn yes() -> bool {
    true
}
