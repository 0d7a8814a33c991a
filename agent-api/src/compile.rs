//! From policy objects to the runtime policy. Pure: the same objects, in any order, give the same bytes.

use std::collections::BTreeSet;

use agent_core::policy::document::{
    CredentialFormat, DocumentError, PolicyHeader, Rule, RuleDirection, RuleKind, RuntimePolicy,
    Subjects,
};

use crate::policy::{CredentialRule, EgressRule, IngressRule, PolicySpec};
use crate::{CREDENTIALS_SECRET, SYSTEM_NAMESPACE};

/// A policy as the compiler takes it, wherever it was read: from the API server or from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPolicy {
    /// The object's namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// What the policy says.
    pub spec: PolicySpec,
}

/// What the operator decides, beside the policies.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// Policies of this namespace apply to agent pods of every namespace.
    pub system_namespace: String,
    /// The Secrets that credential rules may name: those that are mounted into the proxy.
    pub credential_secrets: BTreeSet<String>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            system_namespace: SYSTEM_NAMESPACE.to_owned(),
            credential_secrets: BTreeSet::from([CREDENTIALS_SECRET.to_owned()]),
        }
    }
}

/// A policy that was left out, and why.
#[derive(Debug, thiserror::Error)]
#[error("policy {policy}: {reason}")]
pub struct InvalidPolicy {
    /// `namespace/name`.
    pub policy: String,
    /// What is wrong and what to write.
    pub reason: InvalidReason,
}

/// Why a policy was left out.
#[derive(Debug, thiserror::Error)]
pub enum InvalidReason {
    /// The runtime policy would refuse a rule.
    #[error("{0}")]
    Document(#[from] DocumentError),
    /// A Secret that isn't mounted into the proxy.
    #[error(
        "rule {rule}: Secret `{secret}` is not mounted into ZeroProxy; add it to zeroproxy.credentialSecrets or use one of: {allowed}"
    )]
    SecretNotMounted {
        /// The rule's name.
        rule: String,
        /// The Secret that it names.
        secret: String,
        /// The Secrets that it may name.
        allowed: String,
    },
    /// A `namespaceSelector` outside the system namespace.
    #[error(
        "namespaceSelector is for policies in namespace `{0}` only; leave it out: the policy applies to its own namespace"
    )]
    NamespaceSelector(String),
    /// A credential rule outside the system namespace.
    #[error(
        "rule {rule}: credentials are for policies in namespace `{system}` only; move the rule there"
    )]
    CredentialNamespace {
        /// The rule's name.
        rule: String,
        /// The system namespace.
        system: String,
    },
    /// Two objects with one name.
    #[error("given twice; keep one of them")]
    Duplicate,
}

/// Compiles policies into one runtime policy.
///
/// An invalid policy is left out, so that it takes no other down; what it would have allowed is then denied.
pub fn compile(
    policies: &[NamedPolicy],
    options: &CompileOptions,
) -> (RuntimePolicy, Vec<InvalidPolicy>) {
    let mut sorted: Vec<&NamedPolicy> = policies.iter().collect();
    sorted.sort_by_key(|policy| (&policy.namespace, &policy.name));
    let mut document = RuntimePolicy::default();
    let mut invalid = Vec::new();
    let mut seen = BTreeSet::new();
    for policy in sorted {
        let full_name = format!("{}/{}", policy.namespace, policy.name);
        let outcome = if seen.insert(full_name.clone()) {
            one(policy, options)
        } else {
            Err(InvalidReason::Duplicate)
        };
        match outcome {
            Ok((header, rules)) => {
                let index = u32::try_from(document.policies.len()).unwrap_or(u32::MAX);
                document.policies.push(header);
                document.rules.extend(rules.into_iter().map(|rule| Rule {
                    policy: index,
                    ..rule
                }));
            }
            Err(reason) => invalid.push(InvalidPolicy {
                policy: full_name,
                reason,
            }),
        }
    }
    document.version = Some(document.content_version());
    (document, invalid)
}

