//! What a policy's status says. Pure: from what the policy compiled to and what the proxies said.
//!
//! A policy is enforced by a proxy when the proxy's document is not older than the one that the policy's content came with.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_api::policy::{PolicyPhase, PolicyStatus};
use agent_api::status::NodeCount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::policy_reconciler::{Outcome, View};
use crate::reload::Proxy;

/// How long a changed policy has no status of its own yet: mostly all proxies have it by then.
const FIRST_WORD_AFTER: Duration = Duration::from_secs(1);
/// Most nodes that a message names.
const NAMED: usize = 3;

/// What all policies have in common: the proxies, by what they have.
pub(crate) struct Nodes<'a> {
    total: usize,
    /// The ready ones, with the number of their document; the one that is furthest behind first.
    ready: Vec<(Option<u64>, &'a Proxy)>,
    not_ready: Vec<&'a str>,
    /// Credentials that some ready proxy can't read: the nodes by file.
    unresolved: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

/// What is to be done about a status.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    /// It isn't known yet what to say; ask again.
    Hold,
    /// This is what it has to be, but for the times of its conditions.
    Say(Box<PolicyStatus>),
}

impl<'a> Nodes<'a> {
    /// Sorts the proxies; `history` has the documents' numbers by version.
    pub(crate) fn new(proxies: &'a [Proxy], history: &BTreeMap<String, u64>) -> Self {
        let number = |proxy: &Proxy| history.get(proxy.version.as_deref()?).copied();
        let ready = proxies.iter().filter(|proxy| proxy.ready);
        let mut ready: Vec<_> = ready.map(|proxy| (number(proxy), proxy)).collect();
        ready.sort_by(|a, b| (a.0, &a.1.node).cmp(&(b.0, &b.1.node)));
        let mut unresolved: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (_, proxy) in &ready {
            for file in proxy.unresolved.keys() {
                unresolved.entry(file).or_default().insert(&proxy.node);
            }
        }
        let not_ready = proxies.iter().filter(|proxy| !proxy.ready);
        Self {
            total: proxies.len(),
            ready,
            not_ready: not_ready.map(|proxy| proxy.node.as_str()).collect(),
            unresolved,
        }
    }

    /// How many of the ready ones don't have document `number`.
    fn behind(&self, number: u64) -> usize {
        self.ready
            .partition_point(|(has, _)| has.is_none_or(|has| has < number))
    }

    fn any_unasked(&self) -> bool {
        // whoever was never asked has no number, and those come first
        let unknown = self.ready.iter().take_while(|(number, _)| number.is_none());
        unknown.into_iter().any(|(_, proxy)| !proxy.asked)
    }
}

/// What `view`'s status has to be. `before` is what it is, `since_seen` how long ago its content was first seen.
pub(crate) fn policy(
    view: &View,
    nodes: &Nodes<'_>,
    before: Option<&PolicyStatus>,
    since_seen: Duration,
    degraded_after: Duration,
) -> Verdict {
    let before = before.filter(|status| status.observed_generation == Some(view.generation));
    let compiled = match &view.outcome {
        Outcome::Invalid(why) => return Verdict::Say(Box::new(invalid(view, why, nodes))),
        Outcome::Valid(compiled) => compiled,
    };
    let behind = nodes.behind(view.since);
    let have = nodes.ready.len() - behind;
    let enforced = behind == 0 && have > 0;
    if !enforced && (nodes.any_unasked() || (since_seen < FIRST_WORD_AFTER && before.is_none())) {
        return Verdict::Hold;
    }
    let files: BTreeSet<&str> = compiled.credential_files().collect();
    let missing: Vec<(&str, &BTreeSet<&str>)> = files
        .iter()
        .filter_map(|file| Some((*file, nodes.unresolved.get(file)?)))
        .collect();
    let was_enforced = before
        .and_then(|s| s.phase)
        .is_some_and(|phase| matches!(phase, PolicyPhase::Active | PolicyPhase::Degraded));
    let phase = match (enforced, missing.is_empty()) {
        (true, true) => PolicyPhase::Active,
        (true, false) => PolicyPhase::Degraded,
        (false, _) if have > 0 && (was_enforced || since_seen > degraded_after) => {
            PolicyPhase::Degraded
        }
        (false, _) => PolicyPhase::Pending,
    };
    let waiting = waiting(nodes, behind);
    let lacking = lacking(&missing);
    let message = match (enforced, &lacking) {
        (false, _) => Some(waiting.clone()),
        (true, Some(lacking)) => Some(lacking.clone()),
        (true, None) if nodes.not_ready.is_empty() => None,
        (true, None) => Some(format!(
            "ZeroProxy is not ready on {}; there it will be enforced as soon as it is",
            names(&nodes.not_ready)
        )),
    };
    let programmed = if enforced {
        condition(
            view,
            "Programmed",
            "True",
            "Enforced",
            "every ready ZeroProxy enforces it",
        )
    } else {
        let reason = if nodes.ready.is_empty() {
            "NoProxy"
        } else {
            "Waiting"
        };
        condition(view, "Programmed", "False", reason, &waiting)
    };
    let resolved = match (&lacking, files.is_empty(), enforced) {
        (Some(lacking), _, _) => {
            condition(view, "CredentialsResolved", "False", "Missing", lacking)
        }
        (None, true, _) => condition(
            view,
            "CredentialsResolved",
            "True",
            "NoneNeeded",
            "it names no credential",
        ),
        (None, false, true) => {
            let says = "every ready ZeroProxy can read them";
            condition(view, "CredentialsResolved", "True", "Resolved", says)
        }
        (None, false, false) => {
            let says = "not every ready ZeroProxy has said so yet";
            condition(view, "CredentialsResolved", "Unknown", "Waiting", says)
        }
    };
    let rules = i64::try_from(compiled.rule_count()).unwrap_or(i64::MAX);
    let kept = before.filter(|status| status.phase != Some(PolicyPhase::Invalid));
    let version = kept.and_then(|status| status.policy_version.clone());
    Verdict::Say(Box::new(PolicyStatus {
        phase: Some(phase),
        observed_generation: Some(view.generation),
        conditions: vec![
            condition(view, "Accepted", "True", "Valid", "it compiles"),
            programmed,
            resolved,
        ],
        nodes: Some(count(have, nodes.total)),
        rules: Some(rules),
        policy_version: Some(version.unwrap_or_else(|| view.since_version.clone())),
        message,
    }))
}

