//! What every connection may use: the process-wide state, and one worker's own part of it.
//!
//! Everything in [`Context`] is read by one atomic load; nothing in it is locked on the way of a
//! request. What a worker owns alone (upstream pool, resolver) is in [`WorkerCtx`] and never leaves
//! its thread.

use std::rc::Rc;
use std::sync::Arc;

use agent_core::audit::AuditRecord;

use crate::audit::AuditSink;
use crate::config::Config;
use crate::credential::CredentialStore;
use crate::dns;
use crate::drain::Drain;
use crate::metrics::{Metrics, WorkerMetrics};
use crate::node_nets::NodeNetsCell;
use crate::policy_store::PolicyStore;
use crate::proxy;
use crate::workloads::{Cluster, Workloads};

/// The state of one ZeroProxy process, shared by all its workers.
pub struct Context {
    /// The configuration, read once at the start.
    pub config: Config,
    /// The active policy: one immutable snapshot behind one pointer.
    pub policy: PolicyStore,
    /// Source address -> pod.
    pub workloads: Workloads,
    /// What the API server said about pods, when that is where it comes from.
    pub cluster: Option<Cluster>,
    /// The only reader of secrets.
    pub credentials: CredentialStore,
    /// Where audit lines go.
    pub audit: AuditSink,
    /// Counters; each worker has its own set, added up at scrape.
    pub metrics: Metrics,
    /// Which addresses the DNS proxy gave to which pod for which name.
    pub bindings: dns::Bindings,
    /// The node's addresses, its Fake IP CIDR and gateway.
    pub nets: NodeNetsCell,
    /// Whether this process is on its way out.
    pub drain: Drain,
}

/// One worker's view: the shared state, and what belongs to this thread alone.
pub struct WorkerCtx {
    /// The process-wide state.
    pub shared: Arc<Context>,
    /// Which worker this is, from 0.
    pub index: u16,
    /// Idle upstream connections of this worker.
    pub pool: proxy::Pool,
    /// The proxy's own name resolution, with this worker's cache.
    pub resolver: dns::Resolver,
    /// What the DNS proxy keeps between questions.
    pub dns: dns::State,
}

impl WorkerCtx {
    /// Builds worker `index`'s part; called on the worker's own thread, inside its runtime.
    pub fn new(shared: Arc<Context>, index: u16) -> Rc<WorkerCtx> {
        let pool = proxy::Pool::new(&shared);
        let resolver = dns::Resolver::new(&shared);
        let dns = dns::State::new(&shared.config);
        Rc::new(WorkerCtx {
            shared,
            index,
            pool,
            resolver,
            dns,
        })
    }

    /// This worker's counters.
    pub fn metrics(&self) -> &WorkerMetrics {
        self.shared.metrics.worker(self.index)
    }

    /// Writes an audit line and counts its decision.
    pub fn record(&self, record: &AuditRecord) {
        self.metrics().decision(record);
        self.shared.audit.record(record);
    }
}
