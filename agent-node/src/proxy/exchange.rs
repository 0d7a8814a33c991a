//! What the parts of one HTTP connection share: driver, service and bodies.
//!
//! Owns the state of the request in flight. One thread, one connection: plain cells.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use agent_core::policy::HostName;
use bytes::Bytes;
use hyper::upgrade::OnUpgrade;

use super::authority::Host;
use super::guard::Pulse;
use super::interim::Interim;
use super::record::Line;
use super::source::{Facts, Source, Subject};

/// One HTTP connection of a pod.
pub(crate) struct Exchanges {
    pub(crate) source: Rc<Source>,
    pub(crate) origin: Origin,
    pub(crate) pulse: Rc<Pulse>,
    /// Requests that were begun.
    pub(crate) served: Cell<u64>,
    /// Whether the upstream's answer is waited for.
    pub(crate) awaiting: Cell<bool>,
    /// Set by the driver when nothing was heard for too long while an answer is waited for.
    pub(crate) silent: Cell<bool>,
    /// Whether the last request was HTTP/1.0, whose body may end only with the connection.
    pub(crate) http10: Cell<bool>,
    /// What upstreams said before their answers.
    pub(crate) interim: Arc<Interim>,
    pub(crate) in_flight: RefCell<Option<InFlight>>,
    /// What the connection becomes when hyper has let go of it.
    pub(crate) tunnel: RefCell<Option<Tunnel>>,
}

/// Where the connection leads, as far as the client has said.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// The address that was dialled, or that a CONNECT named; 0.0.0.0 when that named a host.
    pub(crate) dst: std::net::SocketAddrV4,
    /// The host that a CONNECT named.
    pub(crate) named: Option<HostName>,
}

impl Origin {
    pub(crate) fn dialled(dst: std::net::SocketAddrV4) -> Origin {
        Origin { dst, named: None }
    }

    /// Nothing yet: the client speaks to the proxy itself, and each request says where it is for.
    pub(crate) fn unsaid() -> Origin {
        use std::net::{Ipv4Addr, SocketAddrV4};
        Origin::dialled(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))
    }

    /// Whether a request must name its server and port itself.
    pub(crate) fn is_unsaid(&self) -> bool {
        self.dst.port() == 0
    }

    /// What an explicit-proxy client named. The address that it dialled says nothing then.
    pub(crate) fn explicit(host: &Host, port: u16) -> Origin {
        use std::net::{Ipv4Addr, SocketAddrV4};
        match host {
            Host::Address(ip) => Origin::dialled(SocketAddrV4::new(*ip, port)),
            Host::Name(name) => Origin {
                dst: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port),
                named: Some(name.clone()),
            },
        }
    }

    /// Whether nothing but a name is known.
    pub(crate) fn is_name_only(&self) -> bool {
        self.dst.ip().is_unspecified()
    }
}

/// The request that is being served, to decide it again when the policy changes.
pub(crate) struct InFlight {
    pub(crate) facts: Rc<Facts>,
    pub(crate) subject: Rc<Subject>,
}

/// What a connection becomes after its last HTTP request.
pub(crate) enum Tunnel {
    /// `CONNECT` was permitted; what is inside is decided as any connection is.
    Connect(Origin),
    /// The upstream switched protocols.
    Upgrade(Box<Upgrade>),
}

pub(crate) struct Upgrade {
    pub(crate) upstream: OnUpgrade,
    pub(crate) line: Line,
}

impl Exchanges {
    pub(crate) fn new(source: Rc<Source>, origin: Origin) -> Rc<Exchanges> {
        Rc::new(Exchanges {
            source,
            origin,
            pulse: Rc::new(Pulse::new()),
            served: Cell::new(0),
            awaiting: Cell::new(false),
            silent: Cell::new(false),
            http10: Cell::new(false),
            interim: Arc::default(),
            in_flight: RefCell::new(None),
            tunnel: RefCell::new(None),
        })
    }
}

/// While it lives, a request is in flight.
pub(crate) struct Busy(Rc<Exchanges>);

impl Busy {
    pub(crate) fn new(exchanges: &Rc<Exchanges>, facts: Rc<Facts>, subject: Rc<Subject>) -> Busy {
        exchanges.silent.set(false);
        exchanges.awaiting.set(true);
        exchanges
            .in_flight
            .replace(Some(InFlight { facts, subject }));
        Busy(exchanges.clone())
    }

    /// The upstream has answered; its body is still to come.
    pub(crate) fn answered(&self) {
        self.0.awaiting.set(false);
    }

    pub(crate) fn beat(&self) {
        self.0.pulse.beat();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.in_flight.replace(None);
        self.0.awaiting.set(false);
    }
}

/// Joins what was read before and what hyper had read ahead.
pub(crate) fn join(a: Bytes, b: Bytes) -> Bytes {
    match (a.is_empty(), b.is_empty()) {
        (true, _) => b,
        (_, true) => a,
        _ => [a, b].concat().into(),
    }
}
