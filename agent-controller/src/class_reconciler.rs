//! From classes and nodes to the published node settings, and the classes' statuses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use agent_api::class::{ClassPhase, ClassSpec, ClassStatus, Connectivity, FailMode};
use agent_api::settings::{ClassOutcome, Followed, NamedClass, NodeFacts, RENUMBER, derive};
use agent_api::status::NodeCount;
use agent_api::{API_VERSION, AgentNetworkClass};
use agent_core::node_settings::{FILE_NAME, NodeSettingsFile, TakenSettings};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;
use tokio::time::timeout;

use crate::metrics::Metrics;
use crate::publish::{CALL, FIELD_MANAGER, NODES, PublishError, Publisher, is_code};
use crate::reload::Fleet;
use crate::status::settle;
use crate::watch::{GuardedClass, World};

/// Most nodes that a message names.
const NAMED: usize = 5;

/// Publishes node settings and writes classes' statuses.
pub(crate) struct ClassReconciler {
    pub(crate) client: Client,
    pub(crate) world: World,
    pub(crate) publisher: Publisher,
    pub(crate) recorder: Recorder,
    /// What nodes say that they follow.
    pub(crate) fleet: Fleet,
    pub(crate) services: Vec<Ipv4Net>,
    pub(crate) metrics: Arc<Metrics>,
    /// What was written, and to which resource version: the watch may not have brought it back yet.
    pub(crate) written: BTreeMap<String, (String, ClassStatus)>,
    /// What was published last, for when somebody takes it away: nobody's range may change by that.
    pub(crate) last: Option<NodeSettingsFile>,
}

/// Why a round failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClassError {
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// Everybody's ranges stand in it; made anew, nodes could be given others'.
    #[error(
        "ConfigMap {NODES} can't be read, so no settings are published: {0}; restore it, or delete it to have all ranges derived anew"
    )]
    Before(String),
    #[error("{0} nodes' settings don't fit in one ConfigMap; use fewer classes, or fewer nodes")]
    TooLarge(usize),
    #[error("write the status of class {name}: {why}")]
    Status { name: String, why: String },
}

impl ClassReconciler {
    /// Looks at everything once. Writes only what differs.
    ///
    /// # Errors
    /// When something couldn't be written.
    pub(crate) async fn reconcile(&mut self) -> Result<(), ClassError> {
        let maps = self.world.config_maps();
        let there = maps.get(NODES).map(Arc::as_ref);
        let objects = self.world.classes();
        if there.is_none() && objects.is_empty() {
            return Ok(());
        }
        let text = there.and_then(|map| map.data.as_ref()?.get(FILE_NAME));
        let read = match (there, text) {
            (None, _) => Ok(self.last.clone().unwrap_or_default()),
            (Some(_), None) => Err(ClassError::Before(format!("it has no {FILE_NAME}"))),
            (Some(_), Some(text)) => NodeSettingsFile::parse(text.as_bytes())
                .map_err(|error| ClassError::Before(error.to_string())),
        };
        let before = match (read, &self.last) {
            (Ok(file), _) => file,
            (Err(_), Some(last)) => last.clone(),
            (Err(error), None) => return Err(error),
        };
        let classes: Vec<NamedClass> = objects
            .iter()
            .filter_map(|object| object.0.as_ref().ok())
            .map(|class| NamedClass {
                name: class.name_any(),
                spec: class.spec.clone(),
            })
            .collect();
        let nodes: Vec<NodeFacts> = self.world.nodes().iter().map(|node| facts(node)).collect();
        let (file, outcomes) = derive(&classes, &nodes, &before, &self.services);
        let json = file.to_json();
        if json.len() > crate::publish::PART_BYTES {
            return Err(ClassError::TooLarge(file.nodes.len()));
        }
        self.publisher
            .publish(NODES, FILE_NAME, &json, there)
            .await?;
        self.fleet.expect(&file);
        let standing = Standing::of(&file, &self.fleet.taken());
        self.last = Some(file);
        self.statuses(&objects, &outcomes, &standing).await
    }

