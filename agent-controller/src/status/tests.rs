use std::sync::Arc;

use agent_api::{CompileOptions, compile_policy, parse_manifests};
use tokio::time::Instant;

use super::*;

const LONG_AGO: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(90);
const CODING: &str = include_str!("../../../chart/examples/coding-agent.yaml");

fn view(since: u64) -> View {
    let policy = &parse_manifests(CODING, agent_api::SYSTEM_NAMESPACE).unwrap()[0];
    let compiled = compile_policy(policy, &CompileOptions::default()).unwrap();
    View {
        uid: "u".to_owned(),
        generation: 3,
        outcome: Outcome::Valid(Arc::new(compiled)),
        since,
        since_version: format!("v{since}"),
        seen: Instant::now(),
    }
}

fn proxy(node: &str, version: &str) -> Proxy {
    Proxy {
        settings: None,
        node: node.to_owned(),
        ready: true,
        version: Some(version.to_owned()),
        asked: true,
        problem: None,
        unreachable: false,
        unresolved: BTreeMap::new(),
    }
}

fn history() -> BTreeMap<String, u64> {
    (0..4).map(|n| (format!("v{n}"), n)).collect()
}

fn say(
    view: &View,
    proxies: &[Proxy],
    before: Option<&PolicyStatus>,
    seen: Duration,
) -> PolicyStatus {
    let history = history();
    match policy(view, &Nodes::new(proxies, &history), before, seen, LIMIT) {
        Verdict::Say(status) => *status,
        Verdict::Hold => panic!("nothing is said"),
    }
}

fn is(status: &PolicyStatus, kind: &str) -> String {
    let found = status.conditions.iter().find(|c| c.type_ == kind);
    found.unwrap().status.clone()
}

#[test]
fn active_is_what_every_ready_proxy_has() {
    let status = say(
        &view(2),
        &[proxy("n1", "v2"), proxy("n2", "v3")],
        None,
        LONG_AGO,
    );
    assert_eq!(status.phase, Some(PolicyPhase::Active));
    assert_eq!(status.nodes.as_ref().unwrap().summary, "2/2");
    assert_eq!((status.rules, status.message.as_deref()), (Some(3), None));
    assert_eq!(status.policy_version.as_deref(), Some("v2"));
    for kind in ["Accepted", "Programmed", "CredentialsResolved"] {
        assert_eq!(is(&status, kind), "True", "{kind}");
    }
}

#[test]
fn a_proxy_that_is_behind_is_named_with_what_it_says() {
    let mut late = proxy("n2", "v1");
    late.problem = Some("it is in 3 parts: part 2 can't be read".to_owned());
    let proxies = [proxy("n1", "v2"), late];
    let status = say(&view(2), &proxies, None, LONG_AGO);
    assert_eq!(status.phase, Some(PolicyPhase::Pending));
    assert_eq!(status.nodes.as_ref().unwrap().summary, "1/2");
    assert!(
        status
            .message
            .as_ref()
            .unwrap()
            .contains("n2: it is in 3 parts"),
        "{status:?}"
    );
    assert_eq!(is(&status, "Programmed"), "False");
    assert_eq!(is(&status, "CredentialsResolved"), "Unknown");
    // and after a while, or once it was enforced, it is said to be degraded
    assert_eq!(
        say(&view(2), &proxies, None, LIMIT * 2).phase,
        Some(PolicyPhase::Degraded)
    );
    let active = say(&view(2), &[proxy("n1", "v2")], None, LONG_AGO);
    let status = say(&view(2), &proxies, Some(&active), LONG_AGO);
    assert_eq!(status.phase, Some(PolicyPhase::Degraded));
}

#[test]
fn without_a_ready_proxy_nothing_is_enforced() {
    let status = say(&view(2), &[], None, LONG_AGO);
    assert_eq!(status.phase, Some(PolicyPhase::Pending));
    assert!(status.message.unwrap().contains("no node runs ZeroProxy"));
    let mut dead = proxy("n1", "v2");
    dead.ready = false;
    let status = say(&view(2), &[dead.clone()], None, LIMIT * 2);
    assert_eq!(status.phase, Some(PolicyPhase::Pending));
    // beside one that is ready it doesn't count, but is named
    let status = say(&view(2), &[dead, proxy("n2", "v2")], None, LONG_AGO);
    assert_eq!(status.phase, Some(PolicyPhase::Active));
    assert_eq!(status.nodes.as_ref().unwrap().summary, "1/2");
    assert!(status.message.unwrap().contains("not ready on n1"));
}