fn invalid(view: &View, why: &str, nodes: &Nodes<'_>) -> PolicyStatus {
    let out = "it is left out; what it would have allowed is denied";
    PolicyStatus {
        phase: Some(PolicyPhase::Invalid),
        observed_generation: Some(view.generation),
        conditions: vec![
            condition(view, "Accepted", "False", "Invalid", why),
            condition(view, "Programmed", "False", "Invalid", out),
            condition(view, "CredentialsResolved", "Unknown", "Invalid", out),
        ],
        nodes: Some(count(0, nodes.total)),
        rules: Some(0),
        policy_version: None,
        message: Some(cut(why, 32_000)),
    }
}

fn count(ready: usize, total: usize) -> NodeCount {
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    NodeCount::new(number(ready), number(total))
}

/// Who is waited for, and why.
fn waiting(nodes: &Nodes<'_>, behind: usize) -> String {
    if nodes.total == 0 {
        return "no node runs ZeroProxy; label a node for it, or look at its DaemonSet".to_owned();
    }
    if nodes.ready.is_empty() {
        return format!("no ZeroProxy is ready ({})", names(&nodes.not_ready));
    }
    let late = nodes.ready.iter().take(behind);
    let said: Vec<String> = late
        .clone()
        .take(NAMED)
        .map(|(_, proxy)| match &proxy.problem {
            Some(problem) => format!("{}: {}", proxy.node, cut(problem, 500)),
            None => format!("{}: the ConfigMap is not projected yet", proxy.node),
        })
        .collect();
    let more = match behind.saturating_sub(NAMED) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!("not enforced yet on {}{more}", said.join("; "))
}

/// Which credentials can't be read.
fn lacking(missing: &[(&str, &BTreeSet<&str>)]) -> Option<String> {
    let said: Vec<String> = missing
        .iter()
        .take(NAMED)
        .map(|(file, on)| {
            let (secret, key) = file.split_once('/').unwrap_or((file, ""));
            let on: Vec<&str> = on.iter().copied().collect();
            format!("key {key} of Secret {secret} (on {})", names(&on))
        })
        .collect();
    let more = match missing.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!said.is_empty()).then(|| {
        format!(
            "ZeroProxy can't read {}{more}; add it to the Secret. Until then requests that need it are answered 502",
            said.join(", ")
        )
    })
}

fn names(list: &[&str]) -> String {
    let named = list
        .iter()
        .take(NAMED)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    match list.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// At most so many bytes, and never half a character.
fn cut(text: &str, most: usize) -> String {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// A condition whose time is set by [`settle`].
fn condition(view: &View, kind: &str, status: &str, reason: &str, message: &str) -> Condition {
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: cut(message, 32_000),
        observed_generation: Some(view.generation),
        last_transition_time: Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH),
    }
}

/// The conditions with their times: that of before where the status is the same.
pub(crate) fn settle(wanted: &mut [Condition], before: &[Condition], now: &Time) {
    for condition in wanted {
        let old = before.iter().find(|old| old.type_ == condition.type_);
        let same = old.filter(|old| old.status == condition.status);
        let since = same.map_or(now, |old| &old.last_transition_time);
        condition.last_transition_time = since.clone();
    }
}

/// Whether two statuses say the same, whatever their times.
pub(crate) fn says_the_same(wanted: &PolicyStatus, there: Option<&PolicyStatus>) -> bool {
    let Some(there) = there else {
        return false;
    };
    let mut wanted = wanted.clone();
    settle(
        &mut wanted.conditions,
        &there.conditions,
        &Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH),
    );
    wanted == *there
}

#[cfg(test)]
mod tests;
