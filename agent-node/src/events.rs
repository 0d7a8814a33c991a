//! What the kernel program dropped: events as audit lines, counters as metrics.
//!
//! Owns reading both from the pinned maps, again when the maps are other ones. The kernel limits
//! events per pod already; the limit here keeps one pod's drops from filling the audit log.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use agent_core::attachment::Mode;
use agent_core::audit::{AuditDestination, AuditPod, AuditRecord, Decision, Direction, ReasonCode};
use agent_core::time::Timestamp;
use agent_datapath::events::{Drop as Dropped, DropEvents};
use agent_datapath::pins::Pins;
use agent_datapath::plane::Plane;
use tokio::sync::watch;

use crate::context::Context;
use crate::listener::DataPath;
use crate::metrics::{Counter, Sample};

mod totals;

use totals::{Row, Totals};

/// Audit lines of one pod's drops in a second; the counters have the rest.
const LINES_PER_SECOND: f64 = 10.0;
/// Lines that a pod which was quiet may have at once.
const BURST: f64 = 30.0;
/// Pods whose rate is remembered; when there are more, those that are quiet are forgotten.
const MAX_RATES: usize = 4096;
/// How often counters are read, so that a deleted pod's are not lost.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// How long to wait after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Follows the data path's events and counters.
pub struct Kernel {
    context: Arc<Context>,
    pins: Pins,
    totals: Mutex<Totals>,
}

impl Kernel {
    /// For the node of `context`.
    pub fn new(context: Arc<Context>) -> Kernel {
        Kernel {
            pins: Pins::new(&context.config.pin_dir),
            context,
            totals: Mutex::default(),
        }
    }

    /// Writes drop events as audit lines for as long as it is polled.
    pub async fn follow_events(&self, mut data_path: watch::Receiver<DataPath>) {
        let mut rates = Rates::default();
        loop {
            let attached = data_path.wait_for(|state| !matches!(state, DataPath::Away(_)));
            let Ok(state) = attached.await.map(|state| state.clone()) else {
                return;
            };
            let mode = match state {
                DataPath::Redirected(_) => Mode::IptablesCompat,
                DataPath::Attached(_) | DataPath::Away(_) => Mode::Ebpf,
            };
            match DropEvents::open_mode(mode, &self.pins) {
                Ok(mut events) => loop {
                    let event = tokio::select! {
                        event = events.next() => event,
                        // The maps are others now, and so is the ring buffer.
                        _ = data_path.wait_for(|now| *now != state) => break,
                    };
                    match event {
                        Ok(event) => report(&self.context, &mut rates, &event),
                        Err(error) => {
                            tracing::error!(error = %crate::telemetry::chain(&error), "kernel drop events can't be read");
                            tokio::time::sleep(RETRY).await;
                            break;
                        }
                    }
                },
                // Also while the process before this one still reads the log.
                Err(error) => {
                    tracing::warn!(error = %crate::telemetry::chain(&error), "kernel drop events can't be opened");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    fn mode(&self) -> Mode {
        let node = self.context.nets.node();
        Option::as_ref(&node).map_or(Mode::Ebpf, |node| node.mode)
    }

    /// Reads the counters now and then for as long as it is polled.
    pub async fn follow_counters(&self) {
        loop {
            tokio::time::sleep(COUNT_EVERY).await;
            self.read_counters();
        }
    }

    /// Packets and bytes by what the kernel program did with them, as of now.
    pub fn samples(&self) -> Vec<Sample> {
        self.read_counters();
        self.lock().samples()
    }

    fn read_counters(&self) {
        // Without a data path there is nothing to count; the registrar says so.
        let Ok(plane) = Plane::open(self.mode(), &self.pins) else {
            return;
        };
        match plane.counters() {
            Ok(rows) => self.lock().take_in(rows.iter().map(|row| Row {
                reason: row.reason.as_str(),
                packets: row.packets,
                bytes: row.bytes,
            })),
            Err(error) => {
                tracing::warn!(error = %crate::telemetry::chain(&error), "kernel counters can't be read");
            }
        }
    }

    /// A panic while holding the lock leaves sums that are each whole.
    fn lock(&self) -> std::sync::MutexGuard<'_, Totals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn report(context: &Context, rates: &mut Rates, event: &Dropped) {
    if !rates.allow(event.ifindex, Instant::now()) {
        context.metrics.process().inc(Counter::KernelEventsShed);
        return;
    }
    // The interface says who sent it; the packet's source address is what may be forged.
    let known = context.workloads.at_interface(event.ifindex);
    let source = event.src.unwrap_or(std::net::Ipv4Addr::UNSPECIFIED);
    let pod = match &known {
        Some(known) => AuditPod::from(&known.workload),
        None => AuditPod::unknown(source),
    };
    let time = event.time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let policy = context.policy.peek();
    let record = AuditRecord {
        destination: AuditDestination {
            ip: event.dst.map(Into::into),
            port: (event.dport != 0).then_some(event.dport),
            protocol: Some(protocol_name(event).into()),
            ..AuditDestination::default()
        },
        bytes_in: Some(u64::from(event.len)),
        detail: Some(detail(event, known.is_some()).into()),
        ..AuditRecord::new(
            Timestamp::from_duration(time).to_string(),
            format!("{:016x}", fastrand::u64(..)),
            Direction::Kernel,
            pod,
            Decision::Deny,
            ReasonCode::KernelDrop,
            policy.version.as_str(),
        )
    };
    context.metrics.process().decision(&record);
    context.audit.record(&record);
}

fn detail(event: &Dropped, known: bool) -> String {
    let mut text = event.reason.as_str().to_owned();
    if !known {
        text.push_str(&format!("; interface {} of no known pod", event.ifindex));
    }
    if event.suppressed > 0 {
        text.push_str(&format!("; {} more were not reported", event.suppressed));
    }
    text
}

/// The protocol's name as an operator knows it (IANA "Protocol Numbers", "EtherTypes").
fn protocol_name(event: &Dropped) -> &'static str {
    const ARP: u16 = 0x0806;
    const IPV6: u16 = 0x86dd;
    match (event.ethertype, event.proto) {
        (ARP, _) => "arp",
        (IPV6, _) => "ipv6",
        (_, 1) => "icmp",
        (_, 6) => "tcp",
        (_, 17) => "udp",
        (_, 132) => "sctp",
        _ => "other",
    }
}

/// A token bucket for each interface.
#[derive(Default)]
struct Rates(HashMap<u32, (f64, Instant)>);

impl Rates {
    fn allow(&mut self, ifindex: u32, now: Instant) -> bool {
        if self.0.len() >= MAX_RATES && !self.0.contains_key(&ifindex) {
            self.0
                .retain(|_, (_, at)| now.duration_since(*at) < Duration::from_secs(10));
            if self.0.len() >= MAX_RATES {
                return false;
            }
        }
        let (tokens, at) = self.0.entry(ifindex).or_insert((BURST, now));
        let gained = now.saturating_duration_since(*at).as_secs_f64() * LINES_PER_SECOND;
        *tokens = (*tokens + gained).min(BURST);
        *at = now;
        if *tokens < 1.0 {
            return false;
        }
        *tokens -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pods_drops_do_not_fill_the_log_and_do_not_silence_another() {
        let mut rates = Rates::default();
        let start = Instant::now();
        let lines = (0..1000).filter(|_| rates.allow(7, start)).count();
        assert_eq!(lines, 30);
        assert!(rates.allow(8, start));
        let later = start + Duration::from_secs(1);
        let lines = (0..1000).filter(|_| rates.allow(7, later)).count();
        assert_eq!(lines, 10);
    }
}
