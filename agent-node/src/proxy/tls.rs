//! Serves a TLS connection by its server name, without seeing inside.
//!
//! Owns the rules of zeroproxy.md, "TLS" 1 and 2: a name that can be read and believed, or an alert.
//! The bytes go through as they came.

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use agent_core::audit::ReasonCode;
use agent_core::policy::{ConnectionVerdict, Denial, DialBy, HostName, Permit, Protocol, Verdict};
use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::clienthello::{self, Hello, HelloError, Progress};
use super::close;
use super::connection::read_more;
use super::dial::{self, Route, Wanted};
use super::error::Failure;
use super::exchange::Origin;
use super::record::Line;
use super::request::unknown;
use super::source::{Facts, Source, Subject};
use super::tunnel;
use crate::metrics::Counter;

/// A ClientHello has this long to arrive.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Fatal alerts (RFC 8446 section 6.2).
#[derive(Debug, Clone, Copy)]
enum Alert {
    AccessDenied = 49,
    InternalError = 80,
}

/// Serves `stream`, of which `first` has been read.
pub(crate) async fn serve(
    source: &Rc<Source>,
    mut stream: TcpStream,
    first: BytesMut,
    origin: Origin,
) {
    let started = Instant::now();
    let mut first = first;
    let hello = match timeout(HELLO_TIMEOUT, read_hello(&mut stream, &mut first)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(error)) => Err(error),
        Err(_) => Err(Unusable::Timeout),
    };
    let name = hello.and_then(|hello| server_name(&hello));
    let facts = Rc::new(Facts {
        host: name.as_ref().ok().cloned(),
        ..Facts::of_connection(Protocol::Tls, origin.dst)
    });
    let subject = source.current();
    let mut line = Line::new(source.clone(), subject.clone(), facts, started);
    let permitted = match &subject {
        None => Err(unknown()),
        Some(subject) => decide(source, subject, line.facts(), &origin, name),
    };
    let (Some(subject), permit) = (subject, permitted) else {
        let denial = unknown();
        line.denied(&denial);
        refuse(stream, Alert::AccessDenied).await;
        return;
    };
    let permit = match permit {
        Ok(permit) => permit,
        Err(denial) => {
            line.denied(&denial);
            refuse(stream, Alert::AccessDenied).await;
            return;
        }
    };
    line.permitted(&permit);
    let upstream = match connect(source, &subject, &permit, line.facts(), &origin).await {
        Ok((upstream, address)) => {
            line.connected_to(address.ip());
            upstream
        }
        Err(failure) => {
            line.failed(&failure);
            let alert = match failure {
                Failure::Address(_) => Alert::AccessDenied,
                _ => Alert::InternalError,
            };
            refuse(stream, alert).await;
            return;
        }
    };
    let metrics = source.worker.metrics();
    metrics.inc(Counter::UpstreamDialed);
    metrics.inc(Counter::Tunnels);
    tunnel::run(
        source,
        line,
        stream,
        upstream,
        first.freeze(),
        bytes::Bytes::new(),
    )
    .await;
}

/// Why no server name can be believed.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("the TLS handshake can't be read: {0}")]
    Hello(#[from] HelloError),
    #[error("the ClientHello did not arrive in time")]
    Timeout,
    #[error("the connection ended inside the ClientHello")]
    Ended,
    #[error("the ClientHello carries no server name (SNI), so nothing says which host is meant")]
    NoName,
    #[error(
        "the ClientHello is encrypted (ECH), so the name outside may not be the one that is meant; switch ECH off"
    )]
    Ech,
    #[error("the server name (SNI) is no host name: {0}")]
    NotAName(agent_core::policy::HostNameError),
}

impl Unusable {
    /// Whether the client has said all that it has to say about the name.
    fn is_whole(&self) -> bool {
        match self {
            Unusable::Hello(_) | Unusable::NoName | Unusable::Ech | Unusable::NotAName(_) => true,
            Unusable::Timeout | Unusable::Ended => false,
        }
    }
}

