use super::*;
use std::collections::BTreeMap;

fn workload() -> Workload {
    Workload {
        namespace: "agents".into(),
        name: "coder-0".into(),
        uid: "u-1".into(),
        service_account: Some("coder".into()),
        labels: BTreeMap::new(),
        namespace_labels: BTreeMap::new(),
        fake_ip: Ipv4Addr::new(169, 254, 9, 2),
    }
}

fn line(record: &AuditRecord<'_>) -> String {
    let mut buffer = b"earlier\n".to_vec();
    record.write_line(&mut buffer).unwrap();
    let text = String::from_utf8(buffer).unwrap();
    text.strip_prefix("earlier\n").unwrap().to_owned()
}

const TIME: &str = "2026-11-30T10:34:56.000001Z";

#[test]
fn an_allowed_request_reads_like_this() {
    let workload = workload();
    let mut record = AuditRecord::new(
        TIME,
        "r-1",
        Direction::Egress,
        AuditPod::from(&workload),
        Decision::Allow,
        ReasonCode::CredentialInjected,
        "sha256:0",
    );
    record.destination = AuditDestination {
        host: Some("git.internal.example.com".into()),
        ip: Some(IpAddr::from([192, 0, 2, 7])),
        port: Some(80),
        protocol: Some("http".into()),
        method: Some("GET".into()),
        path_without_query: Some("/repo/info/refs".into()),
    };
    record.rule = Some("private-git".into());
    record.policy = Some("tke-agent-network-real/coding".into());
    record.status = Some(200);
    record.bytes_in = Some(12);
    record.bytes_out = Some(3456);
    record.duration_us = Some(789);
    assert_eq!(
        line(&record),
        concat!(
            r#"{"schema_version":1,"time":"2026-11-30T10:34:56.000001Z","request_id":"r-1","direction":"egress","#,
            r#""pod":{"namespace":"agents","name":"coder-0","uid":"u-1","service_account":"coder","fake_ip":"169.254.9.2"},"#,
            r#""destination":{"host":"git.internal.example.com","ip":"192.0.2.7","port":80,"protocol":"http","method":"GET","path_without_query":"/repo/info/refs"},"#,
            r#""decision":"allow","reason":"CREDENTIAL_INJECTED_BY_ZEROPROXY","rule":"private-git","policy":"tke-agent-network-real/coding","#,
            r#""policy_version":"sha256:0","status":200,"bytes_in":12,"bytes_out":3456,"duration_us":789}"#,
            "\n"
        )
    );
}

#[test]
fn a_denial_of_an_unknown_source_reads_like_this() {
    let mut record = AuditRecord::new(
        TIME,
        "r-2",
        Direction::Bypass,
        AuditPod::unknown(Ipv4Addr::new(169, 254, 9, 9)),
        Decision::Deny,
        ReasonCode::UnknownSourceDenied,
        "sha256:0",
    );
    record.destination.ip = Some(IpAddr::from([169, 254, 9, 3]));
    record.detail = Some("no \"state\"\nentry".into());
    assert_eq!(
        line(&record),
        concat!(
            r#"{"schema_version":1,"time":"2026-11-30T10:34:56.000001Z","request_id":"r-2","direction":"bypass","#,
            r#""pod":{"namespace":"","name":"","uid":"","fake_ip":"169.254.9.9"},"destination":{"ip":"169.254.9.3"},"#,
            r#""decision":"deny","reason":"UNKNOWN_SOURCE_DENIED_BY_ZEROPROXY","policy_version":"sha256:0","#,
            r#""detail":"no \"state\"\nentry"}"#,
            "\n"
        )
    );
}

#[test]
fn what_audit_mode_would_have_denied_reads_like_this() {
    let denial = Denial {
        reason: ReasonCode::EgressDenied,
        rule: Some("no-db".into()),
        policy: Some("a/b".into()),
        message: "never in the line".into(),
    };
    let mut record = AuditRecord::new(
        TIME,
        "r-3",
        Direction::Egress,
        AuditPod::unknown(Ipv4Addr::new(169, 254, 9, 9)),
        Decision::WouldDeny,
        ReasonCode::EgressAllowed,
        "sha256:0",
    );
    record.would_deny = Some(AuditWouldDeny::from(&denial));
    let text = line(&record);
    assert!(
        text.contains(
            r#""would_deny":{"reason":"EGRESS_DENIED_BY_POLICY","rule":"no-db","policy":"a/b"}"#
        ),
        "{text}"
    );
    assert!(!text.contains("never in the line"));
}

#[test]
fn lines_are_read_back() {
    let workload = workload();
    let record = AuditRecord::new(
        TIME,
        "r-4",
        Direction::Dns,
        AuditPod::from(&workload),
        Decision::Deny,
        ReasonCode::DnsDenied,
        "sha256:0",
    );
    let text = line(&record);
    assert_eq!(text.matches('\n').count(), 1);
    assert_eq!(
        serde_json::from_str::<AuditRecord<'static>>(&text).unwrap(),
        record
    );
}
