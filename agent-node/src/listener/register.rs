//! Puts the workers' sockets into the pinned dispatch map, and finds when it is another map.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_datapath::pins::Pins;
use agent_datapath::sockets::{Dispatch, DispatchError};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::WorkerSockets;
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
}

/// Owns a second handle on every listening socket until the drain begins.
pub struct Registrar {
    pins: Pins,
    sockets: Vec<Arc<WorkerSockets>>,
    state: watch::Sender<DataPath>,
}

/// Why the sockets aren't registered.
#[derive(Debug, thiserror::Error)]
enum RegisterError {
    #[error("no dispatch program is attached: {0} is missing; agent-cni makes it at the first ADD")]
    NoLink(String),
    #[error("use the dispatch map")]
    Dispatch(#[from] DispatchError),
}

impl Registrar {
    /// For `sockets`, by worker, and the pins below `base`.
    pub fn new(
        base: &Path,
        sockets: Vec<Arc<WorkerSockets>>,
    ) -> (Registrar, watch::Receiver<DataPath>) {
        let nothing_yet = DataPath::Away("the pins were not looked at yet".into());
        let (state, seen) = watch::channel(nothing_yet);
        let registrar = Registrar {
            pins: Pins::new(base),
            sockets,
            state,
        };
        (registrar, seen)
    }

    /// Registers, and registers again when the map is another one, until the drain begins: from
    /// then on the slots are the next process's.
    pub async fn run(self, context: Arc<Context>) {
        let mut timer = interval(LOOK_EVERY);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = context.drain.begun() => return,
                _ = timer.tick() => self.look(&context),
            }
        }
    }

    fn look(&self, context: &Context) {
        let before = self.state.borrow().clone();
        let now = match self.try_look(&before) {
            Ok(id) => DataPath::Attached(id),
            Err(error) => DataPath::Away(crate::telemetry::chain(&error)),
        };
        if now == before {
            return;
        }
        match &now {
            DataPath::Attached(id) => {
                context.metrics.process().inc(Counter::Registrations);
                tracing::info!(
                    map.id = id,
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

    fn try_look(&self, before: &DataPath) -> Result<u32, RegisterError> {
        let link = self.pins.dispatch_link();
        if !link.exists() {
            return Err(RegisterError::NoLink(link.display().to_string()));
        }
        let mut dispatch = Dispatch::open(&self.pins)?;
        let id = dispatch.map_id();
        if *before == DataPath::Attached(id) {
            return Ok(id);
        }
        for (worker, sockets) in (0..).zip(&self.sockets) {
            sockets.register(&mut dispatch, worker)?;
        }
        // After the slots: a worker that is counted has its sockets in place.
        let workers = u16::try_from(self.sockets.len()).unwrap_or(u16::MAX);
        dispatch.set_workers(workers)?;
        Ok(id)
    }
}
