//! The policies that apply to one class of workloads. Owns how workloads fall into classes, and the cache of what was
//! found for each; a class is found once, then a look-up.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use crate::identity::Workload;
use crate::policy::document::{BypassAction, PolicyMode, Subjects};
use crate::policy::index::{Calls, FEW, Index};
use crate::policy::rule::{Destination, RuleTable};
use crate::policy::selector::{LabelRequirement, LabelSelector, Labels};

/// The policies that apply to a workload, and the indexes of their rules.
#[derive(Debug)]
pub(crate) struct ScopeInner {
    pub(crate) rules: Arc<RuleTable>,
    /// At most [`MAX_PARTS`].
    pub(crate) parts: Vec<Arc<Part>>,
    /// Positions of the policies, ascending.
    pub(crate) policies: Box<[u32]>,
    /// True when policies apply and every one of them is in audit mode.
    pub(crate) audit_only: bool,
    /// True when no policy applies, and the node's class says that such pods are passed on.
    pub(crate) passes: bool,
    /// What the policies say about Fake IP CIDRs.
    pub(crate) bypass: BypassAction,
}

impl ScopeInner {
    /// The scope of pods that no policy is for, where those are passed on.
    pub(crate) fn passing() -> Self {
        Self {
            rules: Arc::default(),
            parts: Vec::new(),
            policies: Box::default(),
            audit_only: false,
            passes: true,
            bypass: BypassAction::Deny,
        }
    }

    /// Whether a request is let through that no rule decides. Calls between agents never are.
    pub(crate) fn lets_out(&self) -> bool {
        self.audit_only || self.passes
    }
}

/// The rules of some policies, indexed.
#[derive(Debug)]
pub(crate) struct Part {
    /// Every rule that is carried out.
    pub(crate) egress: Index,
    /// The deny rules of policies in audit mode.
    pub(crate) observed: Index,
    pub(crate) calls: Calls,
    pub(crate) observed_calls: Calls,
    /// True when a deny rule on a network names methods or paths.
    pub(crate) networks_need_sight: bool,
}

/// Indexes that one decision asks, at most: one for the small policies and these for the big ones.
const MAX_PARTS: usize = 5;
/// Policies with the same subjects and more rules than this have an index of their own, which classes share.
const BIG: usize = 64;
/// Classes kept in the cache.
const MAX_CLASSES: usize = 4096;

/// Policies with the same subjects.
#[derive(Debug)]
struct Group {
    subjects: CompactSubjects,
    policies: Vec<u32>,
    /// Ranks, ascending.
    rules: Vec<u32>,
    /// The index, when the rules are many.
    part: Option<Arc<Part>>,
}

/// Subjects of all policies, findable by what a workload has.
#[derive(Debug, Default)]
pub(crate) struct Classes {
    groups: Vec<Group>,
    by_pod_label: HashMap<Box<str>, HashMap<Box<str>, Vec<u32>>>,
    by_namespace: HashMap<Box<str>, Vec<u32>>,
    others: Vec<u32>,
    pod_keys: HashSet<Box<str>>,
    namespace_keys: HashSet<Box<str>>,
    cache: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    by_class: HashMap<Box<[u8]>, Arc<ScopeInner>>,
    by_groups: HashMap<Box<[u32]>, Arc<ScopeInner>>,
    /// Rules in indexes that belong to one scope only.
    weight: usize,
}

impl Part {
    fn build(rules: &RuleTable, ranks: &[u32]) -> Self {
        let (mut egress, mut observed) = (Vec::new(), Vec::new());
        let (mut calls, mut observed_calls) = (Vec::new(), Vec::new());
        let mut networks_need_sight = false;
        for &rank in ranks {
            let Some(rule) = rules.get(rank) else {
                continue;
            };
            let observed_only = rules.is_observed(rule);
            match (&rule.destination, observed_only) {
                (Destination::Call(_), false) => calls.push(rank),
                (Destination::Call(_), true) => observed_calls.push(rank),
                (_, false) => egress.push(rank),
                (_, true) => observed.push(rank),
            }
            networks_need_sight |= matches!(rule.destination, Destination::Network(_))
                && rule.kind == crate::policy::document::RuleKind::Deny
                && (!rule.methods.is_empty() || !rule.paths.is_empty());
        }
        Self {
            egress: Index::build(rules, &egress),
            observed: Index::build(rules, &observed),
            calls: Calls::build(rules, &calls),
            observed_calls: Calls::build(rules, &observed_calls),
            networks_need_sight,
        }
    }
}

