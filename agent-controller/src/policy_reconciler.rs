//! From the policies of the cluster to the published document.
//!
//! A policy is compiled once for each of its generations; what grows with the number of policies is only the writing of
//! the document. Owns which version of the document each policy's content came with, so that a policy's status changes
//! when the policy does and not with every other one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_api::{CompileOptions, CompiledPolicy, NamedPolicy, assemble, compile_policy};
use agent_core::policy::{IpCidr, RuntimePolicy, parts};
use kube::Resource;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::publish::{self, MAX_PARTS, PART_BYTES, POLICY_KEY, PublishError, Publisher};
use crate::watch::{GuardedPolicy, World};

/// Versions that are remembered for proxies that are behind.
const HISTORY: usize = 512;

/// Namespace and name.
pub(crate) type Key = (String, String);

/// What a policy compiles to.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// It is in the document.
    Valid(Arc<CompiledPolicy>),
    /// It is left out, for this reason.
    Invalid(String),
}

impl Outcome {
    fn is_valid(&self) -> bool {
        matches!(self, Self::Valid(_))
    }
}

/// One policy, as its status needs it.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) uid: String,
    pub(crate) generation: i64,
    pub(crate) outcome: Outcome,
    /// The number of the document that its content came with.
    pub(crate) since: u64,
    /// The version of that document.
    pub(crate) since_version: String,
    /// When this content was first seen.
    pub(crate) seen: Instant,
}

/// What is published.
#[derive(Debug, Clone, Default)]
pub(crate) struct Published {
    /// The numbers of the documents by version.
    pub(crate) history: BTreeMap<String, u64>,
    pub(crate) policies: BTreeMap<Key, View>,
}

/// Compiles and publishes.
pub(crate) struct PolicyReconciler {
    pub(crate) world: World,
    pub(crate) publisher: Publisher,
    pub(crate) metrics: Arc<Metrics>,
    /// What status is written from.
    pub(crate) published: watch::Sender<Arc<Published>>,
    /// The version that proxies are to have.
    pub(crate) target: watch::Sender<Option<String>>,
    catalogue: Catalogue,
    document: Option<Document>,
}

struct Document {
    version: String,
    sensitive: Vec<IpCidr>,
    texts: Vec<String>,
}

impl PolicyReconciler {
    pub(crate) fn new(
        world: World,
        publisher: Publisher,
        options: CompileOptions,
        published: watch::Sender<Arc<Published>>,
        target: watch::Sender<Option<String>>,
    ) -> Self {
        Self {
            metrics: publisher.metrics.clone(),
            world,
            publisher,
            published,
            target,
            catalogue: Catalogue::new(options),
            document: None,
        }
    }

    /// Looks at everything once. Writes only what differs.
    ///
    /// # Errors
    /// When something couldn't be written; what was published before stays in force.
    pub(crate) async fn reconcile(&mut self) -> Result<(), PublishError> {
        let maps = self.world.config_maps();
        if self.document.is_none() {
            self.catalogue.begin(publish::published(&maps).as_deref());
        }
        let changed = self.catalogue.update(&self.world.policies());
        let sensitive = self.sensitive();
        let current = self
            .document
            .as_ref()
            .is_some_and(|document| !changed && document.sensitive == sensitive);
        if !current {
            self.write_document(sensitive)?;
        }
        let Some(document) = &self.document else {
            return Ok(());
        };
        // the parts first: an index that names parts of another version is waited out, but need not be
        let numbered = document.texts.iter().enumerate();
        let (first, others): (Vec<_>, Vec<_>) = numbered.partition(|(number, _)| *number == 0);
        for (number, text) in others.into_iter().chain(first) {
            let name = publish::part_name(number);
            let there = maps.get(&name).map(Arc::as_ref);
            self.publisher
                .publish(&name, POLICY_KEY, text, there)
                .await?;
        }
        for number in document.texts.len()..MAX_PARTS {
            let name = publish::part_name(number);
            if maps.contains_key(&name) {
                self.publisher.remove(&name).await?;
            }
        }
        self.catalogue.settle(&document.version);
        let published = Arc::new(self.catalogue.published());
        self.published.send_replace(published);
        self.target.send_if_modified(|target| {
            let new = target.as_ref() != Some(&document.version);
            *target = Some(document.version.clone());
            new
        });
        Ok(())
    }

    fn write_document(&mut self, sensitive: Vec<IpCidr>) -> Result<(), PublishError> {
        let document = assemble(self.catalogue.valid(), &sensitive);
        let rules = document.rules.len();
        // what `assemble` sealed is not hashed again
        let version = document.version.clone().unwrap_or_default();
        let text = serde_json::to_string(&document).unwrap_or_default();
        let bytes = text.len();
        let texts = parts::split(text, &version, PART_BYTES);
        if texts.len() > MAX_PARTS {
            return Err(PublishError::TooLarge(bytes));
        }
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.metrics.document_bytes.set(number(bytes));
        self.metrics.document_parts.set(number(texts.len()));
        self.metrics.document_rules.set(number(rules));
        self.document = Some(Document {
            version,
            sensitive,
            texts,
        });
        Ok(())
    }

    /// The ranges of all classes: a document is for all nodes, and a range that one class names is closed on each.
    fn sensitive(&self) -> Vec<IpCidr> {
        let classes = self.world.classes();
        let valid = classes.iter().filter_map(|class| class.0.as_ref().ok());
        let mut all: Vec<IpCidr> = valid
            .flat_map(|class| class.spec.sensitive_cidrs.clone())
            .collect();
        all.sort();
        all.dedup();
        all
    }
}

