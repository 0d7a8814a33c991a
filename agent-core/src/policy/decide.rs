//! The engine: from a scope and what is known of a request to a permit or a denial. Owns the order of the steps and the
//! sentences of denials; which rule comes first is settled by rank.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use crate::audit::ReasonCode;
use crate::identity::Caller;
use crate::path;
use crate::policy::address::embedded_v4;
use crate::policy::document::RuleKind;
use crate::policy::facts::{Protocol, RequestFacts};
use crate::policy::index::{CallKeys, Index};
use crate::policy::permit::{Denial, DialBy, Permit, Seen, Verdict};
use crate::policy::rule::{
    Channel, CompiledRule, Destination, METHOD_BYTES, Method, NO_RULE, Probe,
};
use crate::policy::scope::{Part, ScopeInner};
use crate::policy::target::Target;

/// The first rule that is carried out, and the first deny rule that is only observed.
#[derive(Clone, Copy)]
struct Found {
    enforced: u32,
    observed: u32,
}

impl Found {
    const NOTHING: Self = Self {
        enforced: NO_RULE,
        observed: NO_RULE,
    };

    fn lower(&mut self, enforced: u32, observed: u32) {
        self.enforced = self.enforced.min(enforced);
        self.observed = self.observed.min(observed);
    }
}

/// Decides about a request.
pub(crate) fn request(scope: &Arc<ScopeInner>, facts: &RequestFacts<'_>) -> Verdict {
    let visible = facts.protocol.is_visible_http();
    let method = facts.method.filter(|_| visible);
    // A path in another form than the canonical one is taken for unseen: it could be read in two ways.
    let path = facts
        .path
        .filter(|path| visible && path::is_canonical(path))
        .map(path::comparable);
    let first = decide_path(scope, facts, method, path.as_deref());
    let Verdict::Permit(mut permit) = first else {
        return first;
    };
    // Some servers cut path parameters off (`/a;x/b` is `/a/b`): both readings must be let through.
    if let Some(cut) = path.as_deref().and_then(path::without_parameters) {
        let cut = match path::canonicalise(&cut) {
            Ok(Cow::Owned(canonical)) => Some(canonical),
            Ok(Cow::Borrowed(_)) => Some(cut),
            Err(_) => None,
        };
        match decide_path(scope, facts, method, cut.as_deref()) {
            Verdict::Deny(denial) => return Verdict::Deny(denial),
            Verdict::Permit(other) => {
                if permit.would_deny.is_none() {
                    permit.would_deny = other.would_deny;
                }
            }
        }
    }
    Verdict::Permit(permit)
}

fn decide_path(
    scope: &Arc<ScopeInner>,
    facts: &RequestFacts<'_>,
    method: Option<&str>,
    path: Option<&str>,
) -> Verdict {
    let channel = Channel::new(facts.protocol, facts.host.is_some());
    let mut buffer = [0; METHOD_BYTES];
    let by_host = Probe {
        channel,
        port: facts.port,
        method: method.map(|method| Method::new(method, &mut buffer)),
        path,
    };
    // A rule on a network leads to the dialled address, so its ports are that address's.
    let by_address = Probe {
        port: facts.dst.port(),
        ..by_host
    };
    let address = IpAddr::V4(*facts.dst.ip());
    let mut found = Found::NOTHING;
    for part in &scope.parts {
        let both = |index: &Index| {
            let by_host = index.find_by_host(&scope.rules, facts.host, &by_host);
            by_host.min(index.find_by_address(&scope.rules, address, &by_address))
        };
        found.lower(both(&part.egress), both(&part.observed));
    }
    let what = || describe(facts);
    let would_deny = scope
        .rules
        .get(found.observed)
        .map(|rule| Box::new(denied_by(scope, rule, ReasonCode::EgressDenied, &what())));
    let rule = scope.rules.get(found.enforced);
    let (rank, dial) = match rule {
        Some(rule) if rule.kind == RuleKind::Deny => {
            return Verdict::Deny(denied_by(scope, rule, ReasonCode::EgressDenied, &what()));
        }
        Some(rule) => {
            let dial = match rule.destination {
                Destination::Network(_) => DialBy::OriginalDestination(facts.dst),
                Destination::Host(_) | Destination::Call(_) => DialBy::Name,
            };
            (Some(found.enforced), dial)
        }
        None if scope.lets_out() => {
            let named = facts.host.is_some() && facts.protocol != Protocol::Tcp;
            (
                None,
                if named {
                    DialBy::Name
                } else {
                    DialBy::OriginalDestination(facts.dst)
                },
            )
        }
        None => return Verdict::Deny(default_denial(scope, facts)),
    };
    let would_deny = would_deny.or_else(|| {
        rank.is_none()
            .then(|| Box::new(default_denial(scope, facts)))
    });
    let keep = scope.parts.iter().any(|part| part.networks_need_sight);
    Verdict::Permit(Permit {
        scope: Arc::clone(scope),
        rule: rank,
        would_deny,
        dial,
        dst: Some(facts.dst),
        seen: Some(Seen {
            channel,
            port: facts.port,
            method: method.filter(|_| keep).map(Into::into),
            path: path.filter(|_| keep).map(Into::into),
        }),
    })
}

