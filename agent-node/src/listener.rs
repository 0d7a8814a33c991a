//! Worker threads: each one current-thread runtime, its own sockets, its own connections.
//!
//! Owns accepting: limits, back-off, and the end of it. A connection is handed over with its peer
//! and original destination, and lives and dies on this worker. Doesn't read a byte of it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::audit::AuditSink;
use crate::context::{Context, WorkerCtx};
use crate::{dns, proxy};

mod accept;
mod limit;
mod register;
mod sockets;

pub use limit::{PodLimits, PodSlot};
pub use register::{DataPath, Registrar};
pub use sockets::{SocketError, WorkerSockets};

use accept::Acceptor;

/// After the drain has begun, how long handshakes that were under way may still be completed.
const LINGER: Duration = Duration::from_millis(150);

/// The socket of one worker for DNS datagrams: bound to loopback, transparent, non-blocking, with
/// `IP_RECVORIGDSTADDR` on, so that each datagram comes with the address that the pod asked.
#[derive(Debug)]
pub struct UdpDns {
    /// The socket.
    pub socket: std::net::UdpSocket,
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
    shared: Arc<Context>,
    limits: Arc<PodLimits>,
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
            local.block_on(&runtime, work(shared, limits, index, sockets))
        })
}

async fn work(
    shared: Arc<Context>,
    limits: Arc<PodLimits>,
    index: u16,
    sockets: Arc<WorkerSockets>,
) -> Result<(), SocketError> {
    let worker = WorkerCtx::new(shared, index);
    let live = Rc::new(Live::default());
    let (proxy_tcp, dns_tcp, dns_udp) = sockets.listeners()?;
    drop(sockets);
    let mut udp = tokio::task::spawn_local(dns::serve_udp(worker.clone(), dns_udp));
    let mut proxy = Acceptor::proxy(worker.clone(), live.clone(), limits.clone(), proxy_tcp);
    let mut dns = Acceptor::dns(worker.clone(), live.clone(), limits, dns_tcp);

    let drain = &worker.shared.drain;
    tokio::select! {
        () = drain.begun() => {}
        // It returned or panicked. Pods without DNS are not served; the process ends for it.
        _ = &mut udp => return Err(SocketError::DnsUdp),
        () = proxy.run(proxy::serve_connection) => {}
        () = dns.run(dns::serve_tcp) => {}
    }
    let begun = Instant::now();
    let deadline = begun + worker.shared.config.drain;
    proxy.refuse_new();
    dns.refuse_new();
    // Handshakes that were under way end here, in the queue; the next process has the slots.
    tokio::select! {
        () = sleep_until(begun + LINGER) => {}
        () = proxy.run(proxy::serve_connection) => {}
        () = dns.run(dns::serve_tcp) => {}
    }
    proxy.finish(proxy::serve_connection);
    dns.finish(dns::serve_tcp);
    udp.abort();
    if timeout_at(deadline, live.wait_until_none()).await.is_err() {
        tracing::warn!(
            worker = index,
            connections = live.count.get(),
            "drain time is over; open connections are closed"
        );
    }
    Ok(())
}
