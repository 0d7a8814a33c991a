//! One accepted connection, from its first byte to its end.
//!
//! Owns the chain of states: Accepted -> Identified -> sniffed -> decided and connected (`http1`,
//! `tls`, `opaque`) -> Closed. A denial doesn't cut the chain short: the protocol is looked at first,
//! so that the pod gets its answer in words where its protocol has words.

use std::io;
use std::net::SocketAddrV4;
use std::rc::Rc;
use std::time::Duration;

use agent_core::identity::ClientAddr;
use agent_core::policy::Protocol;
use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::exchange::Origin;
use super::fault::Fault;
use super::record::Line;
use super::relay::with_scratch;
use super::signal::{Ends, Signal};
use super::sniff::{self, Sniffed};
use super::source::{Facts, Source};
use super::{close, http1, opaque, tls};
use crate::context::WorkerCtx;
use crate::listener::Accepted;
use crate::metrics::Counter;

/// From its first byte on, a connection has this long to show its protocol.
const SNIFF_TIMEOUT: Duration = Duration::from_secs(10);
/// CONNECT inside CONNECT, at most.
const MAX_NESTING: usize = 4;
/// SETTINGS, then GOAWAY with HTTP_1_1_REQUIRED (RFC 9113 sections 6.5, 6.8 and 7).
const H2_REFUSAL: [u8; 26] = [
    0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 13,
];

/// Serves one accepted connection to its end.
///
/// Runs on a `LocalSet`.
pub async fn serve_connection(worker: Rc<WorkerCtx>, accepted: Accepted) {
    let Accepted {
        stream,
        peer,
        dst,
        stay,
    } = accepted;
    let source = Rc::new(Source::identify(worker, peer, dst).await);
    let pod = match source.current() {
        Some(subject) => Some(subject.pod.gone.clone()),
        None => {
            source.worker.metrics().inc(Counter::UnknownSource);
            None
        }
    };
    let ends = Ends {
        pod,
        mode: Some(stay),
    };
    let signal = Signal::new(&source.worker, &source.told, ends);
    let serving = serve(&source, &signal, stream, Origin::dialled(dst.0));
    if let Some(over) = signal.unless_over(serving).await {
        source.worker.metrics().inc(over.counter());
    }
}

/// Serves a connection that the node itself made to the proxy, as to an explicit one: under the identity that
/// `localClient` gives to whoever shows its token. Without `localClient` it is closed.
pub async fn serve_local(worker: Rc<WorkerCtx>, stream: TcpStream, peer: SocketAddrV4) {
    let Some(source) = Source::local(worker, ClientAddr(peer)) else {
        return;
    };
    let source = Rc::new(source);
    let signal = Signal::new(&source.worker, &source.told, Ends::default());
    serve(&source, &signal, stream, Origin::unsaid()).await;
}

async fn serve(source: &Rc<Source>, signal: &Signal, stream: TcpStream, origin: Origin) {
    let (mut stream, mut first, mut origin) = (stream, BytesMut::new(), origin);
    for _ in 0..MAX_NESTING {
        let sniffed = match sniff(source, &stream, &mut first).await {
            Ok(sniffed) => sniffed,
            // The pod went away before it said anything.
            Err(_) => return,
        };
        match sniffed {
            Sniffed::Http1 => {
                let read = first.split().freeze();
                match http1::serve(source, signal, stream, read, origin).await {
                    Some(inside) => {
                        stream = inside.stream;
                        origin = inside.origin;
                        first = BytesMut::from(inside.first);
                    }
                    None => return,
                }
            }
            Sniffed::Tls => return tls::serve(source, stream, first, origin).await,
            Sniffed::Http2 => return refuse_http2(source, stream, &origin).await,
            Sniffed::Opaque => return opaque::serve(source, stream, first.freeze(), origin).await,
        }
    }
}

/// Reads until the protocol shows, or time or size is used up.
async fn sniff(source: &Source, stream: &TcpStream, first: &mut BytesMut) -> io::Result<Sniffed> {
    let silence = source.worker.shared.config.limits.first_byte_timeout;
    if first.is_empty() {
        match timeout(silence, read_more(stream, first)).await {
            Ok(read) => {
                if read? == 0 {
                    return Ok(Sniffed::Opaque);
                }
            }
            // The server speaks first, or nobody does.
            Err(_) => return Ok(Sniffed::Opaque),
        }
    }
    let deadline = Instant::now() + SNIFF_TIMEOUT;
    loop {
        if let Some(sniffed) = sniff::classify(first) {
            return Ok(sniffed);
        }
        match timeout_at(deadline, read_more(stream, first)).await {
            Ok(read) => {
                if read? == 0 {
                    return Ok(sniff::classify_final(first));
                }
            }
            Err(_) => return Ok(sniff::classify_final(first)),
        }
    }
}

/// Reads once, behind what `first` has. 0 at the end of the stream. Cancel safe.
pub(crate) async fn read_more(stream: &TcpStream, first: &mut BytesMut) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        let read = with_scratch(|scratch| {
            let n = stream.try_read(&mut scratch[..sniff::MAX_FIRST_LINE])?;
            first.extend_from_slice(&scratch[..n]);
            Ok(n)
        });
        match read {
            Err(e) if io::Error::kind(&e) == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

async fn refuse_http2(source: &Rc<Source>, mut stream: TcpStream, origin: &Origin) {
    let facts = Rc::new(Facts::of_connection(Protocol::Http, origin.dst));
    let subject = source.current();
    let mut line = Line::new(source.clone(), subject, facts, std::time::Instant::now());
    line.faulty(Fault::Http2);
    drop(line);
    let written = timeout(close::PATIENCE, stream.write_all(&H2_REFUSAL)).await;
    if matches!(written, Ok(Ok(()))) {
        close::gracefully(stream).await;
    }
}