/// Every policy's compiled form, and the document that it came with.
struct Catalogue {
    options: CompileOptions,
    entries: BTreeMap<Key, Entry>,
    /// The number of the document that is published.
    number: u64,
    history: BTreeMap<String, u64>,
    /// What was published before this process: what is in it and hasn't changed is not new.
    before: BTreeMap<Key, CompiledPolicy>,
    before_version: String,
}

struct Entry {
    uid: String,
    generation: i64,
    outcome: Outcome,
    /// `None` until the document that it is in is published.
    since: Option<(u64, String)>,
    seen: Instant,
}

impl Catalogue {
    fn new(options: CompileOptions) -> Self {
        Self {
            options,
            entries: BTreeMap::new(),
            number: 0,
            history: BTreeMap::new(),
            before: BTreeMap::new(),
            before_version: String::new(),
        }
    }

    /// Takes what another process published as document number 0.
    fn begin(&mut self, document: Option<&[u8]>) {
        let Some(Ok(document)) = document.map(RuntimePolicy::parse) else {
            return;
        };
        self.before_version = document.version.clone().unwrap_or_default();
        self.history.insert(self.before_version.clone(), 0);
        self.before = CompiledPolicy::of_document(document);
    }

    /// Compiles what has changed; says whether the document has.
    fn update(&mut self, objects: &[Arc<GuardedPolicy>]) -> bool {
        let mut changed = false;
        let mut seen = BTreeSet::new();
        for object in objects {
            let meta = object.meta();
            let key = (
                meta.namespace.clone().unwrap_or_default(),
                meta.name.clone().unwrap_or_default(),
            );
            seen.insert(key.clone());
            let uid = meta.uid.clone().unwrap_or_default();
            let generation = meta.generation.unwrap_or(0);
            let old = self.entries.get(&key);
            if old.is_some_and(|e| e.uid == uid && e.generation == generation) {
                continue;
            }
            let outcome = self.compile(object, &key);
            let unchanged = old.filter(|old| old.uid == uid && same(&old.outcome, &outcome));
            let since = match unchanged {
                Some(old) => old.since.clone(),
                None => {
                    changed |= old.is_some_and(|old| old.outcome.is_valid()) || outcome.is_valid();
                    self.published_before(&key, &outcome)
                }
            };
            let entry = Entry {
                uid,
                generation,
                outcome,
                since,
                seen: Instant::now(),
            };
            self.entries.insert(key, entry);
        }
        let gone = self.entries.keys().filter(|key| !seen.contains(*key));
        let gone: Vec<Key> = gone.cloned().collect();
        for key in gone {
            let entry = self.entries.remove(&key);
            changed |= entry.is_some_and(|entry| entry.outcome.is_valid());
        }
        // only the first look compares with what was there before
        self.before.clear();
        changed
    }

    fn compile(&self, object: &GuardedPolicy, key: &Key) -> Outcome {
        let policy = match &object.0 {
            Ok(policy) => policy,
            Err(error) => {
                return Outcome::Invalid(format!(
                    "it can't be read: {error}; write it again by `kubectl apply`, which says what is wrong"
                ));
            }
        };
        let (namespace, name) = key.clone();
        let named = NamedPolicy {
            namespace,
            name,
            spec: policy.spec.clone(),
        };
        match compile_policy(&named, &self.options) {
            Ok(compiled) => Outcome::Valid(Arc::new(compiled)),
            Err(reason) => Outcome::Invalid(reason.to_string()),
        }
    }

    fn published_before(&self, key: &Key, outcome: &Outcome) -> Option<(u64, String)> {
        let Outcome::Valid(compiled) = outcome else {
            return None;
        };
        let before = self.before.get(key)?;
        (before == compiled.as_ref()).then(|| (0, self.before_version.clone()))
    }

    fn valid(&self) -> impl Iterator<Item = &CompiledPolicy> {
        self.entries
            .values()
            .filter_map(|entry| match &entry.outcome {
                Outcome::Valid(compiled) => Some(compiled.as_ref()),
                Outcome::Invalid(_) => None,
            })
    }

    /// The document `version` with all that is here now is published.
    fn settle(&mut self, version: &str) {
        if self.history.get(version) != Some(&self.number) || self.number == 0 {
            self.number += 1;
            self.history.insert(version.to_owned(), self.number);
            if self.history.len() > HISTORY {
                let oldest = self.history.iter().min_by_key(|(_, number)| **number);
                if let Some(oldest) = oldest.map(|(version, _)| version.clone()) {
                    self.history.remove(&oldest);
                }
            }
        }
        for entry in self.entries.values_mut() {
            if entry.since.is_none() {
                entry.since = Some((self.number, version.to_owned()));
            }
        }
    }

    fn published(&self) -> Published {
        let policies = self.entries.iter().map(|(key, entry)| {
            let (since, since_version) = entry.since.clone().unwrap_or_default();
            let view = View {
                uid: entry.uid.clone(),
                generation: entry.generation,
                outcome: entry.outcome.clone(),
                since,
                since_version,
                seen: entry.seen,
            };
            (key.clone(), view)
        });
        Published {
            history: self.history.clone(),
            policies: policies.collect(),
        }
    }
}

fn same(a: &Outcome, b: &Outcome) -> bool {
    match (a, b) {
        (Outcome::Valid(a), Outcome::Valid(b)) => a == b,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
