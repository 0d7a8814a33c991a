//! What the API server holds against each field: types, limits and CEL rules with the sentence that says what to write.
//!
//! Every list has a most of items and every string a most of characters: without them the API server takes the CEL rules
//! for too expensive and refuses the definition. A rule may be laxer than the parser in `agent-core`; what gets past it
//! is the compiler's to refuse. It is never stricter about what a person would write.
//! Needs Kubernetes 1.33, whose API server reckons with `maxLength` of a field that is a number or a text.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Value, json};

use agent_core::policy::document::{
    BypassAction, CredentialFormat, PolicyMode, RuleProtocol, TlsMode,
};
use agent_core::policy::selector::LabelOperator;

use crate::class::{ClassPhase, Connectivity, DataPathMode, FailMode};
use crate::policy::PolicyPhase;

/// Most rules of one list; with more, several policies say it better.
pub(crate) const MAX_RULES: u32 = 256;

/// A CEL rule, and what a person who broke it is told.
pub(crate) type Rule = (&'static str, &'static str);

pub(crate) const HOST_OR_CIDR: Rule = (
    "has(self.host) || has(self.cidr)",
    "write host (a name, *.suffix, or \"*\" for every host) or cidr (such as 192.0.2.0/24)",
);
pub(crate) const HOST_XOR_CIDR: Rule = (
    "!has(self.host) || !has(self.cidr)",
    "host and cidr exclude each other; write two rules",
);
pub(crate) const PORT_XOR_PORTS: Rule = (
    "!has(self.port) || !has(self.ports) || size(self.ports) == 0",
    "port and ports exclude each other; write all of them into ports",
);
pub(crate) const HTTP_ONLY: Rule = (
    "!has(self.protocol) || self.protocol != 'tls' || ((!has(self.methods) || size(self.methods) == 0) && (!has(self.paths) || size(self.paths) == 0))",
    "methods and paths are HTTP's; write protocol: https, or leave protocol out",
);
pub(crate) const TLS_NEEDS_HOST: Rule = (
    "!has(self.tls) || !has(self.cidr)",
    "tls: originate needs a name to verify the upstream's certificate with; write host instead of cidr",
);
pub(crate) const NO_TLS_IN_DENY: Rule = (
    "self.all(rule, !has(rule.tls))",
    "a deny rule does nothing about tls; leave tls out",
);
pub(crate) const BASIC_NEEDS_USERNAME: Rule = (
    "!has(self.format) || self.format != 'basic' || has(self.username)",
    "format: basic needs a user name; write username too",
);
pub(crate) const USERNAME_NEEDS_BASIC: Rule = (
    "!has(self.username) || (has(self.format) && self.format == 'basic')",
    "username goes with HTTP Basic authentication; write format: basic too, or leave username out",
);
pub(crate) const BASIC_HAS_NO_PREFIX: Rule = (
    "!has(self.format) || self.format != 'basic' || !has(self.prefix)",
    "format: basic writes its own prefix; leave prefix out",
);

/// Names of Kubernetes objects (RFC 1123 subdomain), without anchors.
const OBJECT_NAME: &str = "[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*";

const PRINTABLE: &str = "self.matches('^[ -~]*$')";
const HOST_IS_NO_ADDRESS: &str =
    "!self.matches('(^|[.])([0-9]+|0[xX][0-9a-fA-F]*)[.]?$|^\\\\[|:.*:')";
const HOST_STARS: &str =
    "self == '*' || !self.contains('*') || (self.startsWith('*.') && self.lastIndexOf('*') == 0)";
const HOST_STARS_SAY: &str =
    "a star stands alone or for whole labels at the front; write \"*\" or \"*.example.com\"";

fn rules<'a>(rules: impl IntoIterator<Item = (impl AsRef<str>, &'a str)>) -> Value {
    rules
        .into_iter()
        .map(|(rule, message)| json!({"rule": rule.as_ref(), "message": message}))
        .collect()
}

