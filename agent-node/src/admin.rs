//! The local endpoints: health, readiness, metrics, reload, explain.
//!
//! Owns the listener for connections that the node itself makes, and who may use which endpoint.
//! A connection from a Fake IP is closed without an answer. Doesn't own what it reports.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::context::Context;
use crate::events::Kernel;
use crate::listener::DataPath;

mod auth;
mod readiness;
mod respond;
mod routes;

pub use readiness::{Check, readiness};

/// Connections at the same time: probes, a scraper, a controller and a person.
const MAX_CONNECTIONS: usize = 64;
/// A request of these endpoints is small and comes at once.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time one connection may last.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause after a failed accept.
const BACKOFF: Duration = Duration::from_millis(200);

/// What the endpoints report on.
pub struct Admin {
    /// The process.
    pub context: Arc<Context>,
    /// The kernel's counters.
    pub kernel: Arc<Kernel>,
    /// Whether pods' traffic reaches this process.
    pub data_path: watch::Receiver<DataPath>,
}

/// Opens the listener. With SO_REUSEPORT, so that the next process can have the same address while
/// this one drains.
///
/// # Errors
/// When the address is taken by somebody else, or isn't this node's.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(128)?;
    TcpListener::from_std(socket.into())
}

impl Admin {
    /// Serves until the drain begins; then the listener is closed, so that the next process alone
    /// is asked.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.context.drain.begun() => return,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(error = %error, "local endpoint can't accept");
                    tokio::time::sleep(BACKOFF).await;
                    continue;
                }
            };
            if !self.is_node(peer.ip()) {
                tracing::warn!(peer = %peer, "connection to a local endpoint from elsewhere is closed");
                continue;
            }
            let Ok(place) = places.clone().try_acquire_owned() else {
                continue;
            };
            let admin = self.clone();
            tokio::spawn(async move {
                let _place = place;
                let served = admin.connection(stream);
                // What it was asked is answered, or the asker is too slow; both end here.
                let _ = tokio::time::timeout(CONNECTION_TIMEOUT, served).await;
            });
        }
    }

    async fn connection(self: Arc<Self>, stream: TcpStream) {
        let service = service_fn(|request: Request<Incoming>| {
            let admin = self.clone();
            async move {
                Ok::<Response<Full<Bytes>>, std::convert::Infallible>(admin.route(request).await)
            }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(16 * 1024)
            .serve_connection(TokioIo::new(stream), service)
            .await;
        if let Err(error) = served {
            tracing::debug!(error = %error, "local endpoint connection ended");
        }
    }

    /// Whether an address is the node's own, and no pod's.
    fn is_node(&self, ip: IpAddr) -> bool {
        let nets = self.context.nets.load();
        let own = ip.is_loopback() || nets.is_node(ip);
        let gateway = self.context.nets.gateway().map(IpAddr::V4);
        own && (!nets.is_fake(ip) || Some(ip) == gateway)
    }
}
