//! Upstream HTTP connections of one worker, kept alive between requests.
//!
//! Owns the idle connections and when they are too old or too many. A connection is used again only
//! by the pod that it was made for, and for the same name: what one pod can do to a connection (connection-bound logins,
//! bytes too many) never meets another pod's request. Nothing here is shared between threads.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use agent_core::policy::HostName;
use hyper::client::conn::http1::SendRequest;
use tokio::time::Instant;

use super::body::RequestBody;
use super::origin::Tls;
use super::source::Facts;
use crate::context::Context;

/// Servers close idle connections after 5 s (Node.js) to 75 s (nginx); a connection that was idle
/// for longer than this is more likely than not about to go.
const IDLE: Duration = Duration::from_secs(30);
/// Idle connections of one pod to one server.
const PER_SERVER: usize = 32;
/// Idle connections of one worker; beyond, none is kept.
const PER_WORKER: usize = 4096;
/// How often the old ones are dropped.
const SWEEP: Duration = Duration::from_secs(10);

/// Idle upstream connections of one worker.
#[derive(Clone)]
pub struct Pool(Rc<Inner>);

struct Inner {
    idle: RefCell<HashMap<Server, Vec<Idle>>>,
    count: Cell<usize>,
    sweeping: Cell<bool>,
    tls: Tls,
}

/// Where a connection leads, and for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) tls: bool,
    pub(crate) pod: Ipv4Addr,
    pub(crate) pod_generation: u64,
}

/// Whom a connection was made to: the name that its certificate was verified for, if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    /// The target of a call between agents, whatever Host says.
    Target(String),
    /// The request's host.
    Host(HostName),
    /// The address that was dialled, by which there is no name.
    Address(Ipv4Addr),
}

struct Idle {
    named: Named,
    sender: SendRequest<RequestBody>,
    since: Instant,
}

/// A connection in use. Dropping it closes the connection.
pub(crate) struct Lease {
    pool: Pool,
    server: Server,
    named: Named,
    pub(crate) sender: SendRequest<RequestBody>,
    pub(crate) reused: bool,
}

impl Named {
    pub(crate) fn of(facts: &Facts) -> Named {
        match (&facts.target, &facts.host) {
            (Some(target), _) => Named::Target(target.clone()),
            (None, Some(host)) => Named::Host(host.clone()),
            (None, None) => Named::Address(*facts.dst.ip()),
        }
    }

    /// The name that an upstream's certificate must be for.
    pub(crate) fn name(&self) -> Cow<'_, str> {
        match self {
            Named::Target(target) => Cow::Borrowed(target),
            Named::Host(host) => Cow::Borrowed(host.as_str()),
            Named::Address(ip) => Cow::Owned(ip.to_string()),
        }
    }
}

impl Lease {
    pub(crate) fn new(
        pool: Pool,
        server: Server,
        named: Named,
        sender: SendRequest<RequestBody>,
    ) -> Lease {
        Lease {
            pool,
            server,
            named,
            sender,
            reused: false,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// The response is over: another request may use the connection.
    pub(crate) fn give_back(self) {
        let pool = self.pool.clone();
        pool.put(self);
    }
}

impl Pool {
    /// An empty pool.
    pub fn new(shared: &Arc<Context>) -> Pool {
        Pool(Rc::new(Inner {
            idle: RefCell::default(),
            count: Cell::new(0),
            sweeping: Cell::new(false),
            tls: Tls::new(shared.config.tls.extra_ca_file.as_deref()),
        }))
    }

    /// How upstreams are spoken to by TLS.
    pub(crate) fn tls(&self) -> &Tls {
        &self.0.tls
    }

    /// An idle connection to `server` made for `named`, the one used last.
    pub(crate) fn take(&self, server: Server, named: &Named) -> Option<Lease> {
        let mut idle = self.0.idle.borrow_mut();
        let of_server = idle.get_mut(&server)?;
        let mut at = of_server.len();
        while at > 0 {
            at -= 1;
            if of_server[at].sender.is_closed() || of_server[at].since.elapsed() > IDLE {
                of_server.swap_remove(at);
                self.0.count.set(self.0.count.get() - 1);
            } else if of_server[at].named == *named && of_server[at].sender.is_ready() {
                let found = of_server.remove(at);
                self.0.count.set(self.0.count.get() - 1);
                return Some(Lease {
                    pool: self.clone(),
                    server,
                    named: found.named,
                    sender: found.sender,
                    reused: true,
                });
            }
        }
        None
    }

    fn put(&self, lease: Lease) {
        if lease.sender.is_closed() || self.0.count.get() >= PER_WORKER {
            return;
        }
        let mut idle = self.0.idle.borrow_mut();
        let of_server = idle.entry(lease.server).or_default();
        if of_server.len() >= PER_SERVER {
            return;
        }
        of_server.push(Idle {
            named: lease.named,
            sender: lease.sender,
            since: Instant::now(),
        });
        self.0.count.set(self.0.count.get() + 1);
        drop(idle);
        self.sweep_later();
    }

    /// Starts the sweeper unless it runs. It ends when nothing is idle any more.
    fn sweep_later(&self) {
        if self.0.sweeping.replace(true) {
            return;
        }
        let pool = Rc::downgrade(&self.0);
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                let Some(inner) = pool.upgrade() else { return };
                if inner.sweep() == 0 {
                    inner.sweeping.set(false);
                    return;
                }
            }
        });
    }
}

impl Inner {
    /// Drops what is closed or old; says how many are left.
    fn sweep(&self) -> usize {
        let mut idle = self.idle.borrow_mut();
        let mut left = 0;
        idle.retain(|_, of_server| {
            of_server.retain(|one| !one.sender.is_closed() && one.since.elapsed() <= IDLE);
            left += of_server.len();
            !of_server.is_empty()
        });
        self.count.set(left);
        left
    }
}
