//! The local endpoints: health, readiness, metrics, reload, explain.
//!
//! Owns who may use which endpoint. Only connections that the node itself made come here; a pod's, whatever it asks,
//! is the proxy's (`listener`). Doesn't own what it reports.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use crate::context::Context;
use crate::events::Kernel;
use crate::listener::{DataPath, LocalConnection};

mod auth;
mod readiness;
mod respond;
mod routes;

pub use readiness::{Check, readiness};

/// A request of these endpoints is small and comes at once.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time one connection may last.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// What the endpoints report on.
pub struct Admin {
    /// The process.
    pub context: Arc<Context>,
    /// The kernel's counters.
    pub kernel: Arc<Kernel>,
    /// Whether pods' traffic reaches this process.
    pub data_path: watch::Receiver<DataPath>,
}

impl Admin {
    /// Serves what workers accepted for it, until the drain begins: then the next process alone is asked.
    pub async fn serve(self: Arc<Self>, mut connections: mpsc::Receiver<LocalConnection>) {
        loop {
            let connection = tokio::select! {
                connection = connections.recv() => connection,
                () = self.context.drain.begun() => return,
            };
            let Some(LocalConnection {
                stream,
                peer,
                place,
            }) = connection
            else {
                return;
            };
            let stream = match TcpStream::from_std(stream) {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(peer = %peer, error = %error, "a local connection is lost");
                    continue;
                }
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
}
