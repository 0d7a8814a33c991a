//! One question from bytes to bytes: who asks, may they, what is the answer, what of it they may see.
//!
//! Owns the order of the steps; each step is a module of its own.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use agent_core::audit::{Decision, ReasonCode};
use agent_core::identity::{ClientAddr, OrigDst};
use agent_core::policy::Scope;

use super::answer::{Answer, Question, rcode};
use super::decide::{self, NameVerdict};
use super::limits::{Limits, Waiting};
use super::names::{self, ClusterDomain, NameKind};
use super::query::Query;
use super::report::{self, Subject, Verdict};
use super::resolver::{Found, Source};
use super::respond::{self, Extended, Transport};
use super::scrub;
use super::wire::{self, flag};
use crate::config::{Config, DeniedRcode};
use crate::context::WorkerCtx;
use crate::metrics::Counter;
use crate::policy_store::PolicySnapshot;
use crate::workloads::Identified;

/// What the DNS proxy of one worker keeps between questions, besides the resolver's cache.
pub struct State {
    cluster: ClusterDomain,
    limits: Limits,
    scopes: RefCell<Scopes>,
}

/// Which policies apply to which pod, as of one policy generation: nothing of an older one is
/// held, so that its memory is free when no connection needs it.
#[derive(Default)]
struct Scopes {
    generation: u64,
    pods: HashMap<Ipv4Addr, (Arc<Identified>, Scope)>,
}

impl State {
    /// Nothing is known yet.
    pub fn new(config: &Config) -> State {
        State {
            cluster: ClusterDomain::new(&config.dns.cluster_domain),
            limits: Limits::default(),
            scopes: RefCell::default(),
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    fn scope(&self, pod: &Arc<Identified>, policy: &PolicySnapshot) -> Scope {
        let mut scopes = self.scopes.borrow_mut();
        if scopes.generation != policy.generation {
            *scopes = Scopes {
                generation: policy.generation,
                pods: HashMap::new(),
            };
        }
        let ip = pod.workload.fake_ip;
        match scopes.pods.get(&ip) {
            Some((known, scope)) if Arc::ptr_eq(known, pod) => scope.clone(),
            _ => {
                let scope = policy.set.scope(&pod.workload);
                scopes.pods.insert(ip, (Arc::clone(pod), scope.clone()));
                scope
            }
        }
    }
}

/// The pod at `peer`'s address; `None`, with an audit line, when nobody has it.
pub(crate) async fn identify(
    worker: &WorkerCtx,
    peer: ClientAddr,
    dst: OrigDst,
) -> Option<Arc<Identified>> {
    let ip = *peer.0.ip();
    let started = Instant::now();
    let found = worker.shared.workloads.identify(ip).await;
    if found.is_none() {
        let subject = Subject {
            pod: None,
            peer,
            dst,
            query: None,
            by: Transport::Tcp,
            started,
            bytes_in: 0,
        };
        report_unknown(worker, &subject, None);
    }
    found
}

/// Leaves an audit line about a pod that asks more than its share.
pub(crate) fn report_excess(worker: &WorkerCtx, peer: ClientAddr, dst: OrigDst) {
    let pod = worker.shared.workloads.known(*peer.0.ip());
    let subject = Subject {
        pod: pod.as_deref(),
        peer,
        dst,
        query: None,
        by: Transport::Udp,
        started: Instant::now(),
        bytes_in: 0,
    };
    let verdict = Verdict {
        decision: Decision::Deny,
        reason: ReasonCode::LimitExceeded,
        status: None,
        bytes_out: 0,
        detail: "the pod asks more than its share of DNS queries; what is over it gets no answer"
            .into(),
    };
    report::record(worker, &subject, verdict);
}

/// The reply to `message`; `None` when there must be none.
pub(crate) async fn answer(
    worker: &WorkerCtx,
    message: &[u8],
    (peer, dst): (ClientAddr, OrigDst),
    by: Transport,
) -> Option<Vec<u8>> {
    let started = Instant::now();
    let ip = *peer.0.ip();
    let mut place = None;
    let pod = match worker.shared.workloads.known(ip) {
        Some(pod) => Some(pod),
        None => {
            place = worker.dns.limits.wait(ip, started);
            if place.is_none() {
                worker.metrics().inc(Counter::DnsShed);
                return None;
            }
            worker.shared.workloads.identify(ip).await
        }
    };
    let query = match Query::parse(message) {
        Ok(query) => query,
        Err(why) => {
            worker.metrics().inc(Counter::DnsMalformed);
            return respond::to_unanswerable(&why);
        }
    };
    let subject = Subject {
        pod: pod.as_deref(),
        peer,
        dst,
        query: Some(&query),
        by,
        started,
        bytes_in: message.len(),
    };
    let Some(pod) = &pod else {
        let reply = respond::local(&query, rcode::REFUSED, Some(Extended::PROHIBITED));
        report_unknown(worker, &subject, Some(&reply));
        return Some(reply);
    };
    Step {
        worker,
        subject,
        query: &query,
        pod,
    }
    .run(place)
    .await
}

fn report_unknown(worker: &WorkerCtx, subject: &Subject<'_>, reply: Option<&[u8]>) {
    worker.metrics().inc(Counter::UnknownSource);
    let verdict = Verdict {
        decision: Decision::Deny,
        reason: ReasonCode::UnknownSourceDenied,
        status: reply.map(|_| rcode::REFUSED),
        bytes_out: reply.map_or(0, <[u8]>::len),
        detail: Cow::Borrowed(""),
    };
    report::record(worker, subject, verdict);
}

/// A question whose asker is known.
struct Step<'a> {
    worker: &'a WorkerCtx,
    subject: Subject<'a>,
    query: &'a Query,
    pod: &'a Arc<Identified>,
}

impl Step<'_> {
    async fn run(self, place: Option<Waiting>) -> Option<Vec<u8>> {
        let shared = &*self.worker.shared;
        if !shared.audit.accepting() {
            return Some(self.fail(
                ReasonCode::AuditUnavailable,
                None,
                "audit lines can't be written",
            ));
        }
        let policy = shared.policy.load();
        if policy.generation == 0 {
            return Some(self.fail(ReasonCode::PolicyNotLoaded, None, "no policy is loaded yet"));
        }
        let name = self.query.lower_name();
        let kind = names::classify(&name, self.query.qtype, &self.worker.dns.cluster);
        let scope = self.worker.dns.scope(self.pod, &policy);
        let verdict = decide::decide(&kind, shared.config.dns.enforce, |host| {
            policy.set.may_resolve(&scope, host)
        });
        drop(scope);
        drop(policy);
        match verdict {
            NameVerdict::Deny => Some(self.deny(&kind)),
            NameVerdict::Forward(because) => self.forward(name, because, place).await,
        }
    }

