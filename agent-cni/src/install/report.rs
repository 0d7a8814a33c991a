//! What the installer says of itself: `install.json` in the state directory, for the readiness probe, doctor and
//! metrics.

use std::{fs, io, path::Path};

use agent_core::install::{self, STALE_SECONDS, TRY_AGAIN};
pub(crate) use agent_core::install::{Kind, Problem, Status};

use super::stage::StageError;
use crate::{error::CniError, file, state::StateDir};

/// A status that says nothing new is written again after this.
pub(crate) const HEARTBEAT_SECONDS: u64 = 3;

/// Something that was found and mended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its kind.
    pub(crate) kind: Kind,
    /// What was found.
    pub(crate) what: String,
}

impl Found {
    /// A finding.
    pub(crate) fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
        }
    }
}

impl From<CniError> for Problem {
    fn from(error: CniError) -> Self {
        let what = match error.details.is_empty() {
            true => error.msg,
            false => format!("{}: {}", error.msg, error.details),
        };
        Self::new(what, TRY_AGAIN)
    }
}

impl From<StageError> for Problem {
    fn from(error: StageError) -> Self {
        match &error {
            StageError::Directory(path) => Self::new(
                error.to_string(),
                format!(
                    "look at what is in it and move it away, or rm -r {}; {TRY_AGAIN}",
                    path.display()
                ),
            ),
            _ => Self::of(&error),
        }
    }
}

/// Nothing done yet by this version.
pub(crate) fn begin(before: Option<Status>) -> Status {
    Status::new(env!("CARGO_PKG_VERSION"), before)
}

/// Reads the status; garbage and a missing file are none.
pub(crate) fn read(state_dir: &Path) -> io::Result<Option<Status>> {
    match file::read_own(&state_dir.join(install::FILE)) {
        Ok(bytes) => Ok(Status::parse(&bytes)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::InvalidData
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Writes the status.
///
/// # Errors
/// It cannot be written; the one before stays, and grows stale.
pub(crate) fn write(status: &Status, dir: &StateDir) -> io::Result<()> {
    let path = dir.path().join(install::FILE);
    let temporary = dir.path().join("install.json.tmp");
    let mut text = serde_json::to_string_pretty(status).unwrap_or_default();
    text.push('\n');
    // no sync: after a power cut the installer writes it anew
    let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// The answer to a readiness probe: why the node is not ready, or nothing.
pub(crate) fn not_ready(status: Option<&Status>, now: u64) -> Option<String> {
    let Some(status) = status else {
        return Some("no installer has written a status yet".into());
    };
    let age = status.age(now);
    if age > STALE_SECONDS {
        return Some(format!(
            "the installer has said nothing for {age} seconds; is it running?"
        ));
    }
    if status.ready {
        return None;
    }
    if status.problems.is_empty() {
        return Some("the installer is at work".into());
    }
    let lines = status
        .problems
        .iter()
        .map(|problem| format!("{}; {}", problem.what, problem.remedy));
    Some(lines.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(ready: bool, heartbeat: u64) -> Status {
        Status {
            ready,
            heartbeat,
            ..begin(None)
        }
    }

    #[test]
    fn only_a_fresh_and_good_status_is_ready() {
        assert_eq!(not_ready(Some(&status(true, 100)), 110), None);
        for (status, says) in [
            (None, "no installer"),
            (Some(status(true, 100)), "is it running"),
            (Some(status(false, 199)), "at work"),
        ] {
            let why = not_ready(status.as_ref(), 200).unwrap();
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn problems_are_told_with_their_remedies() {
        let mut status = status(false, 100);
        status.problems = vec![
            Problem::new("port 18080 is nginx's", "stop it"),
            Problem::new("b", "c"),
        ];
        assert_eq!(
            not_ready(Some(&status), 100).unwrap(),
            "port 18080 is nginx's; stop it\nb; c"
        );
    }

    #[test]
    fn what_was_written_is_read_and_garbage_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        let mut first = status(true, 1);
        first.count([Kind::Conf, Kind::Conf]);
        write(&first, &state).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(first));
        fs::write(dir.path().join(install::FILE), [0xff; 5]).unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
    }
}
