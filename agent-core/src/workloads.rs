//! The workloads file: service accounts and labels of a node's pods. Owns the format and the look-up, not the file.
//!
//! One JSON object; each key is `namespace/name`, or `namespace/*` for the pods of a namespace that have no entry of
//! their own. In Kubernetes the proxy writes it as what the API server has said, and reads it when it starts; elsewhere somebody
//! else writes it. The CNI plugin reads it for the choice of a pod's network.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
    pods: BTreeMap<String, Known>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Known {
    /// An entry with a UID is that pod's alone: one of the same name is another pod.
    uid: Option<String>,
    facts: PodFacts,
}

/// One entry of a workloads file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedPod<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod's name, or `*`.
    pub name: &'a str,
    /// The pod's UID, when the entry is of one pod.
    pub uid: Option<&'a str>,
    /// What is known.
    pub facts: &'a PodFacts,
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

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
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
            let known = Known {
                uid: entry.uid,
                facts,
            };
            pods.insert(key, known);
        }
        Ok(Self { pods })
    }

    /// A file of these pods.
    pub fn of<'a>(pods: impl IntoIterator<Item = NamedPod<'a>>) -> Self {
        let entry = |pod: NamedPod<'a>| {
            let known = Known {
                uid: pod.uid.map(str::to_owned),
                facts: pod.facts.clone(),
            };
            (format!("{}/{}", pod.namespace, pod.name), known)
        };
        Self {
            pods: pods.into_iter().map(entry).collect(),
        }
    }

    /// The text: the same pods always give the same bytes.
    pub fn to_json(&self) -> String {
        let entry = |known: &Known| Entry {
            uid: known.uid.clone(),
            service_account: known.facts.service_account.clone(),
            labels: known.facts.labels.clone(),
            namespace_labels: known.facts.namespace_labels.clone(),
        };
        let file: BTreeMap<&String, Entry> = self
            .pods
            .iter()
            .map(|(key, known)| (key, entry(known)))
            .collect();
        // strings and maps with text keys always serialise
        serde_json::to_string(&file).unwrap_or_default()
    }

    /// Every entry.
    pub fn entries(&self) -> impl Iterator<Item = NamedPod<'_>> {
        self.pods.iter().filter_map(|(key, known)| {
            let (namespace, name) = key.split_once('/')?;
            Some(NamedPod {
                namespace,
                name,
                uid: known.uid.as_deref(),
                facts: &known.facts,
            })
        })
    }

    /// The entry of this pod alone; `uid` is empty when the runtime did not say.
    pub fn own(&self, namespace: &str, name: &str, uid: &str) -> Option<&PodFacts> {
        let known = self.pods.get(&format!("{namespace}/{name}"))?;
        let other = |of: &String| !uid.is_empty() && of != uid;
        (!known.uid.as_ref().is_some_and(other)).then_some(&known.facts)
    }

    /// The pod's own entry, else its namespace's.
    pub fn facts(&self, namespace: &str, name: &str, uid: &str) -> Option<&PodFacts> {
        self.own(namespace, name, uid).or_else(|| {
            let of_namespace = self.pods.get(&format!("{namespace}/*"))?;
            Some(&of_namespace.facts)
        })
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
            file.facts("demo", name, "u")
                .and_then(|f| f.service_account.clone())
        };
        assert_eq!(account("a").as_deref(), Some("agent"));
        assert_eq!(account("b").as_deref(), Some("default"));
        assert_eq!(file.own("demo", "b", "u"), None);
        assert_eq!(file.facts("other", "a", "u"), None);
        assert_eq!(file.len(), 2);
    }

    #[test]
    fn an_entry_with_a_uid_is_that_pods_alone() {
        let text = br#"{"demo/a":{"uid":"1","labels":{"app":"a"},"namespaceLabels":{}},"demo/b":{"labels":{},"namespaceLabels":{}}}"#;
        let file = WorkloadsFile::parse(text).unwrap();
        for (name, uid, known) in [
            ("a", "1", true),
            ("a", "2", false),
            ("a", "", true),
            ("b", "7", true),
        ] {
            assert_eq!(file.own("demo", name, uid).is_some(), known, "{name} {uid}");
        }
        assert_eq!(file.to_json().as_bytes(), text);
        let again = WorkloadsFile::of(file.entries());
        assert_eq!(again, file);
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
