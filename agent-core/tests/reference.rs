//! Holds the indexed engine against a naive one that reads the document rule by rule, and against laws that every
//! document must keep.

mod common;

use std::cmp::Reverse;

use agent_core::identity::Workload;
use agent_core::policy::{
    PolicyMode, PolicySet, Protocol, RequestFacts, Rule, RuleKind, RuleProtocol, RuntimePolicy,
    Verdict,
};
use common::{Request, document, request, workload};
use proptest::prelude::*;

/// What both engines say: the deciding rule, if any, and the rule that audit mode would have denied by.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Deny(Option<String>),
    Permit {
        rule: Option<String>,
        would_deny: Option<Option<String>>,
    },
}

fn indexed(set: &PolicySet, workload: &Workload, facts: &RequestFacts<'_>) -> Outcome {
    match set.decide_request(&set.scope(workload), facts) {
        Verdict::Deny(denial) => Outcome::Deny(denial.rule.map(|rule| rule.to_string())),
        Verdict::Permit(permit) => Outcome::Permit {
            rule: permit.rule().map(ToString::to_string),
            would_deny: permit
                .would_deny()
                .map(|denial| denial.rule.as_ref().map(ToString::to_string)),
        },
    }
}

fn naive(document: &RuntimePolicy, workload: &Workload, request: &Request) -> Outcome {
    let path = match request.path {
        // Not canonical: taken for unseen.
        Some("/x/../a") => None,
        Some("/a%2Bb") => Some("/a+b"),
        other => other,
    };
    let first = naive_path(document, workload, request, path);
    match (path, first) {
        (Some("/a;x/b"), Outcome::Permit { rule, would_deny }) => {
            match naive_path(document, workload, request, Some("/a/b")) {
                Outcome::Deny(rule) => Outcome::Deny(rule),
                Outcome::Permit {
                    would_deny: other, ..
                } => Outcome::Permit {
                    rule,
                    would_deny: would_deny.or(other),
                },
            }
        }
        (_, first) => first,
    }
}

fn naive_path(
    document: &RuntimePolicy,
    workload: &Workload,
    request: &Request,
    path: Option<&str>,
) -> Outcome {
    let applies = |position: usize| {
        let subjects = &document.policies[position].subjects;
        (subjects.all_namespaces || subjects.namespaces.contains(&workload.namespace))
            && subjects.pod_selector.matches(&workload.labels)
    };
    let mut rules: Vec<&Rule> = document
        .rules
        .iter()
        .filter(|rule| applies(rule.policy as usize) && covers(rule, request, path))
        .collect();
    rules.sort_by_key(|rule| {
        let policy = &document.policies[rule.policy as usize];
        let kind = match rule.kind {
            RuleKind::Deny => 0,
            RuleKind::Credential => 1,
            RuleKind::Allow => 2,
        };
        (
            kind,
            Reverse(policy.priority),
            Reverse(specificity(rule)),
            policy.name.clone(),
            rule.name.clone(),
        )
    });
    let mut would_deny = None;
    for rule in rules {
        let audit = document.policies[rule.policy as usize].mode == PolicyMode::Audit;
        let name = Some(rule.name.clone());
        match (rule.kind, audit) {
            (RuleKind::Deny, true) => would_deny = would_deny.or(Some(name)),
            (RuleKind::Deny, false) => return Outcome::Deny(name),
            (RuleKind::Credential | RuleKind::Allow, _) => {
                return Outcome::Permit {
                    rule: name,
                    would_deny,
                };
            }
        }
    }
    let mut modes = (0..document.policies.len())
        .filter(|i| applies(*i))
        .map(|i| document.policies[i].mode)
        .peekable();
    if modes.peek().is_some() && modes.all(|mode| mode == PolicyMode::Audit) {
        return Outcome::Permit {
            rule: None,
            would_deny: would_deny.or(Some(None)),
        };
    }
    Outcome::Deny(None)
}

fn specificity(rule: &Rule) -> (u8, usize) {
    match (rule.host.as_deref(), rule.cidr) {
        (Some("*"), _) => (1, 0),
        (Some(host), _) if host.starts_with("*.") => (2, host.len()),
        (Some(_), _) => (3, 0),
        (None, Some(net)) => (0, net.prefix_len().into()),
        (None, None) => unreachable!(),
    }
}

