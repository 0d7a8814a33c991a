//! What types alone do not rule out. Owns the sentences; each says what is wrong and what to write.

use std::collections::HashSet;

use crate::identity::{Caller, is_object_name};
use crate::path;
use crate::policy::document::{
    CredentialFormat, DocumentError, PolicyHeader, Rule, RuleDirection, RuleKind, RuleProtocol,
    RuntimePolicy, SCHEMA_VERSION, Subjects,
};
use crate::policy::host::HostPattern;
use crate::policy::rule::METHOD_BYTES;
use crate::policy::target::Target;

/// Most ports, methods or paths of one rule; with more, several rules say it better and are indexed as well.
const MAX_LIST: usize = 64;
/// Longest path, in bytes.
const MAX_PATH: usize = 1024;
/// Most segments of a `/x/*` path.
const MAX_PATH_DEPTH: usize = 60;
/// Headers that carry the message or belong to one hop: no credential lives there.
const FORBIDDEN_HEADERS: [&str; 14] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-agent-caller",
    "x-agent-target",
    "x-agent-network-decision",
    "via",
];

type Checked = Result<(), String>;

pub(super) fn document(document: &RuntimePolicy) -> Result<(), DocumentError> {
    if document.schema_version != SCHEMA_VERSION {
        return Err(DocumentError::SchemaVersion(document.schema_version));
    }
    let mut names = HashSet::new();
    for policy in &document.policies {
        header(policy)
            .and_then(|()| {
                let fresh = names.insert((&policy.namespace, &policy.name));
                ensure(fresh, || {
                    "the policy is listed twice; list it once, with all its rules".to_owned()
                })
            })
            .map_err(|problem| DocumentError::Policy {
                policy: policy.full_name(),
                problem,
            })?;
    }
    let mut names = HashSet::with_capacity(document.rules.len());
    for rule in &document.rules {
        let policy = usize::try_from(rule.policy)
            .ok()
            .and_then(|i| document.policies.get(i));
        let checked = match policy {
            None => Err(format!(
                "policy number {} is not in the list of {} policies (counted from 0)",
                rule.policy,
                document.policies.len()
            )),
            Some(_) => self::rule(rule).and_then(|()| {
                let fresh = names.insert((rule.policy, rule.direction, rule.kind, &rule.name));
                ensure(fresh, || {
                    format!(
                        "two {} rules have this name; give each a name of its own",
                        rule.kind
                    )
                })
            }),
        };
        checked.map_err(|problem| DocumentError::Rule {
            policy: policy.map_or_else(|| "(unknown)".to_owned(), PolicyHeader::full_name),
            rule: rule.name.chars().take(80).collect(),
            problem,
        })?;
    }
    Ok(())
}

fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(problem()) }
}

fn header(policy: &PolicyHeader) -> Checked {
    ensure(
        is_object_name(&policy.namespace) && is_object_name(&policy.name),
        || "namespace and name must be those of the AgentNetworkPolicy object".to_owned(),
    )?;
    subjects(&policy.subjects)
}

fn subjects(subjects: &Subjects) -> Checked {
    let ways = [
        subjects.all_namespaces,
        !subjects.namespaces.is_empty(),
        subjects.namespace_selector.is_some(),
    ];
    ensure(ways.iter().filter(|way| **way).count() == 1, || {
        "subjects must name namespaces in exactly one way; write allNamespaces: true, or namespaces: [...], or \
         namespaceSelector: {...}"
            .to_owned()
    })?;
    for namespace in &subjects.namespaces {
        ensure(is_object_name(namespace), || {
            format!("`{namespace}` is no namespace's name")
        })?;
    }
    for selector in subjects
        .namespace_selector
        .iter()
        .chain([&subjects.pod_selector])
    {
        selector.validate().map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn rule(rule: &Rule) -> Checked {
    let name_is_fine = !rule.name.is_empty()
        && rule.name.len() <= 253
        && rule
            .name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':' | b'/'));
    ensure(name_is_fine, || {
        "a rule's name is 1 to 253 letters, digits and - _ . : / (it goes into a response header)"
            .to_owned()
    })?;
    match rule.direction {
        RuleDirection::Egress => egress(rule),
        RuleDirection::Ingress => ingress(rule),
    }
}

