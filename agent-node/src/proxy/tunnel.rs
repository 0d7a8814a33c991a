//! Relays a permitted connection whose content is not looked at, and accounts for it.
//!
//! Owns what upgrades, TLS passthrough and opaque TCP have in common: the audit line at the end, and
//! the end itself when a newer policy denies what is in the tunnel.

use std::rc::Rc;

use bytes::Bytes;
use tokio::net::TcpStream;

use super::record::Line;
use super::relay::{Cut, End, Passed, Socket, relay};
use super::source::Source;
use crate::metrics::Counter;

/// Relays until the end and writes `line`.
pub(crate) async fn run<U: Socket>(
    source: &Rc<Source>,
    mut line: Line,
    pod: TcpStream,
    upstream: U,
    from_pod: Bytes,
    from_upstream: Bytes,
) {
    let config = &source.worker.shared.config;
    let facts = line.facts().clone();
    let subject = line.subject().cloned();
    let must_end = || match &subject {
        Some(subject) => facts.is_revoked(source, subject),
        None => true,
    };
    let cut = Cut {
        told: &source.told,
        every: config.recheck,
        must_end,
    };
    let passed = Passed::default();
    let idle = config.limits.idle_timeout;
    let account = Account {
        line: &mut line,
        passed: &passed,
    };
    let end = relay(
        pod,
        upstream,
        from_pod,
        from_upstream,
        idle,
        cut,
        account.passed,
    )
    .await;
    match end {
        End::Closed => {}
        // counted by whoever drops the connection
        End::Over(over) => account.line.note(over.words()),
        End::Reset => account.line.note("reset"),
        End::Idle => {
            account.line.note("idle");
            source.worker.metrics().inc(Counter::IdleClosed);
        }
        End::Cut => {
            account.line.revoked();
            source.worker.metrics().inc(Counter::Rechecked);
        }
    }
}

/// Puts the bytes into the line, also when the relay is dropped in the middle.
struct Account<'a> {
    line: &'a mut Line,
    passed: &'a Passed,
}

impl Drop for Account<'_> {
    fn drop(&mut self) {
        self.line
            .bytes_in
            .set(self.line.bytes_in.get() + self.passed.to_upstream.get());
        self.line
            .bytes_out
            .set(self.line.bytes_out.get() + self.passed.to_pod.get());
    }
}
