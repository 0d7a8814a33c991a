//! The composition root: builds every part once, starts the workers, and ends them.
//!
//! Threads: one per worker; `policy`, `credentials`, `pods` and `audit`, which may block on files; and
//! this one, whose runtime has the local endpoints, the identity table and the registration.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::admin::Admin;
use crate::audit::{AuditError, AuditSink};
use crate::config::{Config, FactsFrom};
use crate::context::Context;
use crate::credential::CredentialStore;
use crate::dns;
use crate::drain::Drain;
use crate::events::Kernel;
use crate::listener::{
    LocalDoor, OnGateway, PodLimits, Registrar, Shares, SocketError, WorkerSockets, open_admin,
    start_worker,
};
use crate::metrics::Metrics;
use crate::node_nets::{LOOK_EVERY, NodeNetsCell, NodeNetsReader};
use crate::node_status::OwnSettings;
use crate::policy_store::{self, PolicyStore};
use crate::workloads::{Cluster, FactsFile, Follower, Watch, WorkloadSource, Workloads};

/// How often it is looked whether the workers are still there, and whether they have ended.
const WATCH_EVERY: Duration = Duration::from_millis(100);
/// After the drain, how long workers may take to close what is left.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// Why the process can't start, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The audit outputs.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The policy's thread.
    #[error(transparent)]
    Policy(#[from] policy_store::StartError),
    /// The credentials' thread.
    #[error("start the thread that follows credential files")]
    Credentials(#[source] io::Error),
    /// The thread that hears the API server.
    #[error("start the thread that follows pods in the API server")]
    Watch(#[source] io::Error),
    /// A worker's sockets.
    #[error(transparent)]
    Sockets(#[from] SocketError),
    /// The endpoints for other hosts.
    #[error("listen on {0} (`adminListen`)")]
    AdminListen(std::net::SocketAddrV4, #[source] io::Error),
    /// A worker's thread.
    #[error("start worker {0}")]
    Worker(u16, #[source] io::Error),
    /// Signals or the runtime.
    #[error("set up the main runtime")]
    Runtime(#[source] io::Error),
    /// A worker ended before it was told to.
    #[error("worker {0} ended unexpectedly; the process ends so that it can be started again")]
    WorkerEnded(usize),
}

type Worker = JoinHandle<Result<(), SocketError>>;

/// Runs ZeroProxy until SIGTERM or SIGINT.
///
/// # Errors
/// When a part can't start, or a worker ends by itself.
pub fn run(config: Config) -> Result<(), AppError> {
    raise_open_files();
    let (audit, writer) = AuditSink::start(&config.audit, config.workers)?;
    let (nets, nets_reader) = NodeNetsCell::new(&config.state_dir, &config.fake_cidrs);
    let workloads = Workloads::new(config.identity_wait);
    let (facts, cluster): (Box<dyn WorkloadSource>, _) = match &config.facts {
        FactsFrom::File(path) => (Box::new(FactsFile::new(path)), None),
        FactsFrom::Cluster(from) => {
            let cluster = Cluster::start(from);
            let watch = Watch::new(&cluster, from, &workloads);
            watch.start().map_err(AppError::Watch)?;
            (cluster.source(), Some(cluster))
        }
    };
    let follower = Follower::start(&workloads, &config.state_dir, facts);
    let context = Arc::new(Context {
        policy: PolicyStore::follow(&config.policy_file, OwnSettings::of(&config))?,
        workloads,
        cluster,
        credentials: CredentialStore::start(&config.credentials_dir)
            .map_err(AppError::Credentials)?,
        audit,
        metrics: Metrics::new(config.workers),
        bindings: dns::Bindings::new(),
        nets,
        drain: Drain::new(),
        config,
    });
    let result = serve(&context, follower, nets_reader);
    writer.finish();
    result
}

fn serve(context: &Arc<Context>, follower: Follower, nets: NodeNetsReader) -> Result<(), AppError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(AppError::Runtime)?;
    let mut sockets = Vec::new();
    for _ in 0..context.config.workers {
        sockets.push(Arc::new(WorkerSockets::open(&context.config)?));
    }
    let (local, local_connections) = LocalDoor::new();
    let remote = local.clone();
    let (on_gateway, gateway_sockets) = watch::channel(OnGateway::default());
    let shares = Shares {
        context: context.clone(),
        limits: Arc::new(PodLimits::new(context.config.limits.connections_per_pod)),
        local,
        on_gateway: gateway_sockets,
    };
    let admin_listener = context.config.admin_listen.map(|address| {
        open_admin(address).map_err(|source| AppError::AdminListen(address, source))
    });
    let admin_listener = admin_listener.transpose()?;
    let mut workers = Vec::new();
    for (index, sockets) in (0..).zip(&sockets) {
        let started = start_worker(shares.clone(), index, sockets.clone());
        workers.push(started.map_err(|source| AppError::Worker(index, source))?);
    }
    drop(shares);
    let (registrar, data_path) = Registrar::new(&context.config.pin_dir, sockets, on_gateway);
    let kernel = Arc::new(Kernel::new(context.clone()));
    let admin = Arc::new(Admin {
        context: context.clone(),
        kernel: kernel.clone(),
        data_path: data_path.clone(),
    });
    let result = runtime.block_on(async {
        let mut tasks = JoinSet::new();
        tasks.spawn(registrar.run(context.clone()));
        tasks.spawn(admin.serve(local_connections));
        if let Some(listener) = admin_listener {
            let listener = TcpListener::from_std(listener).map_err(AppError::Runtime)?;
            let drain = context.drain.token();
            tasks.spawn(async move {
                // closed at once when the drain begins, so that the next process alone is asked
                let _ = drain.run_until_cancelled(remote.admit(listener)).await;
            });
        }
        tasks.spawn(follower.run());
        tasks.spawn(refresh_nets(context.clone(), nets));
        let events = kernel.clone();
        tasks.spawn(async move { events.follow_events(data_path).await });
        tasks.spawn(async move { kernel.follow_counters().await });
        control(context, &mut workers).await
    });
    // Every task of this runtime ends here; what has to be waited for was waited for.
    runtime.shutdown_background();
    result
}

/// Waits until the process is told to end, or must, and ends the workers.
async fn control(context: &Arc<Context>, workers: &mut Vec<Worker>) -> Result<(), AppError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(AppError::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(AppError::Runtime)?;
    tracing::info!(listen = %context.config.listen, workers = workers.len(), "zeroproxy is up");

    let ended = tokio::select! {
        () = stop_signal(&mut terminate, &mut interrupt) => Ok(()),
        index = unexpected_end(workers) => Err(AppError::WorkerEnded(index)),
    };
    tracing::info!(
        drain_seconds = context.config.drain.as_secs_f64(),
        "draining: no new connections"
    );
    context.drain.begin();
    let all_ended = tokio::time::timeout(context.config.drain + CLOSE_WITHIN, all_end(workers));
    tokio::select! {
        over = all_ended => if over.is_err() {
            tracing::error!("a worker does not end; the process ends without it");
        },
        () = stop_signal(&mut terminate, &mut interrupt) => {
            tracing::warn!("second signal: open connections are closed");
        }
    }
    tracing::info!("zeroproxy has ended");
    ended
}

async fn stop_signal(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Waits for a worker that ends although nobody told it to; the process is of no use without it.
async fn unexpected_end(workers: &mut Vec<Worker>) -> usize {
    loop {
        if let Some(index) = workers.iter().position(JoinHandle::is_finished) {
            match workers.swap_remove(index).join() {
                Ok(Ok(())) => tracing::error!(worker = index, "worker has ended"),
                Ok(Err(error)) => {
                    tracing::error!(worker = index, error = %crate::telemetry::chain(&error), "worker has ended");
                }
                Err(_) => tracing::error!(worker = index, "worker has panicked"),
            }
            return index;
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

async fn all_end(workers: &[Worker]) {
    while !workers.iter().all(JoinHandle::is_finished) {
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

async fn refresh_nets(context: Arc<Context>, mut reader: NodeNetsReader) {
    let mut timer = interval(LOOK_EVERY);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        reader.refresh(&context.nets);
    }
}

/// Each proxied connection needs two descriptors; the soft limit is often 1,024.
fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(error = %error, "the limit of open files can't be raised");
    }
}
