//! The runtime policy document: what the controller writes and the proxy reads. Owns the fields, their defaults and the
//! sentences that tell a person what to write instead; what rules mean together is the business of `set`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::policy::cidr::IpCidr;
use crate::policy::port::PortSpec;
use crate::policy::selector::LabelSelector;
use crate::policy::version;

mod error;
mod validate;

pub use error::DocumentError;

/// The only schema version that this build writes and reads.
pub const SCHEMA_VERSION: u32 = 1;

/// The whole document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RuntimePolicy {
    /// Format of the document; [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Hash of the content; computed when absent, refused when it is not the content's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The policies that rules belong to, which say whom they are for.
    #[serde(default)]
    pub policies: Vec<PolicyHeader>,
    /// The rules of all policies.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// Ranges that the operator adds to the built-in sensitive ones: denied before any rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sensitive_cidrs: Vec<IpCidr>,
}

impl Default for RuntimePolicy {
    fn default() -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            version: None,
            policies: Vec::new(),
            rules: Vec::new(),
            sensitive_cidrs: Vec::new(),
        }
    }
}

/// What is common to the rules of one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyHeader {
    /// Namespace of the AgentNetworkPolicy object.
    pub namespace: String,
    /// Name of the AgentNetworkPolicy object.
    pub name: String,
    /// Higher goes first among rules of one kind.
    #[serde(default)]
    pub priority: i32,
    /// Whether denials are carried out.
    #[serde(default)]
    pub mode: PolicyMode,
    /// The pods that the policy is for.
    pub subjects: Subjects,
    /// What happens to connections into a Fake IP CIDR; absent = the policy says nothing, and they are denied unless
    /// another policy allows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct_bypass: Option<BypassAction>,
}

/// The pods that a policy is for: exactly one way of naming namespaces, and a selector of pods in them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Subjects {
    /// Pods of every namespace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_namespaces: bool,
    /// Pods of these namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Pods of the namespaces with these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// The pods among them; empty = all.
    #[serde(default)]
    pub pod_selector: LabelSelector,
}

/// Whether a policy's denials are carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyMode {
    /// They are.
    #[default]
    Enforce,
    /// They are written to the audit log as `would_deny`, and the request is decided without them.
    Audit,
}

/// What happens to connections into a Fake IP CIDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BypassAction {
    /// They are denied.
    Deny,
    /// They are decided by egress rules like any other.
    Allow,
}

/// The kinds of rules, in the order in which they are held against a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleKind {
    /// Refuses.
    Deny,
    /// Lets through and sets a credential.
    Credential,
    /// Lets through.
    Allow,
}

impl RuleKind {
    /// The word used in the document.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Credential => "credential",
            Self::Allow => "allow",
        }
    }
}

/// What a rule is about.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum RuleDirection {
    /// Requests to the outside.
    #[default]
    Egress,
    /// Calls between agents.
    Ingress,
}

impl RuleDirection {
    /// The word used in the document.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Egress => "egress",
            Self::Ingress => "ingress",
        }
    }
}

/// The protocol that a rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleProtocol {
    /// HTTP in cleartext, gRPC included.
    Http,
    /// HTTP in TLS, and TLS that is passed through (whose content is not seen).
    Https,
    /// TLS, whatever is inside.
    Tls,
    /// Whatever is spoken to the port, as in the original's examples: the same as no protocol.
    Tcp,
    /// gRPC that the proxy sees.
    Grpc,
}

/// How a credential's value becomes a header's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CredentialFormat {
    /// The prefix and the value.
    #[default]
    Raw,
    /// `Basic` authentication with the rule's `username` and the value as the password.
    Basic,
}

/// What the proxy does about TLS for a rule's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// A request in cleartext leaves as HTTPS.
    Originate,
}

/// One rule. Which fields go with which kind and direction is checked by [`RuntimePolicy::parse`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// Position of the rule's policy in `policies`.
    pub policy: u32,
    /// The rule's name, which audit lines and error bodies give.
    pub name: String,
    /// What the rule does.
    pub kind: RuleKind,
    /// What it is about.
    #[serde(default)]
    pub direction: RuleDirection,
    /// Egress: a name, `*.suffix` or `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Egress: a network, instead of a host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<IpCidr>,
    /// One port or range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<PortSpec>,
    /// Several ports or ranges, instead of `port`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortSpec>,
    /// What is spoken; absent = anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<RuleProtocol>,
    /// HTTP methods, upper case; empty = any. `GET` covers `HEAD`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// HTTP paths: exact, or `/x/*` for everything under `/x/`; empty = any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Credential: the header that is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Credential: the file that holds the value, as `secret/key` under the credentials directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from_file: Option<String>,
    /// Credential: text before the value, such as `"Bearer "`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Credential: how the value is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<CredentialFormat>,
    /// Credential: user name of the `basic` format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Credential: whether the value is redacted in response headers; absent = true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strip_from_response: Option<bool>,
    /// Credential: whether the value may leave in cleartext; absent = false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_cleartext: Option<bool>,
    /// What the proxy does about TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsMode>,
    /// Ingress: who calls, as `sa:ns:name`, `ns:ns`, `pod:ns:name` or `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// Ingress: who is called, as `name`, `namespace/name` or `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

impl Rule {
    /// A rule with nothing but what every rule has.
    pub fn new(policy: u32, name: impl Into<String>, kind: RuleKind) -> Self {
        Self {
            policy,
            name: name.into(),
            kind,
            direction: RuleDirection::Egress,
            host: None,
            cidr: None,
            port: None,
            ports: Vec::new(),
            protocol: None,
            methods: Vec::new(),
            paths: Vec::new(),
            header: None,
            value_from_file: None,
            prefix: None,
            format: None,
            username: None,
            strip_from_response: None,
            allow_cleartext: None,
            tls: None,
            caller: None,
            target: None,
        }
    }
}

impl PolicyHeader {
    /// `namespace/name`, as audit lines and error bodies give it.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl RuntimePolicy {
    /// Reads a document, checks every field of it and settles its version.
    ///
    /// # Errors
    /// The first thing that cannot be run, naming policy and rule and what to write instead.
    pub fn parse(bytes: &[u8]) -> Result<Self, DocumentError> {
        let mut document: Self = match serde_json::from_slice(bytes) {
            Ok(document) => document,
            Err(source) => return Err(error::locate(bytes, source)),
        };
        document.validate()?;
        let computed = version::of(&document);
        match &document.version {
            Some(stated) if *stated != computed => Err(DocumentError::VersionMismatch {
                stated: stated.chars().take(80).collect(),
                computed,
            }),
            _ => {
                document.version = Some(computed);
                Ok(document)
            }
        }
    }

    /// Checks everything that types alone do not, but not the version.
    ///
    /// # Errors
    /// The first thing that cannot be run.
    pub fn validate(&self) -> Result<(), DocumentError> {
        validate::document(self)
    }

    /// The hash of the content, whatever `version` states.
    pub fn content_version(&self) -> String {
        version::of(self)
    }

    /// The document as JSON with its version set: the same content always gives the same bytes.
    pub fn to_json(&self) -> String {
        let sealed = Self {
            version: Some(self.content_version()),
            ..self.clone()
        };
        // Strings, numbers and lists always serialise; an empty text would be refused by `parse`.
        serde_json::to_string(&sealed).unwrap_or_default()
    }
}

impl fmt::Display for RuleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests;
