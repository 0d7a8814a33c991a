//! Serves a connection that is neither HTTP nor TLS, by its addresses only.
//!
//! Owns nothing but the steps: decide by original destination, connect, relay. What is denied is
//! reset. Inside a CONNECT to a name there is no destination to decide on, so that is denied.

use std::rc::Rc;
use std::time::Instant;

use agent_core::policy::{ConnectionVerdict, Denial, Permit, Protocol, Verdict};
use bytes::Bytes;
use tokio::net::TcpStream;

use super::dial::{self, Wanted};
use super::exchange::Origin;
use super::record::Line;
use super::relay::reset_on_close;
use super::request::unknown;
use super::source::{Facts, Source, Subject};
use super::tunnel;
use crate::metrics::Counter;

/// Serves `stream`, of which `first` has been read.
pub(crate) async fn serve(source: &Rc<Source>, stream: TcpStream, first: Bytes, origin: Origin) {
    let started = Instant::now();
    let facts = Rc::new(Facts {
        host: origin.named.clone(),
        ..Facts::of_connection(Protocol::Tcp, origin.dst)
    });
    let subject = source.current();
    let mut line = Line::new(source.clone(), subject.clone(), facts, started);
    let Some(subject) = subject else {
        line.denied(&unknown());
        reset_on_close(&stream);
        return;
    };
    let permit = match decide(source, &subject, line.facts()) {
        Ok(permit) => permit,
        Err(denial) => {
            line.denied(&denial);
            reset_on_close(&stream);
            return;
        }
    };
    line.permitted(&permit);
    let wanted = Wanted {
        host: None,
        target: None,
        port: line.facts().port,
        speaks_http: false,
    };
    let connected = match dial::route(source, &subject, &permit, wanted).await {
        Ok(route) => dial::connect(&permit, &route).await,
        Err(failure) => Err(failure),
    };
    match connected {
        Err(failure) => {
            line.failed(&failure);
            reset_on_close(&stream);
        }
        Ok((upstream, address)) => {
            line.connected_to(address.ip());
            let metrics = source.worker.metrics();
            metrics.inc(Counter::UpstreamDialed);
            metrics.inc(Counter::Tunnels);
            tunnel::run(source, line, stream, upstream, first, Bytes::new()).await;
        }
    }
}

fn decide(source: &Source, subject: &Subject, facts: &Facts) -> Result<Permit, Denial> {
    if let ConnectionVerdict::Deny(denial) = subject.decide_connection(source, facts.dst) {
        return Err(denial);
    }
    source.may_let_through()?;
    match facts.decide(subject) {
        Verdict::Permit(permit) => Ok(permit),
        Verdict::Deny(denial) => Err(denial),
    }
}
