//! The answers that the proxy gives itself: denials, malformed requests, failures.
//!
//! Owns their words and form (JSON that names host, rule, policy and request; never a secret), for
//! hyper and, where hyper can't, as bytes on the socket.

use agent_core::audit::ReasonCode;
use agent_core::policy::HostName;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, PROXY_AUTHENTICATE};
use http::{Response, StatusCode};
use serde::Serialize;

use super::body::ResponseBody;
use super::error::Failure;
use super::fault::Fault;
use super::headers::DECISION;
use super::record::Line;

#[derive(Serialize)]
struct Body<'a> {
    error: &'a str,
    message: &'a str,
    reason: ReasonCode,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    port: u16,
    rule: Option<&'a str>,
    policy: Option<&'a str>,
    request_id: &'a str,
    remedy: &'a str,
}

/// An answer before it is either hyper's or bytes.
struct Answer {
    status: StatusCode,
    decision: Option<String>,
    body: Vec<u8>,
}

/// 403: `line` holds the denial, whose sentence is `message`.
pub(crate) fn denied(line: Line, message: &str) -> Response<ResponseBody> {
    let answer = denial(&line, StatusCode::FORBIDDEN, message);
    respond(line, answer, false)
}

/// 503: nothing may be let through now, whatever the policy says.
pub(crate) fn unavailable(line: Line, message: &str) -> Response<ResponseBody> {
    let answer = denial(&line, StatusCode::SERVICE_UNAVAILABLE, message);
    respond(line, answer, true)
}

/// 407: a client of the node itself that did not show the token.
pub(crate) fn unproven(line: Line, message: &str) -> Response<ResponseBody> {
    let answer = denial(&line, StatusCode::PROXY_AUTHENTICATION_REQUIRED, message);
    let mut response = respond(line, answer, false);
    for scheme in [
        "Bearer realm=\"agent-network\"",
        "Basic realm=\"agent-network\"",
    ] {
        let challenge = HeaderValue::from_static(scheme);
        response.headers_mut().append(PROXY_AUTHENTICATE, challenge);
    }
    response
}

/// The answer to a malformed request; the connection closes behind it.
pub(crate) fn faulty(mut line: Line, fault: Fault) -> Response<ResponseBody> {
    line.faulty(fault);
    let answer = fault_answer(&line, fault);
    respond(line, answer, true)
}

/// The answer to a fault that hyper never saw, to be written after its last response.
pub(crate) fn faulty_bytes(mut line: Line, fault: Fault) -> Vec<u8> {
    line.faulty(fault);
    let answer = fault_answer(&line, fault);
    line.status.set(Some(answer.status.as_u16()));
    let mut bytes = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.status.as_u16(),
        answer.status.canonical_reason().unwrap_or_default(),
        answer.body.len(),
    )
    .into_bytes();
    bytes.extend_from_slice(&answer.body);
    line.bytes_out.set(answer.body.len() as u64);
    bytes
}

/// The answer when a permitted request could not be served.
pub(crate) fn failed(mut line: Line, failure: &Failure) -> Response<ResponseBody> {
    line.failed(failure);
    // An address denial may name a rule of its own.
    if let Failure::Address(denial) = failure {
        line.denied(denial);
    }
    let message = failure.message();
    let answer = match failure.is_refusal() {
        true => denial(&line, failure.status(), message),
        false => Answer {
            status: failure.status(),
            decision: None,
            body: body(&line, "upstream_failed", message),
        },
    };
    respond(line, answer, false)
}

fn denial(line: &Line, status: StatusCode, message: &str) -> Answer {
    let decision = format!(
        "deny; rule={}; policy={}",
        line.rule().unwrap_or("-"),
        line.policy().unwrap_or("-")
    );
    Answer {
        status,
        decision: Some(decision),
        body: body(line, "denied", message),
    }
}

fn fault_answer(line: &Line, fault: Fault) -> Answer {
    Answer {
        status: fault.status(),
        decision: None,
        body: body(line, "bad_request", &fault.to_string()),
    }
}

fn body(line: &Line, error: &str, message: &str) -> Vec<u8> {
    let facts = line.facts();
    let host = facts
        .target
        .as_deref()
        .or(facts.host.as_ref().map(HostName::as_str));
    let dialled = facts.dst.ip().to_string();
    let body = Body {
        error,
        message,
        reason: line.reason(),
        host: host.or(Some(&dialled)),
        port: facts.port,
        rule: line.rule(),
        policy: line.policy(),
        request_id: line.id.as_str(),
        remedy: remedy(line.reason()),
    };
    let mut bytes = Vec::with_capacity(512);
    // Strings and numbers into a Vec: this can't fail.
    if serde_json::to_writer(&mut bytes, &body).is_ok() {
        bytes.push(b'\n');
    }
    bytes
}

fn respond(line: Line, answer: Answer, close: bool) -> Response<ResponseBody> {
    line.status.set(Some(answer.status.as_u16()));
    let mut response = Response::new(ResponseBody::own(Bytes::from(answer.body), line));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(decision) = answer.decision.and_then(|d| HeaderValue::try_from(d).ok()) {
        headers.insert(DECISION, decision);
    }
    if close {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// What the reader can do about it.
fn remedy(reason: ReasonCode) -> &'static str {
    use ReasonCode as R;
    match reason {
        R::EgressDenied => {
            "Ask whoever owns this namespace's AgentNetworkPolicy for an egress rule that allows this host, port, method and path; give them the request_id."
        }
        R::IngressDenied => {
            "Ask whoever owns the target's AgentNetworkPolicy for an ingress rule that allows your caller name; give them the request_id."
        }
        R::DirectBypassDenied => {
            "Agent pods can't be reached by address. Call the agent by its name with X-Agent-Target."
        }
        R::SensitiveAddressDenied | R::NodeAddressDenied => {
            "This address is closed to agent pods whatever the policy says; no rule can open it."
        }
        R::UnknownSourceDenied | R::WorkloadGone => {
            "The node does not know this pod. If it stays so, recreate the pod; if that does not help, the operator looks at `/readyz` and at ZeroProxy's log on the pod's node."
        }
        R::IdentityMismatch => {
            "Leave X-Agent-Caller out, or send your own caller name; the proxy writes the verified one."
        }
        R::BadRequest => "Send the request in a form that has one meaning only (RFC 9112).",
        R::LimitExceeded => {
            "Send less, or sooner; the limits are in the operator's zeroproxy configuration."
        }
        R::CredentialUnavailable => {
            "The operator must mount the Secret that the rule names; nothing is sent without it."
        }
        R::CredentialCleartextRefused => {
            "The rule's owner sets `tls: originate`, or `allowCleartext: true` if cleartext is meant."
        }
        R::AuditUnavailable => {
            "Audit lines can't be written and the operator chose to stop then; try later."
        }
        _ => "Try again; if it stays so, give the request_id to the operator.",
    }
}
