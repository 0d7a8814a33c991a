//! From policy objects to the runtime policy. Pure: the same objects, in any order, give the same bytes.

use std::collections::{BTreeMap, BTreeSet};

use agent_core::policy::cidr::IpCidr;
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

/// How far below all policies of the system namespace those of other namespaces are: a priority is at most a million
/// either way. So a namespace's own policy never goes before the operator's of the same kind.
const BELOW_SYSTEM: i32 = 2_000_001;

/// What the operator decides, beside the policies.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// Policies of this namespace apply to agent pods of every namespace.
    pub system_namespace: String,
    /// The Secrets that credential rules may name: those that are mounted into the proxy. All of them lie in the system
    /// namespace.
    pub credential_secrets: BTreeSet<String>,
    /// Those among them that policies of another namespace may name too, by that namespace. None unless the operator
    /// says so: whoever writes a policy chooses the host that the credential goes to.
    pub opened_secrets: BTreeMap<String, BTreeSet<String>>,
}

/// What no list of Secrets can have in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names no Secret; write <secret>, or <secret>@<namespace> to open it to that namespace's policies too"
)]
pub struct SecretListError(String);

impl CompileOptions {
    /// The options with the Secrets of a list whose entries are `secret` or `secret@namespace`.
    ///
    /// # Errors
    /// The first entry that is neither.
    pub fn with_secrets<'a>(
        system_namespace: &str,
        list: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, SecretListError> {
        let mut options = Self {
            system_namespace: system_namespace.to_owned(),
            credential_secrets: BTreeSet::new(),
            opened_secrets: BTreeMap::new(),
        };
        for entry in list {
            let (secret, namespace) = match entry.split_once('@') {
                Some((secret, namespace)) => (secret, Some(namespace)),
                None => (entry, None),
            };
            if secret.is_empty() || namespace.is_some_and(|n| n.is_empty() || n.contains('@')) {
                return Err(SecretListError(entry.to_owned()));
            }
            options.credential_secrets.insert(secret.to_owned());
            if let Some(namespace) = namespace {
                let opened = options.opened_secrets.entry(namespace.to_owned());
                opened.or_default().insert(secret.to_owned());
            }
        }
        Ok(options)
    }
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            system_namespace: SYSTEM_NAMESPACE.to_owned(),
            credential_secrets: BTreeSet::from([CREDENTIALS_SECRET.to_owned()]),
            opened_secrets: BTreeMap::new(),
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
    /// A Secret that isn't open to the policy's namespace.
    #[error(
        "rule {rule}: Secret `{secret}` is for policies in namespace `{system}` only; move the rule there, or open the Secret to `{namespace}` by `{secret}@{namespace}` in zeroproxy.credentialSecrets"
    )]
    CredentialNamespace {
        /// The rule's name.
        rule: String,
        /// The Secret that it names.
        secret: String,
        /// The policy's namespace.
        namespace: String,
        /// The system namespace.
        system: String,
    },
    /// Two objects with one name.
    #[error("given twice; keep one of them")]
    Duplicate,
}

/// One policy as the document has it, but for its place in the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledPolicy {
    header: PolicyHeader,
    rules: Vec<Rule>,
}

impl CompiledPolicy {
    /// How many rules it has.
    pub fn rule_count(&self) -> usize {
        self.rules.len()
    }

    /// The policies of a document, by namespace and name.
    pub fn of_document(document: RuntimePolicy) -> BTreeMap<(String, String), Self> {
        let mut policies: Vec<Self> = document
            .policies
            .into_iter()
            .map(|header| Self {
                header,
                rules: Vec::new(),
            })
            .collect();
        for rule in document.rules {
            let index = usize::try_from(rule.policy).ok();
            if let Some(policy) = index.and_then(|index| policies.get_mut(index)) {
                policy.rules.push(Rule { policy: 0, ..rule });
            }
        }
        let named = policies.into_iter().map(|policy| {
            let header = &policy.header;
            ((header.namespace.clone(), header.name.clone()), policy)
        });
        named.collect()
    }

    /// The files of the credentials that it needs, as `secret/key`.
    pub fn credential_files(&self) -> impl Iterator<Item = &str> {
        self.rules
            .iter()
            .filter_map(|rule| rule.value_from_file.as_deref())
    }
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
    let mut valid = Vec::new();
    let mut invalid = Vec::new();
    let mut seen = BTreeSet::new();
    for policy in sorted {
        let full_name = format!("{}/{}", policy.namespace, policy.name);
        let outcome = if seen.insert(full_name.clone()) {
            compile_policy(policy, options)
        } else {
            Err(InvalidReason::Duplicate)
        };
        match outcome {
            Ok(policy) => valid.push(policy),
            Err(reason) => invalid.push(InvalidPolicy {
                policy: full_name,
                reason,
            }),
        }
    }
    (assemble(&valid, &[]), invalid)
}

/// The document of compiled policies, in any order: no two of them may have one name. `sensitive` are ranges that are
/// denied before any rule.
pub fn assemble<'a>(
    policies: impl IntoIterator<Item = &'a CompiledPolicy>,
    sensitive: &[IpCidr],
) -> RuntimePolicy {
    let mut sorted: Vec<&CompiledPolicy> = policies.into_iter().collect();
    sorted.sort_by(|a, b| {
        let key = |p: &'a CompiledPolicy| (&p.header.namespace, &p.header.name);
        key(a).cmp(&key(b))
    });
    let mut sensitive = sensitive.to_vec();
    sensitive.sort();
    sensitive.dedup();
    let mut document = RuntimePolicy {
        sensitive_cidrs: sensitive,
        ..RuntimePolicy::default()
    };
    for policy in sorted {
        let index = u32::try_from(document.policies.len()).unwrap_or(u32::MAX);
        document.policies.push(policy.header.clone());
        let rules = policy.rules.iter();
        document.rules.extend(rules.map(|rule| Rule {
            policy: index,
            ..rule.clone()
        }));
    }
    document.version = Some(document.content_version());
    document
}

/// One policy, validated as if it were alone.
///
/// # Errors
/// What is wrong with it, and what to write.
pub fn compile_policy(
    policy: &NamedPolicy,
    options: &CompileOptions,
) -> Result<CompiledPolicy, InvalidReason> {
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
        priority: if system {
            spec.priority
        } else {
            spec.priority.saturating_sub(BELOW_SYSTEM)
        },
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
        rules.push(credential(rule, &policy.namespace, options)?);
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
    Ok(CompiledPolicy { header, rules })
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
    namespace: &str,
    options: &CompileOptions,
) -> Result<Rule, InvalidReason> {
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
    let opened = options.opened_secrets.get(namespace);
    if namespace != options.system_namespace
        && !opened.is_some_and(|secrets| secrets.contains(&secret.name))
    {
        return Err(InvalidReason::CredentialNamespace {
            rule: rule.name.clone(),
            secret: secret.name.clone(),
            namespace: namespace.to_owned(),
            system: options.system_namespace.clone(),
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
