use super::*;
use crate::policy::{HostName, PermitKind, Protocol};
use std::net::{Ipv4Addr, SocketAddrV4};

mod addresses;

fn set(policies: &str, rules: &str) -> PolicySet {
    let text = format!(r#"{{"schemaVersion":1,"policies":[{policies}],"rules":[{rules}]}}"#);
    PolicySet::compile(&RuntimePolicy::parse(text.as_bytes()).unwrap()).unwrap()
}

/// One policy for every pod.
fn one(rules: &str) -> PolicySet {
    set(
        r#"{"namespace":"sys","name":"p","subjects":{"allNamespaces":true}}"#,
        rules,
    )
}

fn workload() -> Workload {
    Workload {
        namespace: "agents".into(),
        name: "coder-0".into(),
        uid: "u".into(),
        service_account: Some("coder".into()),
        labels: [("app".to_owned(), "coder".to_owned())].into(),
        namespace_labels: [("team".to_owned(), "red".to_owned())].into(),
        fake_ip: Ipv4Addr::new(169, 254, 9, 2),
    }
}

fn nets() -> NodeNets {
    NodeNets::new(
        ["169.254.9.0/24".parse().unwrap()],
        [
            "192.0.2.10".parse().unwrap(),
            "169.254.9.1".parse().unwrap(),
        ],
    )
}

struct Ask {
    protocol: Protocol,
    host: Option<HostName>,
    dst: SocketAddrV4,
    method: Option<String>,
    path: Option<String>,
}

/// `http GET example.com:80 /path`, `tls example.com:443`, `tcp 192.0.2.1:22`, `http GET 192.0.2.1:80 /`.
fn ask(text: &str) -> Ask {
    let words: Vec<&str> = text.split(' ').collect();
    let protocol = Protocol::ALL
        .into_iter()
        .find(|p| p.as_str() == words[0])
        .unwrap();
    let (method, rest) = match words[1].contains(':') {
        true => (None, &words[1..]),
        false => (Some(words[1].to_owned()), &words[2..]),
    };
    let (name, port) = rest[0].rsplit_once(':').unwrap();
    let port: u16 = port.parse().unwrap();
    let host = HostName::parse(name).ok();
    let ip = name.parse().unwrap_or(Ipv4Addr::new(198, 51, 100, 1));
    Ask {
        protocol,
        host,
        dst: SocketAddrV4::new(ip, port),
        method,
        path: rest.get(1).map(|p| (*p).to_owned()),
    }
}

fn verdict(set: &PolicySet, text: &str) -> Verdict {
    verdict_for(set, &workload(), text)
}

fn verdict_for(set: &PolicySet, workload: &Workload, text: &str) -> Verdict {
    let a = ask(text);
    set.decide_request(
        &set.scope(workload),
        &RequestFacts {
            protocol: a.protocol,
            host: a.host.as_ref(),
            dst: a.dst,
            port: a.dst.port(),
            method: a.method.as_deref(),
            path: a.path.as_deref(),
        },
    )
}

/// `allow rule`, `deny rule`, `deny -` for default deny, `audit rule` when let through in audit mode.
fn outcome(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Deny(denial) => format!("deny {}", denial.rule.as_deref().unwrap_or("-")),
        Verdict::Permit(permit) => {
            let rule = permit.rule().map_or("-", |rule| rule.as_str());
            let word = if permit.would_deny().is_some() {
                "audit"
            } else {
                "allow"
            };
            format!("{word} {rule}")
        }
    }
}

#[track_caller]
fn check(set: &PolicySet, table: &[(&str, &str)]) {
    for (request, expected) in table {
        assert_eq!(outcome(&verdict(set, request)), *expected, "{request}");
    }
}

#[test]
fn kinds_go_deny_credential_allow_default() {
    let set = one(
        r#"{"policy":0,"name":"all","kind":"allow","host":"*.example.com"},
           {"policy":0,"name":"token","kind":"credential","host":"api.example.com","header":"Authorization","valueFromFile":"s/k"},
           {"policy":0,"name":"no","kind":"deny","host":"*.example.com","port":8080}"#,
    );
    check(
        &set,
        &[
            ("http GET api.example.com:80 /", "allow token"),
            ("http GET www.example.com:80 /", "allow all"),
            ("http GET api.example.com:8080 /", "deny no"),
            ("http GET example.com:80 /", "deny -"),
            ("http GET other.example:80 /", "deny -"),
        ],
    );
}

