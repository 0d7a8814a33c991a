//! One worker's three sockets at work: accepts for the proxy and for DNS over TCP, and answers DNS datagrams.

use std::rc::Rc;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::accept::Acceptor;
use super::{Live, LocalDoor, PodLimits, SocketError, WorkerSockets};
use crate::context::WorkerCtx;
use crate::{dns, proxy};

/// The sockets of one way in.
pub(super) struct Door {
    proxy: Acceptor,
    dns: Acceptor,
    udp: JoinHandle<()>,
}

impl Door {
    /// Takes the sockets over into this worker's runtime.
    ///
    /// # Errors
    /// When no descriptor is left, or the runtime refuses one.
    pub(super) fn open(
        worker: &Rc<WorkerCtx>,
        live: &Rc<Live>,
        limits: &Arc<PodLimits>,
        local: &LocalDoor,
        sockets: &WorkerSockets,
    ) -> Result<Door, SocketError> {
        let (proxy_tcp, dns_tcp, dns_udp) = sockets.listeners()?;
        let acceptor = |listener| {
            let arrival = sockets.arrival();
            Acceptor::new(
                worker.clone(),
                live.clone(),
                limits.clone(),
                listener,
                arrival,
            )
        };
        Ok(Door {
            proxy: acceptor(proxy_tcp).for_proxy(local.clone()),
            dns: acceptor(dns_tcp),
            udp: tokio::task::spawn_local(dns::serve_udp(worker.clone(), dns_udp)),
        })
    }

    /// Serves for as long as it is polled; ends only when DNS datagrams can't be answered any more. Cancel safe.
    pub(super) async fn serve(&mut self) {
        tokio::select! {
            _ = &mut self.udp => {}
            () = self.proxy.run(proxy::serve_connection) => {}
            () = self.dns.run(dns::serve_tcp) => {}
        }
    }

    /// See [`Acceptor::refuse_new`].
    pub(super) fn refuse_new(&self) {
        self.proxy.refuse_new();
        self.dns.refuse_new();
    }

    /// Takes what is still in the queues, and closes the sockets.
    pub(super) fn finish(self) {
        self.proxy.finish(proxy::serve_connection);
        self.dns.finish(dns::serve_tcp);
        self.udp.abort();
    }
}
