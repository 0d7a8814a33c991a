//! Names to answers for one worker: cache, one upstream query for many askers, failures for a moment.
//!
//! The DNS proxy and the TCP proxy ask the same resolver, so a pod and the connection made on its
//! behalf see the same addresses. Doesn't know pods or policy.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_core::policy::HostName;
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared, WeakShared};
use thiserror::Error;

use super::answer::{Answer, Question, rcode};
use super::cache::{Cache, MAX_BYTES, MAX_ENTRIES};
use super::upstream::{UpstreamError, Upstreams};
use super::wire::rtype;
use crate::context::Context;

/// How long a failure is given to everybody who asks the same (RFC 9520 §3.2 asks for at least a second).
const FAILURE_TTL: Duration = Duration::from_secs(1);
/// Failures that are kept; beyond, they are all forgotten.
const MAX_FAILURES: usize = 4096;

/// One worker's resolver; clones share it.
#[derive(Clone)]
pub struct Resolver(Rc<Inner>);

struct Inner {
    upstreams: Upstreams,
    cache: RefCell<Cache>,
    running: RefCell<HashMap<Question, WeakShared<Running>>>,
    failures: RefCell<HashMap<Question, (UpstreamError, Instant)>>,
}

type Outcome = Result<Rc<Answer>, UpstreamError>;
type Running = LocalBoxFuture<'static, Outcome>;

/// Where a looked-up answer came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// It was there.
    Cache,
    /// An upstream was asked, by this caller or by one who asked the same a moment earlier.
    Upstream,
}

/// An answer and how old it is.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// The answer as it came.
    pub(crate) answer: Rc<Answer>,
    /// Time since it came.
    pub(crate) age: Duration,
    /// Where it came from.
    pub(crate) source: Source,
}

/// A host's addresses, for the proxy's own connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// At least one address, in the order of the answer. Not checked against any policy.
    pub addresses: Arc<[Ipv4Addr]>,
    /// How long they may be used.
    pub ttl: Duration,
}

/// Why a host has no addresses.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum ResolveError {
    /// The name doesn't exist.
    #[error("the name does not exist")]
    NoSuchName,
    /// The name exists and has no IPv4 address.
    #[error("the name has no IPv4 address")]
    NoAddress,
    /// Nobody could say.
    #[error("the name can't be resolved now")]
    Unavailable(#[source] UpstreamError),
}

impl ResolveError {
    /// A fixed label for metrics and audit lines.
    pub fn reason(&self) -> &'static str {
        match self {
            ResolveError::NoSuchName => "no_such_name",
            ResolveError::NoAddress => "no_address",
            ResolveError::Unavailable(_) => "dns_unavailable",
        }
    }
}

impl Resolver {
    /// A resolver that asks the servers of the configuration, with an empty cache.
    pub fn new(shared: &Arc<Context>) -> Resolver {
        Resolver::with_servers(&shared.config.dns.upstreams)
    }

    /// A resolver that asks `servers`, in that order, with an empty cache.
    pub fn with_servers(servers: &[SocketAddr]) -> Resolver {
        Resolver(Rc::new(Inner {
            upstreams: Upstreams::new(servers),
            cache: RefCell::new(Cache::new(MAX_ENTRIES, MAX_BYTES)),
            running: RefCell::default(),
            failures: RefCell::default(),
        }))
    }

    /// The IPv4 addresses of `name`. Aliases are followed by the upstream.
    ///
    /// Cancel safe. Takes 3.5 s at most.
    ///
    /// # Errors
    /// [`ResolveError`], which tells a name that has none from a resolver that can't say.
    pub async fn resolve(&self, name: &HostName) -> Result<Resolved, ResolveError> {
        let question = Question {
            name: wire_name(name.as_str()).into(),
            qtype: rtype::A,
            dnssec_ok: false,
            checking_disabled: false,
        };
        let found = self
            .lookup(&question)
            .await
            .map_err(ResolveError::Unavailable)?;
        if found.answer.rcode == rcode::NX_DOMAIN {
            return Err(ResolveError::NoSuchName);
        }
        let addresses: Arc<[Ipv4Addr]> = found.answer.ipv4().collect();
        if addresses.is_empty() {
            return Err(ResolveError::NoAddress);
        }
        Ok(Resolved {
            addresses,
            ttl: found.answer.ttl.saturating_sub(found.age),
        })
    }

    /// The answer, when it is known without asking anybody.
    pub(crate) fn cached(&self, question: &Question) -> Option<Found> {
        let (answer, age) = self.0.cache.borrow_mut().get(question, Instant::now())?;
        Some(Found {
            answer,
            age,
            source: Source::Cache,
        })
    }

    /// The answer to `question`.
    ///
    /// # Errors
    /// When no upstream has one; then everybody who asks within a second gets the same.
    pub(crate) async fn lookup(&self, question: &Question) -> Result<Found, UpstreamError> {
        if let Some(found) = self.cached(question) {
            return Ok(found);
        }
        if let Some(error) = self.0.failed(question, Instant::now()) {
            return Err(error);
        }
        let answer = self.join(question).await?;
        Ok(Found {
            answer,
            age: Duration::ZERO,
            source: Source::Upstream,
        })
    }

    /// Answers that are kept.
    #[cfg(test)]
    pub(crate) fn cached_answers(&self) -> usize {
        self.0.cache.borrow().len()
    }

    /// The query that runs for `question`; started when none does. It runs as long as somebody
    /// waits for it.
    fn join(&self, question: &Question) -> Shared<Running> {
        let mut running = self.0.running.borrow_mut();
        if let Some(shared) = running.get(question).and_then(WeakShared::upgrade) {
            return shared;
        }
        let inner = Rc::downgrade(&self.0);
        let shared = run(inner, question.clone()).boxed_local().shared();
        if let Some(weak) = shared.downgrade() {
            running.insert(question.clone(), weak);
        }
        if running.len() > MAX_FAILURES {
            running.retain(|_, weak| weak.upgrade().is_some());
        }
        shared
    }
}

/// Asks the upstreams and keeps what they say.
async fn run(inner: Weak<Inner>, question: Question) -> Outcome {
    let Some(inner) = inner.upgrade() else {
        return Err(UpstreamError::NoServers);
    };
    let outcome = inner.upstreams.ask(&question).await.map(Rc::new);
    let now = Instant::now();
    inner.running.borrow_mut().remove(&question);
    match &outcome {
        Ok(answer) => inner
            .cache
            .borrow_mut()
            .put(&question, Rc::clone(answer), now),
        Err(error) => {
            let mut failures = inner.failures.borrow_mut();
            if failures.len() >= MAX_FAILURES {
                failures.clear();
            }
            failures.insert(question, (*error, now + FAILURE_TTL));
        }
    }
    outcome
}

impl Inner {
    fn failed(&self, question: &Question, now: Instant) -> Option<UpstreamError> {
        let mut failures = self.failures.borrow_mut();
        let (error, until) = *failures.get(question)?;
        if now < until {
            return Some(error);
        }
        failures.remove(question);
        None
    }
}

/// A host name in wire form. [`HostName`] has checked labels and length.
fn wire_name(name: &str) -> Vec<u8> {
    let mut wire = Vec::with_capacity(name.len() + 2);
    for label in name.split('.').filter(|label| !label.is_empty()) {
        wire.push(label.len().min(63) as u8);
        wire.extend(label.bytes().take(63).map(|byte| byte.to_ascii_lowercase()));
    }
    wire.push(0);
    wire
}

#[cfg(test)]
mod tests;
