//! The composition root of `run`: builds every part once, and ends them.
//!
//! Every replica watches, so that a new leader knows everything at once; only the leader asks proxies and writes. What a
//! leader runs is one future, which is dropped as soon as it leads no more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kube::runtime::events::{Recorder, Reporter};
use kube::{Api, Client};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::class_reconciler::ClassReconciler;
use crate::config::{Config, RunArgs};
use crate::health::{self, Health};
use crate::leader::Elector;
use crate::metrics::Metrics;
use crate::policy_reconciler::{PolicyReconciler, Published};
use crate::publish::{FIELD_MANAGER, Publisher};
use crate::reload::{Door, Fleet};
use crate::status_writer::{StatusWriter, Written};
use crate::watch::World;

/// Changes that come together are compiled together.
const GATHER: Duration = Duration::from_millis(20);
/// Pauses after a round that failed.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));
/// How often everything is looked at although nobody said that it changed.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// After SIGTERM, how long giving the Lease back may take.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// When the flags make no sense, the cluster can't be found, or the port is taken.
pub(crate) fn run(arguments: RunArgs) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&arguments.log).with_context(|| {
        format!(
            "`{}` is no log filter; write for example info",
            arguments.log
        )
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .json()
        .flatten_event(true)
        .init();
    let config = arguments.understand()?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("set up the runtime")?
        .block_on(serve(config))
}

async fn serve(config: Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut kubeconfig = kube::Config::infer()
        .await
        .context("find the API server; run in a pod, or set KUBECONFIG")?;
    kubeconfig.connect_timeout = Some(Duration::from_secs(5));
    let client = Client::try_from(kubeconfig).context("make a client of the API server")?;
    let metrics = Arc::new(Metrics::new());
    let listener = health::bind(config.listen).await?;

    let mut tasks = JoinSet::new();
    let world = World::watch(&client, &config, &metrics, &mut tasks);
    let health = Health {
        metrics: metrics.clone(),
        watches: world.watches().clone(),
    };
    tasks.spawn(health::serve(listener, Arc::new(health)));
    let (target, targets) = watch::channel(None);
    let fleet_changed = Arc::new(Notify::new());
    let fleet = Fleet::new(
        targets,
        fleet_changed.clone(),
        world.wake.classes.clone(),
        metrics.clone(),
    );
    let door = Door {
        port: config.proxy_admin_port,
        token_file: config.reload_token_file.clone(),
    };
    tasks.spawn(fleet.clone().run(world.clone(), door));

    let stop = CancellationToken::new();
    let (lead, leading) = watch::channel(false);
    let elector = Elector {
        api: Api::namespaced(client.clone(), config.system_namespace()),
        identity: config.identity.clone(),
        duration: config.lease,
        metrics: metrics.clone(),
    };
    let election = tokio::spawn(elector.run(lead, stop.clone()));
    let parts = Parts {
        client,
        config,
        world,
        fleet,
        fleet_changed,
        metrics,
        target,
    };
    tracing::info!(identity = %parts.config.identity, "agent-controller is up");
    let broken = tokio::select! {
        () = parts.follow(leading) => true,
        // a watch, the fleet or the health endpoint: none of them ends by itself
        Some(_) = tasks.join_next() => true,
        _ = terminate.recv() => false,
        _ = interrupt.recv() => false,
    };
    tracing::info!("ending");
    // what this replica wrote as the leader is over before the Lease is given back
    tasks.shutdown().await;
    stop.cancel();
    // Late or panicked, the Lease runs out by itself.
    let _ = tokio::time::timeout(END_WITHIN, election).await;
    anyhow::ensure!(
        !broken,
        "a part of the controller stopped working, so it is to be started anew"
    );
    Ok(())
}

struct Parts {
    client: Client,
    config: Config,
    world: World,
    fleet: Fleet,
    fleet_changed: Arc<Notify>,
    metrics: Arc<Metrics>,
    target: watch::Sender<Option<String>>,
}

impl Parts {
    /// Leads whenever this replica is the leader; never returns while the election goes on.
    async fn follow(&self, mut leading: watch::Receiver<bool>) {
        self.world.ready().await;
        loop {
            if leading.wait_for(|leads| *leads).await.is_err() {
                return;
            }
            tokio::select! {
                () = self.lead() => {}
                lost = leading.wait_for(|leads| !*leads) => if lost.is_err() {
                    return;
                },
            }
            // proxies are the next leader's to ask
            self.target.send_replace(None);
        }
    }

    /// All that a leader does.
    async fn lead(&self) {
        let (published, publications) = watch::channel(Arc::new(Published::default()));
        let config_maps = Api::namespaced(self.client.clone(), self.config.system_namespace());
        let publisher = Publisher::new(config_maps.clone(), self.metrics.clone());
        let policies = PolicyReconciler::new(
            self.world.clone(),
            publisher,
            self.config.compile.clone(),
            published,
            self.target.clone(),
        );
        let reporter = Reporter {
            controller: FIELD_MANAGER.to_owned(),
            instance: Some(self.config.identity.clone()),
        };
        let recorder = Recorder::new(self.client.clone(), reporter);
        let classes = ClassReconciler {
            client: self.client.clone(),
            world: self.world.clone(),
            publisher: Publisher::new(config_maps, self.metrics.clone()),
            recorder: recorder.clone(),
            fleet: self.fleet.clone(),
            services: self.config.service_cidrs.clone(),
            metrics: self.metrics.clone(),
            written: BTreeMap::new(),
            last: None,
        };
        let statuses = StatusWriter {
            client: self.client.clone(),
            world: self.world.clone(),
            fleet: self.fleet.clone(),
            published: publications,
            fleet_changed: self.fleet_changed.clone(),
            degraded_after: self.config.degraded_after,
            recorder,
            metrics: self.metrics.clone(),
            written: Written::new(),
        };
        let wake = &self.world.wake;
        let (mut policies, mut classes) = (policies, classes);
        let policies = self.again_and_again("policy", &wake.policies, async || {
            policies.reconcile().await
        });
        let classes =
            self.again_and_again("class", &wake.classes, async || classes.reconcile().await);
        tokio::join!(policies, classes, statuses.run());
    }

    /// A round at each wake; one that failed is tried again, with growing pauses.
    async fn again_and_again<E: std::error::Error>(
        &self,
        part: &'static str,
        wake: &Notify,
        mut round: impl AsyncFnMut() -> Result<(), E>,
    ) {
        let mut pause = RETRY.0;
        loop {
            let begun = Instant::now();
            let result = round().await;
            self.metrics.round(part, begun.elapsed(), result.is_ok());
            match result {
                Ok(()) => {
                    pause = RETRY.0;
                    tokio::select! {
                        () = wake.notified() => {}
                        () = tokio::time::sleep(LOOK_EVERY) => {}
                    }
                }
                Err(error) => {
                    tracing::warn!(part, error = %chain(&error), "a round failed and is tried again");
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = wake.notified() => {}
                    }
                    pause = (pause * 2).min(RETRY.1);
                }
            }
            tokio::time::sleep(GATHER).await;
        }
    }
}

/// An error and all its sources in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}
