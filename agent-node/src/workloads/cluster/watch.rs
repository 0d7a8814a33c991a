//! The watches themselves: hears the API server through outages, expired versions and half-open connections.

use std::fmt::Debug;
use std::io;
use std::pin::pin;
use std::time::Duration;

use backon::ExponentialBuilder;
use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::PartialObjectMeta;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, ExponentialBackoff, watcher};
use kube::{Api, Client, Config, ResourceExt};
use tokio::time::sleep;

use super::heard::{Change, HeardPod, PodKey};
use super::{Cluster, ClusterConfig, snapshot};
use crate::telemetry::chain;
use crate::workloads::Workloads;

/// The server ends a watch after this many seconds; a new one goes on where it ended.
const WATCH_SECONDS: u32 = 55;
/// A connection that is silent for longer than any watch lasts is dead (half-open, after a failover).
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_RETRY: Duration = Duration::from_millis(250);
const LAST_RETRY: Duration = Duration::from_secs(5);
/// Snapshots are written at most this often; agent-cni waits a second for a new pod's entry.
const KEEP_EVERY: Duration = Duration::from_millis(200);

/// Fills a [`Cluster`] from the API server.
pub struct Watch {
    cluster: Cluster,
    config: ClusterConfig,
    workloads: Workloads,
}

impl Watch {
    /// For `cluster`; a change wakes whoever follows `workloads`.
    pub fn new(cluster: &Cluster, config: &ClusterConfig, workloads: &Workloads) -> Watch {
        Watch {
            cluster: cluster.clone(),
            config: config.clone(),
            workloads: workloads.clone(),
        }
    }

    /// Watches on a thread of its own, where decoding a long list and writing a snapshot hold nobody up, for as long as
    /// the process lives.
    ///
    /// # Errors
    /// When thread or runtime can't be made.
    pub fn start(self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new()
            .name("pods".into())
            .spawn(move || {
                runtime.block_on(async { tokio::join!(self.hear(), self.keep()) });
            })?;
        Ok(())
    }

    async fn hear(&self) {
        let client = self.connect().await;
        let config = || watcher::Config::default().timeout(WATCH_SECONDS);
        let on_node = format!("spec.nodeName={}", self.config.node_name);
        let pods = watcher(Api::<Pod>::all(client.clone()), config().fields(&on_node));
        let namespaces = watcher(Api::<PartialObjectMeta<Namespace>>::all(client), config());
        tokio::join!(
            self.follow("pods of this node", pods, |pod| {
                self.cluster
                    .take_in(|heard| heard.pod(change(pod, named_pod)))
            }),
            self.follow("namespaces", namespaces, |namespace| {
                self.cluster
                    .take_in(|heard| heard.namespace(change(namespace, named_namespace)))
            }),
        );
    }

    /// A client; none can be made while the service account's token isn't there, for example.
    async fn connect(&self) -> Client {
        let mut retries = retries();
        loop {
            let error = match client(&self.config).await {
                Ok(client) => return client,
                Err(error) => error,
            };
            self.cluster.failed(format!("{error:#}"));
            tracing::error!(error = %format!("{error:#}"), "no client for the API server; pods' service accounts and labels stay as they were known");
            sleep(retries.next().unwrap_or(LAST_RETRY)).await;
        }
    }

    async fn follow<K: Debug>(
        &self,
        what: &str,
        stream: impl Stream<Item = watcher::Result<Event<K>>>,
        mut take_in: impl FnMut(Event<K>) -> bool,
    ) {
        let mut stream = pin!(stream.backoff(retries()));
        let mut fails = false;
        while let Some(next) = stream.next().await {
            match next {
                Ok(event) => {
                    if std::mem::take(&mut fails) {
                        tracing::info!(what, "the API server is heard again");
                    }
                    if take_in(event) {
                        self.workloads.look_again();
                    }
                }
                Err(error) => {
                    let why = chain(&error);
                    self.cluster.failed(format!("{what}: {why}"));
                    // an expired version is the way of watches, and the list that follows its cure
                    if is_expired(&error) {
                        tracing::info!(what, "the watch has expired and begins anew");
                    } else if !std::mem::replace(&mut fails, true) {
                        tracing::warn!(what, error = %why, "the API server can't be heard; decisions go on by what was heard last");
                    }
                }
            }
        }
    }

    /// Writes snapshots of what is new.
    async fn keep(&self) {
        let mut failed = false;
        loop {
            self.cluster.0.keep.notified().await;
            let kept = {
                let heard = super::lock(&self.cluster.0.heard);
                // half of what there is would replace a whole snapshot
                (heard.origin() != super::Origin::Nothing).then(|| heard.kept())
            };
            if let Some(kept) = kept {
                let path = &self.config.snapshot_file;
                match snapshot::write(path, &kept) {
                    Ok(()) => failed = false,
                    Err(error) => {
                        if !std::mem::replace(&mut failed, true) {
                            tracing::error!(file = %path.display(), error = %chain(&error), "the snapshot of pods can't be written; a restart while the API server is away would deny every pod");
                        }
                        // it is tried again, also when nothing changes
                        self.cluster.0.keep.notify_one();
                    }
                }
            }
            sleep(KEEP_EVERY).await;
        }
    }
}

async fn client(config: &ClusterConfig) -> anyhow::Result<Client> {
    use anyhow::Context;
    let mut client = match &config.kubeconfig {
        Some(path) => {
            let said = || format!("read the kubeconfig {}", path.display());
            let kubeconfig = Kubeconfig::read_from(path).with_context(said)?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .with_context(said)?
        }
        None => Config::incluster().context(
            "not in a pod with a service account; set `cluster.kubeconfig` to use a kubeconfig",
        )?,
    };
    client.connect_timeout = Some(CONNECT_TIMEOUT);
    client.read_timeout = Some(READ_TIMEOUT);
    Client::try_from(client).context("make a client for the API server")
}

fn retries() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(FIRST_RETRY)
        .with_max_delay(LAST_RETRY)
        .without_max_times()
        .with_jitter()
        .into()
}

/// 410 Gone: the version from which the watch would go on is no longer kept.
fn is_expired(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchError(status) if status.code == 410)
}

fn change<O, K, V>(event: Event<O>, named: impl Fn(O) -> (K, V)) -> Change<K, V> {
    match event {
        Event::Init => Change::ListBegins,
        Event::InitApply(object) => {
            let (key, value) = named(object);
            Change::Listed(key, value)
        }
        Event::InitDone => Change::ListEnds,
        Event::Apply(object) => {
            let (key, value) = named(object);
            Change::Is(key, value)
        }
        Event::Delete(object) => {
            let (key, value) = named(object);
            Change::Gone(key, value)
        }
    }
}

fn named_pod(pod: Pod) -> (PodKey, HeardPod) {
    let key = (pod.namespace().unwrap_or_default(), pod.name_any());
    let heard = HeardPod {
        uid: pod.uid().unwrap_or_default(),
        service_account: pod.spec.and_then(|spec| spec.service_account_name),
        labels: pod.metadata.labels.unwrap_or_default(),
    };
    (key, heard)
}

fn named_namespace(
    namespace: PartialObjectMeta<Namespace>,
) -> (String, agent_core::policy::selector::Labels) {
    let name = namespace.name_any();
    (name, namespace.metadata.labels.unwrap_or_default())
}
