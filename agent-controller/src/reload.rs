//! Brings every ZeroProxy to the published version: one task for each pod, so that a slow or dead one holds up no other.
//!
//! A task asks its proxy at `/reload` until it answers 200 with the version. 409 means that the projection isn't there yet
//! and is asked again soon; anything else is asked again with growing pauses. Afterwards it asks now and then: a proxy may
//! be replaced by an older one, and a credential may go. Owns what is known of the proxies; not what it means for a policy.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_core::node_settings::{NodeSettingsFile, TakenSettings};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::metrics::Metrics;
use crate::watch::World;

mod call;

pub(crate) use call::Answer;

/// Pauses after a 409: the projection is there in a moment, or in a minute.
const NOT_YET: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Pauses after a call that failed.
const FAILED: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// How often a proxy that has the version is asked again; sooner while it lacks a credential, or its node's settings are not
/// what was published.
const AGAIN: Duration = Duration::from_secs(30);
const AGAIN_UNRESOLVED: Duration = Duration::from_secs(3);

/// What is known of one proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proxy {
    /// The node it is on, or its pod's name before it has one.
    pub(crate) node: String,
    /// Whether kubelet calls it ready.
    pub(crate) ready: bool,
    /// The version that it last said it has.
    pub(crate) version: Option<String>,
    /// Whether it was asked, with whatever result, since it appeared.
    pub(crate) asked: bool,
    /// Why it couldn't be asked, or what it says is wrong with the file it sees.
    pub(crate) problem: Option<String>,
    /// Whether the last attempt got no answer.
    pub(crate) unreachable: bool,
    /// Credentials that it can't read, as `secret/key`, with the reason.
    pub(crate) unresolved: BTreeMap<String, String>,
    /// What its node has taken over of its class, as it said last.
    pub(crate) settings: Option<TakenSettings>,
}

/// All proxies; clones share them.
#[derive(Clone)]
pub(crate) struct Fleet(Arc<Shared>);

struct Shared {
    proxies: Mutex<BTreeMap<String, Proxy>>,
    changed: Arc<Notify>,
    metrics: Arc<Metrics>,
    target: watch::Receiver<Option<String>>,
    /// What nodes are to follow, as it was published last.
    settings: watch::Sender<Arc<NodeSettingsFile>>,
    /// Notified when a node's settings are told anew.
    classes: Arc<Notify>,
}

/// How proxies are asked.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) port: u16,
    /// Without it there is no reload.
    pub(crate) token_file: Option<PathBuf>,
}

impl Fleet {
    /// No proxies yet. `changed` is notified when anything is learnt, `classes` when it is about nodes' settings.
    pub(crate) fn new(
        target: watch::Receiver<Option<String>>,
        changed: Arc<Notify>,
        classes: Arc<Notify>,
        metrics: Arc<Metrics>,
    ) -> Fleet {
        Fleet(Arc::new(Shared {
            proxies: Mutex::default(),
            changed,
            metrics,
            target,
            settings: watch::Sender::default(),
            classes,
        }))
    }

    /// Has proxies asked for as long as their nodes follow something else than this.
    pub(crate) fn expect(&self, file: &NodeSettingsFile) {
        self.0.settings.send_if_modified(|known| {
            let news = **known != *file;
            if news {
                *known = Arc::new(file.clone());
            }
            news
        });
    }

    /// What nodes say that they have taken over of their classes, by node.
    pub(crate) fn taken(&self) -> BTreeMap<String, TakenSettings> {
        let proxies = self.lock();
        let said = proxies.values().filter_map(|proxy| proxy.settings.clone());
        said.map(|taken| (taken.node.clone(), taken)).collect()
    }

    /// What is known now.
    pub(crate) fn snapshot(&self) -> Vec<Proxy> {
        self.lock().values().cloned().collect()
    }

    /// Follows the pods for as long as it is polled.
    pub(crate) async fn run(self, world: World, door: Door) {
        let mut tasks = JoinSet::new();
        let mut running: BTreeMap<String, Running> = BTreeMap::new();
        loop {
            self.follow(&world.pods(), &door, &mut running, &mut tasks);
            tokio::select! {
                () = world.wake.pods.notified() => {}
                Some(_) = tasks.join_next() => {}
            }
        }
    }

