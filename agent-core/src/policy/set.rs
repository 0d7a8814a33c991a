//! The compiled policy: one immutable snapshot, swapped as a whole. Owns the public decision functions; how rules are
//! ordered and indexed is settled in `compile` and `index`, the steps of a decision in `decide`.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::audit::ReasonCode;
use crate::identity::{Caller, OrigDst, Workload};
use crate::node_settings::Connectivity;
use crate::policy::address::{self, NodeNets, Sensitive};
use crate::policy::compile;
use crate::policy::decide;
use crate::policy::document::{BypassAction, DocumentError, RuntimePolicy};
use crate::policy::facts::RequestFacts;
use crate::policy::host::HostName;
use crate::policy::index::{About, CallKeys};
use crate::policy::permit::{ConnectionVerdict, Denial, DialBy, Permit, PolicyName, Verdict};
use crate::policy::rule::RuleTable;
use crate::policy::scope::{Classes, ScopeInner};
use crate::policy::target::TargetError;

/// Why a document cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The document itself is not acceptable.
    #[error(transparent)]
    Document(#[from] DocumentError),
}

/// All rules of one document version, indexed. Shared in an `Arc`, never changed.
pub struct PolicySet {
    version: String,
    rules: Arc<RuleTable>,
    classes: Arc<Classes>,
    sensitive: Arc<Sensitive>,
    /// The scope of pods that no policy is for, when they are passed on.
    passing: Option<Arc<ScopeInner>>,
}

/// The policies that apply to one class of workloads. Cheap to clone; decides as the set that made it.
#[derive(Clone)]
pub struct Scope(Arc<ScopeInner>);

impl fmt::Debug for PolicySet {
    /// Names the version; rules may be many.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicySet")
            .field("version", &self.version)
            .field("rules", &self.rule_count())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Scope {
    /// Names the first few policies; they may be many.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("policies", &self.policies().take(4).collect::<Vec<_>>())
            .field("count", &self.0.policies.len())
            .finish_non_exhaustive()
    }
}

impl Scope {
    /// True when some policy is for the workload; otherwise everything is denied.
    pub fn is_selected(&self) -> bool {
        !self.0.policies.is_empty()
    }

    /// True when every policy that is for the workload is in audit mode, so that what no rule lets through is let
    /// through and marked `would_deny`.
    pub fn is_audit_only(&self) -> bool {
        self.0.audit_only
    }

    /// The policies that are for the workload.
    pub fn policies(&self) -> impl Iterator<Item = &PolicyName> {
        let infos = &self.0.rules.policies;
        self.0
            .policies
            .iter()
            .filter_map(|policy| Some(&infos.get(*policy as usize)?.name))
    }
}

impl PolicySet {
    /// Indexes a document. 100,000 rules take well under a second and some tens of megabytes.
    ///
    /// # Errors
    /// What [`RuntimePolicy::validate`] refuses.
    pub fn compile(doc: &RuntimePolicy) -> Result<Self, CompileError> {
        doc.validate()?;
        let (rules, classes) = compile::compile(doc);
        Ok(Self {
            version: doc.version.clone().unwrap_or_else(|| doc.content_version()),
            rules: Arc::new(rules),
            classes: Arc::new(classes),
            sensitive: Arc::new(Sensitive::new(&doc.sensitive_cidrs)),
            passing: None,
        })
    }

    /// The set without any policy: everything is denied.
    pub fn empty() -> Self {
        Self {
            version: RuntimePolicy::default().content_version(),
            rules: Arc::default(),
            classes: Arc::default(),
            sensitive: Arc::new(Sensitive::new(&[])),
            passing: None,
        }
    }

    /// The same rules, with what the node's class says about pods that no policy is for. With [`Connectivity::Passthrough`]
    /// they are let through and marked `would_deny`; sensitive ranges, the node, Fake IPs and calls between agents stay
    /// denied.
    #[must_use]
    pub fn with_connectivity(&self, connectivity: Connectivity) -> Self {
        let passes = connectivity == Connectivity::Passthrough;
        Self {
            version: self.version.clone(),
            rules: Arc::clone(&self.rules),
            classes: Arc::clone(&self.classes),
            sensitive: Arc::clone(&self.sensitive),
            passing: passes.then(|| Arc::new(ScopeInner::passing())),
        }
    }

    /// The document's version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The number of rules.
    pub fn rule_count(&self) -> usize {
        self.rules.rules.len()
    }

    /// The number of policies.
    pub fn policy_count(&self) -> usize {
        self.rules.policies.len()
    }

    /// The policies that apply to a workload; found once for a class of workloads, then a look-up under a short lock.
    /// To be asked once per connection and policy generation.
    pub fn scope(&self, w: &Workload) -> Scope {
        let scope = self.classes.scope(&self.rules, w);
        match &self.passing {
            Some(passing) if scope.policies.is_empty() => Scope(Arc::clone(passing)),
            _ => Scope(scope),
        }
    }

    /// Decides about a connection before anything on it is read: sensitive ranges, then Fake IP CIDRs (direct bypass,
    /// unless a policy allows it), then the node itself.
    pub fn decide_connection(&self, s: &Scope, dst: OrigDst, nets: &NodeNets) -> ConnectionVerdict {
        let address = IpAddr::V4(*dst.0.ip());
        let bypass = match s.0.bypass {
            BypassAction::Deny => address::check_fake(address, nets),
            BypassAction::Allow => Ok(()),
        };
        let checked = self
            .sensitive
            .check(address)
            .and(bypass)
            .and_then(|()| address::check_local(address, nets));
        match checked {
            Ok(()) => ConnectionVerdict::Inspect,
            Err(denial) => ConnectionVerdict::Deny(denial),
        }
    }