/// Decides about a call between agents.
pub(crate) fn call(
    scope: &Arc<ScopeInner>,
    keys: &CallKeys,
    caller: &Caller,
    target: &Target,
) -> Verdict {
    let mut found = Found::NOTHING;
    for part in &scope.parts {
        found.lower(
            part.calls.find(&scope.rules, keys),
            part.observed_calls.find(&scope.rules, keys),
        );
    }
    let what = format!("a call from {caller} to {target}");
    let default = || {
        let ask = if scope.policies.is_empty() {
            NO_POLICY
        } else {
            NO_CALL_RULE
        };
        Denial::built_in(
            ReasonCode::IngressDenied,
            format!("{what} is denied: {ask}"),
        )
    };
    let would_deny = scope
        .rules
        .get(found.observed)
        .map(|rule| Box::new(denied_by(scope, rule, ReasonCode::IngressDenied, &what)));
    let rank = match scope.rules.get(found.enforced) {
        Some(rule) if rule.kind == RuleKind::Deny => {
            return Verdict::Deny(denied_by(scope, rule, ReasonCode::IngressDenied, &what));
        }
        Some(_) => Some(found.enforced),
        None if scope.audit_only => None,
        None => return Verdict::Deny(default()),
    };
    let would_deny = would_deny.or_else(|| rank.is_none().then(|| Box::new(default())));
    Verdict::Permit(Permit {
        scope: Arc::clone(scope),
        rule: rank,
        would_deny,
        dial: DialBy::Target,
        dst: None,
        seen: None,
    })
}

/// The deny rule on a network that covers an address and port which the permitted request would go to.
pub(crate) fn denied_address(permit: &Permit, address: IpAddr, port: u16) -> Option<Denial> {
    find_address(permit, address, port, |part| &part.egress)
}

/// The same among deny rules that are only observed.
pub(crate) fn observed_address(permit: &Permit, address: IpAddr, port: u16) -> Option<Denial> {
    find_address(permit, address, port, |part| &part.observed)
}

fn find_address(
    permit: &Permit,
    address: IpAddr,
    port: u16,
    index: impl Fn(&Part) -> &Index,
) -> Option<Denial> {
    let seen = permit.seen.as_ref()?;
    let scope = &permit.scope;
    let mut buffer = [0; METHOD_BYTES];
    let method = seen.method.as_deref();
    let decided = Probe {
        channel: seen.channel,
        port: seen.port,
        method: method.map(|method| Method::new(method, &mut buffer)),
        path: seen.path.as_deref(),
    };
    // The port that is connected to may be another: `tls: originate` and the operator's upstreams change it.
    let dialled = (port != seen.port).then_some(Probe { port, ..decided });
    let probes = || std::iter::once(&decided).chain(&dialled);
    // An address of the other family may lead to one that a rule covers.
    let addresses = std::iter::once(address).chain(embedded_v4(address).map(IpAddr::V4));
    // Deny rules have the lowest ranks, so the first rule found is one if any covers the request.
    let rank = addresses
        .flat_map(|address| scope.parts.iter().map(move |part| (part, address)))
        .flat_map(|(part, address)| {
            let index = index(part);
            probes().map(move |probe| index.find_by_address(&scope.rules, address, probe))
        })
        .min()?;
    let rule = scope
        .rules
        .get(rank)
        .filter(|rule| rule.kind == RuleKind::Deny)?;
    Some(denied_by(scope, rule, ReasonCode::EgressDenied, &address))
}

fn denied_by(
    scope: &ScopeInner,
    rule: &CompiledRule,
    reason: ReasonCode,
    what: &dyn std::fmt::Display,
) -> Denial {
    let policy = scope.rules.policy_name(rule);
    let name = &rule.name;
    Denial {
        reason,
        message: format!(
            "{what} is denied by rule {name} of policy {policy}; ask the owner of that policy if it should not be"
        ),
        rule: Some(rule.name.clone()),
        policy: Some(policy.clone()),
    }
}

const NO_POLICY: &str =
    "no AgentNetworkPolicy selects this pod; ask whoever runs agent-network for one";
const NO_CALL_RULE: &str = "no ingress rule allows it; ask the owner of this pod's AgentNetworkPolicy for one with this caller and target";

fn default_denial(scope: &ScopeInner, facts: &RequestFacts<'_>) -> Denial {
    let hidden = facts.protocol == Protocol::Tls
        && facts.host.is_some_and(|host| {
            scope
                .parts
                .iter()
                .any(|part| part.egress.about_host(&scope.rules, host).needs_sight)
        });
    let ask = if scope.policies.is_empty() {
        NO_POLICY
    } else if hidden {
        "the rule for this host names a credential, methods or paths, which the proxy cannot see inside TLS; \
         use http:// (the rule can say tls: originate), or ask for TLS interception"
    } else if facts.host.is_none() {
        "no rule allows it; an address is reached only by a rule with cidr (and port, unless it is HTTP), \
         so use the host's name or ask the owner of this pod's AgentNetworkPolicy"
    } else {
        "no rule allows it; ask the owner of this pod's AgentNetworkPolicy for one with this host"
    };
    Denial::built_in(
        ReasonCode::EgressDenied,
        format!("{} is denied: {ask}", describe(facts)),
    )
}

fn describe(facts: &RequestFacts<'_>) -> String {
    let protocol = facts.protocol.as_str();
    match facts.host {
        Some(host) => format!("{protocol} to {host}:{}", facts.port),
        None => format!("{protocol} to {}", facts.dst),
    }
}