    /// Starts, pokes and ends tasks so that they are those of the pods.
    fn follow(
        &self,
        pods: &[Arc<Pod>],
        door: &Door,
        running: &mut BTreeMap<String, Running>,
        tasks: &mut JoinSet<()>,
    ) {
        let seen: BTreeMap<String, Seen> = pods
            .iter()
            .filter(|pod| is_there(pod))
            .filter_map(|pod| Some((pod.uid()?, Seen::of(pod))))
            .collect();
        running.retain(|uid, task| {
            let stays = seen.contains_key(uid);
            if !stays {
                task.handle.abort();
                self.lock().remove(uid);
            }
            stays
        });
        for (uid, seen) in seen {
            self.know(&uid, &seen);
            match running.get_mut(&uid) {
                Some(task) if task.seen == seen => {}
                Some(task) if task.seen.address == seen.address => {
                    // the process may be another one
                    task.seen = seen;
                    task.poke.notify_one();
                }
                other => {
                    if let Some(task) = other {
                        task.handle.abort();
                    }
                    let poke = Arc::new(Notify::new());
                    let asking = Asking {
                        fleet: self.clone(),
                        uid: uid.clone(),
                        address: seen.address.map(|ip| SocketAddr::new(ip, door.port)),
                        door: door.clone(),
                        poke: poke.clone(),
                    };
                    let handle = tasks.spawn(asking.run());
                    running.insert(uid, Running { handle, poke, seen });
                }
            }
        }
        self.count();
        self.0.changed.notify_one();
    }

    fn know(&self, uid: &str, seen: &Seen) {
        let mut proxies = self.lock();
        let proxy = proxies.entry(uid.to_owned()).or_insert_with(|| Proxy {
            node: String::new(),
            ready: false,
            version: None,
            asked: false,
            problem: None,
            unreachable: false,
            unresolved: BTreeMap::new(),
            settings: None,
        });
        proxy.node.clone_from(&seen.node);
        proxy.ready = seen.ready;
    }

    /// Writes down what a proxy answered; says whether it has `wanted`.
    fn learn(&self, uid: &str, wanted: &str, answer: Result<Answer, String>) -> Outcome {
        let mut proxies = self.lock();
        let Some(proxy) = proxies.get_mut(uid) else {
            return Outcome::Gone;
        };
        let before = proxy.clone();
        proxy.asked = true;
        proxy.unreachable = answer.is_err();
        let outcome = match answer {
            Ok(answer) => {
                let there = answer.version == wanted;
                proxy.version = Some(answer.version);
                proxy.problem = answer.problem;
                if let Some(unresolved) = answer.unresolved {
                    proxy.unresolved = unresolved;
                }
                if answer.settings.is_some() {
                    proxy.settings = answer.settings;
                }
                let settled = proxy.unresolved.is_empty() && self.follows(proxy.settings.as_ref());
                match (there, settled) {
                    (false, _) => Outcome::NotYet,
                    (true, true) => Outcome::There,
                    (true, false) => Outcome::Unresolved,
                }
            }
            Err(problem) => {
                proxy.problem = Some(problem);
                Outcome::Failed
            }
        };
        let changed = *proxy != before;
        let resettled = proxy.settings != before.settings;
        drop(proxies);
        if resettled {
            self.0.classes.notify_one();
        }
        if changed {
            self.count();
            self.0.changed.notify_one();
        }
        outcome
    }

    /// Whether a node follows what was published for it. One that says nothing follows flags.
    fn follows(&self, taken: Option<&TakenSettings>) -> bool {
        let file = self.0.settings.borrow();
        taken.is_none_or(|taken| {
            let published = TakenSettings::of(&file, &taken.node);
            published.is_some_and(|published| published == *taken)
        })
    }

