//! What the controller knows of the cluster: one store for each kind, kept by watches. Owns reading; nothing here writes.
//!
//! A watch that ends, expires (410) or fails is taken up again with back-off by kube's watcher; meanwhile the store stays
//! as it was. An object that can't be decoded is in its store too, as what it is, so that it hides no other.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use agent_api::{AgentNetworkClass, AgentNetworkPolicy};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{Lookup, Store, store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::app::chain;
use crate::config::{Config, Namespaces};
use crate::metrics::Metrics;

/// What marks our ConfigMaps.
pub(crate) const MANAGED_BY: (&str, &str) =
    ("app.kubernetes.io/managed-by", "agent-network-controller");

pub(crate) type GuardedPolicy = DeserializeGuard<AgentNetworkPolicy>;
pub(crate) type GuardedClass = DeserializeGuard<AgentNetworkClass>;

/// The stores, and who is woken by a change of which.
#[derive(Clone)]
pub(crate) struct World {
    policies: Vec<Store<GuardedPolicy>>,
    classes: Store<GuardedClass>,
    nodes: Store<Node>,
    pods: Store<Pod>,
    config_maps: Store<ConfigMap>,
    pub(crate) wake: Wake,
    watches: Watches,
}

/// Who is woken.
#[derive(Clone, Default)]
pub(crate) struct Wake {
    /// Policies, our ConfigMaps, classes.
    pub(crate) policies: Arc<Notify>,
    /// Classes, nodes, our ConfigMaps.
    pub(crate) classes: Arc<Notify>,
    /// Pods of ZeroProxy.
    pub(crate) pods: Arc<Notify>,
    /// Policies, for their status.
    pub(crate) status: Arc<Notify>,
}

/// Which watches have brought their first list, and what is in the way of the others.
#[derive(Clone, Default)]
pub(crate) struct Watches(Arc<Mutex<BTreeMap<String, Result<(), String>>>>);

impl Watches {
    fn set(&self, name: &str, state: Result<(), String>) {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.insert(name.to_owned(), state);
    }

    /// A watch that has brought its list once is taken up again by itself: the store stays usable meanwhile.
    fn fail(&self, name: &str, why: String) {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state @ Err(_)) = map.get_mut(name) {
            *state = Err(why);
        }
    }

    /// What is in the way, by watch; empty when all work.
    pub(crate) fn problems(&self) -> BTreeMap<String, String> {
        let map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bad = map
            .iter()
            .filter_map(|(k, v)| Some((k.clone(), v.clone().err()?)));
        bad.collect()
    }
}

impl World {
    /// Starts all watches on `tasks`.
    pub(crate) fn watch(
        client: &Client,
        config: &Config,
        metrics: &Arc<Metrics>,
        tasks: &mut JoinSet<()>,
    ) -> World {
        let wake = Wake::default();
        let watches = Watches::default();
        let system = config.system_namespace();
        let mut start = Start {
            metrics,
            watches: &watches,
            tasks,
        };
        let of_policies = [&wake.policies, &wake.status];
        let policies = match &config.namespaces {
            Namespaces::All => vec![Api::all(client.clone())],
            Namespaces::These(names) => names
                .iter()
                .map(|name| Api::namespaced(client.clone(), name))
                .collect(),
        };
        let any = watcher::Config::default;
        let policies = policies
            .into_iter()
            .map(|api| start.follow("policies", api, any(), &of_policies, |_| {}))
            .collect();
        let (key, value) = MANAGED_BY;
        let config_maps = any().labels(&format!("{key}={value}"));
        let pods = any().labels(&config.proxy_selector);
        World {
            policies,
            classes: start.follow(
                "classes",
                Api::all(client.clone()),
                any(),
                &[&wake.policies, &wake.classes],
                |_| {},
            ),
            nodes: start.follow(
                "nodes",
                Api::all(client.clone()),
                any(),
                &[&wake.classes],
                |node: &mut Node| {
                    // images and the like are most of a Node
                    if let Some(status) = &mut node.status {
                        status.images = None;
                        status.conditions = None;
                    }
                },
            ),
            pods: start.follow(
                "pods",
                Api::namespaced(client.clone(), system),
                pods,
                &[&wake.pods, &wake.status],
                |_| {},
            ),
            config_maps: start.follow(
                "configmaps",
                Api::namespaced(client.clone(), system),
                config_maps,
                &[&wake.policies, &wake.classes],
                |_| {},
            ),
            wake,
            watches,
        }
    }

    /// Waits for the first list of everything.
    pub(crate) async fn ready(&self) {
        for policies in &self.policies {
            let _ = policies.wait_until_ready().await;
        }
        let _ = self.classes.wait_until_ready().await;
        let _ = self.nodes.wait_until_ready().await;
        let _ = self.pods.wait_until_ready().await;
        let _ = self.config_maps.wait_until_ready().await;
    }

    pub(crate) fn watches(&self) -> &Watches {
        &self.watches
    }

    pub(crate) fn policies(&self) -> Vec<Arc<GuardedPolicy>> {
        self.policies.iter().flat_map(Store::state).collect()
    }

    pub(crate) fn classes(&self) -> Vec<Arc<GuardedClass>> {
        self.classes.state()
    }

    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes.state()
    }

    pub(crate) fn pods(&self) -> Vec<Arc<Pod>> {
        self.pods.state()
    }

    /// Our ConfigMaps by name.
    pub(crate) fn config_maps(&self) -> BTreeMap<String, Arc<ConfigMap>> {
        let maps = self.config_maps.state().into_iter();
        maps.map(|map| (map.name_any(), map)).collect()
    }
}

struct Start<'a> {
    metrics: &'a Arc<Metrics>,
    watches: &'a Watches,
    tasks: &'a mut JoinSet<()>,
}

impl Start<'_> {
    fn follow<K>(
        &mut self,
        kind: &'static str,
        api: Api<K>,
        config: watcher::Config,
        wake: &[&Arc<Notify>],
        prune: fn(&mut K),
    ) -> Store<K>
    where
        K: Resource + Lookup<DynamicType = <K as Resource>::DynamicType>,
        K: Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        <K as Resource>::DynamicType: Default + Eq + std::hash::Hash + Clone,
    {
        let (reader, writer) = store();
        let name = format!("{kind} ({})", api.resource_url());
        let (metrics, watches) = (self.metrics.clone(), self.watches.clone());
        let wake: Vec<Arc<Notify>> = wake.iter().map(|n| Arc::clone(n)).collect();
        watches.set(&name, Err("not listed yet".to_owned()));
        let stream = watcher(api, config)
            .default_backoff()
            .modify(move |object| {
                object.managed_fields_mut().clear();
                prune(object);
            })
            .reflect(writer);
        self.tasks.spawn(async move {
            let mut stream = std::pin::pin!(stream);
            let mut failing = false;
            while let Some(event) = stream.next().await {
                match event {
                    // the store changes with the end of a list, not with its beginning
                    Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => {}
                    Ok(_) => {
                        if std::mem::take(&mut failing) {
                            tracing::info!(watch = %name, "the watch works again");
                        }
                        watches.set(&name, Ok(()));
                        wake.iter().for_each(|notify| notify.notify_one());
                    }
                    Err(error) => {
                        metrics.error("watch");
                        if !std::mem::replace(&mut failing, true) {
                            tracing::warn!(watch = %name, error = %chain(&error), "the watch is taken up again");
                        } else {
                            tracing::debug!(watch = %name, error = %chain(&error), "the watch is taken up again");
                        }
                        watches.fail(&name, chain(&error));
                    }
                }
            }
        });
        reader
    }
}
