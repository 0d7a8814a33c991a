//! What ingress rules call `target`: the name of an agent or a service that agents call. Owns the name's form; who is
//! behind a target is resolved elsewhere, in one place.

use std::fmt;
use std::str::FromStr;

use crate::identity::is_object_name;

/// A target as a rule or `X-Agent-Target` names it: `name`, or `namespace/name`. Lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    namespace: Option<Box<str>>,
    name: Box<str>,
}

/// A text that is no target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no target; write the name of a service, or namespace/name")]
pub struct TargetError(String);

impl Target {
    /// The namespace, when the text named one; else the name means the caller's namespace or a fixed upstream.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || TargetError(text.chars().take(128).collect());
        let lower = text.to_ascii_lowercase();
        let (namespace, name) = match lower.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, lower.as_str()),
        };
        if !is_object_name(name) || namespace.is_some_and(|namespace| !is_object_name(namespace)) {
            return Err(refuse());
        }
        Ok(Self {
            namespace: namespace.map(Into::into),
            name: name.into(),
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_go_both_ways_in_lower_case() {
        for (text, form) in [
            ("agent-server", "agent-server"),
            ("Agents/Server", "agents/server"),
            ("a.b", "a.b"),
        ] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), form);
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in ["", "/", "a/", "/a", "a/b/c", "*", "a b", "a_b", "a:80"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
