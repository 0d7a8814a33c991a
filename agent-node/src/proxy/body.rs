//! Bodies on their way through: the frames as they came, counted.
//!
//! Owns what happens at a body's end (audit line, connection back to the pool), trailers, and the
//! wait for `100 Continue`. No frame is copied, boxed or held back.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::header::HeaderName;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::exchange::Busy;
use super::headers;
use super::pool::Lease;
use super::record::Line;
use crate::credential::Secret;
use crate::metrics::Counter;

/// How long a client that asked to be told is made to wait for the upstream's word (RFC 9110
/// section 10.1.1 lets a server stay silent).
const CONTINUE_WAIT: Duration = Duration::from_secs(1);

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("read the body")]
    Read(#[source] hyper::Error),
    #[error("the body is not wanted any more")]
    Unwanted,
}

/// Says whether a request body may be sent: the other end of `Expect: 100-continue`.
#[derive(Default)]
pub(crate) struct Gate {
    state: AtomicU8,
    waker: AtomicWaker,
}

const SHUT: u8 = 0;
const OPEN: u8 = 1;
const CANCELLED: u8 = 2;

impl Gate {
    /// The upstream said `100 Continue`.
    pub(crate) fn open(&self) {
        self.set(SHUT, OPEN);
    }

    /// The upstream has answered; what was not sent by now never is.
    pub(crate) fn cancel(&self) {
        self.set(SHUT, CANCELLED);
    }

    fn set(&self, from: u8, to: u8) {
        if self
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            self.waker.wake();
        }
    }
}

/// A request's body, from the pod.
pub(crate) struct RequestBody {
    inner: Option<Incoming>,
    bytes: Rc<Cell<u64>>,
    credential: Option<HeaderName>,
    gate: Option<(Arc<Gate>, Pin<Box<Sleep>>)>,
}

impl RequestBody {
    pub(crate) fn new(
        inner: Incoming,
        bytes: Rc<Cell<u64>>,
        credential: Option<HeaderName>,
        gate: Option<Arc<Gate>>,
    ) -> RequestBody {
        let gate = gate.map(|gate| (gate, Box::pin(tokio::time::sleep(CONTINUE_WAIT))));
        RequestBody {
            inner: Some(inner),
            bytes,
            credential,
            gate,
        }
    }

    /// No body, for a request that can be sent a second time.
    pub(crate) fn empty() -> RequestBody {
        RequestBody {
            inner: None,
            bytes: Rc::default(),
            credential: None,
            gate: None,
        }
    }

    fn poll_gate(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        if let Some((gate, wait)) = &mut self.gate {
            gate.waker.register(cx.waker());
            match gate.state.load(Ordering::Acquire) {
                OPEN => {}
                CANCELLED => return Poll::Ready(Err(BodyError::Unwanted)),
                _ => ready!(wait.as_mut().poll(cx)),
            }
            self.gate = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Err(e) = ready!(this.poll_gate(cx)) {
            return Poll::Ready(Some(Err(e)));
        }
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(None);
        };
        let frame = match ready!(Pin::new(inner).poll_frame(cx)) {
            None => return Poll::Ready(None),
            Some(Err(e)) => return Poll::Ready(Some(Err(BodyError::Read(e)))),
            Some(Ok(frame)) => frame,
        };
        let frame = match frame.into_trailers() {
            Ok(mut trailers) => {
                headers::clean_trailers(&mut trailers, this.credential.as_ref());
                Frame::trailers(trailers)
            }
            Err(frame) => {
                let n = frame.data_ref().map_or(0, |data| data.len() as u64);
                this.bytes.set(this.bytes.get() + n);
                frame
            }
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner
            .as_ref()
            .map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

/// A response's body, to the pod.
pub(crate) struct ResponseBody {
    content: Content,
    /// Written when the body is done with, however that comes about.
    line: Option<Line>,
    secret: Option<Secret>,
    gate: Option<Arc<Gate>>,
}

enum Content {
    Own(Option<Bytes>),
    Upstream {
        inner: Incoming,
        lease: Option<Lease>,
        /// Says that the exchange goes on.
        busy: Busy,
    },
}

impl ResponseBody {
    /// What the proxy says itself.
    pub(crate) fn own(bytes: Bytes, line: Line) -> ResponseBody {
        line.bytes_out.set(bytes.len() as u64);
        let bytes = (!bytes.is_empty()).then_some(bytes);
        ResponseBody {
            content: Content::Own(bytes),
            line: Some(line),
            secret: None,
            gate: None,
        }
    }

    /// No body and no line: the line is somebody else's.
    pub(crate) fn empty() -> ResponseBody {
        ResponseBody {
            content: Content::Own(None),
            line: None,
            secret: None,
            gate: None,
        }
    }

    /// What the upstream says. `lease` goes back to its pool at the end.
    pub(crate) fn upstream(
        inner: Incoming,
        lease: Lease,
        line: Line,
        secret: Option<Secret>,
        gate: Option<Arc<Gate>>,
        busy: Busy,
    ) -> ResponseBody {
        let mut body = ResponseBody {
            content: Content::Upstream {
                inner,
                lease: Some(lease),
                busy,
            },
            line: Some(line),
            secret,
            gate,
        };
        body.finish_at_end();
        body
    }

    fn finish_at_end(&mut self) {
        if let Content::Upstream { inner, lease, .. } = &mut self.content
            && inner.is_end_stream()
            && let Some(lease) = lease.take()
        {
            lease.give_back();
        }
    }

    fn edit_trailers(&self, trailers: &mut http::HeaderMap) {
        headers::clean_trailers(trailers, None);
        if let Some(secret) = &self.secret {
            let redacted = headers::redact(trailers, secret);
            if let Some(line) = self.line.as_ref().filter(|_| redacted > 0) {
                line.source()
                    .worker
                    .metrics()
                    .add(Counter::CredentialsRedacted, redacted);
            }
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if let Some(gate) = &self.gate {
            gate.cancel();
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = match &mut this.content {
            Content::Own(bytes) => return Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Content::Upstream { inner, lease, busy } => {
                let polled = ready!(Pin::new(inner).poll_frame(cx));
                busy.beat();
                match polled {
                    None => {
                        if let Some(lease) = lease.take() {
                            lease.give_back();
                        }
                        return Poll::Ready(None);
                    }
                    Some(Err(e)) => {
                        if let Some(line) = &mut this.line {
                            line.note("the upstream ended before its response did");
                            line.source().worker.metrics().inc(Counter::UpstreamClosed);
                        }
                        return Poll::Ready(Some(Err(BodyError::Read(e))));
                    }
                    Some(Ok(frame)) => frame,
                }
            }
        };
        let frame = match frame.into_trailers() {
            Ok(mut trailers) => {
                this.edit_trailers(&mut trailers);
                Frame::trailers(trailers)
            }
            Err(frame) => {
                if let (Some(line), Some(data)) = (&this.line, frame.data_ref()) {
                    line.bytes_out.set(line.bytes_out.get() + data.len() as u64);
                }
                frame
            }
        };
        this.finish_at_end();
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Own(bytes) => bytes.is_none(),
            Content::Upstream { inner, .. } => inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Own(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            Content::Upstream { inner, .. } => inner.size_hint(),
        }
    }
}