    fn count(&self) {
        let target = self.0.target.borrow().clone();
        let proxies = self.lock();
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let behind = proxies.values().filter(|p| p.ready && p.version != target);
        let unreachable = proxies.values().filter(|p| p.unreachable);
        let metrics = &self.0.metrics;
        metrics.proxies.set(number(proxies.len()));
        metrics.proxies_behind.set(number(behind.count()));
        metrics.proxies_unreachable.set(number(unreachable.count()));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Proxy>> {
        self.0
            .proxies
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task of one pod.
struct Running {
    handle: AbortHandle,
    poke: Arc<Notify>,
    seen: Seen,
}

/// What of a pod matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    node: String,
    address: Option<IpAddr>,
    ready: bool,
    restarts: i32,
}

impl Seen {
    fn of(pod: &Pod) -> Seen {
        let status = pod.status.as_ref();
        let conditions = status.and_then(|s| s.conditions.as_ref());
        let containers = status.and_then(|s| s.container_statuses.as_ref());
        Seen {
            node: pod
                .spec
                .as_ref()
                .and_then(|spec| spec.node_name.clone())
                .unwrap_or_else(|| pod.name_any()),
            address: status.and_then(|s| s.pod_ip.as_deref()?.parse().ok()),
            ready: conditions
                .is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True")),
            restarts: containers.map_or(0, |all| all.iter().map(|c| c.restart_count).sum()),
        }
    }
}

/// Whether the pod's proxy is one that counts: it is on a node, not ending and not over.
fn is_there(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    let placed = pod
        .spec
        .as_ref()
        .is_some_and(|spec| spec.node_name.is_some());
    placed
        && pod.metadata.deletion_timestamp.is_none()
        && !matches!(phase, Some("Succeeded" | "Failed"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    There,
    Unresolved,
    NotYet,
    Failed,
    Gone,
}

struct Asking {
    fleet: Fleet,
    uid: String,
    address: Option<SocketAddr>,
    door: Door,
    poke: Arc<Notify>,
}

impl Asking {
    async fn run(self) {
        let Some(address) = self.address else {
            // until the pod has an address, with which another task begins
            return std::future::pending().await;
        };
        let mut target = self.fleet.0.target.clone();
        let mut settings = self.fleet.0.settings.subscribe();
        let mut tries = 0;
        loop {
            let wanted = target.borrow_and_update().clone();
            let mut pause = Duration::from_secs(3600);
            if let Some(wanted) = wanted {
                let answer = call::ask(address, self.door.token_file.as_deref(), &wanted).await;
                if answer.is_err() {
                    self.fleet.0.metrics.error("proxy");
                }
                let outcome = self.fleet.learn(&self.uid, &wanted, answer);
                pause = match outcome {
                    Outcome::Gone => return,
                    Outcome::There => AGAIN,
                    Outcome::Unresolved => AGAIN_UNRESOLVED,
                    Outcome::NotYet => growing(NOT_YET, tries),
                    Outcome::Failed => growing(FAILED, tries),
                };
                tries = match outcome {
                    Outcome::NotYet | Outcome::Failed => tries + 1,
                    _ => 0,
                };
            }
            // jitter: a hundred proxies are not asked all at once
            let until = Instant::now() + pause.mul_f64(0.75 + 0.5 * fastrand::f64());
            tokio::select! {
                () = sleep_until(until) => {}
                changed = target.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    tries = 0;
                }
                // the sender is the fleet's own
                _ = settings.changed() => tries = 0,
                () = self.poke.notified() => tries = 0,
            }
        }
    }
}

/// The pause after so many tries in a row.
fn growing((least, most): (Duration, Duration), tries: i32) -> Duration {
    let factor = 1.7_f64.powi(tries.min(20));
    Duration::from_secs_f64((least.as_secs_f64() * factor).min(most.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_from_the_least_to_the_most() {
        assert_eq!(growing(NOT_YET, 0), NOT_YET.0);
        assert!(growing(NOT_YET, 3) > growing(NOT_YET, 2));
        assert_eq!(growing(NOT_YET, 1000), NOT_YET.1);
        assert_eq!(growing(FAILED, 1000), FAILED.1);
    }

    #[test]
    fn a_pod_that_is_over_or_has_no_node_does_not_count() {
        let pod = |text: &str| serde_json::from_str::<Pod>(text).unwrap();
        let placed =
            r#""metadata":{"name":"z","uid":"u"},"spec":{"nodeName":"n1","containers":[]}"#;
        for (text, there) in [
            (format!("{{{placed}}}"), true),
            (
                format!(r#"{{{placed},"status":{{"phase":"Running"}}}}"#),
                true,
            ),
            (
                format!(r#"{{{placed},"status":{{"phase":"Failed"}}}}"#),
                false,
            ),
            (
                r#"{"metadata":{"name":"z"},"spec":{"containers":[]}}"#.to_owned(),
                false,
            ),
            (
                placed.replace(
                    r#""uid":"u""#,
                    r#""uid":"u","deletionTimestamp":"2026-01-01T00:00:00Z""#,
                ),
                false,
            ),
        ] {
            let text = if text.starts_with('{') {
                text
            } else {
                format!("{{{text}}}")
            };
            assert_eq!(is_there(&pod(&text)), there, "{text}");
        }
    }
}
