//! The product's three demo agents: one that codes, one that retrieves, and several that call each other.

use anyhow::Result;

use super::egress::status;
use super::records::{line, reason_is};
use super::{Marker, Stage, ensure};
use crate::place::Finished;
use crate::pod::Pod;

/// A call to `agent-server` in the name of `caller`. The address is one that leads nowhere: the proxy goes by the name.
fn call(pod: &Pod, caller: &str) -> Result<Finished> {
    let claim = format!("X-Agent-Caller: {caller}");
    pod.curl(&[
        "--resolve",
        "agent-server:80:203.0.113.99",
        "-H",
        "X-Agent-Target: agent-server",
        "-H",
        &claim,
        "http://agent-server/task",
    ])
}

pub(super) fn gateway(stage: &mut Stage) -> Result<()> {
    let Stage {
        node,
        planner,
        untrusted,
        say,
    } = stage;
    let done = call(planner, "sa:agents:planner")?;
    say.ran("planner", &done);
    ensure(
        status(&done) == Some(200),
        "the allowed call didn't get through",
    )?;
    let seen = node.outside.requests_to("agent-server")?;
    let Some(seen) = seen.last() else {
        anyhow::bail!("the target saw nothing")
    };
    say.saw(
        "target",
        &format!("{}, caller {}", seen.request, seen.caller),
    );
    ensure(
        seen.caller == "sa:agents:planner",
        "the target didn't get the verified caller",
    )?;
    let audit = node.audit_line("that the call was allowed", |l| {
        reason_is(l, "INGRESS_ALLOWED_BY_ZEROPROXY")
    })?;
    say.saw("audit", &line(&audit));
    say.proved(Marker::IngressAllowed);

    let calls = node.outside.requests_to("agent-server")?.len();
    let done = call(untrusted, "sa:agents:untrusted")?;
    say.ran("untrusted", &done);
    ensure(status(&done) == Some(403), "the denied call wasn't refused")?;
    let audit = node.audit_line("that the call was denied", |l| {
        reason_is(l, "INGRESS_DENIED_BY_ZEROPROXY")
    })?;
    say.saw("audit", &line(&audit));
    ensure(
        node.outside.requests_to("agent-server")?.len() == calls,
        "the target got the denied call",
    )?;
    say.proved(Marker::IngressDenied);

    let done = call(untrusted, "sa:agents:planner")?;
    say.ran("untrusted", &done);
    ensure(
        status(&done) == Some(403),
        "a call in somebody else's name wasn't refused",
    )?;
    let audit = node.audit_line("that the name was wrong", |l| {
        reason_is(l, "IDENTITY_MISMATCH")
    })?;
    say.saw("audit", &line(&audit));
    ensure(
        node.outside.requests_to("agent-server")?.len() == calls,
        "the target got the call in somebody else's name",
    )?;
    say.saw("target", "nothing");
    say.proved(Marker::MultiAgentGateway);
    Ok(())
}

pub(super) fn coding(stage: &mut Stage) -> Result<()> {
    let Stage {
        node, planner, say, ..
    } = stage;
    let clone = "cd /tmp && GIT_TERMINAL_PROMPT=0 git clone -q http://";
    let done = planner.sh(&format!(
        "{clone}git.example.com/public.git && cat public/README"
    ))?;
    say.ran("pod", &done);
    ensure(
        done.stdout.contains("this is public"),
        "the public repository wasn't cloned",
    )?;
    let done = planner.sh(&format!(
        "{clone}git.internal.example.com/private.git && cat private/README && cd private && \
         echo more >> README && git -c user.name=a -c user.email=a@example.com commit -qam more && git push -q && echo pushed"
    ))?;
    say.ran("pod", &done);
    ensure(
        done.stdout.contains("this is private"),
        "the private repository wasn't cloned",
    )?;
    ensure(done.stdout.contains("pushed"), "the push failed")?;
    let seen = node.outside.requests_to("git.internal.example.com")?;
    ensure(
        !seen.is_empty() && seen.iter().all(|s| s.auth == "right"),
        "a request came without the credential",
    )?;
    say.saw(
        "upstream",
        &format!(
            "{} requests to git.internal.example.com, each with the right credential",
            seen.len()
        ),
    );
    let config = planner.sh("cat ~/.gitconfig /tmp/private/.git/config 2>/dev/null; env")?;
    ensure(
        !config.all().contains(&node.secrets.repo_token),
        "the pod has the credential",
    )?;
    let refused = planner
        .sh("curl -sS -o /dev/null --max-time 5 http://prod-db.internal.example.com/ 2>&1")?;
    say.ran("pod", &refused);
    ensure(
        node.outside
            .requests_to("prod-db.internal.example.com")?
            .is_empty(),
        "the database was reached",
    )?;
    say.proved(Marker::CodingAgent);
    Ok(())
}

pub(super) fn rag(stage: &mut Stage) -> Result<()> {
    let Stage {
        node, planner, say, ..
    } = stage;
    let script = "import requests; r = requests.post('http://vector-db.internal.example.com/query', json={'q': 'fake ip'}, timeout=10); \
                  print(r.status_code, r.json())";
    let done = planner.place().run(&["/usr/bin/python3", "-c", script])?;
    say.ran("pod", &done);
    ensure(
        done.stdout.starts_with("200 ") && done.stdout.contains("agent-network"),
        "the query failed",
    )?;
    let seen = node.outside.requests_to("vector-db.internal.example.com")?;
    ensure(
        seen.iter().all(|s| s.auth == "right") && !seen.is_empty(),
        "the API key didn't arrive",
    )?;
    say.saw("upstream", "POST /query, X-Api-Key: right");
    let audit = node.audit_line("that the key was set", |l| {
        reason_is(l, "CREDENTIAL_INJECTED_BY_ZEROPROXY") && l["rule"] == "vector-db"
    })?;
    say.saw("audit", &line(&audit));
    say.proved(Marker::RagAgent);
    Ok(())
}