impl Classes {
    /// Groups policies by their subjects; `of_policy` holds the ranks of each policy's rules, ascending.
    pub(crate) fn build<'a>(
        rules: &RuleTable,
        subjects: impl Iterator<Item = &'a Subjects>,
        of_policy: Vec<Vec<u32>>,
    ) -> Self {
        let mut classes = Self::default();
        let mut known: HashMap<&Subjects, usize> = HashMap::new();
        for ((position, subjects), ranks) in (0u32..).zip(subjects).zip(of_policy) {
            let group = *known.entry(subjects).or_insert_with(|| {
                classes.groups.push(Group {
                    subjects: subjects.into(),
                    policies: Vec::new(),
                    rules: Vec::new(),
                    part: None,
                });
                classes.groups.len() - 1
            });
            classes.groups[group].policies.push(position);
            classes.groups[group].rules.extend(ranks);
        }
        for (position, group) in (0u32..).zip(&mut classes.groups) {
            group.rules.sort_unstable();
            group.rules.shrink_to_fit();
            if group.rules.len() > BIG {
                group.part = Some(Arc::new(Part::build(rules, &group.rules)));
            }
            let subjects = &group.subjects;
            classes
                .pod_keys
                .extend(subjects.pods.keys().map(Into::into));
            if let CompactNamespaces::Labels(selector) = &subjects.namespaces {
                classes
                    .namespace_keys
                    .extend(selector.keys().map(Into::into));
            }
            if let Some((key, value)) = subjects.pods.labels.first() {
                let values = classes.by_pod_label.entry(key.clone()).or_default();
                values.entry(value.clone()).or_default().push(position);
            } else if let CompactNamespaces::Names(names) = &subjects.namespaces {
                for name in names {
                    classes
                        .by_namespace
                        .entry(name.clone())
                        .or_default()
                        .push(position);
                }
            } else {
                classes.others.push(position);
            }
        }
        classes
    }

    /// The scope of a workload, from the cache if its class was seen before.
    pub(crate) fn scope(&self, rules: &Arc<RuleTable>, workload: &Workload) -> Arc<ScopeInner> {
        let class = self.class_of(workload);
        if let Some(scope) = self.cache().by_class.get(&*class) {
            return Arc::clone(scope);
        }
        let groups = self.groups_of(workload);
        let cached = self.cache().by_groups.get(&*groups).cloned();
        // Built without the lock: two workers that meet build the same thing, and one of the two is kept.
        let (scope, weight) = match cached {
            Some(scope) => (scope, 0),
            None => self.build_scope(rules, &groups),
        };
        let mut cache = self.cache();
        let most = 65_536.max(rules.rules.len().saturating_mul(4));
        if cache.by_class.len() >= MAX_CLASSES || cache.weight + weight > most {
            *cache = Cache::default();
        }
        cache.weight += weight;
        cache.by_groups.insert(groups, Arc::clone(&scope));
        cache.by_class.insert(class, Arc::clone(&scope));
        scope
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        // The cache holds whole entries only, so what a panicking thread left is still right.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What of a workload selectors look at; each part with its length, so that no two classes have the same bytes.
    fn class_of(&self, workload: &Workload) -> Box<[u8]> {
        let mut class = Vec::with_capacity(128);
        let mut push = |text: &str| {
            class.extend_from_slice(&text.len().to_le_bytes());
            class.extend_from_slice(text.as_bytes());
        };
        push(&workload.namespace);
        for (labels, keys) in [
            (&workload.labels, &self.pod_keys),
            (&workload.namespace_labels, &self.namespace_keys),
        ] {
            for (key, value) in labels.iter().filter(|(key, _)| keys.contains(key.as_str())) {
                push(key);
                push(value);
            }
            push("");
        }
        class.into()
    }

    /// The groups whose subjects cover the workload, ascending.
    fn groups_of(&self, workload: &Workload) -> Box<[u32]> {
        let by_label = workload
            .labels
            .iter()
            .filter_map(|(key, value)| self.by_pod_label.get(key.as_str())?.get(value.as_str()))
            .flatten();
        let by_namespace = self
            .by_namespace
            .get(workload.namespace.as_str())
            .into_iter()
            .flatten();
        let mut groups: Vec<u32> = by_label
            .chain(by_namespace)
            .chain(&self.others)
            .copied()
            .filter(|group| self.groups[*group as usize].subjects.cover(workload))
            .collect();
        groups.sort_unstable();
        groups.dedup();
        groups.into()
    }

    /// Builds a scope, and says how many rules had to be indexed for it alone.
    fn build_scope(&self, rules: &Arc<RuleTable>, groups: &[u32]) -> (Arc<ScopeInner>, usize) {
        let groups: Vec<&Group> = groups
            .iter()
            .map(|group| &self.groups[*group as usize])
            .collect();
        // The biggest groups keep their shared indexes; all else is indexed together, for this scope alone.
        let mut big: Vec<&Group> = groups
            .iter()
            .copied()
            .filter(|group| group.part.is_some())
            .collect();
        big.sort_by_key(|group| std::cmp::Reverse(group.rules.len()));
        big.truncate(MAX_PARTS - 1);
        let mut parts: Vec<Arc<Part>> = big.iter().filter_map(|group| group.part.clone()).collect();
        let mut own: Vec<u32> = groups
            .iter()
            .filter(|group| !big.iter().any(|shared| std::ptr::eq(*shared, **group)))
            .flat_map(|group| group.rules.iter().copied())
            .collect();
        own.sort_unstable();
        if !own.is_empty() {
            parts.push(Arc::new(Part::build(rules, &own)));
        }
        let mut policies: Vec<u32> = groups
            .iter()
            .flat_map(|group| group.policies.iter().copied())
            .collect();
        policies.sort_unstable();
        let infos = || {
            policies
                .iter()
                .filter_map(|policy| rules.policies.get(*policy as usize))
        };
        let scope = ScopeInner {
            rules: Arc::clone(rules),
            parts,
            passes: false,
            audit_only: !policies.is_empty() && infos().all(|info| info.mode == PolicyMode::Audit),
            // The highest priority that says something; among equals deny wins.
            bypass: infos()
                .filter_map(|info| Some((info.priority, info.direct_bypass?)))
                .max_by_key(|(priority, action)| (*priority, *action == BypassAction::Deny))
                .map_or(BypassAction::Deny, |(_, action)| action),
            policies: policies.into(),
        };
        (Arc::new(scope), if own.len() > FEW { own.len() } else { 0 })
    }
}

