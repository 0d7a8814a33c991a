//! What was heard about pods and namespaces, event by event. Pure: no client, no file, no clock.

use std::collections::BTreeMap;

use agent_core::identity::is_object_name;
use agent_core::policy::selector::Labels;
use agent_core::workloads::{NamedPod, WorkloadsFile};

use super::Origin;
use crate::workloads::source::{PodFacts, PodRef};

/// A pod, as far as a policy can ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeardPod {
    /// A pod of the same name with another UID is another pod.
    pub(super) uid: String,
    /// What it runs as.
    pub(super) service_account: Option<String>,
    /// Its labels.
    pub(super) labels: Labels,
}

/// Namespace and name.
pub(super) type PodKey = (String, String);

/// What a watch tells, in the order in which it does.
#[derive(Debug, Clone)]
pub(super) enum Change<K, V> {
    /// A new list begins, because there was none, or the watch is too far behind (410).
    ListBegins,
    /// One of the list.
    Listed(K, V),
    /// The list is complete: what isn't on it is gone.
    ListEnds,
    /// Made or changed.
    Is(K, V),
    /// Deleted.
    Gone(K, V),
}

/// Everything that was heard.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pods: Objects<PodKey, HeardPod>,
    namespaces: Objects<String, Labels>,
    from_snapshot: bool,
}

impl Heard {
    /// What an earlier process kept; `None` when it isn't what one keeps, with the first key that says so.
    pub(super) fn from_kept(file: &WorkloadsFile) -> Result<Heard, String> {
        let (mut pods, mut namespaces) = (BTreeMap::new(), BTreeMap::new());
        for pod in file.entries() {
            let Some(uid) = pod.uid.filter(|_| is_object_name(pod.name)) else {
                return Err(format!("{}/{}", pod.namespace, pod.name));
            };
            let heard = HeardPod {
                uid: uid.to_owned(),
                service_account: pod.facts.service_account.clone(),
                labels: pod.facts.labels.clone(),
            };
            pods.insert((pod.namespace.to_owned(), pod.name.to_owned()), heard);
            namespaces.insert(pod.namespace.to_owned(), pod.facts.namespace_labels.clone());
        }
        Ok(Heard {
            pods: Objects::known(pods),
            namespaces: Objects::known(namespaces),
            from_snapshot: true,
        })
    }

    /// Takes in what the watch on pods tells, and says whether anything is different now.
    pub(super) fn pod(&mut self, change: Change<PodKey, HeardPod>) -> bool {
        self.pods.apply(change)
    }

    /// As [`Heard::pod`], of namespaces; those without a pod here make no difference.
    pub(super) fn namespace(&mut self, change: Change<String, Labels>) -> bool {
        self.namespaces.apply(change)
    }

    /// What is known about a pod; nothing before its namespace is known as well, because a selector may ask for the
    /// absence of a label.
    pub(super) fn facts(&self, pod: PodRef<'_>) -> Option<PodFacts> {
        // a map of pairs can't be asked with borrowed halves
        let key = (pod.namespace.to_owned(), pod.name.to_owned());
        let found = self.pods.known.get(&key)?;
        if !pod.uid.is_empty() && pod.uid != found.uid {
            return None;
        }
        self.facts_of(pod.namespace, found)
    }

    fn facts_of(&self, namespace: &str, pod: &HeardPod) -> Option<PodFacts> {
        Some(PodFacts {
            service_account: pod.service_account.clone(),
            labels: pod.labels.clone(),
            namespace_labels: self.namespaces.known.get(namespace)?.clone(),
        })
    }

    pub(super) fn pods(&self) -> usize {
        self.pods.known.len()
    }

    pub(super) fn origin(&self) -> Origin {
        match (
            self.pods.listed && self.namespaces.listed,
            self.from_snapshot,
        ) {
            (true, _) => Origin::Listed,
            (false, true) => Origin::Snapshot,
            (false, false) => Origin::Nothing,
        }
    }

    /// What is worth keeping: every pod about which all is known.
    pub(super) fn kept(&self) -> WorkloadsFile {
        let facts: Vec<_> = self
            .pods
            .known
            .iter()
            .filter_map(|(key, pod)| Some((key, pod, self.facts_of(&key.0, pod)?)))
            .collect();
        WorkloadsFile::of(
            facts
                .iter()
                .map(|((namespace, name), pod, facts)| NamedPod {
                    namespace,
                    name,
                    uid: Some(&pod.uid),
                    facts,
                }),
        )
    }
}

/// One kind of object.
#[derive(Debug)]
struct Objects<K, V> {
    known: BTreeMap<K, V>,
    /// A list on its way; until it is complete, what was known stays.
    arriving: BTreeMap<K, V>,
    listed: bool,
}

impl<K, V> Default for Objects<K, V> {
    fn default() -> Self {
        Objects::known(BTreeMap::new())
    }
}

impl<K, V> Objects<K, V> {
    fn known(known: BTreeMap<K, V>) -> Self {
        Objects {
            known,
            arriving: BTreeMap::new(),
            listed: false,
        }
    }
}