    async fn forward(
        self,
        name: Vec<u8>,
        because: decide::Because,
        place: Option<Waiting>,
    ) -> Option<Vec<u8>> {
        let question = Question {
            name: name.into(),
            qtype: self.query.qtype,
            dnssec_ok: self.query.dnssec_ok(),
            checking_disabled: self.query.cd,
        };
        let resolver = &self.worker.resolver;
        let found = match resolver.cached(&question) {
            Some(found) => Ok(found),
            None => {
                let ip = *self.subject.peer.0.ip();
                let limits = &self.worker.dns.limits;
                let Some(_place) = place.or_else(|| limits.wait(ip, Instant::now())) else {
                    self.worker.metrics().inc(Counter::DnsShed);
                    let why = "the pod has too many DNS queries waiting";
                    return Some(self.fail(ReasonCode::LimitExceeded, Some(Extended::BUSY), why));
                };
                resolver.lookup(&question).await
            }
        };
        if self.pod.gone.is_cancelled() {
            return None;
        }
        match found {
            Ok(found) => Some(self.reply(&question, &found, because)),
            Err(error) => {
                self.worker.metrics().inc(Counter::DnsFailed);
                let why = Some(Extended::UNREACHABLE);
                Some(self.end(
                    rcode::SERV_FAIL,
                    why,
                    Decision::Allow,
                    ReasonCode::DnsUpstreamFailed,
                    error.to_string(),
                ))
            }
        }
    }