/// A selector in the least memory: policies may be many.
#[derive(Debug)]
struct CompactSelector {
    labels: Box<[(Box<str>, Box<str>)]>,
    expressions: Box<[LabelRequirement]>,
}

#[derive(Debug)]
enum CompactNamespaces {
    All,
    Names(Box<[Box<str>]>),
    Labels(CompactSelector),
}

#[derive(Debug)]
struct CompactSubjects {
    namespaces: CompactNamespaces,
    pods: CompactSelector,
}

impl From<&LabelSelector> for CompactSelector {
    fn from(selector: &LabelSelector) -> Self {
        Self {
            labels: selector
                .match_labels
                .iter()
                .map(|(k, v)| (k.as_str().into(), v.as_str().into()))
                .collect(),
            expressions: selector.match_expressions.iter().cloned().collect(),
        }
    }
}

impl From<&Subjects> for CompactSubjects {
    fn from(subjects: &Subjects) -> Self {
        let namespaces = match &subjects.namespace_selector {
            Some(selector) => CompactNamespaces::Labels(selector.into()),
            None if subjects.all_namespaces => CompactNamespaces::All,
            None => {
                let mut names: Vec<Box<str>> = subjects
                    .namespaces
                    .iter()
                    .map(|name| name.as_str().into())
                    .collect();
                names.sort_unstable();
                names.dedup();
                CompactNamespaces::Names(names.into())
            }
        };
        Self {
            namespaces,
            pods: (&subjects.pod_selector).into(),
        }
    }
}

impl CompactSelector {
    fn covers(&self, labels: &Labels) -> bool {
        self.labels
            .iter()
            .all(|(key, value)| labels.get(&**key).is_some_and(|v| **v == **value))
            && self
                .expressions
                .iter()
                .all(|requirement| requirement.matches(labels))
    }

    fn keys(&self) -> impl Iterator<Item = &str> {
        let expressions = self
            .expressions
            .iter()
            .map(|requirement| requirement.key.as_str());
        self.labels.iter().map(|(key, _)| &**key).chain(expressions)
    }
}

impl CompactSubjects {
    fn cover(&self, workload: &Workload) -> bool {
        let namespace = match &self.namespaces {
            CompactNamespaces::All => true,
            CompactNamespaces::Names(names) => names
                .binary_search_by(|name| (**name).cmp(workload.namespace.as_str()))
                .is_ok(),
            CompactNamespaces::Labels(selector) => selector.covers(&workload.namespace_labels),
        };
        namespace && self.pods.covers(&workload.labels)
    }
}