fn egress(rule: &Rule) -> Checked {
    ensure(rule.caller.is_none() && rule.target.is_none(), || {
        "caller and target belong to ingress rules; write direction: ingress, or leave them out"
            .to_owned()
    })?;
    match (&rule.host, &rule.cidr) {
        (Some(host), None) => {
            host.parse::<HostPattern>()
                .map_err(|error| format!("host: {error}"))?;
        }
        (None, Some(_)) => {}
        (None, None) => return Err("write host (\"*\" for every host) or cidr".to_owned()),
        (Some(_), Some(_)) => {
            return Err("host and cidr exclude each other; write two rules".to_owned());
        }
    }
    ensure(rule.port.is_none() || rule.ports.is_empty(), || {
        "port and ports exclude each other; put all into ports".to_owned()
    })?;
    for (field, len) in [
        ("ports", rule.ports.len()),
        ("methods", rule.methods.len()),
        ("paths", rule.paths.len()),
    ] {
        ensure(len <= MAX_LIST, || {
            format!("{field} has {len} entries; write several rules of at most {MAX_LIST}")
        })?;
    }
    for method in &rule.methods {
        method_name(method)?;
    }
    for path in &rule.paths {
        path_pattern(path)?;
    }
    let sees_http = rule.methods.is_empty() && rule.paths.is_empty();
    ensure(
        sees_http || rule.protocol != Some(RuleProtocol::Tls),
        || "methods and paths are HTTP's; write protocol: https, or leave protocol out".to_owned(),
    )?;
    if rule.tls.is_some() {
        ensure(rule.kind != RuleKind::Deny, || {
            "a deny rule does nothing about tls; leave tls out".to_owned()
        })?;
        ensure(rule.host.is_some(), || {
            "tls: originate needs a name to verify the upstream's certificate with; write host instead of cidr"
                .to_owned()
        })?;
    }
    match rule.kind {
        RuleKind::Credential => {
            let everywhere = rule.host.as_deref() == Some("*")
                || rule.cidr.is_some_and(|net| net.prefix_len() == 0);
            ensure(!everywhere, || {
                "a credential for every host would reach whoever the pod chooses; write the host it is for".to_owned()
            })?;
            credential(rule)
        }
        RuleKind::Allow | RuleKind::Deny => no_credential(rule),
    }
}

fn ingress(rule: &Rule) -> Checked {
    ensure(rule.kind != RuleKind::Credential, || {
        "credentials go with egress; an ingress rule is allow or deny".to_owned()
    })?;
    no_credential(rule)?;
    let egress_only = rule.host.is_some()
        || rule.cidr.is_some()
        || rule.port.is_some()
        || !rule.ports.is_empty()
        || rule.protocol.is_some()
        || !rule.methods.is_empty()
        || !rule.paths.is_empty()
        || rule.tls.is_some();
    ensure(!egress_only, || {
        "an ingress rule has caller and target and nothing of an egress rule (host, cidr, port, protocol, methods, \
         paths, tls)"
            .to_owned()
    })?;
    let caller = rule
        .caller
        .as_deref()
        .ok_or("write caller, such as sa:<namespace>:<service-account> or \"*\"")?;
    caller
        .parse::<Caller>()
        .map_err(|error| format!("caller: {error}"))?;
    let target = rule
        .target
        .as_deref()
        .ok_or("write target: the called service's name, or \"*\"")?;
    if target != "*" {
        target
            .parse::<Target>()
            .map_err(|error| format!("target: {error}"))?;
    }
    Ok(())
}

fn method_name(method: &str) -> Checked {
    let is_token = !method.is_empty()
        && method.len() <= METHOD_BYTES
        && method
            .bytes()
            .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_'));
    ensure(is_token, || {
        format!("`{method}` is no HTTP method; write it in capitals, such as GET")
    })
}