    async fn statuses(
        &mut self,
        objects: &[Arc<GuardedClass>],
        outcomes: &BTreeMap<String, ClassOutcome>,
        standing: &Standing,
    ) -> Result<(), ClassError> {
        let now = Time(Timestamp::now());
        self.written
            .retain(|name, _| objects.iter().any(|object| object.name_any() == *name));
        for object in objects {
            let name = object.name_any();
            let version = object.resource_version().unwrap_or_default();
            let generation = object.meta().generation.unwrap_or(0);
            let mut wanted = match (&object.0, outcomes.get(&name)) {
                (Err(error), _) => invalid(generation, &format!("it can't be read: {error}")),
                (Ok(_), None) => continue,
                (Ok(_), Some(ClassOutcome::Invalid(error))) => {
                    invalid(generation, &error.to_string())
                }
                (Ok(class), Some(ClassOutcome::Valid(followed))) => {
                    valid(generation, &class.spec, followed, standing)
                }
            };
            let ours = self.written.get(&name);
            let there = match &object.0 {
                _ if ours.is_some_and(|(at, _)| *at == version) => ours.map(|(_, status)| status),
                Ok(class) => class.status.as_ref(),
                Err(_) => ours.map(|(_, status)| status),
            };
            let conditions = there.map(|status| status.conditions.clone());
            settle(
                &mut wanted.conditions,
                &conditions.unwrap_or_default(),
                &now,
            );
            if there == Some(&wanted) {
                continue;
            }
            let changed = there.is_none_or(|status| {
                (status.phase, &status.message) != (wanted.phase, &wanted.message)
            });
            match self.patch(&name, &version, &wanted).await {
                Ok(()) => {
                    self.metrics.write("status");
                    if changed {
                        self.announce(object, &wanted).await;
                    }
                    self.written.insert(name, (version, wanted));
                }
                // somebody changed or deleted it meanwhile: the watch brings that
                Err(None) => {}
                Err(Some(why)) => {
                    self.metrics.error("status");
                    return Err(ClassError::Status { name, why });
                }
            }
        }
        Ok(())
    }