fn covers(rule: &Rule, request: &Request, path: Option<&str>) -> bool {
    let denies = rule.kind == RuleKind::Deny;
    let seen = matches!(
        request.protocol,
        Protocol::Http | Protocol::Https | Protocol::Grpc
    );
    let opaque = !seen;
    let destination = match (rule.host.as_deref(), rule.cidr) {
        (Some("*"), _) => denies || request.host.is_some() && request.protocol != Protocol::Tcp,
        (Some(pattern), _) => request.host.as_ref().is_some_and(|host| {
            let host = host.as_str();
            let named = match pattern.strip_prefix('*') {
                Some(suffix) => host.ends_with(suffix),
                None => host == pattern,
            };
            named && (denies || request.protocol != Protocol::Tcp)
        }),
        (None, Some(net)) => {
            let bare = request.host.is_none() || request.protocol == Protocol::Tcp;
            net.contains((*request.dst.ip()).into())
                && (denies || !(opaque && bare) || !rule.ports.is_empty())
        }
        (None, None) => unreachable!(),
    };
    let port = rule.ports.is_empty()
        || rule
            .ports
            .iter()
            .any(|ports| ports.contains(request.dst.port()));
    let protocol = match rule.protocol {
        None | Some(RuleProtocol::Tcp) => true,
        Some(RuleProtocol::Http) => matches!(request.protocol, Protocol::Http | Protocol::Grpc),
        Some(RuleProtocol::Https | RuleProtocol::Tls) => {
            matches!(request.protocol, Protocol::Https | Protocol::Tls)
                || denies && request.protocol == Protocol::Grpc
        }
        Some(RuleProtocol::Grpc) => request.protocol == Protocol::Grpc,
    };
    let method = rule.methods.is_empty()
        || match request.method.filter(|_| seen) {
            None => denies,
            // Some servers take `post` for `POST`.
            Some(method) if denies => {
                let reads = method.eq_ignore_ascii_case("HEAD");
                rule.methods
                    .iter()
                    .any(|m| m.eq_ignore_ascii_case(method) || reads && m == "GET")
            }
            Some("HEAD") => rule.methods.iter().any(|m| m == "HEAD" || m == "GET"),
            Some(method) => rule.methods.iter().any(|m| m == method),
        };
    let path = rule.paths.is_empty()
        || match path.filter(|_| seen) {
            None => denies,
            Some(path) => rule
                .paths
                .iter()
                .any(|pattern| match pattern.strip_suffix('*') {
                    Some(prefix) => path.starts_with(prefix),
                    None => pattern == path,
                }),
        };
    let sight = seen || denies || rule.kind != RuleKind::Credential;
    destination && port && protocol && method && path && sight
}

/// How much gets through: more is more.
fn openness(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Deny(_) => 0,
        Outcome::Permit { .. } => 1,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn the_indexed_engine_says_what_the_naive_one_says(
        document in document(80),
        workload in workload(),
        requests in proptest::collection::vec(request(), 1..20),
    ) {
        let set = PolicySet::compile(&document).unwrap();
        for request in &requests {
            prop_assert_eq!(
                indexed(&set, &workload, &request.facts()),
                naive(&document, &workload, request),
                "{:?}", request
            );
        }
    }

    #[test]
    fn adding_a_deny_rule_never_widens_access(
        document in document(40),
        more in document(40),
        workload in workload(),
        requests in proptest::collection::vec(request(), 1..20),
    ) {
        let before = PolicySet::compile(&document).unwrap();
        let mut stricter = document.clone();
        for mut rule in more.rules {
            if rule.kind == RuleKind::Deny {
                rule.policy %= document.policies.len() as u32;
                rule.name = format!("more-{}", rule.name);
                stricter.rules.push(rule);
            }
        }
        let after = PolicySet::compile(&stricter).unwrap();
        for request in &requests {
            let (old, new) = (
                indexed(&before, &workload, &request.facts()),
                indexed(&after, &workload, &request.facts()),
            );
            prop_assert!(openness(&new) <= openness(&old), "{:?}: {:?} became {:?}", request, old, new);
        }
    }

    #[test]
    fn the_order_of_the_document_does_not_matter(
        document in document(60),
        seed in any::<u64>(),
        workload in workload(),
        requests in proptest::collection::vec(request(), 1..20),
    ) {
        let mut shuffled = document.clone();
        let mut state = seed | 1;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for i in (1..shuffled.rules.len()).rev() {
            shuffled.rules.swap(i, next(i + 1));
        }
        let count = shuffled.policies.len();
        shuffled.policies.reverse();
        for rule in &mut shuffled.rules {
            rule.policy = count as u32 - 1 - rule.policy;
        }
        let (a, b) = (PolicySet::compile(&document).unwrap(), PolicySet::compile(&shuffled).unwrap());
        for request in &requests {
            prop_assert_eq!(
                indexed(&a, &workload, &request.facts()),
                indexed(&b, &workload, &request.facts())
            );
        }
    }

    #[test]
    fn every_made_up_document_survives_being_written_and_read(document in document(20)) {
        let read = RuntimePolicy::parse(document.to_json().as_bytes()).unwrap();
        prop_assert_eq!(read.content_version(), document.content_version());
        prop_assert_eq!(read.rules, document.rules);
    }
}