    /// The pod's copy of an answer, without what it may not be told.
    fn reply(&self, question: &Question, found: &Found, because: decide::Because) -> Vec<u8> {
        let metrics = self.worker.metrics();
        metrics.inc(match found.source {
            Source::Cache => Counter::DnsCached,
            Source::Upstream => Counter::DnsForwarded,
        });
        let policy = self.worker.shared.policy.peek();
        let nets = self.worker.shared.nets.load();
        let denied = |address| decide::is_denied_address(&policy.set, &nets, address);
        let scrubbed = match scrub::scrub(&found.answer, question, denied) {
            Ok(scrubbed) => scrubbed,
            Err(error) => {
                tracing::warn!(error = %crate::telemetry::chain(&error), "a DNS answer can't be cleaned and is withheld");
                let detail = "the answer holds denied addresses and can't be rewritten";
                return self.end(
                    rcode::SERV_FAIL,
                    Some(Extended::FILTERED),
                    Decision::Deny,
                    ReasonCode::DnsAddressStripped,
                    detail,
                );
            }
        };
        let Some(scrubbed) = scrubbed else {
            return self.pass(
                question,
                &found.answer,
                found,
                (ReasonCode::DnsAllowed, because.as_str().into()),
            );
        };
        metrics.add(Counter::DnsStripped, scrubbed.removed as u64);
        if scrubbed.emptied {
            return self.end(
                rcode::NO_ERROR,
                Some(Extended::FILTERED),
                Decision::Deny,
                ReasonCode::DnsAddressStripped,
                "every address of the name is in a denied range",
            );
        }
        if scrubbed.removed == 0 {
            let why = format!(
                "{}; service binding parameters were taken out",
                because.as_str()
            );
            return self.pass(
                question,
                &scrubbed.answer,
                found,
                (ReasonCode::DnsAllowed, why.into()),
            );
        }
        let why = format!(
            "{} records with denied addresses were taken out",
            scrubbed.removed
        );
        self.pass(
            question,
            &scrubbed.answer,
            found,
            (ReasonCode::DnsAddressStripped, why.into()),
        )
    }

    /// Gives `answer` to the pod, and remembers that it did.
    fn pass(
        &self,
        question: &Question,
        answer: &Answer,
        found: &Found,
        (reason, detail): (ReasonCode, Cow<'_, str>),
    ) -> Vec<u8> {
        let age = u32::try_from(found.age.as_secs()).unwrap_or(u32::MAX);
        let reply = respond::from_answer(self.query, answer, age, self.subject.by);
        let mut given: Vec<Ipv4Addr> = answer.ipv4().collect();
        given.extend(
            scrub::hinted_addresses(answer)
                .iter()
                .filter_map(|address| match address {
                    std::net::IpAddr::V4(v4) => Some(*v4),
                    std::net::IpAddr::V6(_) => None,
                }),
        );
        if !given.is_empty() {
            let name = wire::display_name(&question.name);
            let ttl = answer.ttl.saturating_sub(found.age);
            self.worker
                .shared
                .bindings
                .record(self.pod, &name, &given, ttl);
        }
        if wire::u16_at(&reply, 2).is_ok_and(|flags| flags & flag::TC != 0) {
            self.worker.metrics().inc(Counter::DnsTruncated);
        }
        let verdict = Verdict {
            decision: Decision::Allow,
            reason,
            status: Some(answer.rcode),
            bytes_out: reply.len(),
            detail,
        };
        report::record(self.worker, &self.subject, verdict);
        reply
    }

    fn deny(&self, kind: &NameKind) -> Vec<u8> {
        self.worker.metrics().inc(Counter::DnsDenied);
        let code = match self.worker.shared.config.dns.denied_rcode {
            DeniedRcode::NxDomain => rcode::NX_DOMAIN,
            DeniedRcode::Refused => rcode::REFUSED,
        };
        let detail = match kind {
            NameKind::Other => "the name is no host's",
            NameKind::Host(_) | NameKind::Cluster => "no rule of the pod's names this host",
        };
        self.end(
            code,
            Some(Extended::BLOCKED),
            Decision::Deny,
            ReasonCode::DnsDenied,
            detail,
        )
    }

    /// SERVFAIL: nothing is wrong with the name, and the pod may ask again.
    fn fail(&self, reason: ReasonCode, why: Option<Extended>, detail: &'static str) -> Vec<u8> {
        self.end(rcode::SERV_FAIL, why, Decision::Deny, reason, detail)
    }

    /// A reply of the proxy's own, and its audit line.
    fn end<'d>(
        &self,
        code: u16,
        why: Option<Extended>,
        decision: Decision,
        reason: ReasonCode,
        detail: impl Into<Cow<'d, str>>,
    ) -> Vec<u8> {
        let reply = respond::local(self.query, code, why);
        let verdict = Verdict {
            decision,
            reason,
            status: Some(code),
            bytes_out: reply.len(),
            detail: detail.into(),
        };
        report::record(self.worker, &self.subject, verdict);
        reply
    }
}
