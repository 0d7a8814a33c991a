//! The socket as hyper's HTTP server sees it: only whole, unambiguous request heads, and bodies.
//!
//! Owns the reading side of a pod's HTTP connection. Bytes are shown to [`Framing`] first, and go on
//! to hyper as far as it lets them; at a fault hyper sees an end of stream after the last good
//! request, finishes that one, and the fault is answered behind it (`http1`). Nothing is shut down
//! here: the connection is taken back from hyper, for the answer to a fault or for a tunnel.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use hyper::rt::ReadBufCursor;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::fault::Fault;
use super::framing::Framing;
use super::head::HeadLimits;
use super::interim::Interim;
use super::relay::with_scratch;

/// What the connection's driver and its guard tell each other.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// When the last byte went in either direction.
    pub(crate) last: Cell<Instant>,
    /// When the first byte of a head that isn't complete came.
    pub(crate) head_since: Cell<Option<Instant>>,
    /// Whether the pod's next bytes belong to a request body.
    pub(crate) in_body: Cell<bool>,
    /// What was wrong with the bytes, and whether that was inside a body.
    pub(crate) fault: Cell<Option<(Fault, bool)>>,
    /// The number of the head that may begin a tunnel.
    pub(crate) tunnel_head: Cell<Option<u64>>,
    /// Set by the driver: no more requests are read.
    pub(crate) stop: Cell<Option<Stop>>,
}

/// Why no more is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Silence between requests: an end, not an error.
    Idle,
    /// Silence inside a request.
    Fault(Fault),
}

impl Pulse {
    pub(crate) fn new() -> Pulse {
        Pulse {
            last: Cell::new(Instant::now()),
            head_since: Cell::new(None),
            in_body: Cell::new(false),
            fault: Cell::new(None),
            tunnel_head: Cell::new(None),
            stop: Cell::new(None),
        }
    }

    pub(crate) fn beat(&self) {
        self.last.set(Instant::now());
    }
}

/// The guarded socket; it shares its pulse with the driver.
pub(crate) struct Guard {
    stream: TcpStream,
    framing: Framing,
    /// Read and not gone on. The first `ready` bytes may go on.
    held: BytesMut,
    ready: usize,
    pulse: Rc<Pulse>,
    interim: Arc<Interim>,
    /// An interim response that is going out.
    going_out: Bytes,
    /// Whether hyper may hold a part of what it has begun to write.
    mid_write: bool,
}

impl Guard {
    /// Guards `stream`, of which `first` has been read already.
    pub(crate) fn new(
        stream: TcpStream,
        first: Bytes,
        limits: HeadLimits,
        pulse: Rc<Pulse>,
        interim: Arc<Interim>,
    ) -> Guard {
        let mut guard = Guard {
            stream,
            framing: Framing::new(limits),
            held: BytesMut::from(first),
            ready: 0,
            pulse,
            interim,
            going_out: Bytes::new(),
            mid_write: false,
        };
        guard.judge_held();
        guard
    }

    /// The socket, and what was read from it and belongs to no request.
    pub(crate) fn into_parts(self) -> (TcpStream, Bytes) {
        (self.stream, self.held.freeze())
    }

    fn judge_held(&mut self) {
        self.ready = self.framing.advance(&self.held);
        self.note();
    }

    /// Tells the driver where the stream stands.
    fn note(&self) {
        let pulse = &self.pulse;
        let in_body = self.framing.in_body();
        if let Some(fault) = self.framing.fault() {
            if pulse.fault.get().is_none() {
                pulse
                    .fault
                    .set(Some((fault, self.framing.failed_in_body())));
            }
        } else {
            pulse.in_body.set(in_body);
        }
        pulse.tunnel_head.set(self.framing.tunnel_head());
        let partial = !in_body && self.held.len() > self.ready;
        match (partial, pulse.head_since.get()) {
            (true, None) => pulse.head_since.set(Some(Instant::now())),
            (false, Some(_)) => pulse.head_since.set(None),
            _ => {}
        }
    }

    /// Writes interim responses, if there are any and they fit between two writes of hyper's.
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.going_out.is_empty() {
                if self.mid_write {
                    return Poll::Ready(Ok(()));
                }
                self.going_out = self.interim.take();
                if self.going_out.is_empty() {
                    return Poll::Ready(Ok(()));
                }
            }
            let n = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.going_out))?;
            self.going_out.advance(n);
            self.pulse.beat();
        }
    }

    /// Reads once. `None` at the end of the stream.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBufCursor<'_>,
    ) -> Poll<io::Result<Option<usize>>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            let read = with_scratch(|scratch| {
                // What is already held is not read past: a flood of half a head is bounded by the
                // head limit, and hyper takes at most what it has room for.
                let room = buf.remaining().min(scratch.len());
                let n = match self.stream.try_read(&mut scratch[..room]) {
                    Ok(0) => return Ok(None),
                    Ok(n) => n,
                    Err(e) => return Err(e),
                };
                let read = &scratch[..n];
                if self.held.is_empty() {
                    let passed = self.framing.advance(read);
                    buf.put_slice(&read[..passed]);
                    self.held.extend_from_slice(&read[passed..]);
                    self.note();
                    Ok(Some(passed))
                } else {
                    self.held.extend_from_slice(read);
                    self.judge_held();
                    Ok(Some(0))
                }
            });
            match read {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(e)),
                Ok(read) => {
                    self.pulse.beat();
                    return Poll::Ready(Ok(read));
                }
            }
        }
    }
}

impl hyper::rt::Read for Guard {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.ready > 0 {
                let n = this.ready.min(buf.remaining());
                buf.put_slice(&this.held[..n]);
                this.held.advance(n);
                this.ready -= n;
                return Poll::Ready(Ok(()));
            }
            match this.pulse.stop.get() {
                Some(Stop::Fault(fault)) => {
                    this.framing.fail(fault);
                    this.note();
                }
                Some(Stop::Idle) => return Poll::Ready(Ok(())),
                None => {}
            }
            if this.framing.fault().is_some() {
                return Poll::Ready(Ok(()));
            }
            if this.framing.tunnel_head().is_some() {
                // What comes now is the tunnel's; hyper has no more to read.
                return Poll::Pending;
            }
            match ready!(this.poll_fill(cx, &mut buf))? {
                None => {
                    this.pulse.head_since.set(None);
                    return Poll::Ready(Ok(()));
                }
                Some(0) => {}
                Some(_) => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl hyper::rt::Write for Guard {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_interim(cx))?;
        let n = ready!(Pin::new(&mut this.stream).poll_write(cx, bytes))?;
        this.mid_write = true;
        this.pulse.beat();
        Poll::Ready(Ok(n))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes when it has handed everything over.
        let this = self.get_mut();
        this.mid_write = false;
        ready!(this.poll_interim(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    /// Does nothing: the connection's end is the driver's.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_interim(cx))?;
        let n = ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, bufs))?;
        this.mid_write = true;
        this.pulse.beat();
        Poll::Ready(Ok(n))
    }
}
