//! The workloads file: service accounts and labels of a node's pods, outside Kubernetes. Owns the format and the look-up,
//! not the file.
//!
//! One JSON object; each key is `namespace/name`, or `namespace/*` for the pods of a namespace that have no entry of
//! their own. The proxy reads it for identities, the CNI plugin for the choice of a pod's network.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::policy::selector::Labels;

/// What is known about a pod beyond its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// The service account it runs as.
    pub service_account: Option<String>,
    /// Its labels.
    pub labels: Labels,
    /// The labels of its namespace.
    pub namespace_labels: Labels,
}

/// A workloads file's content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkloadsFile {
    pods: BTreeMap<String, PodFacts>,
}

/// Why a workloads file is refused.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadsError {
    /// Not JSON of this shape.
    #[error("the workloads file is not valid")]
    Syntax(#[source] serde_json::Error),
    /// A key that names no pod.
    #[error("the key `{0}` names no pod; write `namespace/name`, or `namespace/*`")]
    Key(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    service_account: Option<String>,
    #[serde(default)]
    labels: Labels,
    #[serde(default)]
    namespace_labels: Labels,
}

impl WorkloadsFile {
    /// Reads the text of a workloads file.
    ///
    /// # Errors
    /// When it isn't JSON of this shape, or a key names no pod.
    pub fn parse(text: &[u8]) -> Result<Self, WorkloadsError> {
        let file: BTreeMap<String, Entry> =
            serde_json::from_slice(text).map_err(WorkloadsError::Syntax)?;
        let mut pods = BTreeMap::new();
        for (key, entry) in file {
            let names_a_pod = key.split_once('/').is_some_and(|(ns, name)| {
                !ns.is_empty() && !name.is_empty() && !name.contains('/')
            });
            if !names_a_pod {
                return Err(WorkloadsError::Key(key));
            }
            let facts = PodFacts {
                service_account: entry.service_account,
                labels: entry.labels,
                namespace_labels: entry.namespace_labels,
            };
            pods.insert(key, facts);
        }
        Ok(Self { pods })
    }

    /// The entry of this pod alone.
    pub fn own(&self, namespace: &str, name: &str) -> Option<&PodFacts> {
        self.pods.get(&format!("{namespace}/{name}"))
    }

    /// The pod's own entry, else its namespace's.
    pub fn facts(&self, namespace: &str, name: &str) -> Option<&PodFacts> {
        self.own(namespace, name)
            .or_else(|| self.pods.get(&format!("{namespace}/*")))
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// True without entries.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_own_entry_wins_over_its_namespaces() {
        let text = br#"{"demo/*":{"serviceAccount":"default"},"demo/a":{"serviceAccount":"agent","labels":{"app":"a"}}}"#;
        let file = WorkloadsFile::parse(text).unwrap();
        let account = |name| {
            file.facts("demo", name)
                .and_then(|f| f.service_account.clone())
        };
        assert_eq!(account("a").as_deref(), Some("agent"));
        assert_eq!(account("b").as_deref(), Some("default"));
        assert_eq!(file.own("demo", "b"), None);
        assert_eq!(file.facts("other", "a"), None);
        assert_eq!(file.len(), 2);
    }

    #[test]
    fn what_is_no_workloads_file_is_refused() {
        for text in [
            "",
            "{",
            "[]",
            r#"{"demo":{}}"#,
            r#"{"a/b/c":{}}"#,
            r#"{"/a":{}}"#,
            r#"{"demo/a":{"lables":{}}}"#,
        ] {
            assert!(WorkloadsFile::parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(WorkloadsFile::parse(b"{}").unwrap().is_empty());
    }
}
