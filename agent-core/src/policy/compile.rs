//! From document to rule table: canonical values, one total order. Owns the order in which rules are held against a
//! request; it depends on nothing but the rules' content, so the order in the document does not matter.

use std::cmp::Reverse;

use crate::identity::Caller;
use crate::path;
use crate::policy::document::{Rule, RuleDirection, RuleKind, RuntimePolicy, TlsMode};
use crate::policy::host::HostPattern;
use crate::policy::permit::{CredentialRef, PolicyName};
use crate::policy::port::PortSpec;
use crate::policy::rule::{
    Call, CompiledRule, Destination, PathPattern, PolicyInfo, RuleTable, channels,
};
use crate::policy::scope::Classes;
use crate::policy::target::Target;

/// Deny, credential, allow; higher priority; more specific destination; policy's name; rule's name. The direction is
/// last: it keeps the order total, and rules of different directions never meet.
type Order<'a> = (
    RuleKind,
    Reverse<i32>,
    Reverse<u32>,
    u32,
    &'a str,
    RuleDirection,
);

/// Compiles a validated document.
pub(crate) fn compile(document: &RuntimePolicy) -> (RuleTable, Classes) {
    let policies: Vec<PolicyInfo> = document
        .policies
        .iter()
        .map(|policy| PolicyInfo {
            name: PolicyName::from(policy.full_name()),
            priority: policy.priority,
            mode: policy.mode,
            direct_bypass: policy.direct_bypass,
        })
        .collect();
    let place = places(&policies);
    let mut sorted: Vec<(Order<'_>, CompiledRule)> = Vec::with_capacity(document.rules.len());
    for rule in &document.rules {
        let Some(compiled) = compile_rule(rule) else {
            continue;
        };
        let (Some(info), Some(place)) = (
            policies.get(rule.policy as usize),
            place.get(rule.policy as usize),
        ) else {
            continue;
        };
        let specificity = specificity(&compiled.destination);
        let order = (
            rule.kind,
            Reverse(info.priority),
            Reverse(specificity),
            *place,
            rule.name.as_str(),
            rule.direction,
        );
        sorted.push((order, compiled));
    }
    sorted.sort_unstable_by_key(|(order, _)| *order);
    let rules: Vec<CompiledRule> = sorted.into_iter().map(|(_, rule)| rule).collect();
    let mut of_policy = vec![Vec::new(); policies.len()];
    for (rank, rule) in (0u32..).zip(&rules) {
        of_policy[rule.policy as usize].push(rank);
    }
    let table = RuleTable { rules, policies };
    let subjects = document.policies.iter().map(|policy| &policy.subjects);
    let classes = Classes::build(&table, subjects, of_policy);
    (table, classes)
}

/// The place of each policy in the order of names.
fn places(policies: &[PolicyInfo]) -> Vec<u32> {
    let mut by_name: Vec<usize> = (0..policies.len()).collect();
    by_name.sort_unstable_by(|a, b| policies[*a].name.cmp(&policies[*b].name));
    let mut places = vec![0; policies.len()];
    for (place, position) in (0u32..).zip(by_name) {
        places[position] = place;
    }
    places
}

/// An exact host before a wildcard, the longer suffix first, then `*`, then networks, the longer prefix first: where a
/// name is known, a rule that names it decides, and the connection goes where the name leads.
fn specificity(destination: &Destination) -> u32 {
    match destination {
        Destination::Host(HostPattern::Exact(_)) => 3000,
        Destination::Host(HostPattern::Suffix(suffix)) => 2000 + suffix.as_str().len() as u32,
        Destination::Network(net) => u32::from(net.prefix_len()),
        Destination::Host(HostPattern::Any) => 1000,
        Destination::Call(call) => {
            let caller = match call.caller.split(':').next() {
                Some("pod") => 3,
                Some("sa") => 2,
                Some("ns") => 1,
                _ => 0,
            };
            let target = match &*call.target {
                "*" => 0,
                qualified if qualified.contains('/') => 2,
                _ => 1,
            };
            caller * 3 + target
        }
    }
}

/// `None` for what validation refuses, so that a rule is never compiled into something wider than it says.
fn compile_rule(rule: &Rule) -> Option<CompiledRule> {
    let destination = match rule.direction {
        RuleDirection::Ingress => Destination::Call(Box::new(call(rule)?)),
        RuleDirection::Egress => match (&rule.host, rule.cidr) {
            (Some(host), None) => Destination::Host(host.parse().ok()?),
            (None, Some(net)) => Destination::Network(net),
            _ => return None,
        },
    };
    let ports: Box<[PortSpec]> = rule.port.iter().chain(&rule.ports).copied().collect();
    let credential = match rule.kind {
        RuleKind::Credential => Some(Box::new(credential(rule)?)),
        RuleKind::Allow | RuleKind::Deny => None,
    };
    let needs_sight = credential.is_some() || !rule.methods.is_empty() || !rule.paths.is_empty();
    Some(CompiledRule {
        name: rule.name.as_str().into(),
        policy: rule.policy,
        kind: rule.kind,
        tls_originate: rule.tls == Some(TlsMode::Originate),
        channels: channels(
            rule.kind,
            rule.protocol,
            needs_sight,
            &destination,
            ports.is_empty(),
        ),
        destination,
        ports,
        methods: methods(&rule.methods),
        paths: rule.paths.iter().map(|path| path_pattern(path)).collect(),
        credential,
    })
}

fn call(rule: &Rule) -> Option<Call> {
    let caller: Caller = rule.caller.as_deref()?.parse().ok()?;
    let target = match rule.target.as_deref()? {
        "*" => "*".to_owned(),
        target => target.parse::<Target>().ok()?.to_string(),
    };
    Some(Call {
        caller: caller.to_string().into(),
        target: target.into(),
    })
}

fn credential(rule: &Rule) -> Option<CredentialRef> {
    Some(CredentialRef {
        header: rule.header.as_deref()?.to_ascii_lowercase(),
        file: rule.value_from_file.clone()?,
        prefix: rule.prefix.clone().unwrap_or_default(),
        format: rule.format.unwrap_or_default(),
        username: rule.username.clone(),
        strip_from_response: rule.strip_from_response.unwrap_or(true),
        allow_cleartext: rule.allow_cleartext.unwrap_or(false),
    })
}

/// The methods, with `HEAD` where `GET` is: whoever may read may ask whether there is something to read.
fn methods(named: &[String]) -> Box<[Box<str>]> {
    let mut methods: Vec<Box<str>> = named.iter().map(|method| method.as_str().into()).collect();
    if named.iter().any(|method| method == "GET") {
        methods.push("HEAD".into());
    }
    methods.sort_unstable();
    methods.dedup();
    methods.into()
}

fn path_pattern(pattern: &str) -> PathPattern {
    match pattern.strip_suffix('*') {
        Some(prefix) => PathPattern::Under(path::comparable(prefix).into()),
        None => PathPattern::Exact(path::comparable(pattern).into()),
    }
}