#[test]
fn an_unknown_version_counts_for_nothing() {
    for version in ["", "of another controller"] {
        let status = say(&view(0), &[proxy("n1", version)], None, LONG_AGO);
        assert_eq!(status.phase, Some(PolicyPhase::Pending), "{version}");
    }
}

#[test]
fn nothing_is_said_before_the_proxies_were_asked() {
    let mut unasked = proxy("n1", "v2");
    (unasked.version, unasked.asked) = (None, false);
    let history = history();
    let ask = |proxies: &[Proxy], seen| {
        policy(&view(2), &Nodes::new(proxies, &history), None, seen, LIMIT)
    };
    assert_eq!(ask(&[unasked, proxy("n2", "v2")], LONG_AGO), Verdict::Hold);
    assert_eq!(ask(&[proxy("n1", "v1")], Duration::ZERO), Verdict::Hold);
    assert!(matches!(
        ask(&[proxy("n1", "v2")], Duration::ZERO),
        Verdict::Say(_)
    ));
}

#[test]
fn a_missing_credential_degrades_those_that_need_it() {
    let mut lacking = proxy("n1", "v2");
    lacking.unresolved.insert(
        "zeroproxy-credentials/REPO_TOKEN".to_owned(),
        "missing".to_owned(),
    );
    let status = say(
        &view(2),
        &[lacking.clone(), proxy("n2", "v2")],
        None,
        LONG_AGO,
    );
    assert_eq!(status.phase, Some(PolicyPhase::Degraded));
    assert_eq!(is(&status, "CredentialsResolved"), "False");
    assert_eq!(is(&status, "Programmed"), "True");
    let message = status.message.unwrap();
    assert!(
        message.contains("key REPO_TOKEN of Secret zeroproxy-credentials (on n1)"),
        "{message}"
    );
    lacking.unresolved = BTreeMap::from([("other/KEY".to_owned(), "missing".to_owned())]);
    let status = say(&view(2), &[lacking], None, LONG_AGO);
    assert_eq!(status.phase, Some(PolicyPhase::Active));
}

#[test]
fn an_invalid_policy_says_what_to_write_and_that_it_is_out() {
    let mut view = view(2);
    view.outcome = Outcome::Invalid("rule r: write a host".to_owned());
    let status = say(&view, &[proxy("n1", "v2")], None, Duration::ZERO);
    assert_eq!(status.phase, Some(PolicyPhase::Invalid));
    assert_eq!(status.message.as_deref(), Some("rule r: write a host"));
    assert_eq!(is(&status, "Accepted"), "False");
    assert_eq!(status.nodes.unwrap().summary, "0/1");
    assert_eq!(status.policy_version, None);
}

#[test]
fn the_version_and_the_times_stay_while_the_policy_does() {
    let now = Time("2026-01-01T00:00:00Z".parse().unwrap());
    let later = Time("2026-02-01T00:00:00Z".parse().unwrap());
    let mut first = say(&view(1), &[proxy("n1", "v1")], None, LONG_AGO);
    settle(&mut first.conditions, &[], &now);
    // another process, which knows only a later document
    let mut second = say(&view(3), &[proxy("n1", "v3")], Some(&first), LONG_AGO);
    assert!(says_the_same(&second, Some(&first)), "{second:?}");
    settle(&mut second.conditions, &first.conditions, &later);
    assert_eq!(second, first);
    let mut third = say(&view(3), &[proxy("n1", "v1")], Some(&first), LONG_AGO);
    assert!(!says_the_same(&third, Some(&first)));
    settle(&mut third.conditions, &first.conditions, &later);
    let time = |status: &PolicyStatus, kind: &str| {
        let c = status.conditions.iter().find(|c| c.type_ == kind).unwrap();
        c.last_transition_time.clone()
    };
    assert_eq!(time(&third, "Accepted"), now);
    assert_eq!(time(&third, "Programmed"), later);
    // and a new generation is a new version
    let mut changed = view(3);
    changed.generation = 4;
    let status = say(&changed, &[proxy("n1", "v3")], Some(&first), LONG_AGO);
    assert_eq!(status.policy_version.as_deref(), Some("v3"));
}
