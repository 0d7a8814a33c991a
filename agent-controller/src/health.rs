//! `/healthz`, `/readyz` and `/metrics`, for kubelet and Prometheus.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::metrics::Metrics;
use crate::watch::Watches;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// kubelet, a scraper, a person.
const MAX_CONNECTIONS: usize = 32;
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// What the endpoints report on.
pub(crate) struct Health {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) watches: Watches,
}

/// Opens the listener.
///
/// # Errors
/// When somebody else has the port.
pub(crate) async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on {address} (--listen)"))
}

/// Serves for as long as it is polled.
pub(crate) async fn serve(listener: TcpListener, health: Arc<Health>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(error = %error, "the health listener can't accept");
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let health = health.clone();
        tokio::spawn(async move {
            let _place = place;
            let service = service_fn(|request| {
                let answer = health.answer(&request);
                async move { Ok::<_, Infallible>(answer) }
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            // Whoever asks too slowly is not waited for.
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, served).await;
        });
    }
}

impl Health {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
        }
        match request.uri().path() {
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" => self.ready(),
            "/metrics" => match self.metrics.encode() {
                Ok(body) => {
                    let mut response = text(StatusCode::OK, body);
                    let value = hyper::header::HeaderValue::from_static(OPENMETRICS);
                    response
                        .headers_mut()
                        .insert(hyper::header::CONTENT_TYPE, value);
                    response
                }
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            },
            _ => text(
                StatusCode::NOT_FOUND,
                "there are /healthz, /readyz and /metrics\n",
            ),
        }
    }

    /// A replica that doesn't lead is ready too: it could. One that can't read the cluster couldn't.
    fn ready(&self) -> Response<Full<Bytes>> {
        let problems = self.watches.problems();
        if problems.is_empty() {
            return text(StatusCode::OK, "ready\n");
        }
        let lines: Vec<String> = problems
            .iter()
            .map(|(k, v)| format!("{k}: {v}\n"))
            .collect();
        text(StatusCode::SERVICE_UNAVAILABLE, lines.concat())
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
}
