//! What was heard, on disk: one JSON file, replaced as a whole. Owns the format.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use agent_core::identity::is_object_name;
use agent_core::policy::selector::Labels;
use serde::{Deserialize, Serialize};

use super::heard::{Heard, HeardPod, PodKey};

/// The only schema version that this build writes and reads.
const SCHEMA_VERSION: u32 = 1;
/// Room for 10,000 pods with many labels.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Why a snapshot can't be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum SnapshotError {
    /// What the file system said.
    #[error("the file can't be read or written")]
    File(#[source] io::Error),
    /// Another file was there.
    #[error("it is no regular file")]
    NotRegular,
    /// Somebody's else, or half written.
    #[error("it is larger than {MAX_BYTES} bytes")]
    Size,
    /// Not JSON of this shape.
    #[error("it is not valid")]
    Syntax(#[source] serde_json::Error),
    /// From another build.
    #[error("its schema version is {0}, and this build reads {SCHEMA_VERSION}")]
    Version(u32),
    /// Of a machine image, or of a disk that was in another machine.
    #[error("it is of the node `{0}`")]
    OtherNode(String),
    /// A key that names no pod.
    #[error("the key `{0}` names no pod")]
    Key(String),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Snapshot {
    schema_version: u32,
    node: String,
    pods: BTreeMap<String, HeardPod>,
    namespaces: BTreeMap<String, Labels>,
}

/// The snapshot of `node`; `None` when there is no file.
///
/// # Errors
/// When it is of no use.
pub(super) fn read(path: &Path, node: &str) -> Result<Option<Heard>, SnapshotError> {
    // a pipe in its place must not hold the start up
    let file = match OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
    {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(SnapshotError::File)?,
    };
    let is_file = file.metadata().map_err(SnapshotError::File)?.is_file();
    if !is_file {
        return Err(SnapshotError::NotRegular);
    }
    let mut bytes = Vec::new();
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(SnapshotError::File)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(SnapshotError::Size);
    }
    parse(&bytes, node).map(Some)
}

fn parse(bytes: &[u8], node: &str) -> Result<Heard, SnapshotError> {
    let snapshot: Snapshot = serde_json::from_slice(bytes).map_err(SnapshotError::Syntax)?;
    if snapshot.schema_version != SCHEMA_VERSION {
        return Err(SnapshotError::Version(snapshot.schema_version));
    }
    if snapshot.node != node {
        return Err(SnapshotError::OtherNode(snapshot.node));
    }
    let mut pods = BTreeMap::new();
    for (key, pod) in snapshot.pods {
        match key.split_once('/') {
            Some((namespace, name)) if is_object_name(namespace) && is_object_name(name) => {
                pods.insert((namespace.to_owned(), name.to_owned()), pod);
            }
            _ => return Err(SnapshotError::Key(key)),
        }
    }
    Ok(Heard::from_snapshot(pods, snapshot.namespaces))
}

/// Writes what was heard, so that a reader finds the old content or the new one.
///
/// # Errors
/// When the file can't be written; the old one stays.
pub(super) fn write(
    path: &Path,
    node: &str,
    (pods, namespaces): (BTreeMap<PodKey, HeardPod>, BTreeMap<String, Labels>),
) -> Result<(), SnapshotError> {
    let snapshot = Snapshot {
        schema_version: SCHEMA_VERSION,
        node: node.to_owned(),
        pods: pods
            .into_iter()
            .map(|((namespace, name), pod)| (format!("{namespace}/{name}"), pod))
            .collect(),
        namespaces,
    };
    let text = serde_json::to_vec(&snapshot).map_err(SnapshotError::Syntax)?;
    replace(path, &text).map_err(SnapshotError::File)
}

fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut staged = path.as_os_str().to_owned();
    staged.push(".staged");
    let staged = Path::new(&staged);
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    // what a killed process left
    match fs::remove_file(staged) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(staged)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(staged, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::source::PodRef;

    fn kept() -> (BTreeMap<PodKey, HeardPod>, BTreeMap<String, Labels>) {
        let pod = HeardPod {
            uid: "1".into(),
            service_account: Some("coder".into()),
            labels: Labels::from([("app".into(), "a".into())]),
        };
        (
            BTreeMap::from([(("demo".into(), "a".into()), pod)]),
            BTreeMap::from([("demo".into(), Labels::from([("team".into(), "x".into())]))]),
        )
    }

    #[test]
    fn what_is_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new").join("workloads.json");
        assert!(read(&path, "n1").unwrap().is_none());
        for _ in 0..2 {
            write(&path, "n1", kept()).unwrap();
            // as a process that was killed in its midst
            fs::write(dir.path().join("new/workloads.json.staged"), "{").unwrap();
        }
        let heard = read(&path, "n1").unwrap().unwrap();
        let facts = heard
            .facts(PodRef {
                namespace: "demo",
                name: "a",
                uid: "1",
            })
            .unwrap();
        assert_eq!(facts.service_account.as_deref(), Some("coder"));
        assert_eq!(facts.labels["app"], "a");
        assert_eq!(facts.namespace_labels["team"], "x");
    }

    #[test]
    fn what_is_no_snapshot_of_this_node_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("workloads.json");
        let refused = |text: &str| {
            fs::write(&path, text).unwrap();
            crate::telemetry::chain(&read(&path, "n1").unwrap_err())
        };
        for (text, why) in [
            ("", "not valid"),
            (r#"{"schemaVersion":1}"#, "missing field `node`"),
            (
                r#"{"schemaVersion":2,"node":"n1","pods":{},"namespaces":{}}"#,
                "schema version is 2",
            ),
            (
                r#"{"schemaVersion":1,"node":"n2","pods":{},"namespaces":{}}"#,
                "of the node `n2`",
            ),
            (
                r#"{"schemaVersion":1,"node":"n1","pods":{"a":{"uid":"1"}},"namespaces":{}}"#,
                "names no pod",
            ),
            (
                r#"{"schemaVersion":1,"node":"n1","pods":{"a/B":{"uid":"1"}},"namespaces":{}}"#,
                "names no pod",
            ),
        ] {
            let said = refused(text);
            assert!(said.contains(why), "{text}: {said}");
        }
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(read(&path, "n1"), Err(SnapshotError::NotRegular)));
    }
}
