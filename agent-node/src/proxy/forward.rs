//! Sends a permitted request to its upstream and hands the answer back.
//!
//! Owns the edits on both heads, the credential, the choice between a pooled and a new connection,
//! and one retry where it can do no harm. It decides nothing: it has a [`Permit`].

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use agent_core::policy::{CredentialRef, Permit};
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING,
    UPGRADE,
};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::answer;
use super::body::{Gate, RequestBody, ResponseBody};
use super::dial::{self, Route, Wanted};
use super::error::Failure;
use super::exchange::{Busy, Exchanges, Tunnel, Upgrade};
use super::headers::{self, X_AGENT_CALLER};
use super::http1::buffer_size;
use super::origin::UpstreamStream;
use super::pool::{Lease, Named, Server};
use super::record::Line;
use super::request::is_ingress;
use super::source::Subject;
use super::upgrade;
use crate::credential::Secret;
use crate::metrics::Counter;

/// One request on its way.
struct Forward<'a> {
    exchanges: &'a Rc<Exchanges>,
    subject: Rc<Subject>,
    permit: &'a Permit,
}

/// A credential and the header that carries it.
struct Injection<'a> {
    name: HeaderName,
    secret: Secret,
    rule: &'a CredentialRef,
}

/// Serves a request under `permit`.
pub(crate) async fn forward(
    exchanges: &Rc<Exchanges>,
    subject: Rc<Subject>,
    permit: Permit,
    mut line: Line,
    request: Request<Incoming>,
    may_tunnel: bool,
) -> Response<ResponseBody> {
    let busy = Busy::new(exchanges, line.facts().clone(), subject.clone());
    let forward = Forward {
        exchanges,
        subject,
        permit: &permit,
    };
    let asked = may_tunnel
        .then(|| request.headers().get(UPGRADE).cloned())
        .flatten();
    let sent = forward.send(&mut line, request, asked.as_ref()).await;
    let (response, exchange) = match sent {
        Ok(sent) => sent,
        Err(failure) => {
            // Our own refusal of the body's bytes shows as the upstream's failure.
            return match exchanges.pulse.fault.get() {
                Some((fault, true)) => answer::faulty(line, fault),
                _ => answer::failed(line, &failure),
            };
        }
    };
    busy.answered();
    line.status.set(Some(response.status().as_u16()));
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return switch(exchanges, line, response, asked.as_ref(), &exchange);
    }
    forward.respond(line, response, exchange, busy)
}

/// What is kept until the response's end.
struct Sent {
    lease: Lease,
    secret: Option<Secret>,
    gate: Option<Arc<Gate>>,
}

