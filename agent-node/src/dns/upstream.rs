//! Asks the node's DNS servers: several tries, one deadline.
//!
//! A try is one query on a socket of its own, so that ID and source port are both new and the
//! kernel takes datagrams of that server only. A try that stays silent isn't given up: the next
//! server is asked beside it, and whichever answers first is taken. One that fails starts the next
//! at once. hickory-resolver isn't used here: it gives out records, decoded and sorted by its own
//! rules, where the pod must get the message as the server sent it; it has no say over when an
//! answer counts, and its cache can't be told the DO bit.
//!
//! Owns sockets and order; caching and coalescing are in [`super::resolver`].

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use thiserror::Error;
use tokio::time::{Instant, sleep_until};

use super::answer::{Answer, NotAnAnswer, Question, rcode};

mod attempt;

/// After this time the pod gets SERVFAIL: stub resolvers wait for five seconds.
pub(crate) const BUDGET: Duration = Duration::from_millis(3500);
/// How long a silent try is alone.
const NEXT_TRY_AFTER: Duration = Duration::from_millis(700);
/// Tries per query, over all servers: what fits into [`BUDGET`].
const MAX_TRIES: usize = 5;
/// Failures in a row after which a server is asked last.
const FAILURES_TO_DEMOTE: u32 = 2;
/// How long a failing server is asked last.
const DEMOTED_FOR: Duration = Duration::from_secs(10);

/// Why there is no answer.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamError {
    /// Neither the configuration nor the node's resolv.conf names one.
    #[error("no DNS server is configured; set dns.upstreams")]
    NoServers,
    /// Each one failed or said that it couldn't answer.
    #[error("every DNS server failed")]
    AllFailed,
    /// None answered before the deadline.
    #[error("no DNS server answered in time")]
    TimedOut,
}

/// Why one try failed.
#[derive(Debug, Error)]
enum AttemptError {
    #[error("send the query")]
    Send(#[source] io::Error),
    #[error("receive the answer")]
    Receive(#[source] io::Error),
    #[error("read the answer")]
    Answer(#[source] NotAnAnswer),
    /// Many messages came and none was the answer; a server that does that isn't waited for.
    #[error("the server sent only messages that answer something else")]
    Noise,
}

/// The servers that one worker asks.
pub(crate) struct Upstreams {
    servers: Vec<Rc<Server>>,
}

struct Server {
    address: SocketAddr,
    failures: Cell<u32>,
    demoted_until: Cell<Option<Instant>>,
}

impl Upstreams {
    /// The servers at `addresses`, in the order in which they are preferred.
    pub(crate) fn new(addresses: &[SocketAddr]) -> Upstreams {
        let servers = addresses.iter().map(|&address| {
            Rc::new(Server {
                address,
                failures: Cell::new(0),
                demoted_until: Cell::new(None),
            })
        });
        Upstreams {
            servers: servers.collect(),
        }
    }

    /// Asks `question`.
    ///
    /// # Errors
    /// [`UpstreamError`] when no server gave an answer that a pod can use; at the latest after 3.5 s.
    pub(crate) async fn ask(&self, question: &Question) -> Result<Answer, UpstreamError> {
        let start = Instant::now();
        let deadline = start + BUDGET;
        let order = self.order(start);
        if order.is_empty() {
            return Err(UpstreamError::NoServers);
        }
        let mut tries = FuturesUnordered::new();
        let mut started: Vec<(Rc<Server>, Outcome)> = Vec::with_capacity(MAX_TRIES);
        let mut next = next_server(&order, &started);
        let mut next_at = start;
        loop {
            tokio::select! {
                biased;
                Some((number, result)) = tries.next() => {
                    let result: Result<Answer, AttemptError> = result;
                    match result {
                        Ok(answer) if answer.is_conclusive() => {
                            judge(&started, number, Instant::now());
                            return Ok(answer);
                        }
                        Ok(answer) => note(&mut started, number, Outcome::Refused(answer.rcode)),
                        Err(error) => {
                            note(&mut started, number, Outcome::Failed);
                            report(&started, number, &error);
                        }
                    }
                    next = next_server(&order, &started);
                    next_at = Instant::now();
                    if next.is_none() && tries.is_empty() {
                        judge(&started, usize::MAX, Instant::now());
                        return Err(UpstreamError::AllFailed);
                    }
                }
                () = sleep_until(next_at), if next.is_some() => {
                    if let Some(server) = next.take() {
                        let number = started.len();
                        let address = server.address;
                        tries.push(async move {
                            (number, attempt::attempt(address, question).await)
                        });
                        started.push((server, Outcome::Silent));
                    }
                    next = next_server(&order, &started);
                    next_at = Instant::now() + NEXT_TRY_AFTER;
                }
                () = sleep_until(deadline) => {
                    judge(&started, usize::MAX, Instant::now());
                    return Err(UpstreamError::TimedOut);
                }
            }
        }
    }

    /// The servers in the order in which they are asked now.
    fn order(&self, now: Instant) -> Vec<Rc<Server>> {
        let demoted = |server: &Server| server.demoted_until.get().is_some_and(|until| now < until);
        let (last, first): (Vec<_>, Vec<_>) = self
            .servers
            .iter()
            .cloned()
            .partition(|server| demoted(server));
        first.into_iter().chain(last).collect()
    }
}

/// What became of a try.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Silent,
    Failed,
    Refused(u16),
}

/// Who is asked next: each server in turn, and again those that have only been silent.
fn next_server(order: &[Rc<Server>], started: &[(Rc<Server>, Outcome)]) -> Option<Rc<Server>> {
    if started.len() >= MAX_TRIES.max(order.len()) {
        return None;
    }
    let tries_of = |server: &Rc<Server>| {
        started
            .iter()
            .filter(|(one, _)| Rc::ptr_eq(one, server))
            .count()
    };
    let said_no = |server: &Rc<Server>| {
        started
            .iter()
            .any(|(one, outcome)| Rc::ptr_eq(one, server) && *outcome != Outcome::Silent)
    };
    order
        .iter()
        .filter(|server| !said_no(server))
        .min_by_key(|server| tries_of(server))
        .cloned()
}

fn note(started: &mut [(Rc<Server>, Outcome)], number: usize, outcome: Outcome) {
    if let Some(entry) = started.get_mut(number) {
        entry.1 = outcome;
    }
}

fn report(started: &[(Rc<Server>, Outcome)], number: usize, error: &AttemptError) {
    if let Some((server, _)) = started.get(number) {
        tracing::debug!(dns.upstream = %server.address, error = %error, "DNS server failed");
    }
}

/// Marks who did well and who didn't, when try `winner` has answered (or none has).
fn judge(started: &[(Rc<Server>, Outcome)], winner: usize, now: Instant) {
    let won = started.get(winner).map(|(server, _)| Rc::clone(server));
    for (server, outcome) in started {
        if won.as_ref().is_some_and(|won| Rc::ptr_eq(won, server)) {
            continue;
        }
        // A server that answers "I can't" about one name may be right about the others.
        if matches!(outcome, Outcome::Refused(code) if *code != rcode::REFUSED) {
            continue;
        }
        let failures = server.failures.get().saturating_add(1);
        server.failures.set(failures);
        if failures >= FAILURES_TO_DEMOTE {
            server.demoted_until.set(Some(now + DEMOTED_FOR));
        }
    }
    if let Some(server) = won {
        server.failures.set(0);
        server.demoted_until.set(None);
    }
}

#[cfg(test)]
mod tests;