fn text(most: u32, checks: &[(&str, &str)]) -> Schema {
    let mut schema = json_schema!({"type": "string", "maxLength": most});
    if !checks.is_empty() {
        schema.insert(
            "x-kubernetes-validations".to_owned(),
            rules(checks.iter().copied()),
        );
    }
    schema
}

/// The words that serde has for the values, so that the two can't differ.
fn words<T: Serialize>(values: &[T]) -> Schema {
    json_schema!({"type": "string", "enum": values})
}

fn number(least: i64, most: i64) -> Schema {
    json_schema!({"type": "integer", "minimum": least, "maximum": most})
}

fn list(most: u32, items: &Schema) -> Schema {
    json_schema!({"type": "array", "maxItems": most, "items": items, "x-kubernetes-list-type": "atomic"})
}

pub(crate) fn priority(_: &mut SchemaGenerator) -> Schema {
    number(-1_000_000, 1_000_000)
}

pub(crate) fn mode(_: &mut SchemaGenerator) -> Schema {
    words(&[PolicyMode::Enforce, PolicyMode::Audit])
}

pub(crate) fn rule_name(_: &mut SchemaGenerator) -> Schema {
    text(
        253,
        &[(
            "self.matches('^[A-Za-z0-9_.:/-]+$')",
            "a rule's name is letters, digits and - _ . : / only; write it like public-git",
        )],
    )
}

/// Checks of hosts that both kinds of rules share.
const HOST_FORM: [(&str, &str); 3] = [
    (HOST_STARS, HOST_STARS_SAY),
    (
        "!self.matches('[\\\\x00-)+,/:-@\\\\x5b-^`{-\\\\x7f]')",
        "write a name alone, such as api.example.com, without scheme, port, path or spaces (they go into protocol, port and paths)",
    ),
    (
        "self.size() > 0 && !self.matches('^[.]|[.][.]|[^.]{64}')",
        "write a name whose parts between dots have 1 to 63 characters, such as api.example.com",
    ),
];

pub(crate) fn host(_: &mut SchemaGenerator) -> Schema {
    let [stars, form, labels] = HOST_FORM;
    let address = (
        HOST_IS_NO_ADDRESS,
        "an address is no host; write cidr instead of host, such as cidr: 192.0.2.7/32",
    );
    text(256, &[address, stars, form, labels])
}

pub(crate) fn credential_host(_: &mut SchemaGenerator) -> Schema {
    let [stars, form, labels] = HOST_FORM;
    text(
        256,
        &[
            (
                "self != '*'",
                "a credential for every host would reach whoever the pod chooses; write the host that it is for",
            ),
            (
                HOST_IS_NO_ADDRESS,
                "a credential goes to a name that can be verified, not to an address; write the host's name",
            ),
            stars,
            form,
            labels,
        ],
    )
}

pub(crate) fn cidr(_: &mut SchemaGenerator) -> Schema {
    text(
        64,
        &[(
            "isCIDR(self)",
            "write an address and a prefix length, such as 192.0.2.0/24 or 192.0.2.7/32",
        )],
    )
}

pub(crate) fn protocol(_: &mut SchemaGenerator) -> Schema {
    words(&[
        RuleProtocol::Http,
        RuleProtocol::Https,
        RuleProtocol::Grpc,
        RuleProtocol::Tls,
        RuleProtocol::Tcp,
    ])
}

pub(crate) fn port(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": true,
        "maxLength": 11,
        "x-kubernetes-validations": rules([
            (
                "type(self) == int ? (self >= 1 && self <= 65535) : \
                 (self.matches('^[0-9]{1,5}(-[0-9]{1,5})?$') && self.split('-').all(port, int(port) >= 1 && int(port) <= 65535))",
                "write a port from 1 to 65535 or a range such as \"8000-8999\"",
            ),
            (
                "type(self) == int || !self.matches('^[0-9]{1,5}-[0-9]{1,5}$') || int(self.split('-')[0]) <= int(self.split('-')[1])",
                "write the lower port of a range first, such as \"8000-8999\"",
            ),
        ]),
    })
}

