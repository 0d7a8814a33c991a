//! Audit lines of the DNS proxy: one per question that was decided.

use std::borrow::Cow;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use agent_core::audit::{AuditDestination, AuditPod, AuditRecord, Decision, Direction, ReasonCode};
use agent_core::identity::{ClientAddr, OrigDst};
use agent_core::time::Timestamp;
use hickory_proto::rr::RecordType;

use super::query::Query;
use super::respond::Transport;
use super::wire;
use crate::context::WorkerCtx;
use crate::workloads::Identified;

/// A question on its way to a line: what is known before it is decided.
pub(crate) struct Subject<'a> {
    /// Who asked; `None` while, or because, no pod has the address.
    pub(crate) pod: Option<&'a Identified>,
    /// Where from.
    pub(crate) peer: ClientAddr,
    /// Which server the pod meant to ask.
    pub(crate) dst: OrigDst,
    /// The question, when it could be read.
    pub(crate) query: Option<&'a Query>,
    /// How it came.
    pub(crate) by: Transport,
    /// When it came.
    pub(crate) started: Instant,
    /// Bytes of the query.
    pub(crate) bytes_in: usize,
}

/// What was decided about it.
pub(crate) struct Verdict<'a> {
    /// Allow or deny.
    pub(crate) decision: Decision,
    /// Why.
    pub(crate) reason: ReasonCode,
    /// The response code that the pod got; `None` for silence.
    pub(crate) status: Option<u16>,
    /// Bytes of the reply.
    pub(crate) bytes_out: usize,
    /// What else there is to say.
    pub(crate) detail: Cow<'a, str>,
}

/// Writes the line.
pub(crate) fn record(worker: &WorkerCtx, subject: &Subject<'_>, verdict: Verdict<'_>) {
    let policy = worker.shared.policy.peek();
    let pod = match subject.pod {
        Some(pod) => AuditPod::from(&pod.workload),
        None => AuditPod::unknown(*subject.peer.0.ip()),
    };
    let host = subject
        .query
        .map(|query| wire::display_name(&query.lower_name()));
    let qtype = subject
        .query
        .map(|query| RecordType::from(query.qtype).to_string());
    let record = AuditRecord {
        destination: AuditDestination {
            host: host.map(Cow::Owned),
            ip: Some((*subject.dst.0.ip()).into()),
            port: Some(subject.dst.0.port()),
            protocol: Some(Cow::Borrowed(match subject.by {
                Transport::Udp => "dns",
                Transport::Tcp => "dns_tcp",
            })),
            method: qtype.map(Cow::Owned),
            ..AuditDestination::default()
        },
        status: verdict.status,
        bytes_in: Some(subject.bytes_in as u64),
        bytes_out: Some(verdict.bytes_out as u64),
        duration_us: Some(micros(subject.started.elapsed())),
        detail: (!verdict.detail.is_empty()).then_some(verdict.detail),
        ..AuditRecord::new(
            now().to_string(),
            format!("{:016x}", fastrand::u64(..)),
            Direction::Dns,
            pod,
            verdict.decision,
            verdict.reason,
            policy.version.as_str(),
        )
    };
    worker.record(&record);
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn now() -> Timestamp {
    // A clock before 1970 reads as 1970; lines have an order of their own in the file.
    Timestamp::from_duration(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    )
}
