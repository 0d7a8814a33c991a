//! `AgentNetworkPolicy`, field by field as a person writes it. Owns the shape; what the fields mean together is `compile`'s.

use serde::{Deserialize, Serialize};

use agent_core::policy::cidr::IpCidr;
use agent_core::policy::document::{
    BypassAction, CredentialFormat, PolicyMode, RuleProtocol, TlsMode,
};
use agent_core::policy::port::PortSpec;
use agent_core::policy::selector::LabelSelector;

/// A namespaced policy for agent pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentNetworkPolicy {
    /// Always [`crate::API_VERSION`].
    pub api_version: String,
    /// Always `AgentNetworkPolicy`.
    pub kind: String,
    /// Name and namespace.
    pub metadata: Metadata,
    /// What the policy says.
    pub spec: PolicySpec,
}

/// The part of an object's metadata that a policy needs; what else Kubernetes puts there is ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// The policy's name.
    pub name: String,
    /// The policy's namespace; the system namespace when it isn't given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// What a policy says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicySpec {
    /// The pods that the policy applies to; empty selects all agent pods.
    #[serde(default)]
    pub pod_selector: LabelSelector,
    /// The namespaces whose pods the policy applies to; only in the system namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Among rules of one kind the higher priority is looked at first.
    #[serde(default)]
    pub priority: i32,
    /// `enforce`, or `audit`: what would be denied is let through and marked `would_deny`.
    #[serde(default)]
    pub mode: PolicyMode,
    /// What the pods may reach.
    #[serde(default)]
    pub egress: Egress,
    /// Who may call the pods' targets.
    #[serde(default)]
    pub ingress: Ingress,
    /// What happens to a pod that dials another agent's Fake IP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct_bypass: Option<DirectBypass>,
}

/// Rules for what pods reach, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Egress {
    /// Let through as it is.
    #[serde(default)]
    pub allow: Vec<EgressRule>,
    /// Let through with a credential put in.
    #[serde(default)]
    pub credential: Vec<CredentialRule>,
    /// Refused, whatever the other lists say.
    #[serde(default)]
    pub deny: Vec<EgressRule>,
}

/// Where a rule applies: a host or a range of addresses, and what narrows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressRule {
    /// The rule's name; error texts and audit lines show it.
    pub name: String,
    /// An exact name, `*.suffix`, or `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// A range of addresses, instead of `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<IpCidr>,
    /// What is spoken; unset or `tcp` means anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<RuleProtocol>,
    /// One port or range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<PortSpec>,
    /// Several ports or ranges.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortSpec>,
    /// HTTP methods; `HEAD` comes with `GET`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Exact paths, or prefixes such as `/x/*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// `originate`: an `http://` request leaves as HTTPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsMode>,
}

/// An egress rule that puts a credential into the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CredentialRule {
    /// The rule's name.
    pub name: String,
    /// An exact name, `*.suffix`, or `*`.
    pub host: String,
    /// The header that is set, such as `Authorization`.
    pub header: String,
    /// The Secret's name and key.
    pub value_from: SecretKeyRef,
    /// Text put before the value, such as `"Bearer "`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// `raw`, or `basic` with `username`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<CredentialFormat>,
    /// The user name of `format: basic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Whether a response header that echoes the value is redacted; true when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strip_from_response: Option<bool>,
    /// Whether the credential may leave unencrypted; false when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_cleartext: Option<bool>,
    /// What is spoken; unset or `tcp` means anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<RuleProtocol>,
    /// One port or range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<PortSpec>,
    /// Several ports or ranges.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortSpec>,
    /// HTTP methods; `HEAD` comes with `GET`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Exact paths, or prefixes such as `/x/*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// `originate`: an `http://` request leaves as HTTPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsMode>,
}

/// One key of a Secret that is mounted into the proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretKeyRef {
    /// The Secret's name.
    pub name: String,
    /// The key in it.
    pub key: String,
}

/// Rules for who calls whom.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ingress {
    /// Calls that are let through.
    #[serde(default)]
    pub allow: Vec<IngressRule>,
    /// Calls that are refused, whatever `allow` says.
    #[serde(default)]
    pub deny: Vec<IngressRule>,
}

/// One caller and one target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngressRule {
    /// The rule's name; `caller->target` when it isn't given, as in the original's examples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `sa:<namespace>:<name>`, `ns:<namespace>`, `pod:<namespace>:<name>` or `*`.
    pub caller: String,
    /// The target's name, or `*`.
    pub target: String,
}

/// What happens to a pod that dials an address of the Fake IP CIDR.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DirectBypass {
    /// `deny` or `allow`.
    pub default_action: BypassAction,
}
