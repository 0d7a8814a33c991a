//! What can be wrong with a document, said so that a person can mend it. Owns the search for the rule that JSON parsing
//! alone only gives a line number for.

use serde_json::Value;

use crate::policy::document::{PolicyHeader, Rule, SCHEMA_VERSION};

/// Why a document is refused.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The bytes are no JSON, or the document as a whole has another shape.
    #[error("the policy document cannot be read")]
    NotADocument(#[source] serde_json::Error),
    /// The file is empty.
    #[error("the policy document is empty; the least one is {{\"schemaVersion\":1}}")]
    Empty,
    /// Another version of this software wrote it.
    #[error("the policy document has schemaVersion {0}, this build reads {SCHEMA_VERSION}")]
    SchemaVersion(u32),
    /// `version` is not the hash of the content.
    #[error(
        "the policy document says version {stated}, but its content is {computed}; leave `version` out, or write that"
    )]
    VersionMismatch {
        /// What the document says.
        stated: String,
        /// What it is.
        computed: String,
    },
    /// A policy's header cannot be run.
    #[error("policy {policy}: {problem}")]
    Policy {
        /// The policy, as `namespace/name` or by its position.
        policy: String,
        /// What is wrong, and what to write.
        problem: String,
    },
    /// A rule cannot be run.
    #[error("policy {policy}, rule {rule}: {problem}")]
    Rule {
        /// The policy, as `namespace/name` or by its position.
        policy: String,
        /// The rule's name or its position.
        rule: String,
        /// What is wrong, and what to write.
        problem: String,
    },
}

impl DocumentError {
    /// A fixed label for logs and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotADocument(_) => "not_a_document",
            Self::Empty => "empty",
            Self::SchemaVersion(_) => "schema_version",
            Self::VersionMismatch { .. } => "version_mismatch",
            Self::Policy { .. } => "policy",
            Self::Rule { .. } => "rule",
        }
    }
}

/// Finds the policy or rule that made parsing fail, at the cost of a second, slower look at the bytes.
pub(super) fn locate(bytes: &[u8], source: serde_json::Error) -> DocumentError {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return DocumentError::Empty;
    }
    let Ok(mut document) = serde_json::from_slice::<Value>(bytes) else {
        return DocumentError::NotADocument(source);
    };
    if let Some(version) = document.get("schemaVersion").and_then(Value::as_u64)
        && version != u64::from(SCHEMA_VERSION)
    {
        return DocumentError::SchemaVersion(u32::try_from(version).unwrap_or(u32::MAX));
    }
    let policies = take_list(&mut document, "policies");
    for (i, policy) in policies.iter().enumerate() {
        if let Err(error) = PolicyHeader::deserialize_value(policy) {
            return DocumentError::Policy {
                policy: policy_label(policy, i),
                problem: error.to_string(),
            };
        }
    }
    for (i, rule) in take_list(&mut document, "rules").iter().enumerate() {
        let problem = if rule.get("valueFromEnv").is_some() {
            "valueFromEnv is refused, since the environment of a process is no place for a secret; \
             write valueFromFile with <secret>/<key>"
                .to_owned()
        } else if let Err(error) = Rule::deserialize_value(rule) {
            error.to_string()
        } else {
            continue;
        };
        let position = rule
            .get("policy")
            .and_then(Value::as_u64)
            .and_then(|p| usize::try_from(p).ok());
        let policy = position.and_then(|p| Some(policy_label(policies.get(p)?, p)));
        return DocumentError::Rule {
            policy: policy.unwrap_or_else(|| "(unknown)".to_owned()),
            rule: label(rule.get("name"), i),
            problem,
        };
    }
    DocumentError::NotADocument(source)
}

trait DeserializeValue: Sized {
    fn deserialize_value(value: &Value) -> Result<Self, serde_json::Error>;
}

impl<T: serde::de::DeserializeOwned> DeserializeValue for T {
    fn deserialize_value(value: &Value) -> Result<Self, serde_json::Error> {
        T::deserialize(value)
    }
}

fn take_list(document: &mut Value, field: &str) -> Vec<Value> {
    match document.get_mut(field).map(Value::take) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

fn policy_label(policy: &Value, position: usize) -> String {
    let part = |field| policy.get(field).and_then(Value::as_str);
    match (part("namespace"), part("name")) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        (_, name) => label(name.map(Value::from).as_ref(), position),
    }
}

fn label(name: Option<&Value>, position: usize) -> String {
    match name.and_then(Value::as_str) {
        Some(name) => name.chars().take(80).collect(),
        None => format!("number {position}"),
    }
}
