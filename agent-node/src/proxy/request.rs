//! Serves one HTTP request: who it is for, what is decided, and the answer.
//!
//! Owns the order of the steps, which is the order of security: form, identity, audit, built-in
//! denials, policy; only then is anything resolved, read from a credential file or connected to.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Instant;

use agent_core::audit::ReasonCode;
use agent_core::identity::Caller;
use agent_core::path;
use agent_core::policy::{ConnectionVerdict, Denial, Permit, Protocol, Target, Verdict};
use http::header::{CONNECTION, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;

use super::answer;
use super::authority::{self, Authority};
use super::body::ResponseBody;
use super::exchange::{Exchanges, Origin, Tunnel};
use super::fault::Fault;
use super::forward;
use super::headers::{X_AGENT_CALLER, X_AGENT_TARGET};
use super::record::Line;
use super::source::{Facts, Subject};
use crate::metrics::Counter;

/// What a CONNECT may turn out to carry. The decision that counts is made inside the tunnel.
const INSIDE_CONNECT: [Protocol; 3] = [Protocol::Tls, Protocol::Tcp, Protocol::Http];

/// Serves `request`, the next one on its connection.
pub(crate) async fn serve(
    exchanges: Rc<Exchanges>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let number = exchanges.served.get() + 1;
    exchanges.served.set(number);
    exchanges.http10.set(request.version() == Version::HTTP_10);
    exchanges.source.worker.metrics().inc(Counter::HttpRequests);
    let may_tunnel = exchanges.pulse.tunnel_head.get() == Some(number);
    let mut response = decide_and_serve(&exchanges, request, may_tunnel).await;
    // Bytes that were meant for a tunnel must not be read as a request.
    let no_tunnel = may_tunnel && exchanges.tunnel.borrow().is_none();
    if no_tunnel || exchanges.source.worker.shared.drain.is_draining() {
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

async fn decide_and_serve(
    exchanges: &Rc<Exchanges>,
    request: Request<Incoming>,
    may_tunnel: bool,
) -> Response<ResponseBody> {
    let started = Instant::now();
    let source = &exchanges.source;
    let subject = source.current();
    let (facts, authority) = match read(exchanges, &request) {
        Ok(read) => read,
        Err(fault) => {
            let facts = Rc::new(Facts::of_connection(Protocol::Http, exchanges.origin.dst));
            return answer::faulty(Line::new(source.clone(), subject, facts, started), fault);
        }
    };
    let facts = Rc::new(facts);
    let mut line = Line::new(source.clone(), subject.clone(), facts.clone(), started);
    let Some(subject) = subject else {
        return denied(line, &unknown());
    };
    if let Err(denial) = source.may_let_through() {
        line.denied(&denial);
        return answer::unavailable(line, &denial.message);
    }
    if let Err(denial) = source.check_token(request.headers()) {
        line.denied(&denial);
        return answer::unproven(line, &denial.message);
    }
    let named = (facts.dst != exchanges.origin.dst).then_some(facts.dst);
    for dst in std::iter::once(exchanges.origin.dst).chain(named) {
        if let ConnectionVerdict::Deny(denial) = subject.decide_connection(source, dst) {
            return denied(line, &denial);
        }
    }
    if facts.target.is_some()
        && let Err(denial) = check_claim(request.headers(), &subject)
    {
        return denied(line, &denial);
    }
    let is_connect = request.method() == Method::CONNECT;
    let verdict = if is_connect {
        decide_connect(&facts, &subject)
    } else {
        facts.decide(&subject)
    };
    let permit = match verdict {
        Verdict::Permit(permit) => permit,
        Verdict::Deny(denial) => return denied(line, &denial),
    };
    line.permitted(&permit);
    if is_connect {
        return match may_tunnel {
            true => connect(exchanges, &authority, line),
            false => answer::faulty(line, Fault::Form),
        };
    }
    forward::forward(exchanges, subject, permit, line, request, may_tunnel).await
}

/// What the request says about itself.
fn read(exchanges: &Exchanges, request: &Request<Incoming>) -> Result<(Facts, Authority), Fault> {
    let origin = &exchanges.origin;
    let authority = authority::of(
        request.method(),
        request.uri(),
        request.version(),
        request.headers(),
        origin.dst,
    )?;
    let path = match request.method() {
        &Method::CONNECT => None,
        _ => Some(
            path::canonicalise(request.uri().path())
                .map_err(|_| Fault::Path)?
                .into_owned(),
        ),
    };
    if origin.is_unsaid() && !authority.explicit {
        return Err(Fault::Form);
    }
    let target = target(request.headers())?;
    let dst = match &authority.host {
        Some(host) if authority.explicit => Origin::explicit(host, authority.port).dst,
        _ => origin.dst,
    };
    let facts = Facts {
        protocol: Protocol::Http,
        host: authority.name().cloned(),
        dst,
        port: authority.port,
        method: Some(request.method().clone()),
        path,
        target,
    };
    Ok((facts, authority))
}

/// The agent that the request calls.
fn target(headers: &HeaderMap) -> Result<Option<String>, Fault> {
    let mut targets = headers.get_all(X_AGENT_TARGET).iter();
    match (targets.next(), targets.next()) {
        (None, _) => Ok(None),
        (Some(target), None) => {
            let target = target
                .to_str()
                .ok()
                .and_then(|text| text.trim().parse::<Target>().ok());
            target
                .map(|target| Some(target.to_string()))
                .ok_or(Fault::AgentHeader)
        }
        (Some(_), Some(_)) => Err(Fault::AgentHeader),
    }
}

/// A pod that says who calls must say the truth; one that leaves it out claims nothing.
fn check_claim(headers: &HeaderMap, subject: &Subject) -> Result<(), Denial> {
    let caller = subject.pod.workload.caller();
    for claim in headers.get_all(X_AGENT_CALLER) {
        let claimed = claim
            .to_str()
            .ok()
            .and_then(|text| text.trim().parse::<Caller>().ok());
        if claimed.as_ref() != Some(&caller) {
            return Err(Denial::built_in(
                ReasonCode::IdentityMismatch,
                format!("X-Agent-Caller claims another identity; this pod is `{caller}`"),
            ));
        }
    }
    Ok(())
}

fn decide_connect(facts: &Facts, subject: &Subject) -> Verdict {
    let mut first = None;
    for protocol in INSIDE_CONNECT {
        match facts.decide_as(subject, protocol) {
            Verdict::Permit(permit) => return Verdict::Permit(permit),
            denied => first = first.or(Some(denied)),
        }
    }
    first.unwrap_or_else(|| facts.decide(subject))
}

fn connect(exchanges: &Exchanges, authority: &Authority, line: Line) -> Response<ResponseBody> {
    let Some(host) = &authority.host else {
        return answer::faulty(line, Fault::Form);
    };
    let origin = Origin::explicit(host, authority.port);
    exchanges.source.vouch();
    exchanges.tunnel.replace(Some(Tunnel::Connect(origin)));
    line.status.set(Some(StatusCode::OK.as_u16()));
    Response::new(ResponseBody::empty())
}

fn denied(mut line: Line, denial: &Denial) -> Response<ResponseBody> {
    line.denied(denial);
    answer::denied(line, &denial.message)
}

/// The denial of a source that no pod has.
pub(crate) fn unknown() -> Denial {
    Denial::built_in(
        ReasonCode::UnknownSourceDenied,
        "the node knows no pod with this source address",
    )
}

/// Whether `permit` is for a call between agents, whose upstream learns who calls.
pub(crate) fn is_ingress(permit: &Permit) -> bool {
    matches!(permit.dial_by(), agent_core::policy::DialBy::Target)
}
