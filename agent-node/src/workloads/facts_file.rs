//! The workloads file: service accounts and labels outside Kubernetes.
//!
//! One JSON object; each key is `namespace/name`, or `namespace/*` for the pods of a namespace
//! that have no entry of their own.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::source::{PodFacts, PodRef, WorkloadSource};
use crate::file_watch::{FileWatch, Look};

/// How often the content is compared although size and times are the same.
const COMPARE_EVERY: Duration = Duration::from_secs(2);
/// Room for 10,000 pods with many labels.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// The workloads file, followed by content.
pub struct FactsFile {
    watch: FileWatch,
    pods: BTreeMap<String, PodFacts>,
}

/// Why a workloads file is refused.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
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
    labels: BTreeMap<String, String>,
    #[serde(default)]
    namespace_labels: BTreeMap<String, String>,
}

impl FactsFile {
    /// Follows the file at `path`. A missing or broken file is logged; what was read last stays.
    pub fn new(path: &Path) -> FactsFile {
        FactsFile {
            watch: FileWatch::new(path, MAX_BYTES, COMPARE_EVERY),
            pods: BTreeMap::new(),
        }
    }

    /// Reads the text of a workloads file.
    ///
    /// # Errors
    /// When it isn't JSON of this shape, or a key names no pod.
    pub fn parse(text: &[u8]) -> Result<BTreeMap<String, PodFacts>, FactsError> {
        let file: BTreeMap<String, Entry> =
            serde_json::from_slice(text).map_err(FactsError::Syntax)?;
        let mut pods = BTreeMap::new();
        for (key, entry) in file {
            let names_a_pod = key.split_once('/').is_some_and(|(ns, name)| {
                !ns.is_empty() && !name.is_empty() && !name.contains('/')
            });
            if !names_a_pod {
                return Err(FactsError::Key(key));
            }
            let facts = PodFacts {
                service_account: entry.service_account,
                labels: entry.labels,
                namespace_labels: entry.namespace_labels,
            };
            pods.insert(key, facts);
        }
        Ok(pods)
    }
}

impl WorkloadSource for FactsFile {
    fn refresh(&mut self) -> bool {
        match self.watch.look(Instant::now()) {
            Look::Same => false,
            Look::Failed(error) => {
                tracing::error!(file = %self.watch.path().display(), error = %error, "workloads file can't be read; what it said last stays");
                false
            }
            Look::Changed(bytes) => match FactsFile::parse(&bytes) {
                Ok(pods) => {
                    tracing::info!(file = %self.watch.path().display(), pods = pods.len(), "workloads file is read");
                    self.pods = pods;
                    true
                }
                Err(error) => {
                    tracing::error!(file = %self.watch.path().display(), error = %crate::telemetry::chain(&error), "workloads file is refused; what it said last stays");
                    false
                }
            },
        }
    }

    fn facts(&self, pod: PodRef<'_>) -> Option<PodFacts> {
        let own = format!("{}/{}", pod.namespace, pod.name);
        let any = || self.pods.get(&format!("{}/*", pod.namespace));
        self.pods.get(&own).or_else(any).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod<'a>(namespace: &'a str, name: &'a str) -> PodRef<'a> {
        PodRef {
            namespace,
            name,
            uid: "u",
        }
    }

    #[test]
    fn a_pods_own_entry_wins_over_its_namespaces() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("workloads.json");
        std::fs::write(
            &path,
            r#"{"demo/*":{"serviceAccount":"default"},"demo/a":{"serviceAccount":"agent","labels":{"app":"a"}}}"#,
        )
        .unwrap();
        let mut file = FactsFile::new(&path);
        assert!(file.refresh());
        assert!(!file.refresh());
        let account = |p| file.facts(p).and_then(|facts| facts.service_account);
        assert_eq!(account(pod("demo", "a")).as_deref(), Some("agent"));
        assert_eq!(account(pod("demo", "b")).as_deref(), Some("default"));
        assert_eq!(file.facts(pod("other", "a")), None);
    }

    #[test]
    fn a_broken_file_leaves_what_was_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("workloads.json");
        std::fs::write(&path, r#"{"demo/a":{}}"#).unwrap();
        let mut file = FactsFile::new(&path);
        assert!(file.refresh());
        for bad in ["{", r#"{"demo":{}}"#, r#"{"demo/a":{"lables":{}}}"#] {
            std::fs::write(&path, bad).unwrap();
            assert!(!file.refresh(), "{bad}");
            assert!(file.facts(pod("demo", "a")).is_some(), "{bad}");
        }
    }
}
