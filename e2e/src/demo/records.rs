//! What is left behind: audit lines, counters, and no secret anywhere.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::Value;

use super::{Stage, ensure};

/// An audit line in short, for people.
pub(super) fn line(l: &Value) -> String {
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    let mut out = format!(
        "{} {} {}",
        text(&l["direction"]),
        text(&l["decision"]),
        text(&l["reason"])
    );
    out += &format!(
        " pod={}/{}",
        text(&l["pod"]["namespace"]),
        text(&l["pod"]["name"])
    );
    for (name, value) in [
        ("host", &l["destination"]["host"]),
        ("ip", &l["destination"]["ip"]),
        ("port", &l["destination"]["port"]),
        ("rule", &l["rule"]),
        ("policy", &l["policy"]),
        ("status", &l["status"]),
        ("detail", &l["detail"]),
    ] {
        if !value.is_null() {
            out += &format!(" {name}={}", text(value));
        }
    }
    out
}

/// Whether an audit line has this reason code.
pub(super) fn reason_is(l: &Value, code: &str) -> bool {
    l["reason"] == code
}

pub(super) fn audit(stage: &mut Stage) -> Result<()> {
    let Stage { node, say, .. } = stage;
    let lines = node.audit()?;
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for l in &lines {
        *kinds
            .entry(l["reason"].as_str().unwrap_or("?").to_owned())
            .or_default() += 1;
        let fields = [
            "schema_version",
            "time",
            "request_id",
            "direction",
            "pod",
            "destination",
            "decision",
            "reason",
            "policy_version",
        ];
        let missing: Vec<_> = fields.iter().filter(|f| l[**f].is_null()).collect();
        ensure(
            missing.is_empty(),
            &format!("an audit line lacks {missing:?}: {l}"),
        )?;
    }
    for (reason, count) in &kinds {
        say.saw("", &format!("{count:>4}  {reason}"));
    }
    if let Some(whole) = lines
        .iter()
        .find(|l| reason_is(l, "CREDENTIAL_INJECTED_BY_ZEROPROXY"))
    {
        say.saw("one whole", &whole.to_string());
    }
    ensure(
        kinds.len() >= 8,
        "there are fewer kinds of audit lines than steps",
    )
}

pub(super) fn counters(stage: &mut Stage) -> Result<()> {
    let Stage { node, say, .. } = stage;
    let text = node.metrics()?;
    let interesting = text.lines().filter(|l| {
        !l.starts_with('#')
            && !l.ends_with(" 0")
            && (l.contains("decision") || l.contains("reason=") || l.contains("drop"))
    });
    for l in interesting.take(40) {
        say.saw("", l);
    }
    for reason in ["udp", "icmp"] {
        let label = format!("reason=\"{reason}\"");
        let drops = text
            .lines()
            .any(|l| l.contains(&label) && !l.ends_with(" 0"));
        ensure(
            drops,
            &format!("no counter has the {reason} packets that were dropped"),
        )?;
    }
    Ok(())
}

pub(super) fn secrets(stage: &mut Stage) -> Result<()> {
    let Stage {
        node,
        planner,
        untrusted,
        say,
    } = stage;
    let found = node.leaked_secrets()?;
    ensure(found.is_empty(), &format!("a secret is in {found:?}"))?;
    say.saw(
        "searched",
        "all output of all programs, audit lines, plugin state, all packets at both pods: nothing",
    );
    for pod in [&*planner, &*untrusted] {
        let files = pod.sh("ls /run/agent-network /var/lib/tke-agent-network /sys/fs/bpf/agent-network 2>/dev/null | wc -l")?;
        ensure(files.stdout.trim() == "0", "a pod sees the node's files")?;
        let found = pod
            .place()
            .log(&format!("pod-side-{}", pod.spec.name))
            .with_extension("pcap");
        ensure(
            found.metadata().is_ok_and(|m| m.len() > 24),
            "the capture at the pod is empty",
        )?;
    }
    Ok(())
}
