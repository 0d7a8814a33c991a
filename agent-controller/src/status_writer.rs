//! Writes policies' statuses and Events when they are other than they should be. What they should be is `status`'s.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_api::AgentNetworkPolicy;
use agent_api::policy::{PolicyPhase, PolicyStatus};
use futures_util::StreamExt;
use futures_util::stream;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Client, Resource};
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use crate::metrics::Metrics;
use crate::policy_reconciler::{Key, Published, View};
use crate::publish::{CALL, FIELD_MANAGER, is_code};
use crate::reload::Fleet;
use crate::status::{self, Nodes, Verdict};
use crate::watch::{GuardedPolicy, World};

/// Changes that come together are looked at together.
const GATHER: Duration = Duration::from_millis(20);
/// Statuses that are written at the same time.
const AT_ONCE: usize = 16;
/// Statuses that are written before it is looked again what they should be.
const BATCH: usize = 128;
/// How often everything is looked at although nothing changed: times run out.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The pause after a verdict that had to wait, or a write that failed.
const SOON: Duration = Duration::from_millis(300);

/// Writes statuses for as long as this replica leads.
pub(crate) struct StatusWriter {
    pub(crate) client: Client,
    pub(crate) world: World,
    pub(crate) fleet: Fleet,
    pub(crate) published: watch::Receiver<Arc<Published>>,
    pub(crate) fleet_changed: Arc<Notify>,
    pub(crate) degraded_after: Duration,
    pub(crate) recorder: Recorder,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) written: Written,
}

/// What was written, and to which resource version: the watch may not have brought it back yet.
pub(crate) type Written = BTreeMap<Key, (String, PolicyStatus)>;

/// One status that has to be written.
struct Change {
    key: Key,
    resource_version: String,
    view: View,
    status: PolicyStatus,
    phase_before: Option<PolicyPhase>,
    reference: ObjectReference,
}

impl StatusWriter {
    /// Writes for as long as it is polled.
    pub(crate) async fn run(mut self) {
        let mut pause = LOOK_EVERY;
        loop {
            tokio::select! {
                () = self.world.wake.status.notified() => {}
                () = self.fleet_changed.notified() => {}
                changed = self.published.changed() => if changed.is_err() {
                    return;
                },
                () = tokio::time::sleep(pause) => {}
            }
            tokio::time::sleep(GATHER).await;
            let begun = Instant::now();
            let (ok, again) = self.round().await;
            self.metrics.round("status", begun.elapsed(), ok);
            pause = if again || !ok { SOON } else { LOOK_EVERY };
        }
    }

    /// One look at all policies. Says whether all went well, and whether to look again soon.
    async fn round(&mut self) -> (bool, bool) {
        let published = self.published.borrow_and_update().clone();
        let proxies = self.fleet.snapshot();
        let nodes = Nodes::new(&proxies, &published.history);
        let mut again = false;
        let mut changes = Vec::new();
        let mut phases: BTreeMap<&'static str, usize> = BTreeMap::new();
        let objects = self.world.policies();
        for object in &objects {
            let meta = object.meta();
            let key = (
                meta.namespace.clone().unwrap_or_default(),
                meta.name.clone().unwrap_or_default(),
            );
            let Some(view) = published.policies.get(&key) else {
                continue; // not compiled yet: the next publication wakes us
            };
            if meta.uid.as_deref() != Some(&view.uid) || meta.generation != Some(view.generation) {
                continue; // as above
            }
            let there = self.there(&key, object);
            let seen = view.seen.elapsed();
            match status::policy(view, &nodes, there, seen, self.degraded_after) {
                Verdict::Hold => again = true,
                Verdict::Say(status) => {
                    let phase = label(status.phase.unwrap_or(PolicyPhase::Pending));
                    *phases.entry(phase).or_default() += 1;
                    if status::says_the_same(&status, there) {
                        continue;
                    }
                    changes.push(Change {
                        resource_version: meta.resource_version.clone().unwrap_or_default(),
                        view: view.clone(),
                        phase_before: there
                            .filter(|s| s.observed_generation == Some(view.generation))
                            .and_then(|s| s.phase),
                        status: *status,
                        reference: reference(object),
                        key,
                    });
                }
            }
        }
        for phase in ["Pending", "Active", "Degraded", "Invalid"] {
            self.metrics
                .phase(phase, phases.get(phase).copied().unwrap_or(0));
        }
        self.forget(&published);
        // what a person has just changed, before what a node that comes or goes changes everywhere
        changes.sort_by_key(|change| change.phase_before.is_some());
        again |= changes.len() > BATCH;
        changes.truncate(BATCH);
        let ok = self.write(changes, &objects).await;
        (ok, again)
    }

