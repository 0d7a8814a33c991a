//! What the controller counts, as Prometheus reads it. Labels come from closed lists.

use std::time::Duration;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Bounds in seconds, from a cached look to a kubelet that takes its time.
const BOUNDS: [f64; 13] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 120.0,
];

type Labels = Vec<(&'static str, &'static str)>;

/// All of it.
pub(crate) struct Metrics {
    registry: Registry,
    reconciles: Family<Labels, Counter>,
    seconds: Family<Labels, Histogram, fn() -> Histogram>,
    writes: Family<Labels, Counter>,
    errors: Family<Labels, Counter>,
    phases: Family<Labels, Gauge>,
    /// From the moment that a changed policy was seen to its enforcement by every ready proxy.
    pub(crate) enforced: Histogram,
    /// 1 while this replica leads.
    pub(crate) leader: Gauge,
    /// Pods of ZeroProxy.
    pub(crate) proxies: Gauge,
    /// Those among the ready ones that don't have the published version.
    pub(crate) proxies_behind: Gauge,
    /// Those that couldn't be asked at the last attempt.
    pub(crate) proxies_unreachable: Gauge,
    /// The document's size and parts.
    pub(crate) document_bytes: Gauge,
    pub(crate) document_parts: Gauge,
    pub(crate) document_rules: Gauge,
}

impl Metrics {
    /// Everything at zero.
    pub(crate) fn new() -> Metrics {
        let mut m = Metrics {
            registry: Registry::with_prefix("agent_network_controller"),
            reconciles: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(BOUNDS)),
            writes: Family::default(),
            errors: Family::default(),
            phases: Family::default(),
            enforced: Histogram::new(BOUNDS),
            leader: Gauge::default(),
            proxies: Gauge::default(),
            proxies_behind: Gauge::default(),
            proxies_unreachable: Gauge::default(),
            document_bytes: Gauge::default(),
            document_parts: Gauge::default(),
            document_rules: Gauge::default(),
        };
        let r = &mut m.registry;
        r.register(
            "reconciles",
            "Rounds, by what was looked at and how it ended",
            m.reconciles.clone(),
        );
        r.register(
            "reconcile_seconds",
            "How long rounds took",
            m.seconds.clone(),
        );
        r.register(
            "api_writes",
            "Writes to the API server, by what was written",
            m.writes.clone(),
        );
        r.register(
            "errors",
            "Failed calls, by what they were for",
            m.errors.clone(),
        );
        r.register("policies", "Policies by phase", m.phases.clone());
        r.register(
            "apply_to_enforced_seconds",
            "From a changed policy's arrival to its enforcement by every ready proxy",
            m.enforced.clone(),
        );
        r.register("leader", "1 while this replica leads", m.leader.clone());
        r.register("proxies", "Pods of ZeroProxy", m.proxies.clone());
        r.register(
            "proxies_behind",
            "Ready proxies that don't have the published version",
            m.proxies_behind.clone(),
        );
        r.register(
            "proxies_unreachable",
            "Proxies that couldn't be asked at the last attempt",
            m.proxies_unreachable.clone(),
        );
        r.register(
            "document_bytes",
            "Size of the published document",
            m.document_bytes.clone(),
        );
        r.register(
            "document_parts",
            "ConfigMaps that hold the published document",
            m.document_parts.clone(),
        );
        r.register(
            "document_rules",
            "Rules of the published document",
            m.document_rules.clone(),
        );
        m
    }

    /// One round is over.
    pub(crate) fn round(&self, part: &'static str, took: Duration, ok: bool) {
        let result = if ok { "ok" } else { "error" };
        self.reconciles
            .get_or_create(&vec![("part", part), ("result", result)])
            .inc();
        self.seconds
            .get_or_create(&vec![("part", part)])
            .observe(took.as_secs_f64());
    }

    /// Something was written.
    pub(crate) fn write(&self, object: &'static str) {
        self.writes.get_or_create(&vec![("object", object)]).inc();
    }

    /// A call failed.
    pub(crate) fn error(&self, what: &'static str) {
        self.errors.get_or_create(&vec![("what", what)]).inc();
    }

    /// How many policies are in a phase.
    pub(crate) fn phase(&self, phase: &'static str, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.phases
            .get_or_create(&vec![("phase", phase)])
            .set(count);
    }

    /// The text that Prometheus scrapes.
    ///
    /// # Errors
    /// When it can't be formatted.
    pub(crate) fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
