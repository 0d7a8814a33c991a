//! The workloads file, followed: service accounts and labels as somebody else writes them, outside Kubernetes. The format is
//! [`agent_core::workloads`]'.

use std::path::Path;
use std::time::{Duration, Instant};

use agent_core::workloads::WorkloadsFile;

use super::source::{PodFacts, PodRef, WorkloadSource};
use crate::file_watch::{FileWatch, Look};

/// How often the content is compared although size and times are the same.
const COMPARE_EVERY: Duration = Duration::from_secs(2);
/// Room for 10,000 pods with many labels.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// The workloads file, followed by content.
pub struct FactsFile {
    watch: FileWatch,
    pods: WorkloadsFile,
}

impl FactsFile {
    /// Follows the file at `path`. A missing or broken file is logged; what was read last stays.
    pub fn new(path: &Path) -> FactsFile {
        FactsFile {
            watch: FileWatch::new(path, MAX_BYTES, COMPARE_EVERY),
            pods: WorkloadsFile::default(),
        }
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
            Look::Changed(bytes) => match WorkloadsFile::parse(&bytes) {
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
        self.pods.facts(pod.namespace, pod.name, pod.uid).cloned()
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
