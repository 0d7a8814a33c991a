//! Brings pods' traffic to the workers' sockets, in the way that the node's mode has: through the pinned dispatch map,
//! or on the gateway's ports. Finds when the map is another one, and when the gateway is.
//!
//! Both ways are kept open in both modes, so that a node may change its mode without telling this process first; which
//! of them readiness depends on follows `node.json`.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_core::attachment::Mode;
use agent_core::node::NodeState;
use agent_datapath::pins::Pins;
use agent_datapath::sockets::{Dispatch, DispatchError};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::{SocketError, WorkerSockets};
use crate::context::Context;
use crate::metrics::Counter;

/// How often the pins are looked at: a new map means that pods reach nothing until it is filled.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Whether pods' traffic reaches this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataPath {
    /// Not, and why.
    Away(String),
    /// It does, through the dispatch map with this id.
    Attached(u32),
    /// It does: iptables redirects it to this address.
    Redirected(Ipv4Addr),
}

/// The workers' sockets on the gateway, by worker; none before the gateway is known.
#[derive(Debug, Clone, Default)]
pub struct OnGateway(Option<(Ipv4Addr, Arc<[Arc<WorkerSockets>]>)>);

impl OnGateway {
    pub(super) fn of_worker(&self, index: u16) -> Option<Arc<WorkerSockets>> {
        let (_, sockets) = self.0.as_ref()?;
        sockets.get(usize::from(index)).cloned()
    }

    fn gateway(&self) -> Option<Ipv4Addr> {
        self.0.as_ref().map(|(gateway, _)| *gateway)
    }
}

/// Owns a second handle on every listening socket until the drain begins.
pub struct Registrar {
    pins: Pins,
    sockets: Vec<Arc<WorkerSockets>>,
    on_gateway: watch::Sender<OnGateway>,
    /// The map that the sockets are in.
    registered: Option<u32>,
    state: watch::Sender<DataPath>,
}

/// Why the sockets aren't registered.
#[derive(Debug, thiserror::Error)]
enum RegisterError {
    #[error("no dispatch program is attached: {0} is missing; agent-cni makes it at the first ADD")]
    NoLink(String),
    #[error("use the dispatch map")]
    Dispatch(#[from] DispatchError),
    #[error(transparent)]
    Gateway(#[from] SocketError),
}

impl Registrar {
    /// For `sockets`, by worker, and the pins below `base`.
    pub fn new(
        base: &Path,
        sockets: Vec<Arc<WorkerSockets>>,
        on_gateway: watch::Sender<OnGateway>,
    ) -> (Registrar, watch::Receiver<DataPath>) {
        let nothing_yet = DataPath::Away("the pins were not looked at yet".into());
        let (state, seen) = watch::channel(nothing_yet);
        let registrar = Registrar {
            pins: Pins::new(base),
            sockets,
            on_gateway,
            registered: None,
            state,
        };
        (registrar, seen)
    }

    /// Registers, and registers again when the map is another one, until the drain begins: from
    /// then on the slots are the next process's.
    pub async fn run(mut self, context: Arc<Context>) {
        let mut timer = interval(LOOK_EVERY);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = context.drain.begun() => return,
                _ = timer.tick() => self.look(&context),
            }
        }
    }

    fn look(&mut self, context: &Context) {
        let before = self.state.borrow().clone();
        let node = context.nets.node();
        let node = Option::as_ref(&node);
        let dispatched = self.register().map(DataPath::Attached);
        let redirected = self.listen_on_gateway(context, node);
        let found = match (node.map(|node| node.mode), redirected) {
            (Some(Mode::IptablesCompat), Ok(Some(gateway))) => Ok(DataPath::Redirected(gateway)),
            (Some(Mode::IptablesCompat), Err(error)) => Err(error),
            // Before there is a node.json the dispatch map says what is missing.
            _ => dispatched,
        };
        let now = found.unwrap_or_else(|error| DataPath::Away(crate::telemetry::chain(&error)));
        if now == before {
            return;
        }
        match &now {
            DataPath::Attached(id) => {
                context.metrics.process().inc(Counter::Registrations);
                tracing::info!(
                    mode = Mode::Ebpf.as_str(),
                    map.id = id,
                    workers = self.sockets.len(),
                    "listeners are registered"
                );
            }
            DataPath::Redirected(gateway) => {
                context.metrics.process().inc(Counter::Registrations);
                tracing::info!(
                    mode = Mode::IptablesCompat.as_str(),
                    gateway = %gateway,
                    workers = self.sockets.len(),
                    "listeners are registered"
                );
            }
            DataPath::Away(problem) => {
                tracing::warn!(problem = %problem, "pods' traffic does not reach this process");
            }
        }
        self.state.send_replace(now);
    }

    /// Opens the workers' sockets on the gateway, unless they are open there, and answers it.
    fn listen_on_gateway(
        &self,
        context: &Context,
        node: Option<&NodeState>,
    ) -> Result<Option<Ipv4Addr>, RegisterError> {
        let wanted = node.map(|node| node.gateway);
        if wanted.is_none() || self.on_gateway.borrow().gateway() == wanted {
            return Ok(wanted);
        }
        let opened = wanted.map(|gateway| {
            let one = || WorkerSockets::open_on_gateway(&context.config, gateway).map(Arc::new);
            let all: Result<Arc<[_]>, _> = self.sockets.iter().map(|_| one()).collect();
            all.map(|all| (gateway, all))
        });
        self.on_gateway.send_replace(OnGateway(opened.transpose()?));
        Ok(wanted)
    }

    /// Puts the sockets into the dispatch map, unless they are in this very one, and answers its id.
    fn register(&mut self) -> Result<u32, RegisterError> {
        let link = self.pins.dispatch_link();
        if !link.exists() {
            self.registered = None;
            return Err(RegisterError::NoLink(link.display().to_string()));
        }
        let mut dispatch = Dispatch::open(&self.pins)?;
        let id = dispatch.map_id();
        if self.registered == Some(id) {
            return Ok(id);
        }
        self.registered = None;
        for (worker, sockets) in (0..).zip(&self.sockets) {
            sockets.register(&mut dispatch, worker)?;
        }
        // After the slots: a worker that is counted has its sockets in place.
        let workers = u16::try_from(self.sockets.len()).unwrap_or(u16::MAX);
        dispatch.set_workers(workers)?;
        self.registered = Some(id);
        Ok(id)
    }
}
