//! Ingress rules by caller and target: a few hash look-ups, whatever the number of rules.

use std::collections::HashMap;

use crate::identity::{Caller, Workload};
use crate::policy::document::RuleKind;
use crate::policy::rule::{Destination, NO_RULE, RuleTable};
use crate::policy::target::Target;

/// The ingress rules of some policies.
#[derive(Debug, Default)]
pub(crate) struct Calls(HashMap<Box<str>, HashMap<Box<str>, u32>>);

/// The names that rules can know a call by.
#[derive(Debug)]
pub(crate) struct CallKeys {
    callers: Vec<String>,
    /// Names that every kind of rule may use for the target.
    targets: Vec<String>,
    /// A name that only deny rules may use: the bare name of a target in another namespace than the caller's.
    deny_only: Option<String>,
}

impl CallKeys {
    /// The names of a call by a workload of which everything is known.
    pub(crate) fn of_workload(caller: &Workload, target: &Target) -> Self {
        let mut callers = vec![
            Caller::Pod {
                namespace: caller.namespace.clone(),
                name: caller.name.clone(),
            }
            .to_string(),
            Caller::Namespace(caller.namespace.clone()).to_string(),
            Caller::Any.to_string(),
        ];
        if caller.service_account.is_some() {
            callers.push(caller.caller().to_string());
        }
        Self::new(callers, Some(&caller.namespace), target)
    }

    /// The names of a call by a caller of which only one name is known.
    pub(crate) fn of_caller(caller: &Caller, target: &Target) -> Self {
        let mut callers = vec![caller.to_string(), Caller::Any.to_string()];
        if let Some(namespace) = caller.namespace() {
            callers.push(Caller::Namespace(namespace.to_owned()).to_string());
        }
        Self::new(callers, caller.namespace(), target)
    }

    fn new(callers: Vec<String>, namespace: Option<&str>, target: &Target) -> Self {
        let mut targets = vec![target.to_string(), "*".to_owned()];
        let mut deny_only = None;
        match target.namespace() {
            // A bare name means the caller's namespace.
            None => {
                targets.extend(namespace.map(|namespace| format!("{namespace}/{}", target.name())));
            }
            Some(own) if Some(own) == namespace => targets.push(target.name().to_owned()),
            Some(_) => deny_only = Some(target.name().to_owned()),
        }
        Self {
            callers,
            targets,
            deny_only,
        }
    }
}

impl Calls {
    /// Indexes rules given by ascending rank.
    pub(crate) fn build(rules: &RuleTable, ranks: &[u32]) -> Self {
        let mut calls = Self::default();
        for &rank in ranks {
            if let Some(Destination::Call(call)) = rules.get(rank).map(|rule| &rule.destination) {
                calls
                    .0
                    .entry(call.caller.clone())
                    .or_default()
                    .entry(call.target.clone())
                    .or_insert(rank);
            }
        }
        calls
    }

    /// The lowest rank of a rule that covers the call.
    pub(crate) fn find(&self, rules: &RuleTable, keys: &CallKeys) -> u32 {
        let mut best = NO_RULE;
        for by_target in keys
            .callers
            .iter()
            .filter_map(|caller| self.0.get(caller.as_str()))
        {
            for target in &keys.targets {
                best = best.min(by_target.get(target.as_str()).copied().unwrap_or(NO_RULE));
            }
            // The lowest rank of a pair is its deny rule's, if it has one.
            let denied = keys
                .deny_only
                .as_deref()
                .and_then(|target| by_target.get(target))
                .copied();
            if let Some(rank) = denied
                && rules
                    .get(rank)
                    .is_some_and(|rule| rule.kind == RuleKind::Deny)
            {
                best = best.min(rank);
            }
        }
        best
    }
}
