//! Answers DNS over TCP: several queries per connection, at once and out of order (RFC 7766).

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use agent_core::identity::{ClientAddr, OrigDst};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::frame::{Frames, framed};
use super::limits::Admission;
use super::respond::Transport;
use super::service;
use crate::context::WorkerCtx;
use crate::listener::Accepted;
use crate::metrics::Counter;

/// How long a connection may be without a whole query or a reply (RFC 7766 §6.2.3: seconds).
const IDLE: Duration = Duration::from_secs(10);
/// How long a client may take to take a reply.
const WRITE: Duration = Duration::from_secs(5);
/// Queries of one connection that are answered at the same time; further ones stay unread.
const PIPELINE: usize = 16;
/// How long a connection over its pod's rate waits before it goes on.
const PAUSE: Duration = Duration::from_millis(50);
/// Bytes that are read at once.
const READ: usize = 1024;

/// Serves one DNS connection to its end: the client's, the idle time's, or its pod's, or that of the node's mode.
pub async fn serve_tcp(worker: Rc<WorkerCtx>, accepted: Accepted) {
    let Accepted {
        stream,
        peer,
        dst,
        stay,
    } = accepted;
    let ip = *peer.0.ip();
    let Some(_place) = worker.dns.limits().connect(ip, std::time::Instant::now()) else {
        worker.metrics().inc(Counter::DnsShed);
        service::report_excess(&worker, peer, dst);
        return;
    };
    let Some(pod) = service::identify(&worker, peer, dst).await else {
        return;
    };
    let shared = Rc::clone(&worker);
    let ended = async move {
        tokio::select! {
            () = pod.gone.cancelled() => End::Now,
            () = stay.cancelled() => End::Now,
            () = shared.shared.drain.begun() => End::WhenIdle,
        }
    };
    if let Err(error) = serve(&worker, stream, peer, dst, ended).await {
        tracing::debug!(src.ip = %ip, error = %error, "DNS connection failed");
    }
}

/// How a connection is ended from outside.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Whoever it belonged to is gone.
    Now,
    /// After the queries in flight.
    WhenIdle,
}

async fn serve(
    worker: &Rc<WorkerCtx>,
    mut stream: TcpStream,
    peer: ClientAddr,
    dst: OrigDst,
    ended: impl Future<Output = End>,
) -> io::Result<()> {
    let (mut from_client, mut to_client) = stream.split();
    let mut frames = Frames::default();
    let mut running = FuturesUnordered::new();
    let mut open = true;
    let mut deadline = Instant::now() + IDLE;
    tokio::pin!(ended);
    loop {
        while running.len() < PIPELINE {
            let Ok(next) = frames.next() else {
                worker.metrics().inc(Counter::DnsMalformed);
                return Ok(());
            };
            let Some(message) = next else { break };
            deadline = Instant::now() + IDLE;
            admitted(worker, peer, dst).await;
            running.push(async move {
                service::answer(worker, &message, (peer, dst), Transport::Tcp).await
            });
        }
        if !open && running.is_empty() {
            return Ok(());
        }
        let mut bytes = [0; READ];
        tokio::select! {
            biased;
            Some(reply) = running.next() => {
                if let Some(reply) = reply {
                    timeout(WRITE, to_client.write_all(&framed(&reply))).await??;
                }
                deadline = Instant::now() + IDLE;
            }
            read = from_client.read(&mut bytes), if open && running.len() < PIPELINE => {
                match read? {
                    0 => open = false,
                    length => frames.push(bytes.get(..length).unwrap_or_default()),
                }
            }
            end = &mut ended, if open => match end {
                End::Now => return Ok(()),
                End::WhenIdle => open = false,
            },
            () = sleep_until(deadline), if running.is_empty() => return Ok(()),
        }
    }
}

/// Waits until the pod's rate lets one more query through: the connection's own client waits.
async fn admitted(worker: &WorkerCtx, peer: ClientAddr, dst: OrigDst) {
    let ip = *peer.0.ip();
    while let Admission::Excess { report } =
        worker.dns.limits().admit(ip, std::time::Instant::now())
    {
        if report {
            service::report_excess(worker, peer, dst);
        }
        sleep(PAUSE).await;
    }
}