    async fn patch(
        &self,
        name: &str,
        version: &str,
        status: &ClassStatus,
    ) -> Result<(), Option<String>> {
        let resource = ApiResource::erase::<AgentNetworkClass>(&());
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let object = json!({
            "apiVersion": resource.api_version, "kind": resource.kind,
            "metadata": {"name": name, "resourceVersion": version}, "status": status,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&object);
        match timeout(CALL, api.patch_status(name, &params, &patch)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if is_code(&error, 409) || is_code(&error, 404) => Err(None),
            Ok(Err(error)) => Err(Some(error.to_string())),
            Err(_) => Err(Some("the API server doesn't answer".to_owned())),
        }
    }

    async fn announce(&self, object: &GuardedClass, status: &ClassStatus) {
        let reason = match status.phase {
            Some(ClassPhase::Invalid) => "Invalid",
            Some(ClassPhase::Degraded) => "Degraded",
            Some(ClassPhase::Active) if status.message.is_some() => "Followed",
            _ => return,
        };
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: status
                .message
                .as_ref()
                .map(|message| message.chars().take(1000).collect()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        let reference = ObjectReference {
            api_version: Some(API_VERSION.to_owned()),
            kind: Some(AgentNetworkClass::kind(&()).into_owned()),
            name: Some(object.name_any()),
            uid: object.uid(),
            // an Event is in a namespace; that of what has none is this one
            namespace: Some("default".to_owned()),
            ..ObjectReference::default()
        };
        match timeout(CALL, self.recorder.publish(&event, &reference)).await {
            Ok(Ok(())) => self.metrics.write("event"),
            Ok(Err(error)) => {
                self.metrics.error("event");
                tracing::warn!(error = %error, "an Event isn't written");
            }
            Err(_) => self.metrics.error("event"),
        }
    }
}

/// What matters of a Node.
fn facts(node: &Node) -> NodeFacts {
    let spec = node.spec.as_ref();
    let pod_cidrs = spec
        .and_then(|spec| spec.pod_cidrs.clone())
        .unwrap_or_default();
    let status = node.status.as_ref();
    let addresses = status.and_then(|s| s.addresses.clone()).unwrap_or_default();
    let mut in_use: Vec<Ipv4Net> = pod_cidrs
        .iter()
        .filter_map(|net| net.parse().ok())
        .collect();
    let addresses = addresses
        .iter()
        .filter_map(|a| a.address.parse::<Ipv4Addr>().ok());
    in_use.extend(addresses.map(Ipv4Net::from));
    NodeFacts {
        name: node.name_any(),
        labels: node.labels().clone(),
        renumber: node.annotations().get(RENUMBER).cloned(),
        in_use,
    }
}

fn invalid(generation: i64, why: &str) -> ClassStatus {
    let out = "its nodes keep the settings that they have";
    ClassStatus {
        phase: Some(ClassPhase::Invalid),
        observed_generation: Some(generation),
        conditions: vec![
            condition(generation, "Accepted", false, "Invalid", why),
            condition(generation, "Programmed", false, "Invalid", out),
        ],
        nodes: Some(NodeCount::new(0, 0)),
        message: Some(format!("{why}; {out}")),
    }
}

/// What nodes say of themselves, where it isn't that they follow what is published. Nodes that say nothing are not in it.
#[derive(Debug, Default)]
struct Standing {
    /// Nodes whose pods have a range that they had before.
    staged: BTreeMap<String, Ipv4Net>,
    /// Nodes that keep the last settings, with the reason.
    kept: BTreeMap<String, String>,
    /// Nodes that have others.
    behind: BTreeSet<String>,
    /// Nodes that follow.
    following: BTreeSet<String>,
}

impl Standing {
    fn of(file: &NodeSettingsFile, taken: &BTreeMap<String, TakenSettings>) -> Self {
        let mut standing = Self::default();
        for (node, taken) in taken {
            let node = node.clone();
            let same = TakenSettings::of(file, &node).is_some_and(|said| said.same_word(taken));
            match (&taken.kept_because, taken.staged_behind) {
                (Some(why), _) => drop(standing.kept.insert(node, why.clone())),
                (None, _) if !same => drop(standing.behind.insert(node)),
                (None, Some(old)) => drop(standing.staged.insert(node, old)),
                (None, None) => drop(standing.following.insert(node)),
            }
        }
        standing
    }
}

fn valid(
    generation: i64,
    spec: &ClassSpec,
    followed: &Followed,
    standing: &Standing,
) -> ClassStatus {
    let mut missing = Vec::new();
    let counts = |node: &&String| {
        let ours = followed.nodes.contains(*node);
        ours && !followed.without.contains(*node) && !followed.staged.contains_key(*node)
    };
    let waiting: Vec<&str> = standing
        .staged
        .keys()
        .filter(counts)
        .map(String::as_str)
        .collect();
    let kept: Vec<&str> = standing
        .kept
        .keys()
        .filter(counts)
        .map(String::as_str)
        .collect();
    let behind: Vec<&str> = standing
        .behind
        .iter()
        .filter(counts)
        .map(String::as_str)
        .collect();
    let following = standing.following.iter().filter(counts).count();
    if !waiting.is_empty() {
        missing.push(format!(
            "{} keep the range that they had until no pod has an address of it; drain them",
            listed(&waiting)
        ));
    }
    if let Some(first) = kept.first() {
        missing.push(format!(
            "{} keep the last settings, {first} because {}",
            listed(&kept),
            standing.kept.get(*first).map_or("", String::as_str)
        ));
    }
    let degraded =
        !missing.is_empty() || !followed.without.is_empty() || !followed.staged.is_empty();
    if !behind.is_empty() {
        missing.push(format!(
            "{} don't follow it yet; if that lasts, look at their installers (agent-cni install --ready)",
            listed(&behind)
        ));
    }
    if !followed.without.is_empty() {
        let names: Vec<&str> = followed.without.iter().map(String::as_str).collect();
        missing.push(format!(
            "fakeIPCIDR {} has no part left for {}; write a larger one, or a larger nodePrefixLength",
            spec.fake_ip_cidr,
            listed(&names)
        ));
    }
    if !followed.staged.is_empty() {
        let names: Vec<&str> = followed.staged.keys().map(String::as_str).collect();
        missing.push(format!(
            "{} keep ranges that the class no longer has, for the pods that run there; drain such a node and `kubectl annotate node NAME {RENUMBER}={}` to move it",
            listed(&names),
            spec.fake_ip_cidr
        ));
    }
    let mut notes = Vec::new();
    if spec.proxy.fail_mode == FailMode::Open {
        notes.push(
            "failMode is Open: agent pods' traffic passes without a policy while no proxy listens"
                .to_owned(),
        );
    }
    if spec.cni.default_connectivity == Connectivity::Passthrough {
        notes.push("defaultConnectivity is Passthrough: pods without a policy reach everything but what is always denied".to_owned());
    }
    if let Some((node, class)) = followed.elsewhere.first_key_value() {
        notes.push(format!(
            "{} matching nodes follow a class that names them more closely, such as {node} ({class})",
            followed.elsewhere.len()
        ));
    }
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let total = followed.nodes.len();
    let others = waiting.len() + kept.len() + behind.len();
    let ready = total - followed.without.len() - followed.staged.len() - others;
    let programmed = missing.is_empty();
    let message: Vec<String> = missing.iter().chain(&notes).cloned().collect();
    let says = if programmed {
        format!(
            "the settings of every node are published; {following} of {total} say that they follow them"
        )
    } else {
        missing.join(". ")
    };
    ClassStatus {
        phase: Some(match (programmed, degraded) {
            (true, _) => ClassPhase::Active,
            (false, true) => ClassPhase::Degraded,
            (false, false) => ClassPhase::Pending,
        }),
        observed_generation: Some(generation),
        conditions: vec![
            condition(generation, "Accepted", true, "Valid", "it can be followed"),
            condition(
                generation,
                "Programmed",
                programmed,
                match (programmed, degraded) {
                    (true, _) => "Published",
                    (false, true) => "Staged",
                    (false, false) => "Pending",
                },
                &says,
            ),
        ],
        nodes: Some(NodeCount::new(number(ready), number(total))),
        message: (!message.is_empty()).then(|| message.join(". ")),
    }
}

fn listed(names: &[&str]) -> String {
    let named = names
        .iter()
        .take(NAMED)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

fn condition(generation: i64, kind: &str, holds: bool, reason: &str, message: &str) -> Condition {
    Condition {
        type_: kind.to_owned(),
        status: if holds { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: message.chars().take(10_000).collect(),
        observed_generation: Some(generation),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_ranges_and_addresses_are_in_use() {
        let node: Node = serde_json::from_str(
            r#"{"metadata":{"name":"n1","labels":{"a":"b"},"annotations":{"agent.tke.cloud.tencent.com/renumber":"10.0.0.0/8"}},
                "spec":{"podCIDRs":["10.244.1.0/24","fd00::/64"]},
                "status":{"addresses":[{"type":"InternalIP","address":"192.0.2.7"},{"type":"Hostname","address":"n1"}]}}"#,
        )
        .unwrap();
        let facts = facts(&node);
        let nets: Vec<String> = facts.in_use.iter().map(ToString::to_string).collect();
        assert_eq!(nets, ["10.244.1.0/24", "192.0.2.7/32"]);
        assert_eq!(facts.renumber.as_deref(), Some("10.0.0.0/8"));
        assert_eq!(facts.labels["a"], "b");
    }

    #[test]
    fn what_nodes_say_of_themselves_is_in_the_status() {
        const FILE: &str = r#"{"schemaVersion":1,"classes":{"c":{"proxyPort":18080,"dnsPort":18053,"failMode":"Closed","defaultConnectivity":"Zero","mode":"auto"}},
            "nodes":{"n1":{"class":"c","fakeIPCIDR":"169.254.3.0/24"},"n2":{"class":"c","fakeIPCIDR":"169.254.4.0/24"},
            "n3":{"class":"c","fakeIPCIDR":"169.254.5.0/24"},"n4":{"class":"c","fakeIPCIDR":"169.254.6.0/24"},"n5":{"class":"c","fakeIPCIDR":"169.254.8.0/24"}}}"#;
        let file = NodeSettingsFile::parse(FILE.as_bytes()).unwrap();
        let mut taken: BTreeMap<String, TakenSettings> = ["n1", "n2", "n3", "n4"]
            .map(|node| (node.to_owned(), TakenSettings::of(&file, node).unwrap()))
            .into();
        let followed = Followed {
            nodes: file.nodes.keys().cloned().collect(),
            ..Followed::default()
        };
        let status = |taken: &BTreeMap<String, TakenSettings>| {
            let standing = Standing::of(&file, taken);
            valid(1, &ClassSpec::default(), &followed, &standing)
        };
        let all = status(&taken);
        assert_eq!(all.phase, Some(ClassPhase::Active));
        assert_eq!(all.nodes.unwrap().summary, "5/5");
        assert!(
            all.conditions[1].message.contains("4 of 5 say"),
            "{:?}",
            all.conditions
        );
        taken.get_mut("n1").unwrap().settings.proxy_port = 1;
        assert_eq!(status(&taken).phase, Some(ClassPhase::Pending));
        taken.get_mut("n1").unwrap().settings.proxy_port = 18080;
        taken.get_mut("n2").unwrap().staged_behind = Some("169.254.9.0/24".parse().unwrap());
        let kept = taken["n3"].clone().kept("nodes.json is gone".into());
        taken.insert("n3".into(), kept);
        taken.get_mut("n4").unwrap().settings.proxy_port = 1;
        let some = status(&taken);
        assert_eq!(some.phase, Some(ClassPhase::Degraded));
        assert_eq!(some.nodes.unwrap().summary, "2/5");
        let message = some.message.unwrap();
        for says in [
            "n2 keep the range",
            "n3 because nodes.json is gone",
            "n4 don't follow",
        ] {
            assert!(message.contains(says), "{message}");
        }
    }

    #[test]
    fn a_status_says_what_is_staged_missing_and_dangerous() {
        let mut spec = ClassSpec::default();
        let mut followed = Followed::default();
        followed
            .nodes
            .extend(["n1".to_owned(), "n2".to_owned(), "n3".to_owned()]);
        let status = valid(2, &spec, &followed, &Standing::default());
        assert_eq!(
            (status.phase, &status.message),
            (Some(ClassPhase::Active), &None)
        );
        assert_eq!(status.nodes.unwrap().summary, "3/3");
        followed.without.insert("n1".to_owned());
        followed
            .staged
            .insert("n2".to_owned(), "10.1.0.0/24".parse().unwrap());
        spec.proxy.fail_mode = FailMode::Open;
        let status = valid(2, &spec, &followed, &Standing::default());
        assert_eq!(status.phase, Some(ClassPhase::Degraded));
        assert_eq!(status.nodes.unwrap().summary, "1/3");
        let message = status.message.unwrap();
        for says in [
            "no part left for n1",
            "n2 keep ranges",
            "renumber=169.254.0.0/16",
            "without a policy",
        ] {
            assert!(message.contains(says), "{message}");
        }
    }
}
