//! Worker threads: each one current-thread runtime, its own sockets, its own connections.
//!
//! Owns accepting: limits, back-off, and the end of it. A connection is handed over with its peer
//! and original destination, and lives and dies on this worker. Doesn't read a byte of it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::audit::AuditSink;
use crate::context::{Context, WorkerCtx};

mod accept;
mod door;
mod limit;
mod local;
mod register;
mod sockets;

pub use accept::Accepted;
pub use limit::{PodLimits, PodSlot};
pub use local::{LocalConnection, LocalDoor, open_admin};
pub use register::{DataPath, OnGateway, Registrar};
pub use sockets::{Arrival, SocketError, WorkerSockets};

use door::Door;

/// After the drain has begun, how long handshakes that were under way may still be completed.
const LINGER: Duration = Duration::from_millis(150);

/// The socket of one worker for DNS datagrams: transparent, non-blocking, with `IP_RECVORIGDSTADDR` on, so that each
/// dispatched datagram comes with the address that the pod asked.
#[derive(Debug)]
pub struct UdpDns {
    /// The socket.
    pub socket: std::net::UdpSocket,
    /// How datagrams come to it.
    pub arrival: Arrival,
}

/// What a worker needs besides the process's state.
#[derive(Clone)]
pub struct Shares {
    /// The process.
    pub context: Arc<Context>,
    /// Connections of one pod at the same time, over all workers.
    pub limits: Arc<PodLimits>,
    /// Where the node's own connections go.
    pub local: LocalDoor,
    /// The sockets for redirected traffic, as soon as the gateway is known.
    pub on_gateway: watch::Receiver<OnGateway>,
}

/// The connections of one worker that are open.
#[derive(Default)]
struct Live {
    count: Cell<usize>,
    none: Notify,
}

/// One open connection.
struct Open(Rc<Live>);

impl Live {
    fn open(self: &Rc<Self>) -> Open {
        self.count.set(self.count.get() + 1);
        Open(self.clone())
    }

    async fn wait_until_none(&self) {
        while self.count.get() > 0 {
            self.none.notified().await;
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let left = self.0.count.get() - 1;
        self.0.count.set(left);
        if left == 0 {
            self.0.none.notify_one();
        }
    }
}

/// Starts worker `index` on `sockets`. The thread ends when the drain is over.
///
/// # Errors
/// When the thread can't be started.
pub fn start_worker(
    shares: Shares,
    index: u16,
    sockets: Arc<WorkerSockets>,
) -> std::io::Result<JoinHandle<Result<(), SocketError>>> {
    std::thread::Builder::new()
        .name(format!("worker-{index}"))
        .spawn(move || {
            AuditSink::use_worker_buffer(index);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(SocketError::Runtime)?;
            // Dropped before the runtime: what the drain left over is closed here.
            let local = LocalSet::new();
            local.block_on(&runtime, work(shares, index, sockets))
        })
}

async fn work(shares: Shares, index: u16, sockets: Arc<WorkerSockets>) -> Result<(), SocketError> {
    let worker = WorkerCtx::new(shares.context, index);
    let live = Rc::new(Live::default());
    let open = |sockets: &WorkerSockets| {
        Door::open(&worker, &live, &shares.limits, &shares.local, sockets)
    };
    let mut door = open(&sockets)?;
    drop(sockets);
    let mut on_gateway = shares.on_gateway;
    let mut second = None;

    let drain = &worker.shared.drain;
    loop {
        tokio::select! {
            () = drain.begun() => break,
            // It returned or panicked. Pods without DNS are not served; the process ends for it.
            () = door.serve() => return Err(SocketError::DnsUdp),
            () = serve_if_open(&mut second) => return Err(SocketError::DnsUdp),
            Ok(()) = on_gateway.changed() => {
                let sockets = on_gateway.borrow_and_update().of_worker(index);
                let next = sockets.map(|sockets| open(&sockets)).transpose()?;
                if let Some(old) = std::mem::replace(&mut second, next) {
                    old.finish();
                }
            }
        }
    }
    let begun = Instant::now();
    let deadline = begun + worker.shared.config.drain;
    door.refuse_new();
    second.iter().for_each(Door::refuse_new);
    // Handshakes that were under way end here, in the queue; the next process has the slots.
    tokio::select! {
        () = sleep_until(begun + LINGER) => {}
        () = door.serve() => {}
        () = serve_if_open(&mut second) => {}
    }
    for door in std::iter::once(door).chain(second) {
        door.finish();
    }
    if timeout_at(deadline, live.wait_until_none()).await.is_err() {
        tracing::warn!(
            worker = index,
            connections = live.count.get(),
            "drain time is over; open connections are closed"
        );
    }
    Ok(())
}

async fn serve_if_open(door: &mut Option<Door>) {
    match door {
        Some(door) => door.serve().await,
        None => std::future::pending().await,
    }
}
