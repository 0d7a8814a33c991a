//! The audit line of one decision, written when what was decided has ended.
//!
//! Owns filling in an [`AuditRecord`] and that exactly one is written: it is a guard, so a request
//! whose client went away leaves its line too. The line's format is `agent_core::audit`'s.

use std::borrow::Cow;
use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use agent_core::audit::{
    AuditDestination, AuditPod, AuditRecord, AuditWouldDeny, Decision, Direction, ReasonCode,
};
use agent_core::policy::{Denial, HostName, Permit, PolicyName, RuleName};
use agent_core::time::Timestamp;

use super::error::Failure;
use super::fault::Fault;
use super::source::{Facts, Source, Subject};
use crate::metrics::Counter;

/// A name for one request, the same in the error body and the audit line.
#[derive(Clone, Copy)]
pub(crate) struct RequestId([u8; 32]);

impl RequestId {
    fn new() -> RequestId {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let bits = fastrand::u128(..);
        RequestId(std::array::from_fn(|i| {
            DIGITS[(bits >> (i * 4)) as usize & 15]
        }))
    }

    pub(crate) fn as_str(&self) -> &str {
        // Always ASCII digits.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// One line in the making.
pub(crate) struct Line {
    source: Rc<Source>,
    subject: Option<Rc<Subject>>,
    facts: Rc<Facts>,
    started: Instant,
    pub(crate) id: RequestId,
    direction: Direction,
    decision: Decision,
    reason: ReasonCode,
    rule: Option<RuleName>,
    policy: Option<PolicyName>,
    would_deny: Option<Denial>,
    detail: Option<Cow<'static, str>>,
    upstream: Option<IpAddr>,
    pub(crate) status: Cell<Option<u16>>,
    pub(crate) bytes_in: Rc<Cell<u64>>,
    pub(crate) bytes_out: Cell<u64>,
}

impl Line {
    /// A line that, unless told otherwise, says that the proxy failed and let nothing through.
    pub(crate) fn new(
        source: Rc<Source>,
        subject: Option<Rc<Subject>>,
        facts: Rc<Facts>,
        started: Instant,
    ) -> Line {
        let direction = match facts.target {
            Some(_) => Direction::Ingress,
            None => Direction::Egress,
        };
        Line {
            source,
            subject,
            facts,
            started,
            id: RequestId::new(),
            direction,
            decision: Decision::Deny,
            reason: ReasonCode::InternalError,
            rule: None,
            policy: None,
            would_deny: None,
            detail: None,
            upstream: None,
            status: Cell::new(None),
            bytes_in: Rc::default(),
            bytes_out: Cell::new(0),
        }
    }

    pub(crate) fn facts(&self) -> &Rc<Facts> {
        &self.facts
    }

    pub(crate) fn source(&self) -> &Rc<Source> {
        &self.source
    }

    pub(crate) fn subject(&self) -> Option<&Rc<Subject>> {
        self.subject.as_ref()
    }

    pub(crate) fn permitted(&mut self, permit: &Permit) {
        self.decision = permit.decision();
        self.reason = permit.reason();
        self.rule = permit.rule().cloned();
        self.policy = permit.policy().cloned();
        self.would_deny = permit.would_deny().cloned();
    }

    pub(crate) fn denied(&mut self, denial: &Denial) {
        self.decision = Decision::Deny;
        self.reason = denial.reason;
        self.rule.clone_from(&denial.rule);
        self.policy.clone_from(&denial.policy);
        if denial.reason == ReasonCode::DirectBypassDenied {
            self.direction = Direction::Bypass;
        }
        if denial.rule.is_none() {
            self.detail = Some(Cow::Owned(denial.message.clone()));
        }
    }

    pub(crate) fn faulty(&mut self, fault: Fault) {
        self.decision = Decision::Deny;
        self.reason = match fault.status().as_u16() {
            408 | 431 => ReasonCode::LimitExceeded,
            _ => ReasonCode::BadRequest,
        };
        self.detail = Some(Cow::Owned(fault.to_string()));
        self.source.worker.metrics().inc(Counter::HttpMalformed);
    }

    pub(crate) fn failed(&mut self, failure: &Failure) {
        if failure.is_refusal() {
            self.decision = Decision::Deny;
        }
        self.reason = failure.reason();
        self.detail = Some(Cow::Owned(crate::telemetry::chain(failure)));
        if let Some(counter) = failure.counter() {
            self.source.worker.metrics().inc(counter);
        }
    }

    /// What was permitted was broken off by a newer policy.
    pub(crate) fn revoked(&mut self) {
        self.decision = Decision::Deny;
        self.reason = ReasonCode::PolicyRevoked;
    }

    pub(crate) fn note(&mut self, detail: &'static str) {
        self.detail = Some(Cow::Borrowed(detail));
    }

    pub(crate) fn connected_to(&mut self, ip: IpAddr) {
        self.upstream = Some(ip);
    }

    pub(crate) fn rule(&self) -> Option<&str> {
        self.rule.as_deref()
    }

    pub(crate) fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    pub(crate) fn reason(&self) -> ReasonCode {
        self.reason
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let time = Timestamp::from_duration(now).to_string();
        let pod = match &self.subject {
            Some(subject) => AuditPod::from(&subject.pod.workload),
            None => AuditPod::unknown(*self.source.peer.0.ip()),
        };
        let version = self
            .subject
            .as_ref()
            .map_or("", |s| s.snapshot.version.as_str());
        let facts = &self.facts;
        let mut record = AuditRecord::new(
            time.as_str(),
            self.id.as_str(),
            self.direction,
            pod,
            self.decision,
            self.reason,
            version,
        );
        let host = facts
            .target
            .as_deref()
            .or(facts.host.as_ref().map(HostName::as_str));
        record.destination = AuditDestination {
            host: host.map(Cow::Borrowed),
            ip: Some(self.upstream.unwrap_or(IpAddr::V4(*facts.dst.ip()))),
            port: Some(facts.port),
            protocol: Some(Cow::Borrowed(facts.protocol.as_str())),
            method: facts.method.as_ref().map(|m| Cow::Borrowed(m.as_str())),
            path_without_query: facts.path.as_deref().map(Cow::Borrowed),
        };
        record.rule = self.rule.as_deref().map(Cow::Borrowed);
        record.policy = self.policy.as_deref().map(Cow::Borrowed);
        record.would_deny = self.would_deny.as_ref().map(AuditWouldDeny::from);
        if self.direction == Direction::Ingress
            && let Some(subject) = &self.subject
        {
            record.caller = Some(Cow::Owned(subject.pod.workload.caller().to_string()));
        }
        record.status = self.status.get();
        record.bytes_in = Some(self.bytes_in.get());
        record.bytes_out = Some(self.bytes_out.get());
        record.duration_us = Some(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        record.detail = self.detail.as_deref().map(Cow::Borrowed);
        let metrics = self.source.worker.metrics();
        metrics.request_took(took);
        metrics.add(Counter::BytesToUpstream, self.bytes_in.get());
        metrics.add(Counter::BytesToPod, self.bytes_out.get());
        self.source.worker.record(&record);
    }
}