impl Forward<'_> {
    async fn send(
        &self,
        line: &mut Line,
        request: Request<Incoming>,
        asked: Option<&HeaderValue>,
    ) -> Result<(Response<Incoming>, Sent), Failure> {
        let injection = self.injection()?;
        let facts = line.facts().clone();
        let wanted = Wanted {
            host: facts.host.as_ref(),
            target: facts.target.as_deref(),
            port: facts.port,
            speaks_http: true,
        };
        let source = &self.exchanges.source;
        let route = dial::route(source, &self.subject, self.permit, wanted).await?;
        if let Some(injection) = &injection {
            self.check_cleartext(&route, injection.rule)?;
        }
        let credential = injection.as_ref().map(|i| i.name.clone());
        let (mut request, gate) = self.outgoing(line, request, asked, credential);
        if let Some(injection) = &injection {
            headers::set_only(
                request.headers_mut(),
                injection.name.clone(),
                injection.secret.header_value(),
            );
            source.worker.metrics().inc(Counter::CredentialsInjected);
        }
        let secret = injection
            .filter(|i| i.rule.strip_from_response)
            .map(|i| i.secret);
        self.listen(&mut request, gate.clone(), secret.clone());
        let (response, lease) = self.exchange(line, &route, request).await?;
        Ok((
            response,
            Sent {
                lease,
                secret,
                gate,
            },
        ))
    }

    fn injection(&self) -> Result<Option<Injection<'_>>, Failure> {
        let Some(rule) = self.permit.credential() else {
            return Ok(None);
        };
        let secret = self.exchanges.source.worker.shared.credentials.get(rule)?;
        let name = HeaderName::from_bytes(rule.header.as_bytes())
            .map_err(|_| crate::credential::CredentialError::ControlCharacter(rule.file.clone()))?;
        Ok(Some(Injection { name, secret, rule }))
    }

    /// In cleartext a credential goes only to this node: an address of loopback or of the node
    /// that the operator's own `upstreams` name. A private address is not local enough.
    fn check_cleartext(&self, route: &Route, rule: &CredentialRef) -> Result<(), Failure> {
        if route.tls || rule.allow_cleartext {
            return Ok(());
        }
        let nets = self.exchanges.source.worker.shared.nets.load();
        let local = |address: &SocketAddr| {
            route.fixed && (address.ip().is_loopback() || nets.is_node(address.ip()))
        };
        match route.addresses.iter().find(|address| !local(address)) {
            Some(address) => Err(Failure::Cleartext { address: *address }),
            None => Ok(()),
        }
    }

    /// The request as the upstream gets it, but for the credential.
    fn outgoing(
        &self,
        line: &Line,
        request: Request<Incoming>,
        asked: Option<&HeaderValue>,
        credential: Option<HeaderName>,
    ) -> (Request<RequestBody>, Option<Arc<Gate>>) {
        let (mut parts, body) = request.into_parts();
        let facts = line.facts();
        if let Some(path) = &facts.path
            && (parts.uri.path() != path || parts.uri.scheme().is_some())
        {
            parts.uri = rewritten(&parts.uri, path);
        }
        let expects = parts.version == Version::HTTP_11
            && !body.is_end_stream()
            && parts
                .headers
                .get(EXPECT)
                .is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        parts.version = Version::HTTP_11;
        // What hyper would read these to mean is no business of the upstream's.
        parts.extensions.clear();
        let headers = &mut parts.headers;
        if headers::clean_request(headers) {
            headers.insert(TE, HeaderValue::from_static("trailers"));
            headers.insert(CONNECTION, HeaderValue::from_static("te"));
        }
        if let Some(protocol) = asked {
            headers.insert(UPGRADE, protocol.clone());
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        }
        if !expects {
            headers.remove(EXPECT);
        }
        if body.is_end_stream() {
            if parts.method == Method::GET || parts.method == Method::HEAD {
                headers.remove(CONTENT_LENGTH);
            }
        } else if body.size_hint().exact().is_none() {
            // hyper sends no body with GET otherwise.
            headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        if !headers.contains_key(HOST)
            && let Ok(host) = HeaderValue::try_from(facts.authority())
        {
            headers.insert(HOST, host);
        }
        if is_ingress(self.permit)
            && let Ok(caller) =
                HeaderValue::try_from(self.subject.pod.workload.caller().to_string())
        {
            headers::set_only(headers, X_AGENT_CALLER, caller);
        }
        let gate = expects.then(Arc::<Gate>::default);
        let body = RequestBody::new(body, line.bytes_in.clone(), credential, gate.clone());
        (Request::from_parts(parts, body), gate)
    }

    /// Has interim responses passed on; one that says to continue opens `gate` (hyper tells the pod).
    fn listen(
        &self,
        request: &mut Request<RequestBody>,
        gate: Option<Arc<Gate>>,
        secret: Option<Secret>,
    ) {
        let passes = !self.exchanges.http10.get();
        let interim = self.exchanges.interim.clone();
        hyper::ext::on_informational(request, move |response| {
            if response.status() == StatusCode::CONTINUE {
                if let Some(gate) = &gate {
                    gate.open();
                }
            } else if passes {
                let mut headers = response.headers().clone();
                headers::clean_response(&mut headers);
                if let Some(secret) = &secret {
                    headers::redact(&mut headers, secret);
                }
                interim.push(response.status(), &headers);
            }
        });
    }

    /// Sends `request` over a pooled connection, else over a new one.
    async fn exchange(
        &self,
        line: &mut Line,
        route: &Route,
        mut request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, Lease), Failure> {
        loop {
            let mut lease = match self.pooled(line, route) {
                Some(lease) => lease,
                None => self.dial(line, route).await?,
            };
            line.connected_to(lease.address().ip());
            let again = if lease.reused {
                repeatable(&request)
            } else {
                None
            };
            let sent = self
                .until_silent(lease.sender.try_send_request(request))
                .await;
            let mut error = match sent {
                Some(Ok(response)) => return Ok((response, lease)),
                Some(Err(error)) => error,
                None => return Err(Failure::ResponseTimeout),
            };
            // The server may close an idle connection at the moment when it is used again.
            request = match (error.take_message(), again) {
                (Some(unsent), _) if lease.reused => unsent,
                (_, Some(again)) => again,
                _ => return Err(Failure::Upstream(error.into_error())),
            };
        }
    }

    fn server(&self, route: &Route, address: SocketAddr) -> Server {
        let pod = &self.subject.pod;
        Server {
            address,
            tls: route.tls,
            pod: pod.workload.fake_ip,
            pod_generation: pod.generation,
        }
    }

    fn pooled(&self, line: &Line, route: &Route) -> Option<Lease> {
        let worker = &self.exchanges.source.worker;
        let named = Named::of(line.facts());
        let found = route
            .addresses
            .iter()
            .find_map(|address| worker.pool.take(self.server(route, *address), &named))?;
        worker.metrics().inc(Counter::UpstreamReused);
        Some(found)
    }

    async fn dial(&self, line: &Line, route: &Route) -> Result<Lease, Failure> {
        let worker = &self.exchanges.source.worker;
        let named = Named::of(line.facts());
        let (stream, address) = dial::connect(self.permit, route).await?;
        worker.metrics().inc(Counter::UpstreamDialed);
        let stream = match route.tls {
            false => UpstreamStream::Plain(stream),
            true => {
                let name = named.name();
                let handshake = worker.pool.tls().connect(&name, stream);
                match timeout(dial::HANDSHAKE, handshake).await {
                    Ok(Ok(stream)) => stream,
                    Ok(Err(source)) => return Err(Failure::Tls { address, source }),
                    Err(_) => return Err(Failure::ConnectTimeout { address }),
                }
            }
        };
        let limits = &worker.shared.config.limits;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(buffer_size(limits.header_bytes));
        if limits.header_count > 100 {
            builder.max_headers(limits.header_count);
        }
        let (sender, connection) = builder
            .handshake(TokioIo::new(stream))
            .await
            .map_err(Failure::Upstream)?;
        // Ends when the sender is dropped or the server closes; errors reach whoever waits.
        tokio::task::spawn_local(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(error = %error, "upstream connection ended");
            }
        });
        Ok(Lease::new(
            worker.pool.clone(),
            self.server(route, address),
            named,
            sender,
        ))
    }

    /// Waits for `answer`, unless the driver finds that nothing is heard any more.
    async fn until_silent<F: Future>(&self, answer: F) -> Option<F::Output> {
        let mut answer = pin!(answer);
        std::future::poll_fn(|cx| {
            self.exchanges.interim.register(cx.waker());
            match answer.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending if self.exchanges.silent.get() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    fn respond(
        &self,
        line: Line,
        response: Response<Incoming>,
        sent: Sent,
        busy: Busy,
    ) -> Response<ResponseBody> {
        let (mut parts, body) = response.into_parts();
        if parts.headers.contains_key(TRANSFER_ENCODING) {
            // hyper read the body as chunked; a length beside that would be believed by others.
            parts.headers.remove(CONTENT_LENGTH);
        }
        clean(self.exchanges, &mut parts.headers, &sent);
        // hyper answers in the version that the pod spoke.
        parts.version = Version::HTTP_11;
        parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
        let body = ResponseBody::upstream(body, sent.lease, line, sent.secret, sent.gate, busy);
        Response::from_parts(parts, body)
    }
}

/// Removes from a final response's or a 101's head what the pod must not see.
fn clean(exchanges: &Exchanges, head: &mut HeaderMap, sent: &Sent) {
    headers::clean_response(head);
    if let Some(secret) = &sent.secret {
        let redacted = headers::redact(head, secret);
        if redacted > 0 {
            let metrics = exchanges.source.worker.metrics();
            metrics.add(Counter::CredentialsRedacted, redacted);
        }
    }
}

/// Takes the upstream's 101, if it is the one that was asked for.
fn switch(
    exchanges: &Exchanges,
    line: Line,
    mut response: Response<Incoming>,
    asked: Option<&HeaderValue>,
    sent: &Sent,
) -> Response<ResponseBody> {
    let Some(protocol) = asked.filter(|p| upgrade::is_expected(p.as_bytes(), response.headers()))
    else {
        return answer::failed(line, &Failure::UnexpectedUpgrade);
    };
    let upstream = hyper::upgrade::on(&mut response);
    exchanges
        .tunnel
        .replace(Some(Tunnel::Upgrade(Box::new(Upgrade { upstream, line }))));
    let (mut parts, _) = response.into_parts();
    clean(exchanges, &mut parts.headers, sent);
    parts.headers.insert(UPGRADE, protocol.clone());
    parts
        .headers
        .insert(CONNECTION, HeaderValue::from_static("upgrade"));
    Response::from_parts(parts, ResponseBody::empty())
}

/// The same target with `path`, in origin form.
fn rewritten(uri: &Uri, path: &str) -> Uri {
    let text = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    // A canonical path is made of characters that a URI has.
    PathAndQuery::try_from(text)
        .map(Uri::from)
        .unwrap_or_default()
}

/// A copy of a request that may be sent twice: a safe method without a body.
fn repeatable(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    let safe = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    );
    if !safe || !request.body().is_end_stream() {
        return None;
    }
    let mut copy = Request::new(RequestBody::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}
