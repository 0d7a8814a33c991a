//! `agent-node credential-upstream`: what end-to-end tests of a cluster talk to instead of real services.
//!
//! One HTTP server on the node's loopback address; ZeroProxy's `upstreams` lead the names in `sites` to it. It holds
//! what a request brought against the tokens of the Secret, says in the answer and at `/observed` what it saw (never a
//! token), and serves a repository that the real git clones, a vector search, and an agent that others call. Not for
//! production; nothing else of agent-node depends on it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::LocalSet;

use crate::credential::CredentialStore;

mod git;
mod observed;
mod sites;
mod vectors;

use sites::{Asked, Sites};

/// Open connections; the proxy keeps a few.
const CONNECTIONS: usize = 256;
/// The largest body that a test sends.
const MAX_BODY: usize = 64 * 1024;
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until SIGTERM or SIGINT. The files `REPO_TOKEN` and `RAG_TOKEN` are those below `credentials`; one that is
/// missing lets no request through that needs it.
///
/// # Errors
/// When the address is taken.
pub fn run(listen: SocketAddr, credentials: &Path) -> anyhow::Result<()> {
    let credentials =
        CredentialStore::start(credentials).context("start the thread that reads credentials")?;
    let sites = Arc::new(Sites::new(credentials).context("make the test's repositories")?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("set up the runtime")?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("listen on {listen}"))?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tracing::info!(address = %listener.local_addr()?, "serving the upstreams of tests");
        tokio::select! {
            () = serve(&listener, &sites) => (),
            _ = terminate.recv() => (),
            _ = interrupt.recv() => (),
        }
        Ok(())
    })
}

async fn serve(listener: &TcpListener, sites: &Arc<Sites>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = room.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let sites = sites.clone();
                tokio::task::spawn_local(async move {
                    let _place = place;
                    connection(stream, sites).await;
                });
            }
            Err(error) => {
                // Out of descriptors, for example: it passes when connections end.
                tracing::warn!(error = %error, "no connection could be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, sites: Arc<Sites>) {
    let service = service_fn(|request| {
        let sites = sites.clone();
        async move { Ok::<_, Infallible>(answer(request, &sites).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(error = %error, "a connection ended");
    }
}

async fn answer(request: Request<Incoming>, sites: &Sites) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => {
            let mut refused = Response::new(Full::from("the body doesn't end, or is too large\n"));
            *refused.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
            return refused;
        }
    };
    sites.answer(&Asked::new(&head, &body)).map(Full::new)
}
