//! The record's fields. Owns names, order and what is left out when unknown.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

use crate::audit::ReasonCode;
use crate::identity::Workload;
use crate::policy::Denial;

/// Version of the audit line's format.
pub const SCHEMA_VERSION: u32 = 1;

/// Which decision a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// A pod's request to the outside.
    Egress,
    /// A call between agents.
    Ingress,
    /// A name to resolve.
    Dns,
    /// A pod that dialled a Fake IP.
    Bypass,
    /// Packets that the kernel program dropped.
    Kernel,
}

impl Direction {
    /// The word used in audit lines and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Egress => "egress",
            Self::Ingress => "ingress",
            Self::Dns => "dns",
            Self::Bypass => "bypass",
            Self::Kernel => "kernel",
        }
    }
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Let through.
    Allow,
    /// Refused.
    Deny,
    /// Let through, because the policy that would have refused it is in audit mode.
    WouldDeny,
}

impl Decision {
    /// The word used in audit lines and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::WouldDeny => "would_deny",
        }
    }
}

/// The pod that asked. Empty strings where only the address is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPod<'a> {
    /// Namespace.
    pub namespace: Cow<'a, str>,
    /// Name.
    pub name: Cow<'a, str>,
    /// UID.
    pub uid: Cow<'a, str>,
    /// Service account, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<Cow<'a, str>>,
    /// The source address.
    pub fake_ip: Ipv4Addr,
}

impl<'a> AuditPod<'a> {
    /// A source address that belongs to no known pod.
    pub fn unknown(fake_ip: Ipv4Addr) -> Self {
        Self {
            namespace: Cow::Borrowed(""),
            name: Cow::Borrowed(""),
            uid: Cow::Borrowed(""),
            service_account: None,
            fake_ip,
        }
    }
}

impl<'a> From<&'a Workload> for AuditPod<'a> {
    fn from(workload: &'a Workload) -> Self {
        Self {
            namespace: Cow::Borrowed(&workload.namespace),
            name: Cow::Borrowed(&workload.name),
            uid: Cow::Borrowed(&workload.uid),
            service_account: workload.service_account.as_deref().map(Cow::Borrowed),
            fake_ip: workload.fake_ip,
        }
    }
}

/// Where it wanted to go, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditDestination<'a> {
    /// The name, canonical; for ingress the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Cow<'a, str>>,
    /// The original destination, or the upstream once it is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    /// The port dialled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// `http`, `https`, `tls`, `tcp`, `grpc`, `dns`, `udp` and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Cow<'a, str>>,
    /// HTTP method, or DNS query type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Cow<'a, str>>,
    /// Canonical path; never a query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_without_query: Option<Cow<'a, str>>,
}

/// The denial that a policy in audit mode would have made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditWouldDeny<'a> {
    /// Why.
    pub reason: ReasonCode,
    /// By which rule; absent for default deny.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Cow<'a, str>>,
    /// Of which policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Cow<'a, str>>,
}

impl<'a> From<&'a Denial> for AuditWouldDeny<'a> {
    fn from(denial: &'a Denial) -> Self {
        Self {
            reason: denial.reason,
            rule: denial.rule.as_deref().map(Cow::Borrowed),
            policy: denial.policy.as_deref().map(Cow::Borrowed),
        }
    }
}

/// One audit line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord<'a> {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// When it was decided, RFC 3339 in UTC.
    pub time: Cow<'a, str>,
    /// The same in the error body, the audit line and (later) the peer node's line.
    pub request_id: Cow<'a, str>,
    /// Which decision this is.
    pub direction: Direction,
    /// Who asked.
    pub pod: AuditPod<'a>,
    /// Where to.
    pub destination: AuditDestination<'a>,
    /// What was decided.
    pub decision: Decision,
    /// Why.
    pub reason: ReasonCode,
    /// The rule that decided; absent for built-in and default decisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Cow<'a, str>>,
    /// The policy of that rule, as `namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Cow<'a, str>>,
    /// Version of the policy document that decided.
    pub policy_version: Cow<'a, str>,
    /// What a policy in audit mode would have denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would_deny: Option<AuditWouldDeny<'a>>,
    /// The verified caller, for ingress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<Cow<'a, str>>,
    /// HTTP status, or DNS response code, that the pod got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Bytes from the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_in: Option<u64>,
    /// Bytes to the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_out: Option<u64>,
    /// From acceptance to the end, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// A fixed word or a sentence that says more, such as the kernel program's drop reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Cow<'a, str>>,
}

impl<'a> AuditRecord<'a> {
    /// A record with what every line has; the optional fields are set by struct update or assignment.
    pub fn new(
        time: impl Into<Cow<'a, str>>,
        request_id: impl Into<Cow<'a, str>>,
        direction: Direction,
        pod: AuditPod<'a>,
        decision: Decision,
        reason: ReasonCode,
        policy_version: impl Into<Cow<'a, str>>,
    ) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            time: time.into(),
            request_id: request_id.into(),
            direction,
            pod,
            destination: AuditDestination::default(),
            decision,
            reason,
            rule: None,
            policy: None,
            policy_version: policy_version.into(),
            would_deny: None,
            caller: None,
            status: None,
            bytes_in: None,
            bytes_out: None,
            duration_us: None,
            detail: None,
        }
    }

    /// Appends the line, with its newline, to a buffer that the caller reuses.
    ///
    /// # Errors
    /// None in practice: a record is strings and numbers, and a `Vec` takes every write.
    pub fn write_line(&self, buffer: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        serde_json::to_writer(&mut *buffer, self)?;
        buffer.push(b'\n');
        Ok(())
    }
}

#[cfg(test)]
mod tests;
