//! Passes bytes between two sockets until both directions have ended.
//!
//! Owns faithfulness: an end of stream is passed on as one (the other direction goes on), a reset
//! as a reset, and nothing that was read is lost. A connection that waits holds no buffer: bytes are
//! read into one that the thread shares, and only what the other side didn't take is kept. It knows
//! neither pods nor policy; when to stop is told by a [`Cut`].

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::signal::{Over, Told};

/// The buffer that all relays of a thread read into. Large enough that a read takes all that a
/// socket has in most cases, small enough to stay in the second-level cache.
const SCRATCH: usize = 64 * 1024;
/// Reads of one direction before the other, and other tasks, get their turn.
const TURNS: usize = 16;

thread_local! {
    static READ_INTO: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// Runs `f` with this thread's read buffer. `f` may not await; it can't, being no future.
pub(crate) fn with_scratch<R>(f: impl FnOnce(&mut [u8]) -> R) -> R {
    READ_INTO.with_borrow_mut(|scratch| f(scratch))
}

/// A stream whose TCP connection can be reset.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// The TCP connection underneath.
    fn tcp(&self) -> &TcpStream;
}

impl Socket for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

/// Makes closing `stream` a reset: what the peer sees when a denied or broken connection ends.
pub(crate) fn reset_on_close(stream: &TcpStream) {
    // Fails only when the socket is gone already, and then there is nothing to reset.
    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// How a relay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Both directions ended in order.
    Closed,
    /// One side broke off; the other was reset too.
    Reset,
    /// Nothing was heard from either side for the idle timeout.
    Idle,
    /// [`Cut`] said so.
    Cut,
    /// The connection was told to end.
    Over(Over),
}

/// What went over a relay.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    pub(crate) to_upstream: Cell<u64>,
    pub(crate) to_pod: Cell<u64>,
}

/// Looks from time to time whether a relay may go on.
pub(crate) struct Cut<'a, F> {
    /// What the connection is told from outside.
    pub(crate) told: &'a Told,
    /// How often to look.
    pub(crate) every: Duration,
    /// Whether it must end now.
    pub(crate) must_end: F,
}

/// Relays between `pod` and `upstream`. `from_pod` and `from_upstream` were read from them before,
/// and go first.
pub(crate) async fn relay<P: Socket, U: Socket>(
    pod: P,
    upstream: U,
    from_pod: Bytes,
    from_upstream: Bytes,
    idle: Duration,
    cut: Cut<'_, impl FnMut() -> bool + Unpin>,
    passed: &Passed,
) -> End {
    let now = Instant::now();
    Relay {
        up: Half::new(from_pod),
        down: Half::new(from_upstream),
        pod,
        upstream,
        passed,
        idle,
        last: now,
        timer: Box::pin(tokio::time::sleep_until(now + idle.min(cut.every))),
        cut,
    }
    .await
}

struct Relay<'a, P, U, F> {
    pod: P,
    upstream: U,
    up: Half,
    down: Half,
    passed: &'a Passed,
    idle: Duration,
    last: Instant,
    cut: Cut<'a, F>,
    timer: Pin<Box<Sleep>>,
}

/// One direction.
struct Half {
    /// Read, and not taken by the other side yet.
    held: Bytes,
    eof: bool,
    done: bool,
}

impl Half {
    fn new(held: Bytes) -> Half {
        Half {
            held,
            eof: false,
            done: false,
        }
    }

    /// Moves bytes until one side has to be waited for. `moved` grows by what was written.
    fn poll<R: Socket, W: Socket>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        moved: &mut u64,
    ) -> Poll<io::Result<()>> {
        for _ in 0..TURNS {
            while !self.held.is_empty() {
                let n = ready!(Pin::new(&mut *writer).poll_write(cx, &self.held))?;
                if n == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                *moved += n as u64;
                self.held.advance(n);
            }
            self.held = Bytes::new();
            if self.eof {
                ready!(Pin::new(&mut *writer).poll_flush(cx))?;
                ready!(Pin::new(&mut *writer).poll_shutdown(cx))?;
                self.done = true;
                return Poll::Ready(Ok(()));
            }
            let got = with_scratch(|scratch| {
                let mut buf = ReadBuf::new(scratch);
                match Pin::new(&mut *reader).poll_read(cx, &mut buf) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                    Poll::Ready(Ok(())) => {}
                }
                let read = buf.filled();
                if read.is_empty() {
                    self.eof = true;
                    return Poll::Ready(Ok(()));
                }
                let written = match Pin::new(&mut *writer).poll_write(cx, read) {
                    Poll::Ready(Ok(n)) => n,
                    Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                    Poll::Pending => 0,
                };
                *moved += written as u64;
                if written < read.len() {
                    self.held = Bytes::copy_from_slice(&read[written..]);
                }
                Poll::Ready(Ok(()))
            });
            match got {
                Poll::Ready(result) => result?,
                Poll::Pending => {
                    // A TLS stream may hold what was written.
                    return match Pin::new(&mut *writer).poll_flush(cx)? {
                        Poll::Ready(()) | Poll::Pending => Poll::Pending,
                    };
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<P: Socket, U: Socket, F: FnMut() -> bool + Unpin> Future for Relay<'_, P, U, F> {
    type Output = End;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<End> {
        let this = self.get_mut();
        if let Some(over) = this.cut.told.over() {
            reset_on_close(this.pod.tcp());
            reset_on_close(this.upstream.tcp());
            return Poll::Ready(End::Over(over));
        }
        let (mut up, mut down) = (0, 0);
        let mut failed = false;
        if !this.up.done {
            let polled = this.up.poll(cx, &mut this.pod, &mut this.upstream, &mut up);
            failed |= matches!(polled, Poll::Ready(Err(_)));
        }
        if !failed && !this.down.done {
            let polled = this
                .down
                .poll(cx, &mut this.upstream, &mut this.pod, &mut down);
            failed |= matches!(polled, Poll::Ready(Err(_)));
        }
        this.passed
            .to_upstream
            .set(this.passed.to_upstream.get() + up);
        this.passed.to_pod.set(this.passed.to_pod.get() + down);
        if failed {
            reset_on_close(this.pod.tcp());
            reset_on_close(this.upstream.tcp());
            return Poll::Ready(End::Reset);
        }
        if this.up.done && this.down.done {
            return Poll::Ready(End::Closed);
        }
        if up + down > 0 {
            this.last = Instant::now();
        }
        while this.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let end = if now.duration_since(this.last) >= this.idle {
                Some(End::Idle)
            } else {
                (this.cut.must_end)().then_some(End::Cut)
            };
            if let Some(end) = end {
                reset_on_close(this.pod.tcp());
                reset_on_close(this.upstream.tcp());
                return Poll::Ready(end);
            }
            let next = (this.last + this.idle).min(now + this.cut.every);
            this.timer.as_mut().reset(next);
        }
        Poll::Pending
    }
}

#[cfg(test)]
#[path = "relay/tests.rs"]
mod tests;