fn path_pattern(pattern: &str) -> Checked {
    let base = pattern.strip_suffix('*').unwrap_or(pattern);
    let star_ok = base.len() == pattern.len() || base.ends_with('/');
    ensure(
        pattern.starts_with('/') && star_ok && !base.contains('*'),
        || {
            format!(
                "`{pattern}` is no path; write an exact path (/v1/models) or everything under one (/v1/*)"
            )
        },
    )?;
    ensure(pattern.len() <= MAX_PATH, || {
        format!("a path is longer than {MAX_PATH} characters")
    })?;
    ensure(base.matches('/').count() <= MAX_PATH_DEPTH, || {
        format!("`{pattern}` has more than {MAX_PATH_DEPTH} segments")
    })?;
    ensure(!base.contains([';', '?', '#']), || {
        format!(
            "`{pattern}` holds `;`, `?` or `#`; write the path without parameters, query and fragment"
        )
    })?;
    match path::canonicalise(base) {
        Ok(canonical) if canonical == base => Ok(()),
        Ok(canonical) => {
            let star = if base.len() == pattern.len() { "" } else { "*" };
            Err(format!(
                "`{pattern}` is not in canonical form; write `{canonical}{star}`"
            ))
        }
        Err(error) => Err(format!("`{pattern}`: {error}")),
    }
}

fn credential(rule: &Rule) -> Checked {
    let header = rule
        .header
        .as_deref()
        .ok_or("a credential rule needs header, such as Authorization")?;
    let is_token = !header.is_empty()
        && header.len() <= 128
        && header
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b));
    ensure(is_token, || format!("`{header}` is no header's name"))?;
    ensure(
        !FORBIDDEN_HEADERS
            .iter()
            .any(|name| name.eq_ignore_ascii_case(header)),
        || {
            format!(
                "header `{header}` belongs to the message itself; name the one that carries the credential"
            )
        },
    )?;
    let file = rule.value_from_file.as_deref().ok_or(
        "a credential rule needs valueFromFile: <secret>/<key> under the credentials directory",
    )?;
    ensure(is_secret_file(file), || {
        format!(
            "valueFromFile `{file}` must be <secret>/<key>, relative to the credentials directory"
        )
    })?;
    for (field, text) in [("prefix", &rule.prefix), ("username", &rule.username)] {
        let plain = text
            .as_deref()
            .unwrap_or_default()
            .bytes()
            .all(|b| (b' '..=b'~').contains(&b));
        ensure(plain, || {
            format!("{field} may hold only printable ASCII characters")
        })?;
    }
    match (rule.format.unwrap_or_default(), &rule.username) {
        (CredentialFormat::Basic, None) => Err("format: basic needs username".to_owned()),
        (CredentialFormat::Raw, Some(_)) => Err("username goes with format: basic".to_owned()),
        (CredentialFormat::Basic, Some(name)) if name.contains(':') => {
            Err("username may not hold a colon (RFC 7617)".to_owned())
        }
        (CredentialFormat::Basic, Some(_)) if rule.prefix.is_some() => {
            Err("format: basic writes its own prefix; leave prefix out".to_owned())
        }
        (CredentialFormat::Basic | CredentialFormat::Raw, _) => Ok(()),
    }
}

fn no_credential(rule: &Rule) -> Checked {
    let set = rule.header.is_some()
        || rule.value_from_file.is_some()
        || rule.prefix.is_some()
        || rule.format.is_some()
        || rule.username.is_some()
        || rule.strip_from_response.is_some()
        || rule.allow_cleartext.is_some();
    ensure(!set, || {
        "header, valueFromFile, prefix, format, username, stripFromResponse and allowCleartext go with kind: \
         credential only"
            .to_owned()
    })
}

/// `<secret>/<key>`, each as Kubernetes names them, neither able to leave its directory.
fn is_secret_file(file: &str) -> bool {
    let Some((secret, key)) = file.split_once('/') else {
        return false;
    };
    let key_is_fine = !key.is_empty()
        && key.len() <= 253
        && !key.starts_with("..")
        && key != "."
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    is_object_name(secret) && key_is_fine
}