pub(crate) fn ports(generator: &mut SchemaGenerator) -> Schema {
    list(32, &port(generator))
}

pub(crate) fn methods(_: &mut SchemaGenerator) -> Schema {
    let method = text(
        32,
        &[(
            "self.matches('^[A-Z0-9_-]+$')",
            "write an HTTP method in capitals, such as GET",
        )],
    );
    list(32, &method)
}

pub(crate) fn paths(_: &mut SchemaGenerator) -> Schema {
    let path = text(
        512,
        &[
            (
                "self.startsWith('/') && (!self.contains('*') || self.endsWith('/*') && self.indexOf('*') == self.size() - 1)",
                "write an exact path (/v1/models) or everything under one (/v1/*)",
            ),
            (
                "!self.matches('[;?#]')",
                "write the path without parameters, query and fragment (no ; ? #)",
            ),
            (
                "!self.matches('//|/[.][.]?(/|$)')",
                "write the path without empty, . and .. segments, as it is after they are resolved",
            ),
            (
                "!self.matches('[^!-~]|[\\\\x5c]')",
                "write characters that have no place in a path, such as spaces, as %20",
            ),
        ],
    );
    list(32, &path)
}

pub(crate) fn tls(_: &mut SchemaGenerator) -> Schema {
    words(&[TlsMode::Originate])
}

pub(crate) fn header(_: &mut SchemaGenerator) -> Schema {
    text(
        128,
        &[
            (
                "self.matches('^[!#$%&*+.^_`|~0-9A-Za-z-]+$')",
                "write a header's name alone, such as Authorization",
            ),
            (
                "!(self.lowerAscii() in ['connection', 'content-length', 'expect', 'host', 'keep-alive', 'proxy-connection', 'te', \
                 'trailer', 'transfer-encoding', 'upgrade', 'via', 'x-agent-caller', 'x-agent-target', 'x-agent-network-decision'])",
                "this header belongs to the message itself; write the one that carries the credential, such as Authorization",
            ),
        ],
    )
}

pub(crate) fn prefix(_: &mut SchemaGenerator) -> Schema {
    text(
        256,
        &[(
            PRINTABLE,
            "write a prefix of printable ASCII characters, such as \"Bearer \"",
        )],
    )
}

pub(crate) fn format(_: &mut SchemaGenerator) -> Schema {
    words(&[CredentialFormat::Raw, CredentialFormat::Basic])
}

pub(crate) fn username(_: &mut SchemaGenerator) -> Schema {
    text(
        256,
        &[
            (
                PRINTABLE,
                "write a user name of printable ASCII characters, such as git",
            ),
            (
                "!self.contains(':')",
                "a user name has no colon (RFC 7617); write what stands before it",
            ),
        ],
    )
}

pub(crate) fn secret_name(_: &mut SchemaGenerator) -> Schema {
    text(
        253,
        &[(
            &format!("self.matches('^{OBJECT_NAME}$')"),
            "write the name of a Secret, such as zeroproxy-credentials (no namespace, no key)",
        )],
    )
}

pub(crate) fn secret_key(_: &mut SchemaGenerator) -> Schema {
    text(
        253,
        &[(
            "self.matches('^[A-Za-z0-9._-]+$') && !self.startsWith('..') && self != '.'",
            "write a key of the Secret, such as REPO_TOKEN (letters, digits and - _ . only)",
        )],
    )
}

pub(crate) fn caller(_: &mut SchemaGenerator) -> Schema {
    text(
        512,
        &[(
            &format!(
                "self.matches('^([*]|ns:{OBJECT_NAME}|(sa|pod):{OBJECT_NAME}:{OBJECT_NAME})$')"
            ),
            "write sa:<namespace>:<service-account>, ns:<namespace>, pod:<namespace>:<name> or \"*\"",
        )],
    )
}