#[test]
fn inside_a_kind_priority_then_specificity_then_names_decide() {
    let policies = r#"
        {"namespace":"sys","name":"b","priority":5,"subjects":{"allNamespaces":true}},
        {"namespace":"sys","name":"a","priority":5,"subjects":{"allNamespaces":true}},
        {"namespace":"sys","name":"c","priority":9,"subjects":{"allNamespaces":true}}"#;
    let rule = |policy: u32, name: &str, host: &str| {
        format!(r#"{{"policy":{policy},"name":"{name}","kind":"allow","host":"{host}"}}"#)
    };
    let set = set(
        policies,
        &[
            rule(0, "exact", "a.b.example"),
            rule(0, "short", "*.example"),
            rule(1, "short", "*.example"),
            rule(0, "long", "*.b.example"),
            rule(1, "z", "*"),
            rule(1, "y", "*"),
            rule(2, "first", "*.priority.example"),
            rule(0, "exact2", "x.priority.example"),
        ]
        .join(","),
    );
    check(
        &set,
        &[
            ("http GET a.b.example:80 /", "allow exact"),
            ("http GET c.b.example:80 /", "allow long"),
            ("http GET c.example:80 /", "allow short"),
            ("http GET c.other:80 /", "allow y"),
            ("http GET x.priority.example:80 /", "allow first"),
        ],
    );
    let Verdict::Permit(permit) = verdict(&set, "http GET c.example:80 /") else {
        panic!("denied")
    };
    assert_eq!(permit.policy().unwrap().as_str(), "sys/a");
}

#[test]
fn tcp_in_a_rule_means_whatever_is_spoken_to_the_port() {
    let set = one(
        r#"{"policy":0,"name":"git","kind":"allow","host":"git.example.com","protocol":"tcp","port":443}"#,
    );
    check(
        &set,
        &[
            ("tls git.example.com:443", "allow git"),
            ("http GET git.example.com:443 /", "allow git"),
            ("https GET git.example.com:443 /", "allow git"),
            ("grpc POST git.example.com:443 /a.B/C", "allow git"),
            ("tls git.example.com:22", "deny -"),
            ("tcp 198.51.100.1:443", "deny -"),
        ],
    );
}

#[test]
fn protocols_cover_what_they_say() {
    let rules: Vec<String> = ["http", "https", "tls", "grpc"]
        .iter()
        .map(|p| format!(r#"{{"policy":0,"name":"{p}","kind":"allow","host":"{p}.example","protocol":"{p}"}}"#))
        .collect();
    check(
        &one(&rules.join(",")),
        &[
            ("http GET http.example:80 /", "allow http"),
            ("grpc POST http.example:80 /", "allow http"),
            ("tls http.example:443", "deny -"),
            ("https GET http.example:443 /", "deny -"),
            ("tls https.example:443", "allow https"),
            ("https GET https.example:443 /", "allow https"),
            ("http GET https.example:80 /", "deny -"),
            ("tls tls.example:443", "allow tls"),
            ("https GET tls.example:443 /", "allow tls"),
            ("http GET tls.example:80 /", "deny -"),
            ("grpc POST grpc.example:80 /", "allow grpc"),
            ("http GET grpc.example:80 /", "deny -"),
        ],
    );
}

#[test]
fn what_names_no_host_is_reached_by_network_and_port_only() {
    let set = one(r#"{"policy":0,"name":"star","kind":"allow","host":"*"},
           {"policy":0,"name":"db","kind":"allow","cidr":"192.0.2.0/24","port":5432},
           {"policy":0,"name":"net","kind":"allow","cidr":"203.0.113.0/24"}"#);
    check(
        &set,
        &[
            ("tcp 192.0.2.7:5432", "allow db"),
            ("tls 192.0.2.7:5432", "allow db"),
            ("tcp 192.0.2.7:5433", "deny -"),
            ("tcp 203.0.113.7:5432", "deny -"),
            ("tls 203.0.113.7:443", "deny -"),
            ("http GET 203.0.113.7:80 /", "allow net"),
            ("http GET 198.51.100.7:80 /", "deny -"),
            ("tls any.example:443", "allow star"),
        ],
    );
}

#[test]
fn methods_and_paths_need_http_that_is_seen() {
    let set = one(
        r#"{"policy":0,"name":"read","kind":"allow","host":"api.example","methods":["GET"],"paths":["/v1/*","/health"]},
           {"policy":0,"name":"npm","kind":"allow","host":"npm.example","paths":["/@scope%2Fpkg","/a+b"]}"#,
    );
    check(
        &set,
        &[
            ("http GET api.example:80 /v1/models", "allow read"),
            ("http HEAD api.example:80 /v1/models", "allow read"),
            ("http POST api.example:80 /v1/models", "deny -"),
            ("http GET api.example:80 /v1/", "allow read"),
            ("http GET api.example:80 /v1", "deny -"),
            ("http GET api.example:80 /v1%2Fmodels", "deny -"),
            ("http GET api.example:80 /health", "allow read"),
            ("http GET api.example:80 /health/x", "deny -"),
            ("http GET api.example:80 /v1/../admin", "deny -"),
            ("http GET api.example:80 /admin;/v1/x", "deny -"),
            ("http GET api.example:80 /v1/x;y=1", "allow read"),
            ("http CONNECT api.example:443", "deny -"),
            ("https GET api.example:443 /v1/x", "allow read"),
            ("tls api.example:443", "deny -"),
            ("http GET npm.example:80 /@scope%2Fpkg", "allow npm"),
            ("http GET npm.example:80 /@scope/pkg", "deny -"),
            ("http GET npm.example:80 /a%2Bb", "allow npm"),
        ],
    );
}

#[test]
fn a_deny_rule_with_methods_or_paths_covers_what_is_not_seen() {
    let set = one(r#"{"policy":0,"name":"all","kind":"allow","host":"*"},
           {"policy":0,"name":"admin","kind":"deny","host":"api.example","paths":["/admin/*"]},
           {"policy":0,"name":"push","kind":"deny","host":"git.example","methods":["POST"],"protocol":"http"}"#);
    check(
        &set,
        &[
            ("http GET api.example:80 /admin/x", "deny admin"),
            ("http GET api.example:80 /admin;v=1/x", "deny admin"),
            ("http GET api.example:80 /%61dmin/x", "deny admin"),
            ("http GET api.example:80 /public", "allow all"),
            ("tls api.example:443", "deny admin"),
            ("http CONNECT api.example:443", "deny admin"),
            ("http POST git.example:80 /", "deny push"),
            ("http GET git.example:80 /", "allow all"),
            ("tls git.example:443", "allow all"),
        ],
    );
}

#[test]
fn only_deny_rules_cover_a_method_in_other_letters() {
    let set = one(
        r#"{"policy":0,"name":"git","kind":"allow","host":"git.example"},
           {"policy":0,"name":"push","kind":"deny","host":"git.example","methods":["POST"],"paths":["/r/*"]},
           {"policy":0,"name":"read","kind":"deny","host":"git.example","methods":["GET"],"paths":["/secret"]},
           {"policy":0,"name":"post","kind":"allow","host":"api.example","methods":["POST"]},
           {"policy":0,"name":"token","kind":"credential","host":"llm.example","methods":["POST"],"header":"X","valueFromFile":"s/k"}"#,
    );
    let long = "p".repeat(33);
    check(
        &set,
        &[
            ("http POST git.example:80 /r/x", "deny push"),
            ("http post git.example:80 /r/x", "deny push"),
            ("http pOsT git.example:80 /r/x", "deny push"),
            ("http post git.example:80 /", "allow git"),
            ("http posts git.example:80 /r/x", "allow git"),
            (&format!("http {long} git.example:80 /r/x"), "allow git"),
            ("http head git.example:80 /secret", "deny read"),
            ("http POST api.example:80 /", "allow post"),
            ("http post api.example:80 /", "deny -"),
            ("http POST llm.example:80 /", "allow token"),
            ("http Post llm.example:80 /", "deny -"),
        ],
    );
}

#[test]
fn the_letters_of_a_method_count_the_same_where_rules_are_many() {
    let rules: Vec<String> = (0..40)
        .map(|i| {
            let kind = if i % 2 == 0 { "deny" } else { "allow" };
            format!(
                r#"{{"policy":0,"name":"r{i}","kind":"{kind}","host":"a.example","methods":["M{i}"]}}"#
            )
        })
        .collect();
    check(
        &one(&rules.join(",")),
        &[
            ("http M8 a.example:80 /", "deny r8"),
            ("http m8 a.example:80 /", "deny r8"),
            ("http M9 a.example:80 /", "allow r9"),
            ("http m9 a.example:80 /", "deny -"),
        ],
    );
}

#[test]
fn a_credential_rule_never_lets_tls_through_without_the_credential() {
    let set = one(
        r#"{"policy":0,"name":"token","kind":"credential","host":"api.example","header":"X-Token","valueFromFile":"s/k"}"#,
    );
    check(
        &set,
        &[
            ("tls api.example:443", "deny -"),
            ("https GET api.example:443 /", "allow token"),
        ],
    );
    let Verdict::Permit(permit) = verdict(&set, "http GET api.example:80 /") else {
        panic!("denied")
    };
    assert_eq!(permit.kind(), PermitKind::Credential);
    assert_eq!(permit.reason(), ReasonCode::CredentialInjected);
    let credential = permit.credential().unwrap();
    assert_eq!(
        (credential.header.as_str(), credential.file.as_str()),
        ("x-token", "s/k")
    );
    assert!(credential.strip_from_response && !credential.allow_cleartext);
    assert!(set.needs_sight(
        &set.scope(&workload()),
        &HostName::parse("api.example").unwrap()
    ));
}

#[test]
fn policies_are_for_their_subjects_only() {
    let policies = [
        r#"{"namespace":"sys","name":"ns","subjects":{"namespaces":["agents"]}}"#,
        r#"{"namespace":"sys","name":"other-ns","subjects":{"namespaces":["x"]}}"#,
        r#"{"namespace":"sys","name":"label","subjects":{"allNamespaces":true,"podSelector":{"matchLabels":{"app":"coder"}}}}"#,
        r#"{"namespace":"sys","name":"other-label","subjects":{"allNamespaces":true,"podSelector":{"matchLabels":{"app":"x"}}}}"#,
        r#"{"namespace":"sys","name":"team","subjects":{"namespaceSelector":{"matchLabels":{"team":"red"}}}}"#,
        r#"{"namespace":"sys","name":"not-in","subjects":{"allNamespaces":true,"podSelector":{"matchExpressions":[{"key":"app","operator":"NotIn","values":["coder"]}]}}}"#,
    ];
    let rules: Vec<String> = (0..6)
        .map(|i| format!(r#"{{"policy":{i},"name":"r{i}","kind":"allow","host":"h{i}.example"}}"#))
        .collect();
    let set = set(&policies.join(","), &rules.join(","));
    let allowed: Vec<bool> = (0..6)
        .map(|i| {
            outcome(&verdict(&set, &format!("http GET h{i}.example:80 /"))).starts_with("allow")
        })
        .collect();
    assert_eq!(allowed, [true, false, true, false, true, false]);
    let scope = set.scope(&workload());
    assert_eq!(
        scope.policies().map(PolicyName::as_str).collect::<Vec<_>>(),
        ["sys/ns", "sys/label", "sys/team"]
    );
    let stranger = Workload {
        namespace: "y".into(),
        namespace_labels: Default::default(),
        ..workload()
    };
    assert_eq!(set.scope(&stranger).policies().count(), 1);
    // A class is found again in the cache, and workloads that differ elsewhere share it.
    let twin = Workload {
        name: "coder-1".into(),
        uid: "v".into(),
        ..workload()
    };
    assert!(Arc::ptr_eq(&set.scope(&twin).0, &scope.0));
}

#[test]
fn without_a_policy_everything_is_denied() {
    let set = PolicySet::empty();
    let scope = set.scope(&workload());
    check(
        &set,
        &[
            ("http GET a.example:80 /", "deny -"),
            ("tls a.example:443", "deny -"),
            ("tcp 192.0.2.1:22", "deny -"),
        ],
    );
    assert!(!scope.is_selected() && !scope.is_audit_only());
    assert!(!set.may_resolve(&scope, &HostName::parse("a.example").unwrap()));
    let Verdict::Deny(denial) = verdict(&set, "tls a.example:443") else {
        panic!("permitted")
    };
    assert!(
        denial
            .message
            .contains("no AgentNetworkPolicy selects this pod"),
        "{denial}"
    );
}

#[test]
fn passthrough_lets_out_pods_without_a_policy_and_nobody_else() {
    let rules = r#"{"policy":0,"name":"r","kind":"allow","host":"a.example"}"#;
    let policies = r#"{"namespace":"sys","name":"p","subjects":{"namespaces":["agents"]}}"#;
    let zero = set(policies, rules);
    let open = zero.with_connectivity(Connectivity::Passthrough);
    let stranger = Workload {
        namespace: "elsewhere".into(),
        ..workload()
    };
    let b = HostName::parse("b.example").unwrap();
    let may_resolve = |set: &PolicySet, w: &Workload| set.may_resolve(&set.scope(w), &b);
    assert!(may_resolve(&open, &stranger));
    assert!(!may_resolve(&zero, &stranger) && !may_resolve(&open, &workload()));
    check(&open, &[("tls b.example:443", "deny -")]);
    let scope = open.scope(&stranger);
    let Verdict::Permit(permit) = verdict_for(&open, &stranger, "tcp 192.0.2.77:22") else {
        panic!("denied")
    };
    // said in every audit line
    assert!(
        permit
            .would_deny()
            .unwrap()
            .message
            .contains("no AgentNetworkPolicy selects")
    );
    // what is always denied stays so
    let metadata = "169.254.169.254".parse().unwrap();
    assert!(open.check_address(&permit, metadata, 22, &nets()).is_err());
    assert!(
        open.check_address(&permit, "169.254.9.7".parse().unwrap(), 22, &nets())
            .is_err()
    );
    let call = open.decide_ingress_from(&scope, &workload(), "planner");
    assert!(matches!(call, Verdict::Deny(_)), "calls stay denied");
    let closed = open.with_connectivity(Connectivity::Zero);
    assert!(!may_resolve(&closed, &stranger));
}

#[test]
fn audit_mode_lets_through_and_says_what_it_would_have_denied() {
    let policies =
        r#"{"namespace":"sys","name":"dry","mode":"audit","subjects":{"allNamespaces":true}}"#;
    let rules = r#"{"policy":0,"name":"all","kind":"allow","host":"*.example"},
                   {"policy":0,"name":"no","kind":"deny","host":"db.example"}"#;
    let audit = set(policies, rules);
    check(
        &audit,
        &[
            ("http GET a.example:80 /", "allow all"),
            ("http GET db.example:80 /", "audit all"),
            ("http GET other.test:80 /", "audit -"),
            ("tcp 192.0.2.1:22", "audit -"),
        ],
    );
    let Verdict::Permit(permit) = verdict(&audit, "http GET db.example:80 /") else {
        panic!("denied")
    };
    assert_eq!(permit.would_deny().unwrap().rule.as_deref(), Some("no"));
    assert_eq!(permit.decision(), crate::audit::Decision::WouldDeny);
    let Verdict::Permit(permit) = verdict(&audit, "tcp 192.0.2.1:22") else {
        panic!("denied")
    };
    assert_eq!(permit.kind(), PermitKind::AuditOnly);
    assert!(
        audit
            .check_address(&permit, "192.0.2.2".parse().unwrap(), 22, &nets())
            .is_err()
    );
    assert!(audit.may_resolve(
        &audit.scope(&workload()),
        &HostName::parse("x.test").unwrap()
    ));
}

#[test]
fn a_policy_in_audit_mode_never_weakens_one_that_is_enforced() {
    let policies = r#"{"namespace":"sys","name":"dry","mode":"audit","priority":9,"subjects":{"allNamespaces":true}},
                      {"namespace":"sys","name":"hard","subjects":{"allNamespaces":true}}"#;
    let rules = r#"{"policy":0,"name":"dry-no","kind":"deny","host":"db.example"},
                   {"policy":1,"name":"no","kind":"deny","host":"db.example"},
                   {"policy":0,"name":"dry-ok","kind":"deny","host":"a.example"},
                   {"policy":1,"name":"ok","kind":"allow","host":"a.example"}"#;
    check(
        &set(policies, rules),
        &[
            ("http GET db.example:80 /", "deny no"),
            ("http GET a.example:80 /", "audit ok"),
            ("http GET other.example:80 /", "deny -"),
        ],
    );
}

#[test]
fn names_are_resolved_when_some_rule_could_let_them_through() {
    let set = one(
        r#"{"policy":0,"name":"a","kind":"allow","host":"*.example","port":8443,"paths":["/x"]},
           {"policy":0,"name":"b","kind":"deny","host":"no.example"},
           {"policy":0,"name":"c","kind":"deny","host":"some.example","port":22},
           {"policy":0,"name":"d","kind":"credential","host":"api.test","header":"X","valueFromFile":"s/k"}"#,
    );
    let scope = set.scope(&workload());
    for (name, resolved) in [
        ("www.example", true),
        ("no.example", false),
        ("some.example", true),
        ("api.test", true),
        ("example", false),
        ("exfil.test", false),
    ] {
        assert_eq!(
            set.may_resolve(&scope, &HostName::parse(name).unwrap()),
            resolved,
            "{name}"
        );
    }
}

#[test]
fn calls_are_decided_by_caller_and_target() {
    let set = one(
        r#"{"policy":0,"name":"planner","kind":"allow","direction":"ingress","caller":"sa:agents:planner","target":"agent-server"},
           {"policy":0,"name":"bad","kind":"deny","direction":"ingress","caller":"sa:agents:untrusted","target":"agent-server"},
           {"policy":0,"name":"ns","kind":"allow","direction":"ingress","caller":"ns:agents","target":"shared"},
           {"policy":0,"name":"pod","kind":"deny","direction":"ingress","caller":"pod:agents:coder-0","target":"shared"},
           {"policy":0,"name":"far","kind":"allow","direction":"ingress","caller":"*","target":"other/tool"},
           {"policy":0,"name":"vault","kind":"deny","direction":"ingress","caller":"*","target":"vault"},
           {"policy":0,"name":"open","kind":"allow","direction":"ingress","caller":"ns:open","target":"*"}"#,
    );
    let scope = set.scope(&workload());
    for (caller, target, expected) in [
        ("sa:agents:planner", "agent-server", "allow planner"),
        ("sa:agents:planner", "AGENT-server", "allow planner"),
        ("sa:agents:planner", "agents/agent-server", "allow planner"),
        ("sa:agents:planner", "other/agent-server", "deny -"),
        ("sa:agents:untrusted", "agent-server", "deny bad"),
        ("sa:agents:untrusted", "other/agent-server", "deny bad"),
        ("sa:agents:anyone", "shared", "allow ns"),
        ("sa:x:y", "other/tool", "allow far"),
        ("sa:other:y", "tool", "allow far"),
        ("sa:x:y", "tool", "deny -"),
        ("sa:open:y", "anything", "allow open"),
        ("sa:open:y", "vault", "deny vault"),
        ("sa:open:y", "ns/vault", "deny vault"),
        ("sa:open:y", "not a target", "deny -"),
    ] {
        let verdict = set.decide_ingress(&scope, &caller.parse().unwrap(), target);
        assert_eq!(outcome(&verdict), expected, "{caller} {target}");
    }
    assert_eq!(
        outcome(&set.decide_ingress_from(&scope, &workload(), "shared")),
        "deny pod"
    );
    let other = Workload {
        name: "coder-1".into(),
        ..workload()
    };
    let verdict = set.decide_ingress_from(&scope, &other, "shared");
    assert_eq!(outcome(&verdict), "allow ns");
    let Verdict::Permit(permit) = verdict else {
        panic!("denied")
    };
    assert_eq!(permit.dial_by(), DialBy::Target);
    assert!(
        set.check_address(&permit, "169.254.9.7".parse().unwrap(), 80, &nets())
            .is_ok()
    );
    assert!(
        set.check_address(&permit, "169.254.9.1".parse().unwrap(), 80, &nets())
            .is_err()
    );
}

#[test]
fn a_denial_says_what_by_which_rule_and_whom_to_ask() {
    let set = one(r#"{"policy":0,"name":"no","kind":"deny","host":"db.example"}"#);
    let Verdict::Deny(denial) = verdict(&set, "http GET db.example:80 /") else {
        panic!("permitted")
    };
    assert_eq!(
        denial.message,
        "http to db.example:80 is denied by rule no of policy sys/p; ask the owner of that policy if it should not be"
    );
    assert_eq!(
        (denial.reason, denial.policy.as_deref()),
        (ReasonCode::EgressDenied, Some("sys/p"))
    );
}

#[test]
fn nothing_that_is_given_back_shows_a_credential_in_debug_output() {
    let set = one(
        r#"{"policy":0,"name":"t","kind":"credential","host":"a.example","header":"X","valueFromFile":"s/canary"}"#,
    );
    assert!(!format!("{:?}", verdict(&set, "http GET a.example:80 /")).contains("canary"));
}
