//! The active policy: one immutable snapshot behind one pointer, followed by content.
//!
//! Owns reading, compiling and swapping the runtime policy document. A document that can't be
//! read or compiled is refused as a whole: the active version stays, and status, readiness, a
//! metric and the log say so. Before the first valid document the active policy is the empty one,
//! which denies everything. Doesn't decide anything; that is `agent_core::policy`.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use agent_core::node_settings::Connectivity;
use agent_core::policy::parts::Index;
use agent_core::policy::{PolicySet, RuntimePolicy};
use arc_swap::{ArcSwap, Guard};
use tokio::sync::{oneshot, watch};

use crate::file_watch::{FileWatch, Look};
use crate::node_status::OwnSettings;
use crate::policy_parts;

/// How often the file's size and times are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often the content is compared although size and times are the same.
const COMPARE_EVERY: Duration = Duration::from_secs(5);
/// A document of 100,000 rules has about 30 MB.
const MAX_DOCUMENT_BYTES: u64 = 256 * 1024 * 1024;
/// Callers of `/reload` that may wait at the same time.
const MAX_WAITING: usize = 32;
/// A class has a few ranges and a selector.
const MAX_SETTINGS_BYTES: u64 = 1024 * 1024;

/// One version of the policy. Never changes once it is active.
#[derive(Debug)]
pub struct PolicySnapshot {
    /// The compiled rules.
    pub set: PolicySet,
    /// Grows by one with each swap; 0 is the empty policy of the start.
    pub generation: u64,
    /// The document's content hash; empty before the first one.
    pub version: String,
    /// The files of all credentials that its rules name, as `secret/key`.
    pub credential_files: BTreeSet<String>,
}

/// Where the store stands, for readiness and the admin endpoints.
#[derive(Debug, Clone, Default)]
pub struct PolicyStatus {
    /// Whether pods that no policy is for are passed on, as the node's class says.
    pub passthrough: bool,
    /// Whether some valid document has been active since the start.
    pub loaded: bool,
    /// The active version; empty before the first.
    pub version: String,
    /// Rules in the active version.
    pub rules: usize,
    /// Why the file as it is now is not the active version.
    pub problem: Option<String>,
    /// Documents refused since the start.
    pub refused: u64,
}

/// The store; clones share it.
#[derive(Clone)]
pub struct PolicyStore(Arc<Shared>);

struct Shared {
    current: ArcSwap<PolicySnapshot>,
    generation: AtomicU64,
    changes: watch::Sender<u64>,
    status: ArcSwap<PolicyStatus>,
    requests: SyncSender<oneshot::Sender<()>>,
}