    /// Decides about a request: deny, credential, allow, default deny. What the permit leads to is still held against
    /// [`Self::check_address`], address by address.
    pub fn decide_request(&self, s: &Scope, r: &RequestFacts<'_>) -> Verdict {
        decide::request(&s.0, r)
    }

    /// Decides about a call between agents by one verified name of the caller. Rules that know the caller by another
    /// kind of name are not found: where the workload is known, ask [`Self::decide_ingress_from`].
    pub fn decide_ingress(&self, s: &Scope, caller: &Caller, target: &str) -> Verdict {
        match target.parse() {
            Ok(target) => {
                decide::call(&s.0, &CallKeys::of_caller(caller, &target), caller, &target)
            }
            Err(error) => not_a_target(&error),
        }
    }

    /// Decides about a call between agents by everything that is known of the calling pod: its service account, its
    /// namespace and its own name.
    pub fn decide_ingress_from(&self, s: &Scope, caller: &Workload, target: &str) -> Verdict {
        match target.parse() {
            Ok(target) => decide::call(
                &s.0,
                &CallKeys::of_workload(caller, &target),
                &caller.caller(),
                &target,
            ),
            Err(error) => not_a_target(&error),
        }
    }

    /// True when some rule could let a request for the name through and no deny rule covers all of them: only then is
    /// the name resolved, since a query is a message to whoever runs the name's server.
    pub fn may_resolve(&self, s: &Scope, name: &HostName) -> bool {
        let about = about(s, name);
        (about.permits || s.0.lets_out()) && !about.denied
    }

    /// True when a rule for the name needs to see HTTP (a credential, methods or paths), so that TLS to it is worth
    /// intercepting.
    pub fn needs_sight(&self, s: &Scope, name: &HostName) -> bool {
        about(s, name).needs_sight
    }

    /// Checks one address that a permitted request would go to, as the proxy resolved it or as the pod dialled it, with
    /// the port that is connected to ([`Permit::upstream_port`]): a deny rule for it or for the port that was decided on
    /// covers the address.
    ///
    /// # Errors
    /// Sensitive ranges, the node itself, Fake IP CIDRs (except for calls between agents, and for the very address
    /// that was dialled where a policy allows direct bypass), addresses that a deny rule on a network covers, and for a
    /// permit by network every address but the dialled one.
    pub fn check_address(
        &self,
        p: &Permit,
        ip: IpAddr,
        port: u16,
        nets: &NodeNets,
    ) -> Result<(), Denial> {
        self.sensitive.check(ip)?;
        let dialled = p
            .dst
            .is_some_and(|dst| IpAddr::V4(*dst.ip()) == ip.to_canonical());
        let bypasses = dialled && p.scope.bypass == BypassAction::Allow;
        if p.dial != DialBy::Target && !bypasses {
            address::check_fake(ip, nets)?;
        }
        address::check_local(ip, nets)?;
        Self::check_rules(p, ip, port)
    }

    /// Checks one address that the operator wrote into `upstreams`: like [`Self::check_address`], but the node itself,
    /// loopback and agent pods are let through, since the pod had no say in the address.
    ///
    /// # Errors
    /// Sensitive ranges, and addresses that a deny rule on a network covers.
    pub fn check_fixed_address(&self, p: &Permit, ip: IpAddr, port: u16) -> Result<(), Denial> {
        self.sensitive.check(ip)?;
        Self::check_rules(p, ip, port)
    }

    /// What a deny rule on a network in audit mode would have said about the address.
    pub fn would_deny_address(&self, p: &Permit, ip: IpAddr, port: u16) -> Option<Denial> {
        decide::observed_address(p, ip, port)
    }

    /// Checks an address that no permit stands behind, such as one in a DNS answer (rebinding).
    ///
    /// # Errors
    /// The sensitive range that the address lies in.
    pub fn check_sensitive(&self, ip: IpAddr) -> Result<(), Denial> {
        self.sensitive.check(ip)
    }

    fn check_rules(p: &Permit, ip: IpAddr, port: u16) -> Result<(), Denial> {
        if let DialBy::OriginalDestination(dst) = p.dial
            && IpAddr::V4(*dst.ip()) != ip.to_canonical()
        {
            return Err(Denial {
                reason: ReasonCode::EgressDenied,
                rule: p.rule().cloned(),
                policy: p.policy().cloned(),
                message: format!("the permit leads to {} and not to {ip}", dst.ip()),
            });
        }
        decide::denied_address(p, ip, port).map_or(Ok(()), Err)
    }
}

fn about(s: &Scope, name: &HostName) -> About {
    s.0.parts.iter().fold(About::default(), |mut all, part| {
        all.add(part.egress.about_host(&s.0.rules, name));
        all
    })
}

fn not_a_target(error: &TargetError) -> Verdict {
    Verdict::Deny(Denial::built_in(
        ReasonCode::IngressDenied,
        error.to_string(),
    ))
}

#[cfg(test)]
mod tests;
