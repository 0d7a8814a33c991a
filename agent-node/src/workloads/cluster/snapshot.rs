//! What was heard, on disk: a workloads file, replaced as a whole. Nothing of it is believed but what the next list confirms.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use agent_core::workloads::{WorkloadsError, WorkloadsFile};

use super::heard::Heard;

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
    /// No workloads file.
    #[error(transparent)]
    Syntax(#[from] WorkloadsError),
    /// An entry that is of no single pod: somebody else's file.
    #[error("`{0}` is not the entry of one pod, with its UID")]
    NotKept(String),
}

/// The snapshot; `None` when there is no file.
///
/// # Errors
/// When it is of no use.
pub(super) fn read(path: &Path) -> Result<Option<Heard>, SnapshotError> {
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
    let file = WorkloadsFile::parse(&bytes)?;
    let heard = Heard::from_kept(&file).map_err(SnapshotError::NotKept)?;
    Ok(Some(heard))
}

/// Writes what was heard, so that a reader finds the old content or the new one.
///
/// # Errors
/// When the file can't be written; the old one stays.
pub(super) fn write(path: &Path, kept: &WorkloadsFile) -> Result<(), SnapshotError> {
    replace(path, kept.to_json().as_bytes()).map_err(SnapshotError::File)
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

    const KEPT: &str = r#"{"demo/a":{"uid":"1","serviceAccount":"coder","labels":{"app":"a"},"namespaceLabels":{"team":"x"}}}"#;

    #[test]
    fn what_is_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new").join("pods.json");
        assert!(read(&path).unwrap().is_none());
        for _ in 0..2 {
            write(&path, &WorkloadsFile::parse(KEPT.as_bytes()).unwrap()).unwrap();
            // as a process that was killed in its midst
            fs::write(dir.path().join("new/pods.json.staged"), "{").unwrap();
        }
        let heard = read(&path).unwrap().unwrap();
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
    fn what_is_no_snapshot_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pods.json");
        for (text, why) in [
            ("", "not valid"),
            ("[]", "not valid"),
            (r#"{"a":{"uid":"1"}}"#, "names no pod"),
            (r#"{"a/b":{"uid":1}}"#, "not valid"),
            (r#"{"a/b":{}}"#, "of one pod"),
            (r#"{"a/B":{"uid":"1"}}"#, "of one pod"),
        ] {
            fs::write(&path, text).unwrap();
            let said = crate::telemetry::chain(&read(&path).map(|_| ()).unwrap_err());
            assert!(said.contains(why), "{text}: {said}");
        }
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(read(&path), Err(SnapshotError::NotRegular)));
    }
}
