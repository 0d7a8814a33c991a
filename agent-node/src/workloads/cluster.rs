//! Service accounts and labels from the API server: a watch on this node's pods and on namespaces.
//!
//! Owns what was heard, and its snapshot on disk, from which decisions go on when the process starts while the API
//! server is away. Never asks about single pods: a request costs a look-up, whatever the API server does.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::source::{PodFacts, PodRef, WorkloadSource};
use crate::metrics::Sample;

mod heard;
mod snapshot;
mod watch;

use heard::Heard;
pub use watch::Watch;

/// A watch that fails is tried again within 5 s, so an error that is older was the last one.
const FAILS_FOR: Duration = Duration::from_secs(15);

/// Whom to ask about which node, and where to keep what was heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The node whose pods these are, by its name in the API.
    pub node_name: String,
    /// How to reach the API server; by default as a pod does, with its service account.
    pub kubeconfig: Option<PathBuf>,
    /// Keeps what was heard.
    pub snapshot_file: PathBuf,
}

/// What the API server said about this node's pods; clones share it.
#[derive(Clone)]
pub struct Cluster(Arc<Shared>);

struct Shared {
    heard: Mutex<Heard>,
    /// Grows with every change that an identity can depend on.
    version: AtomicU64,
    /// Rings when there is something new to keep on disk.
    keep: Notify,
    errors: AtomicU64,
    last_error: Mutex<Option<(Instant, String)>>,
}

/// How well the pods are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterHealth {
    /// Where what is known comes from.
    pub origin: Origin,
    /// Pods of this node that are known.
    pub pods: usize,
    /// Failed attempts to list or watch, since the start.
    pub errors: u64,
    /// Why the API server can't be heard now.
    pub problem: Option<String>,
}

/// Where what is known comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere yet: every pod is denied.
    Nothing,
    /// From the snapshot of an earlier process.
    Snapshot,
    /// From the API server.
    Listed,
}

impl Cluster {
    /// Starts from the snapshot, when there is one that can be read.
    pub fn start(config: &ClusterConfig) -> Cluster {
        let heard = match snapshot::read(&config.snapshot_file) {
            Ok(Some(heard)) => {
                tracing::info!(file = %config.snapshot_file.display(), pods = heard.pods(), "pods are known from the snapshot until the API server is heard");
                heard
            }
            Ok(None) => Heard::default(),
            Err(error) => {
                tracing::error!(file = %config.snapshot_file.display(), error = %crate::telemetry::chain(&error), "the snapshot of pods is of no use; until the API server is heard every pod is denied");
                Heard::default()
            }
        };
        Cluster(Arc::new(Shared {
            heard: Mutex::new(heard),
            version: AtomicU64::new(0),
            keep: Notify::new(),
            errors: AtomicU64::new(0),
            last_error: Mutex::new(None),
        }))
    }

    /// The source of facts for the identity table.
    pub fn source(&self) -> Box<dyn WorkloadSource> {
        Box::new(Source {
            cluster: self.clone(),
            seen: 0,
        })
    }

    /// How well the pods are known now.
    pub fn health(&self) -> ClusterHealth {
        let problem = lock(&self.0.last_error)
            .as_ref()
            .filter(|(at, _)| at.elapsed() < FAILS_FOR)
            .map(|(_, why)| why.clone());
        let heard = lock(&self.0.heard);
        ClusterHealth {
            origin: heard.origin(),
            pods: heard.pods(),
            errors: self.0.errors.load(Ordering::Relaxed),
            problem,
        }
    }

    /// Takes something in; wakes whoever depends on it when that makes a difference.
    fn take_in(&self, take: impl FnOnce(&mut Heard) -> bool) -> bool {
        let changed = take(&mut lock(&self.0.heard));
        if changed {
            self.0.version.fetch_add(1, Ordering::Release);
            self.0.keep.notify_one();
        }
        changed
    }

    fn failed(&self, why: String) {
        self.0.errors.fetch_add(1, Ordering::Relaxed);
        *lock(&self.0.last_error) = Some((Instant::now(), why));
    }
}

impl ClusterHealth {
    /// For the metrics endpoint.
    pub fn samples(&self) -> Vec<Sample> {
        let listed = u64::from(self.origin == Origin::Listed);
        vec![
            Sample::gauge(
                "workloads_listed",
                "1 when pods and namespaces were listed by the API server since the start; 0: from the snapshot, or not at all",
                listed,
            ),
            Sample::gauge(
                "workloads_watch_up",
                "0 while the API server can't be heard; decisions go on by what was heard last",
                u64::from(self.problem.is_none() && listed == 1),
            ),
            Sample::gauge(
                "workloads_known_pods",
                "Pods of this node that the API server has named",
                self.pods as u64,
            ),
            Sample::counter(
                "workloads_watch_errors",
                "Failed attempts to list or watch pods and namespaces",
                self.errors,
            ),
        ]
    }
}

struct Source {
    cluster: Cluster,
    seen: u64,
}

impl WorkloadSource for Source {
    fn refresh(&mut self) -> bool {
        let version = self.cluster.0.version.load(Ordering::Acquire);
        std::mem::replace(&mut self.seen, version) != version
    }

    fn facts(&self, pod: PodRef<'_>) -> Option<PodFacts> {
        lock(&self.cluster.0.heard).facts(pod)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
