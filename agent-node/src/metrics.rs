//! Counters of the proxy: one set per worker, added up at scrape.
//!
//! Owns the names, help texts and labels of `agent_network_*`. A worker adds to its own cache
//! lines; nobody else writes them. Labels come from closed enums only, so the number of series is
//! bounded. Doesn't own what is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agent_core::audit::AuditRecord;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

mod collect;
mod counter;

pub use collect::Sample;
pub use counter::{Counter, Gauge};

use counter::{DECISIONS, DIRECTIONS, REASONS};

/// Upper bounds, in seconds, of the request duration histogram: a cached DNS answer to a long SSE.
pub const DURATION_BOUNDS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 300.0,
];

/// All counters of the process.
pub struct Metrics {
    sets: Arc<[WorkerMetrics]>,
}

/// What one worker counts; on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub struct WorkerMetrics {
    counters: [AtomicU64; Counter::COUNT],
    gauges: [AtomicU64; Gauge::COUNT],
    decisions: Box<[AtomicU64]>,
    durations: [AtomicU64; DURATION_BOUNDS.len() + 1],
    duration_micros: AtomicU64,
}

impl Metrics {
    /// Counters for `workers` workers, and one set for the rest of the process.
    pub fn new(workers: u16) -> Metrics {
        Metrics {
            sets: (0..=workers).map(|_| WorkerMetrics::new()).collect(),
        }
    }

    /// The counters of worker `index`.
    pub fn worker(&self, index: u16) -> &WorkerMetrics {
        // The process's own set is the first, so an index past the end falls on that.
        self.sets
            .get(usize::from(index) + 1)
            .unwrap_or(&self.sets[0])
    }

    /// The counters of what no worker does.
    pub fn process(&self) -> &WorkerMetrics {
        &self.sets[0]
    }

    /// The sum of a counter over all workers.
    pub fn total(&self, counter: Counter) -> u64 {
        self.sets.iter().map(|set| set.get(counter)).sum()
    }

    /// The Prometheus text of all counters and of `samples`, which others keep.
    ///
    /// # Errors
    /// When the encoder fails.
    pub fn encode(&self, samples: Vec<Sample>) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(collect::Workers(self.sets.clone())));
        registry.register_collector(Box::new(collect::Samples(samples)));
        let mut text = String::with_capacity(16 * 1024);
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl WorkerMetrics {
    fn new() -> WorkerMetrics {
        let cells = DIRECTIONS.len() * DECISIONS.len() * REASONS.len();
        WorkerMetrics {
            counters: std::array::from_fn(|_| AtomicU64::new(0)),
            gauges: std::array::from_fn(|_| AtomicU64::new(0)),
            decisions: (0..cells).map(|_| AtomicU64::new(0)).collect(),
            durations: std::array::from_fn(|_| AtomicU64::new(0)),
            duration_micros: AtomicU64::new(0),
        }
    }

    /// Adds one.
    pub fn inc(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds `n`.
    pub fn add(&self, counter: Counter, n: u64) {
        self.counters[counter as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// The counter's value on this worker.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Ordering::Relaxed)
    }

    /// One more of what `gauge` shows, until the returned guard is dropped.
    pub fn hold(&self, gauge: Gauge) -> Held<'_> {
        self.gauges[gauge as usize].fetch_add(1, Ordering::Relaxed);
        Held { set: self, gauge }
    }

    /// Counts a decision by direction, decision and reason.
    pub fn decision(&self, record: &AuditRecord) {
        if let Some(cell) = counter::decision_cell(record) {
            self.decisions[cell].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts how long a request took, from its first byte to the end of its response.
    pub fn request_took(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = DURATION_BOUNDS.partition_point(|bound| *bound < seconds);
        self.durations[bucket].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.duration_micros.fetch_add(micros, Ordering::Relaxed);
    }
}

/// Something that exists now and is shown by a gauge.
#[derive(Debug)]
pub struct Held<'a> {
    set: &'a WorkerMetrics,
    gauge: Gauge,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.set.gauges[self.gauge as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