    /// The status as it is: ours, when the watch hasn't brought it back yet.
    fn there<'a>(&'a self, key: &Key, object: &'a GuardedPolicy) -> Option<&'a PolicyStatus> {
        let version = object
            .meta()
            .resource_version
            .as_deref()
            .unwrap_or_default();
        let ours = self.written.get(key);
        match &object.0 {
            _ if ours.is_some_and(|(at, _)| at == version) => ours.map(|(_, status)| status),
            Ok(policy) => policy.status.as_ref(),
            // what can't be read has a status that can't be read
            Err(_) => ours.map(|(_, status)| status),
        }
    }

    fn forget(&mut self, published: &Published) {
        self.written
            .retain(|key, _| published.policies.contains_key(key));
    }

    async fn write(&mut self, changes: Vec<Change>, objects: &[Arc<GuardedPolicy>]) -> bool {
        if changes.is_empty() {
            return true;
        }
        let before: BTreeMap<Key, &[_]> = objects
            .iter()
            .filter_map(|object| {
                let meta = object.meta();
                let status = object.0.as_ref().ok()?.status.as_ref()?;
                let key = (meta.namespace.clone()?, meta.name.clone()?);
                Some((key, status.conditions.as_slice()))
            })
            .collect();
        let now = Time(Timestamp::now());
        let client = &self.client;
        let results: Vec<(Change, Result<(), Failure>)> = stream::iter(changes)
            .map(|mut change| {
                let conditions = before.get(&change.key).copied().unwrap_or_default();
                status::settle(&mut change.status.conditions, conditions, &now);
                async move {
                    let result = patch(client, &change).await;
                    (change, result)
                }
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut ok = true;
        for (change, result) in results {
            match result {
                Ok(()) => {
                    self.metrics.write("status");
                    self.announce(&change).await;
                    let value = (change.resource_version, change.status);
                    self.written.insert(change.key, value);
                }
                // somebody changed or deleted it meanwhile: the watch brings that
                Err(Failure::Stale) => {}
                Err(Failure::Other(error)) => {
                    ok = false;
                    self.metrics.error("status");
                    tracing::warn!(policy.namespace = %change.key.0, policy.name = %change.key.1, error = %error, "the status isn't written");
                }
            }
        }
        ok
    }

    /// An Event, a log line and the time it took, when a policy comes to a phase that people look for.
    async fn announce(&self, change: &Change) {
        let phase = change.status.phase.unwrap_or(PolicyPhase::Pending);
        if change.phase_before == Some(phase) {
            return;
        }
        let message = change.status.message.clone();
        let (type_, reason) = match phase {
            PolicyPhase::Pending => return,
            PolicyPhase::Active => (EventType::Normal, "Enforced"),
            PolicyPhase::Degraded => (EventType::Warning, "Degraded"),
            PolicyPhase::Invalid => (EventType::Warning, "Invalid"),
        };
        let was_enforced = change.phase_before == Some(PolicyPhase::Degraded);
        if phase == PolicyPhase::Active && !was_enforced {
            self.metrics
                .enforced
                .observe(change.view.seen.elapsed().as_secs_f64());
        }
        tracing::info!(policy.namespace = %change.key.0, policy.name = %change.key.1, phase = reason, message = message.as_deref().unwrap_or_default(), "policy");
        let count = change
            .status
            .nodes
            .as_ref()
            .map_or_else(String::new, ToString::to_string);
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(match message {
                Some(message) => message.chars().take(1000).collect(),
                None => format!("enforced on {count} nodes"),
            }),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        match timeout(CALL, self.recorder.publish(&event, &change.reference)).await {
            Ok(Ok(())) => self.metrics.write("event"),
            Ok(Err(error)) => {
                self.metrics.error("event");
                tracing::warn!(error = %error, "an Event isn't written");
            }
            Err(_) => self.metrics.error("event"),
        }
    }
}

enum Failure {
    Stale,
    Other(String),
}

async fn patch(client: &Client, change: &Change) -> Result<(), Failure> {
    let (namespace, name) = &change.key;
    let resource = ApiResource::erase::<AgentNetworkPolicy>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let object = json!({
        "apiVersion": resource.api_version, "kind": resource.kind,
        "metadata": {"name": name, "namespace": namespace, "resourceVersion": change.resource_version},
        "status": change.status,
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let patch = Patch::Apply(&object);
    match timeout(CALL, api.patch_status(name, &params, &patch)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if is_code(&error, 409) || is_code(&error, 404) => Err(Failure::Stale),
        Ok(Err(error)) => Err(Failure::Other(error.to_string())),
        Err(_) => Err(Failure::Other("the API server doesn't answer".to_owned())),
    }
}

fn reference(object: &GuardedPolicy) -> ObjectReference {
    let meta = object.meta();
    ObjectReference {
        api_version: Some(agent_api::API_VERSION.to_owned()),
        kind: Some(AgentNetworkPolicy::kind(&()).into_owned()),
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: None,
        field_path: None,
    }
}

fn label(phase: PolicyPhase) -> &'static str {
    match phase {
        PolicyPhase::Pending => "Pending",
        PolicyPhase::Active => "Active",
        PolicyPhase::Degraded => "Degraded",
        PolicyPhase::Invalid => "Invalid",
    }
}