pub(crate) fn target(_: &mut SchemaGenerator) -> Schema {
    text(
        512,
        &[(
            &format!("self.lowerAscii().matches('^([*]|({OBJECT_NAME}/)?{OBJECT_NAME})$')"),
            "write the name of a service, <namespace>/<name>, or \"*\"",
        )],
    )
}

pub(crate) fn bypass_action(_: &mut SchemaGenerator) -> Schema {
    words(&[BypassAction::Deny, BypassAction::Allow])
}

pub(crate) fn direct_bypass(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<crate::policy::DirectBypass>()
}

/// `metav1.LabelSelector`, with limits and with the rules that Kubernetes holds against its own.
pub(crate) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    const KEY: &str = "matches('^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$')";
    const KEY_SAYS: &str = "write a label's key such as app or example.com/team";
    const VALUE: &str = "matches('^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$')";
    const VALUE_SAYS: &str = "write a label's value of letters, digits and - _ . that begins and ends with a letter or digit";
    let labels = rules([
        (
            format!("self.all(key, key.size() <= 317 && key.{KEY})"),
            KEY_SAYS,
        ),
        (format!("self.all(key, self[key].{VALUE})"), VALUE_SAYS),
    ]);
    let key = text(317, &[(&format!("self.{KEY}"), KEY_SAYS)]);
    let value = text(63, &[(&format!("self.{VALUE}"), VALUE_SAYS)]);
    let mut values = list(64, &value);
    values.insert(
        "description".to_owned(),
        json!("The values of In and NotIn; none for Exists and DoesNotExist."),
    );
    let mut key = key;
    key.insert("description".to_owned(), json!("The label's key."));
    let mut operator = words(&[
        LabelOperator::In,
        LabelOperator::NotIn,
        LabelOperator::Exists,
        LabelOperator::DoesNotExist,
    ]);
    operator.insert(
        "description".to_owned(),
        json!("In, NotIn: the label has one of the values, or none. Exists, DoesNotExist: the label is there, or not."),
    );
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {
                "type": "object",
                "description": "Labels that must be there with these values.",
                "maxProperties": 64,
                "additionalProperties": {"type": "string", "maxLength": 63},
                "x-kubernetes-validations": labels,
            },
            "matchExpressions": {
                "type": "array",
                "description": "Requirements that must all hold.",
                "maxItems": 32,
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "description": "One requirement.",
                    "required": ["key", "operator"],
                    "properties": {"key": key, "operator": operator, "values": values},
                    "x-kubernetes-validations": rules([
                        (
                            "!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)",
                            "In and NotIn compare; write at least one value in values",
                        ),
                        (
                            "!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || size(self.values) == 0",
                            "Exists and DoesNotExist compare nothing; leave values out",
                        ),
                    ]),
                },
            },
        },
    })
}

const IPV4: &str = "isCIDR(self) && cidr(self).ip().family() == 4";
const HOST_BITS: &str = "!isCIDR(self) || cidr(self) == cidr(self).masked()";

pub(crate) fn fake_ip_cidr(_: &mut SchemaGenerator) -> Schema {
    let outside = |net: &str| {
        format!(
            "!isCIDR(self) || cidr(self).ip().family() != 4 || !(cidr('{net}').containsCIDR(cidr(self)) || cidr(self).containsCIDR(cidr('{net}')))"
        )
    };
    let (loopback, shared, multicast, zero) = (
        outside("127.0.0.0/8"),
        outside("100.64.0.0/10"),
        outside("224.0.0.0/3"),
        outside("0.0.0.0/8"),
    );
    text(
        18,
        &[
            (
                IPV4,
                "write an IPv4 range, such as 169.254.0.0/16 or 10.250.0.0/16",
            ),
            (
                HOST_BITS,
                "write the first address of the range, such as 10.250.0.0/16 and not 10.250.1.2/16",
            ),
            (
                "!isCIDR(self) || (cidr(self).prefixLength() >= 8 && cidr(self).prefixLength() <= 29)",
                "write a range from a /8 to a /29",
            ),
            (
                &loopback,
                "127.0.0.0/8 is every host's own; write another range, such as 169.254.0.0/16",
            ),
            (
                &shared,
                "every policy denies 100.64.0.0/10; write another range, such as 169.254.0.0/16",
            ),
            (
                &multicast,
                "no host has an address from 224.0.0.0 on; write another range, such as 169.254.0.0/16",
            ),
            (
                &zero,
                "no host has an address in 0.0.0.0/8; write another range, such as 169.254.0.0/16",
            ),
        ],
    )
}

