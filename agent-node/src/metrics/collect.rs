//! Adds up the workers' counters, and writes them and others' samples for Prometheus.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::counter::{Counter, DECISIONS, DIRECTIONS, Described, Gauge, REASONS};
use super::{DURATION_BOUNDS, WorkerMetrics};

/// One value that somebody else keeps, read at scrape.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The name without `agent_network_`; a counter's without `_total`.
    pub name: &'static str,
    /// What it means.
    pub help: &'static str,
    /// Whether it only grows.
    pub counter: bool,
    /// Values by labels; the label names are the same for all.
    pub values: Vec<(Vec<(&'static str, String)>, u64)>,
}

impl Sample {
    /// A gauge without labels.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Sample {
        Sample {
            name,
            help,
            counter: false,
            values: vec![(Vec::new(), value)],
        }
    }

    /// A counter without labels.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Sample {
        Sample {
            counter: true,
            ..Sample::gauge(name, help, value)
        }
    }
}

#[derive(Debug)]
pub(super) struct Workers(pub(super) Arc<[WorkerMetrics]>);

#[derive(Debug)]
pub(super) struct Samples(pub(super) Vec<Sample>);

impl Collector for Workers {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let all = Counter::ALL.iter().map(|counter| {
            (
                counter.describe(),
                self.sum(|set| &set.counters[*counter as usize]),
            )
        });
        families(&mut encoder, MetricType::Counter, all)?;
        let all = Gauge::ALL.iter().map(|gauge| {
            (
                gauge.describe(),
                self.sum(|set| &set.gauges[*gauge as usize]),
            )
        });
        families(&mut encoder, MetricType::Gauge, all)?;
        self.decisions(&mut encoder)?;
        self.durations(&mut encoder)
    }
}

impl Workers {
    fn sum(&self, of: impl Fn(&WorkerMetrics) -> &AtomicU64) -> u64 {
        self.0
            .iter()
            .map(|set| of(set).load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }

    fn decisions(&self, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
        let mut family = encoder.encode_descriptor(
            "agent_network_decisions",
            "Decisions by direction, decision and reason",
            None,
            MetricType::Counter,
        )?;
        let mut cell = 0;
        for direction in DIRECTIONS {
            for decision in DECISIONS {
                for reason in REASONS {
                    let count = self.sum(|set| &set.decisions[cell]);
                    cell += 1;
                    if count == 0 {
                        continue;
                    }
                    let labels = [
                        ("direction", direction.as_str()),
                        ("decision", decision.as_str()),
                        ("reason", reason.as_str()),
                    ];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }

    fn durations(&self, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
        let mut buckets = Vec::with_capacity(DURATION_BOUNDS.len() + 1);
        let mut count = 0;
        for i in 0..=DURATION_BOUNDS.len() {
            let n = self.sum(|set| &set.durations[i]);
            count += n;
            buckets.push((DURATION_BOUNDS.get(i).copied().unwrap_or(f64::INFINITY), n));
        }
        let micros = self.sum(|set| &set.duration_micros);
        let mut histogram = encoder.encode_descriptor(
            "agent_network_request_duration_seconds",
            "Time from a request's first byte to the end of its response",
            None,
            MetricType::Histogram,
        )?;
        // Precise to a microsecond for 285 years of requests.
        let seconds = micros as f64 / 1e6;
        histogram.encode_histogram::<NoLabelSet>(seconds, count, &buckets, None)
    }
}

/// Writes values whose families stand together, each family under one descriptor.
fn families(
    encoder: &mut DescriptorEncoder,
    kind: MetricType,
    values: impl Iterator<Item = (Described, u64)>,
) -> Result<(), fmt::Error> {
    let mut values = values.peekable();
    while let Some(((name, help, _), _)) = values.peek().copied() {
        let full = format!("agent_network_{name}");
        let mut family = encoder.encode_descriptor(&full, help, None, kind)?;
        while let Some(((_, _, label), value)) = values.next_if(|((next, ..), _)| *next == name) {
            let labels: Vec<(&str, &str)> = label.into_iter().collect();
            let metric = family.encode_family(&labels)?;
            match kind {
                MetricType::Gauge => ConstGauge::new(value).encode(metric)?,
                _ => ConstCounter::new(value).encode(metric)?,
            }
        }
    }
    Ok(())
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for sample in &self.0 {
            let name = format!("agent_network_{}", sample.name);
            let kind = if sample.counter {
                MetricType::Counter
            } else {
                MetricType::Gauge
            };
            let mut family = encoder.encode_descriptor(&name, sample.help, None, kind)?;
            for (labels, value) in &sample.values {
                let metric = family.encode_family(labels)?;
                if sample.counter {
                    ConstCounter::new(*value).encode(metric)?;
                } else {
                    ConstGauge::new(*value).encode(metric)?;
                }
            }
        }
        Ok(())
    }
}