async fn read_hello(
    stream: &mut TcpStream,
    first: &mut BytesMut,
) -> Result<Result<Hello, Unusable>, Unusable> {
    loop {
        let total = match clienthello::parse(first)? {
            Progress::Hello(hello) => return Ok(Ok(hello)),
            Progress::NeedMore { total } => total,
        };
        while first.len() < total {
            match read_more(stream, first).await {
                Ok(n) if n > 0 => {}
                Ok(_) | Err(_) => return Err(Unusable::Ended),
            }
        }
    }
}

fn server_name(hello: &Hello) -> Result<HostName, Unusable> {
    if hello.ech {
        return Err(Unusable::Ech);
    }
    let name = hello.server_name.as_deref().ok_or(Unusable::NoName)?;
    HostName::parse(name).map_err(Unusable::NotAName)
}

fn decide(
    source: &Source,
    subject: &Subject,
    facts: &Facts,
    origin: &Origin,
    name: Result<HostName, Unusable>,
) -> Result<Permit, Denial> {
    if let ConnectionVerdict::Deny(denial) = subject.decide_connection(source, origin.dst) {
        return Err(denial);
    }
    source.may_let_through()?;
    let name = match name {
        Ok(name) => name,
        Err(why) => return decide_nameless(subject, facts, origin, &why),
    };
    if origin.named.as_ref().is_some_and(|named| *named != name) {
        return Err(Denial::built_in(
            ReasonCode::SniMismatch,
            "the server name inside the tunnel is not the one that CONNECT named",
        ));
    }
    let permit = match facts.decide(subject) {
        Verdict::Permit(permit) => permit,
        Verdict::Deny(denial) => return Err(denial),
    };
    let unverified = source.worker.shared.config.tls.allow_unverified_sni;
    let pod = subject.pod.workload.fake_ip;
    let believed = unverified
        || origin.named.is_some()
        || permit.dial_by() != DialBy::Name
        || is_bound(source, pod, &name, *origin.dst.ip());
    match believed {
        true => Ok(permit),
        false => Err(Denial {
            rule: permit.rule().cloned(),
            policy: permit.policy().cloned(),
            ..Denial::built_in(
                ReasonCode::SniMismatch,
                format!(
                    "the pod dialled {}, which the DNS proxy never gave it for `{name}`",
                    origin.dst.ip()
                ),
            )
        }),
    }
}

/// Without a name there is only the address: a rule on its network and port lets it through as it
/// would any bytes, and nothing else does.
fn decide_nameless(
    subject: &Subject,
    facts: &Facts,
    origin: &Origin,
    why: &Unusable,
) -> Result<Permit, Denial> {
    match facts.decide(subject) {
        Verdict::Permit(permit) if !origin.is_name_only() && why.is_whole() => Ok(permit),
        Verdict::Deny(denial) if denial.rule.is_some() => Err(denial),
        Verdict::Permit(_) | Verdict::Deny(_) => {
            Err(Denial::built_in(ReasonCode::SniMissing, why.to_string()))
        }
    }
}

fn is_bound(source: &Source, pod: Ipv4Addr, name: &HostName, address: Ipv4Addr) -> bool {
    source
        .worker
        .shared
        .bindings
        .knows(pod, name.as_str(), address)
}

async fn connect(
    source: &Source,
    subject: &Subject,
    permit: &Permit,
    facts: &Facts,
    origin: &Origin,
) -> Result<(TcpStream, std::net::SocketAddr), Failure> {
    let wanted = Wanted {
        host: facts.host.as_ref(),
        target: None,
        port: facts.port,
        speaks_http: false,
    };
    let unverified = source.worker.shared.config.tls.allow_unverified_sni;
    let route: Route = if unverified && !origin.is_name_only() {
        dial::direct(source, subject, permit, origin.dst, wanted)?
    } else {
        dial::route(source, subject, permit, wanted).await?
    };
    dial::connect(permit, &route).await
}

/// Sends a fatal alert and closes.
async fn refuse(mut stream: TcpStream, alert: Alert) {
    let bytes = [21, 3, 3, 0, 2, 2, alert as u8];
    let written = timeout(close::PATIENCE, stream.write_all(&bytes)).await;
    if matches!(written, Ok(Ok(()))) {
        close::gracefully(stream).await;
    }
}