pub(crate) fn node_prefix_length(_: &mut SchemaGenerator) -> Schema {
    number(16, 29)
}

pub(crate) fn service_cidrs(_: &mut SchemaGenerator) -> Schema {
    let range = text(
        18,
        &[
            (
                IPV4,
                "write an IPv4 range such as 10.96.0.0/12; agent pods have no IPv6",
            ),
            (
                HOST_BITS,
                "write the first address of the range, such as 10.96.0.0/12 and not 10.96.0.1/12",
            ),
            (
                "!isCIDR(self) || cidr(self).prefixLength() >= 8",
                "what is in a Service CIDR passes by the policy; write the cluster's own range, such as 10.96.0.0/12",
            ),
        ],
    );
    list(32, &range)
}

pub(crate) fn sensitive_cidrs(generator: &mut SchemaGenerator) -> Schema {
    list(64, &cidr(generator))
}

pub(crate) fn listener_port(_: &mut SchemaGenerator) -> Schema {
    number(1, 65_535)
}

pub(crate) fn fail_mode(_: &mut SchemaGenerator) -> Schema {
    words(&[FailMode::Closed, FailMode::Open])
}

pub(crate) fn connectivity(_: &mut SchemaGenerator) -> Schema {
    words(&[Connectivity::Zero, Connectivity::Passthrough])
}

pub(crate) fn data_path_mode(_: &mut SchemaGenerator) -> Schema {
    words(&[
        DataPathMode::Auto,
        DataPathMode::Ebpf,
        DataPathMode::IptablesCompat,
    ])
}

pub(crate) fn policy_phase(_: &mut SchemaGenerator) -> Schema {
    words(&[
        PolicyPhase::Pending,
        PolicyPhase::Active,
        PolicyPhase::Degraded,
        PolicyPhase::Invalid,
    ])
}

pub(crate) fn class_phase(_: &mut SchemaGenerator) -> Schema {
    words(&[
        ClassPhase::Pending,
        ClassPhase::Active,
        ClassPhase::Degraded,
        ClassPhase::Invalid,
    ])
}

pub(crate) fn node_count(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<crate::status::NodeCount>()
}

pub(crate) fn count(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int64", "minimum": 0})
}

pub(crate) fn summary(_: &mut SchemaGenerator) -> Schema {
    text(43, &[])
}

pub(crate) fn policy_version(_: &mut SchemaGenerator) -> Schema {
    text(128, &[])
}

pub(crate) fn message(_: &mut SchemaGenerator) -> Schema {
    text(32_768, &[])
}

/// `metav1.Condition`, with its own limits.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "description": "One condition.",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {"type": "string", "maxLength": 316, "description": "What is true or not."},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"], "description": "True, False or Unknown."},
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "The metadata.generation that the condition speaks of.",
                },
                "lastTransitionTime": {"type": "string", "format": "date-time", "description": "When status last changed."},
                "reason": {"type": "string", "maxLength": 1024, "minLength": 1, "description": "Why, in one word for programs."},
                "message": {"type": "string", "maxLength": 32768, "description": "Why, in a sentence for people."},
            },
        },
    })
}
