//! Who is asking, and how rules and headers name them. Owns the names, not how an address is turned into a workload.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One pod, as the proxy knows it: from CNI state (namespace, name, UID, Fake IP) and from the API (the rest).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Workload {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID; empty when the runtime did not say.
    #[serde(default)]
    pub uid: String,
    /// The pod's service account; `None` while it is not known, which no `sa:` rule matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// The pod's labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The labels of the pod's namespace.
    #[serde(default)]
    pub namespace_labels: BTreeMap<String, String>,
    /// The pod's address on this node.
    pub fake_ip: Ipv4Addr,
}

impl Workload {
    /// The name under which this workload is known to others: its service account, or the pod while that is unknown.
    pub fn caller(&self) -> Caller {
        match &self.service_account {
            Some(name) => Caller::ServiceAccount {
                namespace: self.namespace.clone(),
                name: name.clone(),
            },
            None => Caller::Pod {
                namespace: self.namespace.clone(),
                name: self.name.clone(),
            },
        }
    }
}

/// A caller name: `sa:<namespace>:<service-account>`, `ns:<namespace>`, `pod:<namespace>:<name>` or `*`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Caller {
    /// Every pod that runs under one service account.
    ServiceAccount {
        /// The service account's namespace.
        namespace: String,
        /// The service account's name.
        name: String,
    },
    /// Every pod of one namespace.
    Namespace(String),
    /// One pod.
    Pod {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        name: String,
    },
    /// Everybody; only in rules.
    Any,
}

/// A text that is no caller name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no caller name; write sa:<namespace>:<service-account>, ns:<namespace>, pod:<namespace>:<name> or *"
)]
pub struct CallerError(String);

impl Caller {
    /// True when this name covers the workload.
    pub fn matches(&self, workload: &Workload) -> bool {
        match self {
            Self::Any => true,
            Self::Namespace(namespace) => *namespace == workload.namespace,
            Self::Pod { namespace, name } => {
                *namespace == workload.namespace && *name == workload.name
            }
            Self::ServiceAccount { namespace, name } => {
                *namespace == workload.namespace && workload.service_account.as_ref() == Some(name)
            }
        }
    }

    /// The namespace that the name lies in; `None` for `*`.
    pub fn namespace(&self) -> Option<&str> {
        match self {
            Self::Any => None,
            Self::Namespace(namespace)
            | Self::Pod { namespace, .. }
            | Self::ServiceAccount { namespace, .. } => Some(namespace),
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Namespace(namespace) => write!(f, "ns:{namespace}"),
            Self::Pod { namespace, name } => write!(f, "pod:{namespace}:{name}"),
            Self::ServiceAccount { namespace, name } => write!(f, "sa:{namespace}:{name}"),
        }
    }
}

impl FromStr for Caller {
    type Err = CallerError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || CallerError(text.chars().take(128).collect());
        if text == "*" {
            return Ok(Self::Any);
        }
        let mut parts = text.split(':');
        let (Some(kind), Some(namespace), name, None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(refuse());
        };
        if !is_object_name(namespace) || name.is_some_and(|name| !is_object_name(name)) {
            return Err(refuse());
        }
        match (kind, name) {
            ("ns", None) => Ok(Self::Namespace(namespace.to_owned())),
            ("pod", Some(name)) => Ok(Self::Pod {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            ("sa", Some(name)) => Ok(Self::ServiceAccount {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            _ => Err(refuse()),
        }
    }
}

/// True for what Kubernetes accepts as the name of a namespace, pod or service account (RFC 1123 subdomain).
pub fn is_object_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 253
        && text.split('.').all(|label| {
            !label.is_empty()
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        })
}

/// The address that the pod dialled, as the kernel kept it; never taken from anything that the pod wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OrigDst(pub SocketAddrV4);

/// The address that a connection or a query came from; the kernel program ties it to the pod's veth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientAddr(pub SocketAddrV4);

#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> Workload {
        Workload {
            namespace: "agents".into(),
            name: "planner-0".into(),
            uid: "u".into(),
            service_account: Some("planner".into()),
            labels: BTreeMap::new(),
            namespace_labels: BTreeMap::new(),
            fake_ip: Ipv4Addr::new(169, 254, 9, 2),
        }
    }

    #[test]
    fn caller_names_go_both_ways() {
        for text in [
            "sa:agents:planner",
            "ns:agents",
            "pod:agents:planner-0.x",
            "*",
        ] {
            assert_eq!(text.parse::<Caller>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn malformed_caller_names_are_refused_with_the_four_forms() {
        for bad in [
            "", "sa:", "sa:a", "sa:a:b:c", "ns:a:b", "ns:", "pod:a:", "user:a:b", "sa:A:b",
            "sa:a:*", " *", "**",
        ] {
            let error = bad.parse::<Caller>().unwrap_err().to_string();
            assert!(
                error.contains("sa:<namespace>:<service-account>"),
                "{bad}: {error}"
            );
        }
    }

    #[test]
    fn each_form_covers_the_workloads_it_names_and_no_other() {
        let w = workload();
        for (name, covered) in [
            ("*", true),
            ("ns:agents", true),
            ("ns:other", false),
            ("sa:agents:planner", true),
            ("sa:other:planner", false),
            ("sa:agents:planner-0", false),
            ("pod:agents:planner-0", true),
            ("pod:agents:planner", false),
        ] {
            assert_eq!(
                name.parse::<Caller>().unwrap().matches(&w),
                covered,
                "{name}"
            );
        }
    }

    #[test]
    fn no_service_account_rule_covers_a_workload_whose_account_is_unknown() {
        let w = Workload {
            service_account: None,
            ..workload()
        };
        assert!(!"sa:agents:planner".parse::<Caller>().unwrap().matches(&w));
        assert_eq!(w.caller().to_string(), "pod:agents:planner-0");
    }
}