/// The thread that follows the file can't be started.
#[derive(Debug, thiserror::Error)]
#[error("start the thread that follows the policy file")]
pub struct StartError(#[source] std::io::Error);

impl PolicyStore {
    /// Reads the document at `path` now, and follows it from then on, on a thread of its own
    /// (compiling a large document takes longer than any request may wait). The thread ends when
    /// the last clone of the store is gone. `settings` is what the node has taken over of its class.
    ///
    /// # Errors
    /// When the thread can't be started. A bad or missing document is no error; see [`PolicyStatus`].
    pub fn follow(path: &Path, settings: OwnSettings) -> Result<PolicyStore, StartError> {
        let (requests, waiting) = sync_channel(MAX_WAITING);
        let shared = Arc::new(Shared {
            current: ArcSwap::from_pointee(PolicySnapshot {
                set: PolicySet::empty(),
                generation: 0,
                version: String::new(),
                credential_files: BTreeSet::new(),
            }),
            generation: AtomicU64::new(0),
            changes: watch::Sender::new(0),
            status: ArcSwap::default(),
            requests,
        });
        let mut follower = Follower {
            watch: FileWatch::new(path, MAX_DOCUMENT_BYTES, COMPARE_EVERY),
            shared: Arc::downgrade(&shared),
            settings: FileWatch::new(&settings.path, MAX_SETTINGS_BYTES, COMPARE_EVERY),
            own: settings,
            connectivity: Connectivity::Zero,
            retired: Vec::new(),
            awaited: None,
        };
        follower.look(&shared);
        std::thread::Builder::new()
            .name("policy".into())
            .spawn(move || follower.run(&waiting))
            .map_err(StartError)?;
        Ok(PolicyStore(shared))
    }

    /// The active snapshot, to be kept across awaits: once per connection and generation.
    pub fn load(&self) -> Arc<PolicySnapshot> {
        self.0.current.load_full()
    }

    /// The active snapshot for the length of one decision, without touching its reference count.
    pub fn peek(&self) -> Guard<Arc<PolicySnapshot>> {
        self.0.current.load()
    }

    /// The active generation. One atomic load: fit to be asked on every request.
    pub fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// Waits until a generation other than `seen` is active; returns at once when one is.
    ///
    /// Cancel safe. Never returns when the store is gone.
    pub async fn changed(&self, seen: u64) {
        let mut changes = self.0.changes.subscribe();
        if changes
            .wait_for(|generation| *generation != seen)
            .await
            .is_err()
        {
            std::future::pending::<()>().await;
        }
    }

    /// Where the store stands.
    pub fn status(&self) -> Arc<PolicyStatus> {
        self.0.status.load_full()
    }

    /// Looks at the file now, and answers when that look is done. With too many callers waiting it
    /// answers at once: the timer's next look is at most 200 ms away.
    pub async fn check_now(&self) -> Arc<PolicyStatus> {
        let (done, wait) = oneshot::channel();
        match self.0.requests.try_send(done) {
            Ok(()) => {
                // An error means that the thread is gone; the status is what it was.
                let _ = wait.await;
            }
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
        self.status()
    }
}

struct Follower {
    watch: FileWatch,
    shared: Weak<Shared>,
    settings: FileWatch,
    own: OwnSettings,
    /// What becomes of pods that no policy is for.
    connectivity: Connectivity,
    /// Earlier snapshots that connections still hold. They are freed here, not on a worker.
    retired: Vec<Arc<PolicySnapshot>>,
    /// The index of a document whose parts are not all there yet, and what was missing at the last look.
    awaited: Option<(Index, String)>,
}

impl Follower {
    fn run(mut self, requests: &Receiver<oneshot::Sender<()>>) {
        loop {
            let request = match requests.recv_timeout(LOOK_EVERY) {
                Ok(done) => Some(done),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let Some(shared) = self.shared.upgrade() else {
                return;
            };
            self.look(&shared);
            self.retired.retain(|old| Arc::strong_count(old) > 1);
            if let Some(done) = request {
                // Whoever asked may have gone away.
                let _ = done.send(());
            }
        }
    }

    fn look(&mut self, shared: &Shared) {
        self.look_at_settings(shared);
        self.look_at_policy(shared);
    }

    /// What can't be read, or isn't there, says nothing: then nothing is passed on.
    fn look_at_settings(&mut self, shared: &Shared) {
        let connectivity = match self.settings.look(Instant::now()) {
            Look::Same => return,
            Look::Failed(_) => Connectivity::Zero,
            Look::Changed(bytes) => match self.own.parse(&bytes) {
                Ok(taken) => taken.settings.default_connectivity,
                Err(error) => {
                    tracing::error!(file = %self.settings.path().display(), error = %error, "the node's settings are not valid: pods without a policy reach nothing");
                    Connectivity::Zero
                }
            },
        };
        if connectivity == self.connectivity {
            return;
        }
        self.connectivity = connectivity;
        match connectivity {
            Connectivity::Passthrough => tracing::warn!(
                "defaultConnectivity is Passthrough: pods without a policy reach everything but what is always denied"
            ),
            Connectivity::Zero => {
                tracing::info!("defaultConnectivity is Zero: pods without a policy reach nothing");
            }
        }
        // without a document everything is denied, whatever the class says
        if shared.status.load().loaded {
            let before = shared.current.load_full();
            let set = before.set.with_connectivity(connectivity);
            // of the document; this says nothing about it
            let problem = shared.status.load().problem.clone();
            self.swap(shared, set, before.credential_files.clone(), problem);
        }
    }

    fn look_at_policy(&mut self, shared: &Shared) {
        match self.watch.look(Instant::now()) {
            Look::Same => {
                if let Some((index, missing)) = self.awaited.take() {
                    self.assemble(shared, index, &missing);
                }
            }
            Look::Failed(error) => {
                self.awaited = None;
                refuse(
                    shared,
                    self.watch.path(),
                    format!("it can't be read: {error}"),
                    false,
                );
            }
            Look::Changed(bytes) => {
                self.awaited = None;
                match Index::parse(&bytes) {
                    Some(index) => self.assemble(shared, index, ""),
                    None => self.take(shared, &bytes),
                }
            }
        }
    }

    fn take(&mut self, shared: &Shared, document: &[u8]) {
        match compile(document) {
            Ok((set, credential_files)) => self.activate(shared, &set, credential_files),
            Err(problem) => refuse(shared, self.watch.path(), problem, true),
        }
    }

    /// Takes a document whose parts are all there. Until then the active version stays, and what is missing is said once.
    fn assemble(&mut self, shared: &Shared, index: Index, said: &str) {
        let before = shared.status.load();
        if before.loaded && before.version == index.version {
            shared.status.store(Arc::new(PolicyStatus {
                problem: None,
                ..PolicyStatus::clone(&before)
            }));
            return;
        }
        match policy_parts::read(self.watch.path(), &index) {
            Ok(document) => self.take(shared, &document),
            Err(error) => {
                let missing = format!("it is in {} parts: {error}", index.parts);
                if missing != said {
                    refuse(shared, self.watch.path(), missing.clone(), false);
                }
                self.awaited = Some((index, missing));
            }
        }
    }

    fn activate(&mut self, shared: &Shared, set: &PolicySet, credential_files: BTreeSet<String>) {
        let version = set.version().to_owned();
        let rules = set.rule_count();
        let before = shared.status.load();
        if before.loaded && before.version == version {
            // The same rules in another layout, or back to the active version after a bad one.
            shared.status.store(Arc::new(PolicyStatus {
                problem: None,
                ..PolicyStatus::clone(&before)
            }));
            return;
        }
        self.swap(
            shared,
            set.with_connectivity(self.connectivity),
            credential_files,
            None,
        );
        tracing::info!(policy.version = %version, policy.generation = shared.generation.load(Ordering::Acquire), policy.rules = rules, "policy is active");
    }

    fn swap(
        &mut self,
        shared: &Shared,
        set: PolicySet,
        credential_files: BTreeSet<String>,
        problem: Option<String>,
    ) {
        let (version, rules) = (set.version().to_owned(), set.rule_count());
        let before = shared.status.load();
        let generation = shared.generation.load(Ordering::Acquire) + 1;
        let old = shared.current.swap(Arc::new(PolicySnapshot {
            set,
            generation,
            version: version.clone(),
            credential_files,
        }));
        self.retired.push(old);
        shared.generation.store(generation, Ordering::Release);
        shared.status.store(Arc::new(PolicyStatus {
            passthrough: self.connectivity == Connectivity::Passthrough,
            loaded: true,
            version,
            rules,
            problem,
            refused: before.refused,
        }));
        shared.changes.send_replace(generation);
    }
}

fn compile(bytes: &[u8]) -> Result<(PolicySet, BTreeSet<String>), String> {
    let document = RuntimePolicy::parse(bytes).map_err(|error| crate::telemetry::chain(&error))?;
    let set = PolicySet::compile(&document).map_err(|error| crate::telemetry::chain(&error))?;
    let files = document.rules.into_iter();
    Ok((set, files.filter_map(|rule| rule.value_from_file).collect()))
}

fn refuse(shared: &Shared, path: &Path, problem: String, counts: bool) {
    let before = shared.status.load();
    let active = if before.loaded {
        before.version.as_str()
    } else {
        "none; everything is denied"
    };
    tracing::error!(policy.file = %path.display(), policy.problem = %problem, policy.active = %active, "policy document is refused; the active version stays");
    shared.status.store(Arc::new(PolicyStatus {
        problem: Some(problem),
        refused: before.refused + u64::from(counts),
        ..PolicyStatus::clone(&before)
    }));
}

#[cfg(test)]
mod tests;
