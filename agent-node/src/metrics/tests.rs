use std::net::Ipv4Addr;

use agent_core::audit::{AuditPod, Decision, Direction, ReasonCode};

use super::*;

#[test]
fn workers_are_added_up_and_families_stand_together() {
    let metrics = Metrics::new(2);
    metrics.worker(0).add(Counter::BytesToPod, 40);
    metrics.worker(1).add(Counter::BytesToPod, 2);
    metrics.process().inc(Counter::Registrations);
    let held = metrics.worker(1).hold(Gauge::ProxyConnections);
    let text = metrics
        .encode(vec![Sample::gauge("pods", "Pods", 3)])
        .unwrap();
    for line in [
        "agent_network_relayed_bytes_total{direction=\"to_pod\"} 42",
        "agent_network_listener_registrations_total 1",
        "agent_network_connections_open{class=\"proxy_tcp\"} 1",
        "agent_network_pods 3",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
    }
    let mut families: Vec<&str> = text.lines().filter(|l| l.starts_with("# TYPE")).collect();
    let all = families.len();
    families.sort_unstable();
    families.dedup();
    assert_eq!(families.len(), all, "a family is described twice:\n{text}");
    drop(held);
    let text = metrics.encode(Vec::new()).unwrap();
    assert!(
        text.contains("agent_network_connections_open{class=\"proxy_tcp\"} 0"),
        "{text}"
    );
}

#[test]
fn decisions_are_counted_by_direction_decision_and_reason() {
    let metrics = Metrics::new(1);
    let record = AuditRecord::new(
        "t",
        "id",
        Direction::Bypass,
        AuditPod::unknown(Ipv4Addr::LOCALHOST),
        Decision::Deny,
        ReasonCode::DirectBypassDenied,
        "v",
    );
    metrics.worker(0).decision(&record);
    metrics.process().decision(&record);
    let text = metrics.encode(Vec::new()).unwrap();
    let line = "agent_network_decisions_total{direction=\"bypass\",decision=\"deny\",reason=\"DIRECT_BYPASS_DENIED_BY_ZEROPROXY\"} 2";
    assert!(text.contains(line), "{text}");
}

#[test]
fn durations_fall_into_buckets_with_a_sum_in_seconds() {
    let metrics = Metrics::new(1);
    metrics.worker(0).request_took(Duration::from_millis(1));
    metrics.worker(0).request_took(Duration::from_millis(70));
    metrics.worker(0).request_took(Duration::from_secs(3600));
    let text = metrics.encode(Vec::new()).unwrap();
    for line in [
        "agent_network_request_duration_seconds_bucket{le=\"0.001\"} 1",
        "agent_network_request_duration_seconds_bucket{le=\"0.1\"} 2",
        "agent_network_request_duration_seconds_bucket{le=\"300.0\"} 2",
        "agent_network_request_duration_seconds_bucket{le=\"+Inf\"} 3",
        "agent_network_request_duration_seconds_count 3",
        "agent_network_request_duration_seconds_sum 3600.071",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}
