//! Drives one HTTP/1.1 connection of a pod to its end.
//!
//! Owns the hyper server connection, its clock (idle, slow heads, silent upstreams, re-deciding what
//! is in flight after a policy change), and what comes after hyper: the answer to a fault, a tunnel,
//! or a graceful close.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use agent_core::policy::Protocol;
use bytes::Bytes;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::answer;
use super::close;
use super::exchange::{Exchanges, Origin, Tunnel, Upgrade, join};
use super::fault::Fault;
use super::guard::{Guard, Stop};
use super::head::HeadLimits;
use super::origin::UpstreamStream;
use super::record::Line;
use super::request;
use super::signal::Signal;
use super::source::{Facts, Source};
use super::tunnel;
use crate::metrics::Counter;

/// A request's head has this long to arrive, from its first byte on.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The bytes that hyper may buffer for one connection, when heads may have `header_bytes`.
pub(crate) fn buffer_size(header_bytes: usize) -> usize {
    header_bytes.max(64 * 1024) + 8 * 1024
}

/// What an HTTP connection goes on as.
pub(crate) struct Inside {
    pub(crate) stream: TcpStream,
    pub(crate) first: Bytes,
    pub(crate) origin: Origin,
}

/// Serves `stream`, of which `first` has been read. Returns what is inside a CONNECT, if the
/// connection became one.
pub(crate) async fn serve(
    source: &Rc<Source>,
    signal: &Signal,
    stream: TcpStream,
    first: Bytes,
    origin: Origin,
) -> Option<Inside> {
    let exchanges = Exchanges::new(source.clone(), origin);
    let limits = &source.worker.shared.config.limits;
    let head = HeadLimits {
        bytes: limits.header_bytes,
        count: limits.header_count,
    };
    let guard = Guard::new(
        stream,
        first,
        head,
        exchanges.pulse.clone(),
        exchanges.interim.clone(),
    );
    let mut builder = Builder::new();
    builder.half_close(true).auto_date_header(false);
    // The guard has counted already; hyper's own limits must not be the lower ones. Nor much higher:
    // this is what a connection whose reader is slow may hold.
    builder.max_buf_size(buffer_size(limits.header_bytes));
    if limits.header_count > 100 {
        builder.max_headers(limits.header_count);
    }
    let service = {
        let exchanges = exchanges.clone();
        service_fn(move |request| request::serve(exchanges.clone(), request))
    };
    let mut connection = builder.serve_connection(guard, service);
    let mut clock = Clock::new(&exchanges);
    let mut draining = false;
    let ended = std::future::poll_fn(|cx| {
        loop {
            if signal.over().is_some() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(ended) = Pin::new(&mut connection).poll(cx) {
                return Poll::Ready(Some(ended));
            }
            // Not before hyper has seen what was read already, nor in the middle of a head: it would take the
            // connection for an idle one and close it, and the client's request would be lost.
            if signal.is_draining() && !draining && exchanges.pulse.head_since.get().is_none() {
                draining = true;
                Pin::new(&mut connection).graceful_shutdown();
                continue;
            }
            match clock.poll(cx, &exchanges) {
                Tick::Wait => return Poll::Pending,
                Tick::Look => {}
                Tick::Cut => return Poll::Ready(None),
            }
        }
    })
    .await;
    let Some(ended) = ended else {
        // In flight, and the connection must end: an orderly end would lie about a body that only it delimits.
        let (stream, _) = connection.into_parts().io.into_parts();
        super::relay::reset_on_close(&stream);
        return None;
    };
    let parts = connection.into_parts();
    let (stream, held) = parts.io.into_parts();
    let ahead = join(parts.read_buf, held);
    let tunnel = exchanges.tunnel.take();
    match (ended, tunnel) {
        (Ok(()), Some(Tunnel::Connect(origin))) => {
            return Some(Inside {
                stream,
                first: ahead,
                origin,
            });
        }
        (Ok(()), Some(Tunnel::Upgrade(upgrade))) => switched(source, stream, ahead, *upgrade).await,
        (Ok(()), None) => finish(&exchanges, stream).await,
        (Err(error), tunnel) => {
            drop(tunnel);
            broken(&exchanges, stream, &error).await;
        }
    }
    None
}

