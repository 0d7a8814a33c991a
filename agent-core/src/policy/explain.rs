//! Answers "may this pod reach that?" without traffic. Owns the question's and the answer's JSON; the decision is the
//! engine's own, made by the very functions that decide about traffic.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};

use crate::audit::{Decision, ReasonCode};
use crate::identity::{OrigDst, Workload};
use crate::path;
use crate::policy::address::NodeNets;
use crate::policy::facts::{Protocol, RequestFacts};
use crate::policy::host::{HostName, HostNameError};
use crate::policy::permit::{ConnectionVerdict, CredentialRef, Denial, DialBy, Permit, Verdict};
use crate::policy::set::PolicySet;

/// The question, as `POST /policy/explain` and `agent-node policy explain` take it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExplainRequest {
    /// Who asks.
    pub workload: Workload,
    /// The name; absent for an address alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The address that is dialled; absent when the name is all that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<Ipv4Addr>,
    /// The port that is dialled; absent: 80 for http, 443 for the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// What is spoken; absent: http for port 80 or when a method or path is given, tls for other ports of a host, tcp
    /// for an address alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The method; absent: GET where the protocol shows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The path; absent: `/` where the protocol shows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Ingress: the target that is called, instead of a destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What the name resolves to, to be checked as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// What would be decided.
    pub decision: Decision,
    /// Why.
    pub reason: ReasonCode,
    /// By which rule; absent for built-in and default decisions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Of which policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// One sentence for a person.
    pub message: String,
    /// What a policy in audit mode would have denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_deny: Option<Denial>,
    /// The credential that would be set, by reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<CredentialRef>,
    /// The policies that are for the pod.
    pub policies: Vec<String>,
    /// The version of the policy that decided.
    pub policy_version: String,
}

/// What an answer with a credential can't promise.
const CLEARTEXT: &str = "; in cleartext the credential is sent only to this node itself or to an `https` entry of `upstreams`, otherwise the answer is 502 (the rule can say `tls: originate`, or `allowCleartext: true`)";

/// Why a question cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    /// Neither destination nor target.
    #[error("the question names no destination; write host, ip or target")]
    NoDestination,
    /// A target and a destination.
    #[error("target excludes host, ip, port, protocol, method and path; ask two questions")]
    TwoDestinations,
    /// The host is none.
    #[error("host: {0}")]
    Host(#[from] HostNameError),
    /// The path is none.
    #[error("path: {0}")]
    Path(#[from] path::PathError),
}

impl PolicySet {
    /// Decides as for traffic, and says by what.
    ///
    /// # Errors
    /// Questions that name no destination, or one that no request could have.
    pub fn explain(
        &self,
        question: &ExplainRequest,
        nets: &NodeNets,
    ) -> Result<Explanation, ExplainError> {
        let scope = self.scope(&question.workload);
        let verdict = match &question.target {
            Some(target) => {
                if question.names_destination() {
                    return Err(ExplainError::TwoDestinations);
                }
                self.decide_ingress_from(&scope, &question.workload, target)
            }
            None => self.explain_egress(question, nets)?,
        };
        let mut answer = match verdict {
            Verdict::Deny(denial) => self.denied(denial),
            Verdict::Permit(permit) => self.permitted(&permit),
        };
        answer.policies = scope.policies().map(ToString::to_string).collect();
        Ok(answer)
    }

    fn explain_egress(
        &self,
        question: &ExplainRequest,
        nets: &NodeNets,
    ) -> Result<Verdict, ExplainError> {
        let host = question.host.as_deref().map(HostName::parse).transpose()?;
        let path = question
            .path
            .as_deref()
            .map(path::canonicalise)
            .transpose()?;
        if host.is_none() && question.ip.is_none() {
            return Err(ExplainError::NoDestination);
        }
        let protocol = question
            .protocol
            .unwrap_or_else(|| question.likely_protocol());
        let port = question
            .port
            .unwrap_or(if protocol == Protocol::Http { 80 } else { 443 });
        let dst = SocketAddrV4::new(question.ip.unwrap_or(Ipv4Addr::UNSPECIFIED), port);
        let scope = self.scope(&question.workload);
        if question.ip.is_some()
            && let ConnectionVerdict::Deny(denial) =
                self.decide_connection(&scope, OrigDst(dst), nets)
        {
            return Ok(Verdict::Deny(denial));
        }
        let visible = protocol.is_visible_http();
        let facts = RequestFacts {
            protocol,
            host: host.as_ref(),
            dst,
            port,
            method: question.method.as_deref().or(visible.then_some("GET")),
            path: path.as_deref().or(visible.then_some("/")),
        };
        let permit = match self.decide_request(&scope, &facts) {
            Verdict::Deny(denial) => return Ok(Verdict::Deny(denial)),
            Verdict::Permit(permit) => permit,
        };
        // Of several addresses one that may be reached is enough, as for traffic.
        let dialled = question
            .ip
            .filter(|_| host.is_none() || permit.dial_by() != DialBy::Name);
        let addresses: Vec<IpAddr> = match dialled {
            Some(ip) => vec![ip.into()],
            None => question.addresses.clone(),
        };
        let upstream_port = Permit::upstream_port(port, visible && permit.tls_originate());
        let check = |ip: &IpAddr| self.check_address(&permit, *ip, upstream_port, nets);
        let checked: Result<Vec<()>, Denial> = addresses.iter().map(check).collect();
        match checked {
            Err(denial) if !addresses.iter().any(|ip| check(ip).is_ok()) => {
                Ok(Verdict::Deny(denial))
            }
            Ok(_) | Err(_) => Ok(Verdict::Permit(permit)),
        }
    }

    fn denied(&self, denial: Denial) -> Explanation {
        Explanation {
            decision: Decision::Deny,
            reason: denial.reason,
            rule: denial.rule.map(|rule| rule.to_string()),
            policy: denial.policy.map(|policy| policy.to_string()),
            message: denial.message,
            would_deny: None,
            credential: None,
            policies: Vec::new(),
            policy_version: self.version().to_owned(),
        }
    }

    fn permitted(&self, permit: &Permit) -> Explanation {
        let mut message = match (permit.rule(), permit.policy(), permit.would_deny()) {
            (_, _, Some(denial)) => format!("let through in audit mode; when enforced: {denial}"),
            (Some(rule), Some(policy), None) => {
                format!("let through by rule {rule} of policy {policy}")
            }
            _ => "let through in audit mode".to_owned(),
        };
        // Where it goes is known only when it is dialled.
        if let Some(credential) = permit.credential()
            && !credential.allow_cleartext
            && !permit.tls_originate()
        {
            message.push_str(CLEARTEXT);
        }
        Explanation {
            decision: permit.decision(),
            reason: permit.reason(),
            rule: permit.rule().map(ToString::to_string),
            policy: permit.policy().map(ToString::to_string),
            message,
            would_deny: permit.would_deny().cloned(),
            credential: permit.credential().cloned(),
            policies: Vec::new(),
            policy_version: self.version().to_owned(),
        }
    }
}

impl ExplainRequest {
    fn names_destination(&self) -> bool {
        self.host.is_some()
            || self.ip.is_some()
            || self.port.is_some()
            || self.protocol.is_some()
            || self.method.is_some()
            || self.path.is_some()
    }

    fn likely_protocol(&self) -> Protocol {
        if self.port == Some(80) || self.method.is_some() || self.path.is_some() {
            Protocol::Http
        } else if self.host.is_some() {
            Protocol::Tls
        } else {
            Protocol::Tcp
        }
    }
}

#[cfg(test)]
mod tests;
