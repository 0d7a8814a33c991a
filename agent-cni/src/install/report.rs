//! What the installer says of itself: `install.json` in the state directory, for the readiness probe, doctor and
//! metrics.

use std::{collections::BTreeMap, fs, io, path::Path};

use agent_datapath::footprint::INSTALL_STATUS;
use serde::{Deserialize, Serialize};

use crate::{error::CniError, state::StateDir};

/// Version of the file's format.
const SCHEMA_VERSION: u32 = 1;
/// A status as old as this is of an installer that hangs or is gone.
const STALE_SECONDS: u64 = 15;
/// A status that says nothing new is written again after this.
pub(crate) const HEARTBEAT_SECONDS: u64 = 3;

/// What can be found broken, and mended. The labels are the keys of the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// The node's choices, or what follows from them.
    Node,
    /// `agentcni0`.
    Bridge,
    /// A kernel setting.
    Sysctl,
    /// Policy rule or route.
    PolicyRoute,
    /// The nftables table, or iptables rules.
    Rules,
    /// Programs, maps, their settings.
    Programs,
    /// A pod's attachment.
    Pod,
    /// The plugin.
    Binary,
    /// The version record.
    Record,
    /// The configuration.
    Conf,
    /// Pins of another layout.
    OldLayout,
}

impl Kind {
    /// A fixed label for logs.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Bridge => "bridge",
            Self::Sysctl => "sysctl",
            Self::PolicyRoute => "policy_route",
            Self::Rules => "rules",
            Self::Programs => "programs",
            Self::Pod => "pod",
            Self::Binary => "binary",
            Self::Record => "record",
            Self::Conf => "conf",
            Self::OldLayout => "old_layout",
        }
    }
}

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

/// Something that keeps the node from being ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Problem {
    /// What is wrong.
    pub(crate) what: String,
    /// What to do about it.
    pub(crate) remedy: String,
}

impl Problem {
    /// A problem.
    pub(crate) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    /// An error that only trying again, or what the error says, can mend.
    pub(crate) fn of(error: &dyn std::error::Error) -> Self {
        let mut what = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            what.push_str(": ");
            what.push_str(&cause.to_string());
            source = cause.source();
        }
        Self::new(what, "mend the cause; it is tried again every second")
    }
}

impl From<CniError> for Problem {
    fn from(error: CniError) -> Self {
        let what = match error.details.is_empty() {
            true => error.msg,
            false => format!("{}: {}", error.msg, error.details),
        };
        Self::new(what, "mend the cause; it is tried again every second")
    }
}

/// The content of `install.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    /// Format of the file.
    pub(crate) schema_version: u32,
    /// Version of the installer.
    pub(crate) version: String,
    /// Whether everything is in place and right, and pods can be added.
    pub(crate) ready: bool,
    /// What is in the way.
    pub(crate) problems: Vec<Problem>,
    /// What should be known, and is in nobody's way.
    pub(crate) notes: Vec<String>,
    /// How much was found broken and mended, by kind, since the node was installed.
    pub(crate) repairs: BTreeMap<Kind, u64>,
    /// Seconds since 1970 when this was written.
    pub(crate) heartbeat: u64,
}

impl Status {
    /// Nothing done yet, with the counters of the status before.
    pub(crate) fn new(before: Option<Self>) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: false,
            problems: Vec::new(),
            notes: Vec::new(),
            repairs: before.map(|status| status.repairs).unwrap_or_default(),
            heartbeat: 0,
        }
    }

    /// Counts what was mended.
    pub(crate) fn count(&mut self, found: &[Found]) {
        for found in found {
            *self.repairs.entry(found.kind).or_default() += 1;
        }
    }

    /// Reads the status; garbage and a missing file are none.
    pub(crate) fn read(state_dir: &Path) -> io::Result<Option<Self>> {
        match fs::read(state_dir.join(INSTALL_STATUS)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the status.
    ///
    /// # Errors
    /// It cannot be written; the one before stays, and grows stale.
    pub(crate) fn write(&self, dir: &StateDir) -> io::Result<()> {
        let path = dir.path().join(INSTALL_STATUS);
        let temporary = dir.path().join("install.json.tmp");
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        // no sync: after a power cut the installer writes it anew
        let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }
}

/// The answer to a readiness probe: why the node is not ready, or nothing.
pub(crate) fn not_ready(status: Option<&Status>, now: u64) -> Option<String> {
    let Some(status) = status else {
        return Some("no installer has written a status yet".into());
    };
    let age = now.saturating_sub(status.heartbeat);
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
            ..Status::new(None)
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
    fn counters_outlive_the_installer() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let mut first = status(true, 1);
        first.count(&[
            Found::new(Kind::Conf, "gone"),
            Found::new(Kind::Conf, "gone"),
        ]);
        first.write(&state).unwrap();
        let mut next = Status::new(Status::read(dir.path()).unwrap());
        next.count(&[Found::new(Kind::Conf, "gone")]);
        assert_eq!(next.repairs[&Kind::Conf], 3);
        assert!(!next.ready);
        fs::write(dir.path().join(INSTALL_STATUS), [0xff; 5]).unwrap();
        assert_eq!(Status::read(dir.path()).unwrap(), None);
    }

    #[test]
    fn a_label_is_the_key_of_its_counter() {
        for kind in [Kind::PolicyRoute, Kind::OldLayout, Kind::Sysctl] {
            assert_eq!(
                serde_json::to_value(kind).unwrap(),
                serde_json::json!(kind.label())
            );
        }
    }
}
