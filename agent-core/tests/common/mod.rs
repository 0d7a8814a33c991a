//! Documents and requests from a small universe, so that rules meet often; shared by the property tests.
#![expect(
    clippy::unwrap_used,
    reason = "a strategy that makes nonsense must fail the test"
)]

use std::net::{Ipv4Addr, SocketAddrV4};

use agent_core::identity::Workload;
use agent_core::policy::{
    HostName, LabelSelector, PolicyHeader, PolicyMode, Protocol, RequestFacts, Rule, RuleKind,
    RuleProtocol, RuntimePolicy, Subjects,
};
use proptest::prelude::*;

/// A request that owns its parts.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) protocol: Protocol,
    pub(crate) host: Option<HostName>,
    pub(crate) dst: SocketAddrV4,
    pub(crate) method: Option<&'static str>,
    pub(crate) path: Option<&'static str>,
}

impl Request {
    pub(crate) fn facts(&self) -> RequestFacts<'_> {
        RequestFacts {
            protocol: self.protocol,
            host: self.host.as_ref(),
            dst: self.dst,
            port: self.dst.port(),
            method: self.method,
            path: self.path,
        }
    }
}

fn host_pattern() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => Just("a.b.example".to_owned()),
        2 => Just("*.b.example".to_owned()),
        2 => Just("*.example".to_owned()),
        2 => Just("*".to_owned()),
        1 => "[a-c]\\.example",
    ]
}

fn cidr() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("192.0.2.0/24".to_owned()),
        Just("192.0.2.1/32".to_owned()),
        Just("192.0.0.0/8".to_owned()),
        Just("0.0.0.0/0".to_owned()),
        Just("192.0.2.0/30".to_owned()),
    ]
}

fn ports() -> impl Strategy<Value = Vec<String>> {
    let one = prop_oneof![
        (1u16..=4).prop_map(|p| p.to_string()),
        (1u16..=4, 1u16..=9).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
        Just("1-65535".to_owned()),
    ];
    prop_oneof![2 => Just(Vec::new()), 3 => proptest::collection::vec(one, 1..3)]
}

fn kind() -> impl Strategy<Value = RuleKind> {
    prop_oneof![1 => Just(RuleKind::Deny), 2 => Just(RuleKind::Allow), 1 => Just(RuleKind::Credential)]
}

fn protocol() -> impl Strategy<Value = Option<RuleProtocol>> {
    prop_oneof![
        4 => Just(None),
        1 => Just(Some(RuleProtocol::Tcp)),
        1 => Just(Some(RuleProtocol::Http)),
        1 => Just(Some(RuleProtocol::Https)),
        1 => Just(Some(RuleProtocol::Grpc)),
    ]
}

fn methods() -> impl Strategy<Value = Vec<String>> {
    let one = prop_oneof![
        Just("GET".to_owned()),
        Just("POST".to_owned()),
        Just("HEAD".to_owned())
    ];
    prop_oneof![3 => Just(Vec::new()), 1 => proptest::collection::vec(one, 1..3)]
}

const RULE_PATHS: [&str; 7] = ["/", "/*", "/a", "/a/*", "/a/b", "/a/b/*", "/a+b"];

fn paths() -> impl Strategy<Value = Vec<String>> {
    let one = proptest::sample::select(&RULE_PATHS[..]).prop_map(str::to_owned);
    prop_oneof![2 => Just(Vec::new()), 2 => proptest::collection::vec(one, 1..3)]
}

fn rule(policies: u32) -> impl Strategy<Value = Rule> {
    let destination = prop_oneof![3 => host_pattern().prop_map(Ok), 1 => cidr().prop_map(Err)];
    (
        0..policies,
        kind(),
        destination,
        ports(),
        protocol(),
        methods(),
        paths(),
    )
        .prop_map(
            |(policy, kind, destination, ports, protocol, methods, paths)| {
                let mut rule = Rule::new(policy, "x", kind);
                match destination {
                    Ok(host) => rule.host = Some(host),
                    Err(cidr) => rule.cidr = Some(cidr.parse().unwrap()),
                }
                rule.ports = ports.iter().map(|p| p.parse().unwrap()).collect();
                rule.protocol = protocol;
                rule.methods = methods;
                rule.paths = paths;
                if kind == RuleKind::Credential {
                    // A credential for everywhere is refused.
                    if rule.host.as_deref() == Some("*") {
                        rule.host = Some("*.b.example".to_owned());
                    }
                    if rule.cidr.is_some_and(|net| net.prefix_len() == 0) {
                        rule.cidr = "192.0.0.0/8".parse().ok();
                    }
                    rule.header = Some("Authorization".to_owned());
                    rule.value_from_file = Some("s/k".to_owned());
                }
                rule
            },
        )
}

