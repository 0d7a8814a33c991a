//! Our ConfigMaps: written by server-side apply when they differ from what should be there, and only then.
//!
//! Somebody who deletes or changes one gets it back. The resource version goes along, so that a replica whose cache is
//! stale is refused instead of undoing what another one wrote.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::metrics::Metrics;
use crate::watch::MANAGED_BY;

/// Who we are in `managedFields`.
pub(crate) const FIELD_MANAGER: &str = "agent-network-controller";
/// The first ConfigMap of the policy document; the others have a number behind it.
pub(crate) const POLICY: &str = "agent-network-policy";
/// The ConfigMap of the node settings.
pub(crate) const NODES: &str = "agent-network-nodes";
/// The key of every ConfigMap of the policy document.
pub(crate) const POLICY_KEY: &str = "policy.json";
/// Most ConfigMaps of one document: as many as RBAC names.
pub(crate) const MAX_PARTS: usize = 32;
/// Bytes of one ConfigMap. The limit is 1 MiB, of the object as a whole.
pub(crate) const PART_BYTES: usize = 960 * 1024;

/// How long a write is taken for granted that the watch doesn't bring back.
const TRUST: Duration = Duration::from_secs(5);
/// How long one call may take.
pub(crate) const CALL: Duration = Duration::from_secs(10);

/// Why a ConfigMap isn't as it should be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishError {
    #[error("write ConfigMap {name}")]
    Write {
        name: String,
        source: Box<kube::Error>,
    },
    #[error("the API server doesn't answer about ConfigMap {0}")]
    TimedOut(String),
    #[error(
        "the policy document has {0} bytes, and {MAX_PARTS} ConfigMaps hold {limit}; the version before stays, so write fewer rules",
        limit = MAX_PARTS * PART_BYTES
    )]
    TooLarge(usize),
}

/// Writes ConfigMaps of the system namespace.
pub(crate) struct Publisher {
    api: Api<ConfigMap>,
    pub(crate) metrics: Arc<Metrics>,
    /// What was written, and to which resource version: the watch may not have brought it back yet.
    written: BTreeMap<String, (Option<String>, Instant, ConfigMap)>,
}

impl Publisher {
    pub(crate) fn new(api: Api<ConfigMap>, metrics: Arc<Metrics>) -> Self {
        Self {
            api,
            metrics,
            written: BTreeMap::new(),
        }
    }

    /// Makes ConfigMap `name` hold `text` under `key`; `there` is what the watch knows of it. Says whether it wrote.
    ///
    /// # Errors
    /// When the API server refuses or doesn't answer; trying again later is right.
    pub(crate) async fn publish(
        &mut self,
        name: &str,
        key: &str,
        text: &str,
        there: Option<&ConfigMap>,
    ) -> Result<bool, PublishError> {
        let base = there.and_then(|map| map.metadata.resource_version.clone());
        let ours = self
            .written
            .remove(name)
            .filter(|(at, since, _)| *at == base && since.elapsed() < TRUST);
        let there = ours.as_ref().map(|(_, _, map)| map).or(there);
        if there.is_some_and(|map| holds(map, key, text)) {
            if let Some(ours) = ours {
                self.written.insert(name.to_owned(), ours);
            }
            return Ok(false);
        }
        let (label, value) = MANAGED_BY;
        let version = there.and_then(|map| map.metadata.resource_version.as_deref());
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": name, "resourceVersion": version,
                "labels": {label: value, "app.kubernetes.io/part-of": "agent-network"},
            },
            "data": {key: text},
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(object);
        let call = self.api.patch(name, &params, &patch);
        let map = self.call(name, call).await?;
        let ours = (base, Instant::now(), map);
        self.written.insert(name.to_owned(), ours);
        self.metrics.write("configmap");
        tracing::info!(configmap = %name, bytes = text.len(), "published");
        Ok(true)
    }

    /// Removes a ConfigMap; one that is gone already is fine.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    pub(crate) async fn remove(&mut self, name: &str) -> Result<(), PublishError> {
        self.written.remove(name);
        let params = DeleteParams::default();
        match self.call(name, self.api.delete(name, &params)).await {
            Err(PublishError::Write { source, .. }) if is_code(&source, 404) => Ok(()),
            other => {
                self.metrics.write("configmap");
                other.map(|_| ())
            }
        }
    }

    async fn call<T>(
        &self,
        name: &str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, PublishError> {
        let result = timeout(CALL, call).await;
        let result = result
            .map_err(|_| PublishError::TimedOut(name.to_owned()))
            .and_then(|r| {
                r.map_err(|source| PublishError::Write {
                    name: name.to_owned(),
                    source: Box::new(source),
                })
            });
        if result.is_err() {
            self.metrics.error("configmap");
        }
        result
    }
}

/// Whether an error is the API server's answer with this status code.
pub(crate) fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// The name of ConfigMap `number` of the policy document; 0 is the first.
pub(crate) fn part_name(number: usize) -> String {
    match number {
        0 => POLICY.to_owned(),
        n => format!("{POLICY}-{n}"),
    }
}

/// The texts of the document that is published now, as they are; `None` without one.
pub(crate) fn published(maps: &BTreeMap<String, Arc<ConfigMap>>) -> Option<Vec<u8>> {
    use agent_core::policy::parts::Index;
    let text = |number: usize| {
        let data = maps.get(&part_name(number))?.data.as_ref()?;
        data.get(POLICY_KEY).map(String::as_bytes)
    };
    let first = text(0)?;
    let Some(index) = Index::parse(first) else {
        return Some(first.to_vec());
    };
    let mut document = Vec::new();
    for number in 1..=index.parts {
        let part = text(usize::try_from(number).ok()?)?;
        document.extend_from_slice(index.piece(number, part).ok()?);
    }
    Some(document)
}

/// Whether there is nothing to write. What others add stays theirs: an apply takes nothing away from them, and nobody reads it.
fn holds(map: &ConfigMap, key: &str, text: &str) -> bool {
    let (label, value) = MANAGED_BY;
    let data = map.data.as_ref();
    let labels = map.metadata.labels.as_ref();
    data.is_some_and(|data| data.get(key).is_some_and(|t| t == text))
        && labels.is_some_and(|labels| labels.get(label).is_some_and(|v| v == value))
}
