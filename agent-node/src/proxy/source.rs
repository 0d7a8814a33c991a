//! Who a connection belongs to, under which policy, as of now.
//!
//! Owns the connection's view of identity and policy: both are looked up once, and again only when
//! a generation has changed (two atomic loads per request). What it decides with them is
//! `agent_core::policy`'s; an identity that is gone never comes back on the same connection.

use std::cell::{Cell, RefCell};
use std::net::SocketAddrV4;
use std::rc::Rc;
use std::sync::Arc;

use agent_core::audit::ReasonCode;
use agent_core::identity::{ClientAddr, OrigDst};
use agent_core::policy::{
    ConnectionVerdict, Denial, HostName, Protocol, RequestFacts, Scope, Verdict,
};
use http::header::PROXY_AUTHORIZATION;
use http::{HeaderMap, Method};
use tokio_util::sync::CancellationToken;

use super::signal::Told;
use crate::context::WorkerCtx;
use crate::policy_store::PolicySnapshot;
use crate::token::{self, Refused};
use crate::workloads::Identified;

/// One accepted connection's two ends, and whose it is.
pub(crate) struct Source {
    pub(crate) worker: Rc<WorkerCtx>,
    pub(crate) peer: ClientAddr,
    pub(crate) dst: OrigDst,
    current: RefCell<Option<Rc<Subject>>>,
    /// What the connection is told from outside.
    pub(crate) told: Rc<Told>,
    /// Set for a connection of the node itself, which has to show a token.
    local: Option<Local>,
}

/// What is particular to a connection of the node itself.
struct Local {
    /// Whether a CONNECT has shown the token; what is inside can't.
    vouched: Cell<bool>,
}

/// A pod and the policy that applies to it, of one generation each.
pub(crate) struct Subject {
    pub(crate) pod: Arc<Identified>,
    pub(crate) snapshot: Arc<PolicySnapshot>,
    pub(crate) scope: Scope,
    table_generation: u64,
}

impl Source {
    /// Finds the pod at `peer`; one that isn't known by then stays unknown.
    pub(crate) async fn identify(worker: Rc<WorkerCtx>, peer: ClientAddr, dst: OrigDst) -> Source {
        let ctx = &worker.shared;
        let table_generation = ctx.workloads.generation();
        let subject = ctx
            .workloads
            .identify(*peer.0.ip())
            .await
            .map(|pod| Subject::new(pod, ctx.policy.load(), table_generation));
        Source {
            peer,
            dst,
            current: RefCell::new(subject),
            told: Rc::default(),
            local: None,
            worker,
        }
    }

    /// A connection of the node itself, under the identity that `localClient` names; `None` without one.
    pub(crate) fn local(worker: Rc<WorkerCtx>, peer: ClientAddr) -> Option<Source> {
        let ctx = &worker.shared;
        let client = ctx.config.local_client.as_ref()?;
        let pod = Arc::new(Identified {
            workload: client.workload.clone(),
            generation: 0,
            ifindex: 0,
            gone: CancellationToken::new(),
        });
        let table_generation = ctx.workloads.generation();
        let subject = Subject::new(pod, ctx.policy.load(), table_generation);
        Some(Source {
            peer,
            dst: OrigDst(ctx.config.listen),
            current: RefCell::new(Some(subject)),
            told: Rc::default(),
            local: Some(Local {
                vouched: Cell::new(false),
            }),
            worker,
        })
    }

    /// Whether a request may use this connection's identity: a pod's may, the node's own with the token.
    ///
    /// # Errors
    /// The denial.
    pub(crate) fn check_token(&self, headers: &HeaderMap) -> Result<(), Denial> {
        let (Some(local), Some(client)) = (&self.local, &self.worker.shared.config.local_client)
        else {
            return Ok(());
        };
        if local.vouched.get() {
            return Ok(());
        }
        token::check(&client.token_file, headers, &PROXY_AUTHORIZATION).map_err(|refused| {
            let why = match refused {
                Refused::NoToken => "the file of `localClient.tokenFile` is missing or empty",
                Refused::Wrong => {
                    "send `Proxy-Authorization` with the token of `localClient.tokenFile`, as Bearer or as a password"
                }
            };
            Denial::built_in(ReasonCode::UnknownSourceDenied, why)
        })
    }

    /// What is inside a CONNECT that has shown the token needs none.
    pub(crate) fn vouch(&self) {
        if let Some(local) = &self.local {
            local.vouched.set(true);
        }
    }