impl<K: Ord, V: PartialEq> Objects<K, V> {
    fn apply(&mut self, change: Change<K, V>) -> bool {
        match change {
            Change::ListBegins => {
                self.arriving.clear();
                false
            }
            Change::Listed(key, value) => {
                self.arriving.insert(key, value);
                false
            }
            Change::ListEnds => {
                let list = std::mem::take(&mut self.arriving);
                let first = !std::mem::replace(&mut self.listed, true);
                let changed = self.known != list;
                self.known = list;
                changed || first
            }
            Change::Is(key, value) => {
                let same = self.known.get(&key) == Some(&value);
                if !same {
                    self.known.insert(key, value);
                }
                !same
            }
            Change::Gone(key, _) => self.known.remove(&key).is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> Labels {
        Labels::from([("app".into(), text.into())])
    }

    fn key(name: &str) -> PodKey {
        ("demo".into(), name.into())
    }

    fn pod(uid: &str, app: &str) -> HeardPod {
        HeardPod {
            uid: uid.into(),
            service_account: Some("coder".into()),
            labels: labels(app),
        }
    }

    fn ask(heard: &Heard, name: &str, uid: &str) -> Option<PodFacts> {
        heard.facts(PodRef {
            namespace: "demo",
            name,
            uid,
        })
    }

    fn app(heard: &Heard, name: &str, uid: &str) -> Option<String> {
        ask(heard, name, uid).map(|facts| facts.labels["app"].clone())
    }

    fn listed() -> Heard {
        let mut heard = Heard::default();
        heard.pod(Change::ListBegins);
        heard.pod(Change::Listed(key("a"), pod("1", "old")));
        heard.pod(Change::ListEnds);
        heard.namespace(Change::Listed("demo".into(), labels("ns")));
        heard.namespace(Change::ListEnds);
        heard
    }

    #[test]
    fn a_pod_is_known_when_it_and_its_namespace_are() {
        let mut heard = Heard::default();
        assert!(!heard.pod(Change::Listed(key("a"), pod("1", "old"))));
        assert_eq!(ask(&heard, "a", "1"), None, "the list isn't complete");
        assert!(heard.pod(Change::ListEnds));
        assert_eq!(ask(&heard, "a", "1"), None, "its namespace isn't known");
        assert_eq!(heard.origin(), Origin::Nothing);
        heard.namespace(Change::Listed("demo".into(), labels("ns")));
        assert!(heard.namespace(Change::ListEnds));
        let facts = ask(&heard, "a", "1").unwrap();
        assert_eq!(facts.service_account.as_deref(), Some("coder"));
        assert_eq!(facts.namespace_labels, labels("ns"));
        assert_eq!(heard.origin(), Origin::Listed);
    }

    #[test]
    fn a_pod_of_the_same_name_is_another_pod() {
        let mut heard = listed();
        assert_eq!(app(&heard, "a", "2"), None);
        assert!(app(&heard, "a", "").is_some(), "the runtime did not say");
        assert!(heard.pod(Change::Is(key("a"), pod("2", "new"))));
        assert_eq!(app(&heard, "a", "1"), None);
        assert_eq!(app(&heard, "a", "2").as_deref(), Some("new"));
    }

    #[test]
    fn a_change_is_one_only_when_something_differs() {
        let mut heard = listed();
        assert!(!heard.pod(Change::Is(key("a"), pod("1", "old"))));
        assert!(heard.pod(Change::Is(key("a"), pod("1", "new"))));
        assert_eq!(app(&heard, "a", "1").as_deref(), Some("new"));
        assert!(heard.namespace(Change::Is("demo".into(), labels("other"))));
        assert!(heard.pod(Change::Gone(key("a"), pod("1", "new"))));
        assert_eq!(ask(&heard, "a", "1"), None);
        assert!(!heard.pod(Change::Gone(key("a"), pod("1", "new"))));
    }

    #[test]
    fn a_new_list_replaces_what_was_known_at_its_end_and_an_interrupted_one_does_nothing() {
        let mut heard = listed();
        heard.pod(Change::ListBegins);
        heard.pod(Change::Listed(key("b"), pod("3", "b")));
        assert!(ask(&heard, "a", "1").is_some(), "not complete");
        // the API server went away in its midst
        heard.pod(Change::ListBegins);
        heard.pod(Change::Listed(key("c"), pod("4", "c")));
        assert!(heard.pod(Change::ListEnds));
        for (name, uid, known) in [("a", "1", false), ("b", "3", false), ("c", "4", true)] {
            assert_eq!(ask(&heard, name, uid).is_some(), known, "{name}");
        }
        // the same list again, as after each 410
        heard.pod(Change::ListBegins);
        heard.pod(Change::Listed(key("c"), pod("4", "c")));
        assert!(!heard.pod(Change::ListEnds));
    }

    #[test]
    fn what_is_kept_is_what_the_next_process_starts_with_until_lists_are_there() {
        let mut heard = listed();
        heard.pod(Change::Is(("unknown".into(), "b".into()), pod("2", "b")));
        let kept = heard.kept();
        assert_eq!(
            kept.to_json(),
            r#"{"demo/a":{"uid":"1","serviceAccount":"coder","labels":{"app":"old"},"namespaceLabels":{"app":"ns"}}}"#
        );
        let mut next = Heard::from_kept(&kept).unwrap();
        assert_eq!(next.origin(), Origin::Snapshot);
        assert_eq!(app(&next, "a", "1").as_deref(), Some("old"));
        next.pod(Change::ListBegins);
        assert!(app(&next, "a", "1").is_some());
        next.pod(Change::ListEnds);
        assert_eq!(app(&next, "a", "1"), None, "it was deleted meanwhile");
    }

    #[test]
    fn what_nobody_kept_is_refused_by_its_key() {
        for (text, key) in [
            (r#"{"demo/*":{"uid":"1"}}"#, "demo/*"),
            (r#"{"demo/a":{"labels":{}}}"#, "demo/a"),
        ] {
            let file = WorkloadsFile::parse(text.as_bytes()).unwrap();
            assert_eq!(Heard::from_kept(&file).unwrap_err(), key);
        }
    }
}
