//! What the upstream saw, by host: how many requests, and what credential they brought. Never a value.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// Hosts that are remembered; tests use a handful.
const HOSTS: usize = 64;

/// What a request brought, held against the token that its site wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brought {
    /// The right credential, once.
    Right,
    /// Another one, or more than one.
    Wrong,
    /// None.
    Nothing,
}

impl Brought {
    /// As the answer's header says it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Brought::Right => "right",
            Brought::Wrong => "wrong",
            Brought::Nothing => "none",
        }
    }
}

/// The requests to one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    requests: u64,
    right: u64,
    wrong: u64,
    none: u64,
}

/// Counts by host.
#[derive(Debug, Default)]
pub(super) struct Observed(Mutex<BTreeMap<String, Counts>>);

impl Observed {
    /// Counts a request.
    pub(super) fn record(&self, host: &str, brought: Brought) {
        let mut hosts = self.lock();
        if hosts.len() >= HOSTS && !hosts.contains_key(host) {
            return;
        }
        let counts = hosts.entry(host.to_owned()).or_default();
        counts.requests += 1;
        match brought {
            Brought::Right => counts.right += 1,
            Brought::Wrong => counts.wrong += 1,
            Brought::Nothing => counts.none += 1,
        }
    }

    /// What was counted for a host; zeros when it was never asked for.
    pub(super) fn of(&self, host: &str) -> Counts {
        self.lock().get(host).copied().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Counts>> {
        // Counting leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