    /// The pod and policy as of now; `None` when the pod is unknown or gone.
    pub(crate) fn current(&self) -> Option<Rc<Subject>> {
        let ctx = &self.worker.shared;
        let mut current = self.current.borrow_mut();
        let seen = current.as_ref()?;
        let table_generation = ctx.workloads.generation();
        let same_policy = seen.snapshot.generation == ctx.policy.generation();
        if same_policy && seen.table_generation == table_generation {
            return Some(seen.clone());
        }
        let pod = if seen.pod.gone.is_cancelled() {
            None
        } else {
            match &self.local {
                Some(_) => Some(seen.pod.clone()),
                None => ctx.workloads.known(*self.peer.0.ip()),
            }
        };
        *current = pod.map(|pod| Subject::new(pod, ctx.policy.load(), table_generation));
        current.clone()
    }

    /// Whether anything may be let through now; not while lines that must be written can't be, nor
    /// before it is known which addresses are the node's and its pods'.
    ///
    /// # Errors
    /// The denial, when the operator chose to fail closed and audit lines can't be written, or when
    /// neither `node.json` nor `fakeCidrs`, or no address of the node, could be read yet.
    pub(crate) fn may_let_through(&self) -> Result<(), Denial> {
        if !self.worker.shared.nets.is_known() {
            return Err(Denial::built_in(
                ReasonCode::InternalError,
                "the node's own networks are not known yet, and without them nothing is let through",
            ));
        }
        match self.worker.shared.audit.accepting() {
            true => Ok(()),
            false => Err(Denial::built_in(
                ReasonCode::AuditUnavailable,
                "audit lines can't be written now, and without them nothing is let through",
            )),
        }
    }

    /// Whether `subject` is still what [`Source::current`] would give.
    pub(crate) fn is_current(&self, subject: &Subject) -> bool {
        let ctx = &self.worker.shared;
        subject.snapshot.generation == ctx.policy.generation()
            && subject.table_generation == ctx.workloads.generation()
    }
}

impl Subject {
    fn new(
        pod: Arc<Identified>,
        snapshot: Arc<PolicySnapshot>,
        table_generation: u64,
    ) -> Rc<Subject> {
        let scope = snapshot.set.scope(&pod.workload);
        Rc::new(Subject {
            pod,
            snapshot,
            scope,
            table_generation,
        })
    }

    /// What is decided before anything is read: built-in denials and direct bypass. A destination
    /// that is only a name (`Origin::is_name_only`) is decided on when it is resolved.
    pub(crate) fn decide_connection(
        &self,
        source: &Source,
        dst: SocketAddrV4,
    ) -> ConnectionVerdict {
        if dst.ip().is_unspecified() && source.dst.0 != dst {
            return ConnectionVerdict::Inspect;
        }
        let nets = source.worker.shared.nets.load();
        self.snapshot
            .set
            .decide_connection(&self.scope, OrigDst(dst), &nets)
    }
}

/// Everything about a request that a decision may depend on, kept to decide it again.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) protocol: Protocol,
    pub(crate) host: Option<HostName>,
    pub(crate) dst: SocketAddrV4,
    pub(crate) port: u16,
    pub(crate) method: Option<Method>,
    /// Canonical, without query.
    pub(crate) path: Option<String>,
    /// The target, when it is a call between agents.
    pub(crate) target: Option<String>,
}

impl Facts {
    /// What is known of a connection before anything on it is read.
    pub(crate) fn of_connection(protocol: Protocol, dst: SocketAddrV4) -> Facts {
        Facts {
            protocol,
            host: None,
            dst,
            port: dst.port(),
            method: None,
            path: None,
            target: None,
        }
    }

    /// What was decided on, as a Host header says it.
    pub(crate) fn authority(&self) -> String {
        match &self.host {
            Some(host) if self.port == 80 => host.as_str().to_owned(),
            Some(host) => format!("{}:{}", host.as_str(), self.port),
            None => self.dst.to_string(),
        }
    }

    /// The decision under `subject`'s policy.
    pub(crate) fn decide(&self, subject: &Subject) -> Verdict {
        self.decide_as(subject, self.protocol)
    }

    /// The decision as if `protocol` were spoken.
    pub(crate) fn decide_as(&self, subject: &Subject, protocol: Protocol) -> Verdict {
        let set = &subject.snapshot.set;
        if let Some(target) = &self.target {
            return set.decide_ingress_from(&subject.scope, &subject.pod.workload, target);
        }
        set.decide_request(
            &subject.scope,
            &RequestFacts {
                protocol,
                host: self.host.as_ref(),
                dst: self.dst,
                port: self.port,
                method: self.method.as_ref().map(Method::as_str),
                path: self.path.as_deref(),
            },
        )
    }

    /// Whether what was let through under an earlier policy would be refused now.
    pub(crate) fn is_revoked(&self, source: &Source, decided_by: &Subject) -> bool {
        if source.is_current(decided_by) {
            return false;
        }
        match source.current() {
            None => true,
            Some(subject) => {
                let by_address = matches!(
                    subject.decide_connection(source, self.dst),
                    ConnectionVerdict::Deny(_)
                );
                by_address || matches!(self.decide(&subject), Verdict::Deny(_))
            }
        }
    }
}