/// One policy's header and rules, validated as if it were alone.
fn one(
    policy: &NamedPolicy,
    options: &CompileOptions,
) -> Result<(PolicyHeader, Vec<Rule>), InvalidReason> {
    let system = policy.namespace == options.system_namespace;
    let spec = &policy.spec;
    if !system && spec.namespace_selector.is_some() {
        return Err(InvalidReason::NamespaceSelector(
            options.system_namespace.clone(),
        ));
    }
    let header = PolicyHeader {
        namespace: policy.namespace.clone(),
        name: policy.name.clone(),
        priority: spec.priority,
        mode: spec.mode,
        subjects: Subjects {
            all_namespaces: system && spec.namespace_selector.is_none(),
            namespaces: if system {
                Vec::new()
            } else {
                vec![policy.namespace.clone()]
            },
            namespace_selector: spec.namespace_selector.clone(),
            pod_selector: spec.pod_selector.clone(),
        },
        direct_bypass: spec
            .direct_bypass
            .as_ref()
            .map(|bypass| bypass.default_action),
    };
    let mut rules = Vec::new();
    rules.extend(
        spec.egress
            .deny
            .iter()
            .map(|rule| egress(rule, RuleKind::Deny)),
    );
    for rule in &spec.egress.credential {
        rules.push(credential(rule, system, options)?);
    }
    rules.extend(
        spec.egress
            .allow
            .iter()
            .map(|rule| egress(rule, RuleKind::Allow)),
    );
    rules.extend(
        spec.ingress
            .deny
            .iter()
            .map(|rule| ingress(rule, RuleKind::Deny)),
    );
    rules.extend(
        spec.ingress
            .allow
            .iter()
            .map(|rule| ingress(rule, RuleKind::Allow)),
    );
    let alone = RuntimePolicy {
        policies: vec![header.clone()],
        rules: rules.clone(),
        ..RuntimePolicy::default()
    };
    alone.validate()?;
    Ok((header, rules))
}

fn egress(rule: &EgressRule, kind: RuleKind) -> Rule {
    Rule {
        host: rule.host.clone(),
        cidr: rule.cidr,
        port: rule.port,
        ports: rule.ports.clone(),
        protocol: rule.protocol,
        methods: rule.methods.clone(),
        paths: rule.paths.clone(),
        tls: rule.tls,
        ..Rule::new(0, rule.name.clone(), kind)
    }
}

fn credential(
    rule: &CredentialRule,
    system: bool,
    options: &CompileOptions,
) -> Result<Rule, InvalidReason> {
    if !system {
        return Err(InvalidReason::CredentialNamespace {
            rule: rule.name.clone(),
            system: options.system_namespace.clone(),
        });
    }
    let secret = &rule.value_from;
    if !options.credential_secrets.contains(&secret.name) {
        let allowed: Vec<&str> = options
            .credential_secrets
            .iter()
            .map(String::as_str)
            .collect();
        return Err(InvalidReason::SecretNotMounted {
            rule: rule.name.clone(),
            secret: secret.name.clone(),
            allowed: allowed.join(", "),
        });
    }
    Ok(Rule {
        host: Some(rule.host.clone()),
        port: rule.port,
        ports: rule.ports.clone(),
        protocol: rule.protocol,
        methods: rule.methods.clone(),
        paths: rule.paths.clone(),
        header: Some(rule.header.clone()),
        value_from_file: Some(format!("{}/{}", secret.name, secret.key)),
        prefix: rule.prefix.clone(),
        // what is the default anyway is left out, so that a file and the same policy from the API server, which fills
        // defaults in, compile to the same bytes
        format: (rule.format != CredentialFormat::default()).then_some(rule.format),
        username: rule.username.clone(),
        strip_from_response: (!rule.strip_from_response).then_some(false),
        allow_cleartext: rule.allow_cleartext.then_some(true),
        tls: rule.tls,
        ..Rule::new(0, rule.name.clone(), RuleKind::Credential)
    })
}

fn ingress(rule: &IngressRule, kind: RuleKind) -> Rule {
    let name = rule.name.clone().unwrap_or_else(|| made_up_name(rule));
    Rule {
        direction: RuleDirection::Ingress,
        caller: Some(rule.caller.clone()),
        target: Some(rule.target.clone()),
        ..Rule::new(0, name, kind)
    }
}

/// `caller/target` of letters that a rule's name may have: no part of a caller or target is `any` but a star.
fn made_up_name(rule: &IngressRule) -> String {
    let part = |text: &str| if text == "*" { "any" } else { text }.to_owned();
    format!("{}/{}", part(&rule.caller), part(&rule.target))
}

#[cfg(test)]
mod tests;