fn header(position: u32) -> impl Strategy<Value = PolicyHeader> {
    let subjects = prop_oneof![
        4 => Just((true, "")),
        1 => Just((true, r#"{"matchLabels":{"app":"a"}}"#)),
        1 => Just((true, r#"{"matchExpressions":[{"key":"app","operator":"NotIn","values":["a"]}]}"#)),
        1 => Just((false, "")),
    ];
    (
        subjects,
        -1i32..2,
        prop_oneof![4 => Just(PolicyMode::Enforce), 1 => Just(PolicyMode::Audit)],
    )
        .prop_map(move |((all, selector), priority, mode)| PolicyHeader {
            namespace: "sys".to_owned(),
            name: format!("p{position}"),
            priority,
            mode,
            subjects: Subjects {
                all_namespaces: all,
                namespaces: if all {
                    vec![]
                } else {
                    vec!["agents".to_owned()]
                },
                namespace_selector: None,
                pod_selector: match selector {
                    "" => LabelSelector::default(),
                    json => serde_json::from_str(json).unwrap(),
                },
            },
            direct_bypass: None,
        })
}

/// A document with 1 to 4 policies and up to `rules` rules, each with a name of its own.
pub(crate) fn document(rules: usize) -> impl Strategy<Value = RuntimePolicy> {
    (1u32..=4)
        .prop_flat_map(move |n| {
            let headers: Vec<_> = (0..n).map(header).collect();
            (headers, proptest::collection::vec(rule(n), 0..rules))
        })
        .prop_map(|(policies, mut rules)| {
            for (i, rule) in rules.iter_mut().enumerate() {
                // The order of names must not be the order of positions.
                rule.name = format!("r{:03}", (i * 37) % 1000);
            }
            RuntimePolicy {
                policies,
                rules,
                ..RuntimePolicy::default()
            }
        })
}

pub(crate) fn request() -> impl Strategy<Value = Request> {
    let host = prop_oneof![
        4 => Just(Some("a.b.example")),
        2 => Just(Some("c.b.example")),
        2 => Just(Some("a.example")),
        1 => Just(Some("other.test")),
        2 => Just(None),
    ];
    let path = proptest::sample::select(vec![
        None,
        Some("/"),
        Some("/a"),
        Some("/a/"),
        Some("/a/b"),
        Some("/a/b/c"),
        Some("/a+b"),
        Some("/a%2Bb"),
        Some("/a;x/b"),
        Some("/x/../a"),
    ]);
    let method = proptest::sample::select(vec![
        None,
        Some("GET"),
        Some("HEAD"),
        Some("POST"),
        Some("post"),
        Some("Head"),
    ]);
    let protocol = proptest::sample::select(Protocol::ALL.to_vec());
    let ip = prop_oneof![
        Just([192, 0, 2, 1]),
        Just([192, 0, 2, 9]),
        Just([198, 51, 100, 1])
    ];
    (protocol, host, ip, 1u16..=10, method, path).prop_map(
        |(protocol, host, ip, port, method, path)| Request {
            protocol,
            host: host.map(|host| HostName::parse(host).unwrap()),
            dst: SocketAddrV4::new(Ipv4Addr::from(ip), port),
            method,
            path,
        },
    )
}

pub(crate) fn workload() -> impl Strategy<Value = Workload> {
    let app = proptest::sample::select(vec!["a", "b"]);
    let namespace = proptest::sample::select(vec!["agents", "other"]);
    (app, namespace).prop_map(|(app, namespace)| Workload {
        namespace: namespace.to_owned(),
        name: "pod".to_owned(),
        uid: "u".to_owned(),
        service_account: None,
        labels: [("app".to_owned(), app.to_owned())].into(),
        namespace_labels: Default::default(),
        fake_ip: Ipv4Addr::new(169, 254, 9, 2),
    })
}