/// After the last good request: the answer to what came behind it, if it was bad.
async fn finish(exchanges: &Rc<Exchanges>, mut stream: TcpStream) {
    if let Some((fault, false)) = exchanges.pulse.fault.get() {
        let bytes = answer::faulty_bytes(fault_line(exchanges), fault);
        // A client that doesn't read its error has closed, and that is all there is to do then.
        let written = tokio::time::timeout(close::PATIENCE, stream.write_all(&bytes)).await;
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
    close::gracefully(stream).await;
}

/// hyper gave up: the client went away, an upstream broke off mid-response, or hyper's parser found
/// what the guard had not.
async fn broken(exchanges: &Rc<Exchanges>, stream: TcpStream, error: &hyper::Error) {
    tracing::debug!(error = %error, "pod connection ended");
    if error.is_parse() {
        let mut line = fault_line(exchanges);
        line.faulty(Fault::Parser);
        line.status.set(Some(400));
        drop(line);
    } else if exchanges.http10.get() {
        // Only the connection's end delimits such a body, so an orderly end would lie.
        super::relay::reset_on_close(&stream);
        return;
    }
    close::gracefully(stream).await;
}

fn fault_line(exchanges: &Rc<Exchanges>) -> Line {
    let facts = Rc::new(Facts::of_connection(Protocol::Http, exchanges.origin.dst));
    let source = exchanges.source.clone();
    let subject = source.current();
    Line::new(source, subject, facts, std::time::Instant::now())
}

/// Relays what an upgraded connection carries.
async fn switched(source: &Rc<Source>, pod: TcpStream, from_pod: Bytes, upgrade: Upgrade) {
    let Upgrade { upstream, mut line } = upgrade;
    let parts = match upstream.await {
        Ok(upgraded) => upgraded.downcast::<TokioIo<UpstreamStream>>(),
        Err(error) => {
            tracing::debug!(error = %error, "upgrade failed");
            line.note("the upstream closed instead of switching protocols");
            return;
        }
    };
    let Ok(parts) = parts else {
        line.note("the upstream connection can't be taken over");
        return;
    };
    source.worker.metrics().inc(Counter::Tunnels);
    let upstream = parts.io.into_inner();
    tunnel::run(source, line, pod, upstream, from_pod, parts.read_buf).await;
}

enum Tick {
    /// Nothing to do until the waker is called.
    Wait,
    /// Something was set that the connection must look at.
    Look,
    /// The connection must end at once.
    Cut,
}

/// The one timer of a connection. It is set anew only when it fires, or when a request begins that
/// must be looked at sooner.
struct Clock {
    timer: Pin<Box<Sleep>>,
    idle: Duration,
    recheck: Duration,
    /// When it last fired.
    checked: Instant,
}

impl Clock {
    fn new(exchanges: &Exchanges) -> Clock {
        let config = &exchanges.source.worker.shared.config;
        let idle = config.limits.idle_timeout;
        let now = Instant::now();
        Clock {
            timer: Box::pin(tokio::time::sleep_until(now + idle)),
            idle,
            recheck: config.recheck,
            checked: now,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, exchanges: &Exchanges) -> Tick {
        let wanted = self.wanted(exchanges);
        if wanted < self.timer.deadline() {
            self.timer.as_mut().reset(wanted);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            self.checked = now;
            match self.fired(now, exchanges) {
                Tick::Wait => {}
                tick => {
                    self.timer.as_mut().reset(now + self.idle);
                    return tick;
                }
            }
            let wanted = self.wanted(exchanges);
            self.timer.as_mut().reset(wanted);
        }
        Tick::Wait
    }

    fn wanted(&self, exchanges: &Exchanges) -> Instant {
        let pulse = &exchanges.pulse;
        let mut wanted = pulse.last.get() + self.idle;
        if let Some(since) = pulse.head_since.get() {
            wanted = wanted.min(since + HEAD_TIMEOUT);
        }
        if exchanges.in_flight.borrow().is_some() {
            // Not from the request's own beginning: one look per interval is enough.
            wanted = wanted.min(self.checked.max(pulse.last.get()) + self.recheck);
        }
        wanted.max(self.checked)
    }

    fn fired(&self, now: Instant, exchanges: &Exchanges) -> Tick {
        let pulse = &exchanges.pulse;
        let metrics = exchanges.source.worker.metrics();
        if pulse
            .head_since
            .get()
            .is_some_and(|since| now >= since + HEAD_TIMEOUT)
        {
            pulse.stop.set(Some(Stop::Fault(Fault::HeadTimeout)));
            pulse.head_since.set(None);
            return Tick::Look;
        }
        if now >= pulse.last.get() + self.idle {
            metrics.inc(Counter::IdleClosed);
            let in_flight = exchanges.in_flight.borrow().is_some();
            if in_flight && !exchanges.awaiting.get() {
                // The response's head has gone out; only breaking off can tell now.
                return Tick::Cut;
            }
            if pulse.in_body.get() {
                pulse.stop.set(Some(Stop::Fault(Fault::BodyTimeout)));
            } else if !in_flight {
                pulse.stop.set(Some(Stop::Idle));
            }
            exchanges.silent.set(true);
            pulse.beat();
            return Tick::Look;
        }
        let in_flight = exchanges.in_flight.borrow();
        if let Some(request) = &*in_flight
            && request
                .facts
                .is_revoked(&exchanges.source, &request.subject)
        {
            metrics.inc(Counter::Rechecked);
            let mut line = Line::new(
                exchanges.source.clone(),
                exchanges.source.current(),
                request.facts.clone(),
                std::time::Instant::now(),
            );
            line.revoked();
            return Tick::Cut;
        }
        Tick::Wait
    }
}
