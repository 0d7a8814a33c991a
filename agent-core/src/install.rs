//! `install.json` in the state directory: what the installer says of itself, for its readiness probe, doctor and metrics.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Name of the file.
pub const FILE: &str = "install.json";
/// Version of the file's format.
pub const SCHEMA_VERSION: u32 = 1;
/// A status as old as this many seconds is of an installer that hangs or is gone.
pub const STALE_SECONDS: u64 = 15;

/// The remedy for what is tried again until it works.
pub const TRY_AGAIN: &str = "mend the cause; it is tried again every second";

/// What can be found broken, and mended. The labels are the keys of the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The node's choices, or what follows from them.
    Node,
    /// `agentcni0`.
    Bridge,
    /// The filter at the bridge's ingress.
    BridgeFilter,
    /// A kernel setting.
    Sysctl,
    /// Policy rule or route.
    PolicyRoute,
    /// The way to the pods.
    PoolRoute,
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
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Node,
        Self::Bridge,
        Self::BridgeFilter,
        Self::Sysctl,
        Self::PolicyRoute,
        Self::PoolRoute,
        Self::Rules,
        Self::Programs,
        Self::Pod,
        Self::Binary,
        Self::Record,
        Self::Conf,
        Self::OldLayout,
    ];

    /// A fixed label for logs and metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Bridge => "bridge",
            Self::BridgeFilter => "bridge_filter",
            Self::Sysctl => "sysctl",
            Self::PolicyRoute => "policy_route",
            Self::PoolRoute => "pool_route",
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

/// Something that keeps the node from being ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl Problem {
    /// A problem.
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    /// An error, with its causes, that only trying again, or what the error says, can mend.
    pub fn of(error: &dyn std::error::Error) -> Self {
        let mut what = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            what.push_str(": ");
            what.push_str(&cause.to_string());
            source = cause.source();
        }
        Self::new(what, TRY_AGAIN)
    }
}

/// Whether pods go out past a proxy that is away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailOpen {
    /// Whether the node's class says so (`failMode: Open`).
    pub wanted: bool,
    /// Whether they do now.
    pub now: bool,
    /// How often they began to, since the node was installed.
    pub times: u64,
}

impl FailOpen {
    /// Takes in what was seen; answers whether it is news.
    pub fn see(&mut self, wanted: bool, away: bool) -> bool {
        let before = std::mem::replace(&mut self.now, wanted && away);
        self.wanted = wanted;
        self.times += u64::from(self.now && !before);
        self.now != before
    }
}

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Format of the file.
    pub schema_version: u32,
    /// Version of the installer.
    pub version: String,
    /// Whether everything is in place and right, and pods can be added.
    pub ready: bool,
    /// What is in the way.
    pub problems: Vec<Problem>,
    /// What should be known, and is in nobody's way.
    pub notes: Vec<String>,
    /// How much was found broken and mended, by kind, since the node was installed.
    pub repairs: BTreeMap<Kind, u64>,
    /// What becomes of pods while no proxy listens.
    #[serde(default)]
    pub fail_open: FailOpen,
    /// Seconds since 1970 when this was written.
    pub heartbeat: u64,
}

impl Status {
    /// Nothing done yet by this version, with the counters of the status before.
    #[must_use]
    pub fn new(version: &str, before: Option<Self>) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            version: version.to_owned(),
            ready: false,
            problems: Vec::new(),
            notes: Vec::new(),
            fail_open: FailOpen {
                times: before.as_ref().map_or(0, |status| status.fail_open.times),
                ..FailOpen::default()
            },
            repairs: before.map(|status| status.repairs).unwrap_or_default(),
            heartbeat: 0,
        }
    }

    /// Counts what was mended.
    pub fn count(&mut self, kinds: impl IntoIterator<Item = Kind>) {
        for kind in kinds {
            *self.repairs.entry(kind).or_default() += 1;
        }
    }

    /// Reads the file's content; garbage is none, and the installer writes it anew.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// Seconds since it was written, by the reader's clock.
    #[must_use]
    pub fn age(&self, now: u64) -> u64 {
        now.saturating_sub(self.heartbeat)
    }

    /// Whether the installer that wrote it is at work, and the node is as it should be.
    #[must_use]
    pub fn is_ready(&self, now: u64) -> bool {
        self.ready && self.age(now) <= STALE_SECONDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_the_key_of_its_counter_and_there_is_one_for_each() {
        for (i, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, i);
            assert_eq!(
                serde_json::to_value(kind).unwrap(),
                serde_json::json!(kind.label())
            );
        }
    }

    #[test]
    fn going_out_past_the_proxy_is_news_once_and_counted() {
        let mut open = FailOpen::default();
        let seen = [
            (false, true),
            (true, false),
            (true, true),
            (true, true),
            (true, false),
            (true, true),
            (false, true),
        ];
        let news = seen.map(|(wanted, away)| open.see(wanted, away));
        assert_eq!(news, [false, false, true, false, true, true, true]);
        assert_eq!((open.now, open.times), (false, 2));
        let mut status = Status::new("1", None);
        status.fail_open = FailOpen {
            wanted: true,
            now: true,
            times: 2,
        };
        let next = Status::new("2", Some(status)).fail_open;
        assert_eq!(
            next,
            FailOpen {
                times: 2,
                ..FailOpen::default()
            }
        );
    }

    #[test]
    fn counters_go_on_from_the_status_before_and_nothing_else_does() {
        let mut first = Status::new("1", None);
        first.count([Kind::Conf, Kind::Conf]);
        (first.ready, first.heartbeat) = (true, 100);
        assert!(first.is_ready(115) && !first.is_ready(116));
        let bytes = serde_json::to_vec(&first).unwrap();
        let mut next = Status::new("2", Status::parse(&bytes));
        next.count([Kind::Conf, Kind::Pod]);
        let expected = BTreeMap::from([(Kind::Conf, 3), (Kind::Pod, 1)]);
        assert_eq!((next.repairs, next.ready), (expected, false));
        assert_eq!(Status::parse(&[0xff; 5]), None);
    }
}
