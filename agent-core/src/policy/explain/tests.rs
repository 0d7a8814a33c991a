use super::*;
use crate::policy::RuntimePolicy;

fn set() -> PolicySet {
    let document = RuntimePolicy::parse(
        br#"{"schemaVersion":1,
            "policies":[{"namespace":"sys","name":"p","subjects":{"allNamespaces":true}}],
            "rules":[
              {"policy":0,"name":"git","kind":"allow","host":"git.example.com","port":443,"protocol":"tcp"},
              {"policy":0,"name":"api","kind":"credential","host":"api.example.com","header":"Authorization","valueFromFile":"s/k"},
              {"policy":0,"name":"net","kind":"allow","cidr":"192.0.2.0/24","port":5432},
              {"policy":0,"name":"safe","kind":"allow","host":"safe.example.com","tls":"originate"},
              {"policy":0,"name":"no-tls","kind":"deny","cidr":"203.0.113.0/24","port":443},
              {"policy":0,"name":"no-post","kind":"deny","host":"git.example.com","protocol":"http","methods":["POST"]},
              {"policy":0,"name":"call","kind":"allow","direction":"ingress","caller":"ns:agents","target":"server"}
            ]}"#,
    )
    .unwrap();
    PolicySet::compile(&document).unwrap()
}

fn ask(json: &str) -> Result<Explanation, ExplainError> {
    let workload = r#""workload":{"namespace":"agents","name":"a","fakeIp":"169.254.9.2"}"#;
    let question: ExplainRequest =
        serde_json::from_str(&json.replacen('{', &format!("{{{workload},"), 1)).unwrap();
    let nets = NodeNets::new(["169.254.9.0/24".parse().unwrap()], []);
    set().explain(&question, &nets)
}

#[test]
fn an_answer_with_a_credential_says_where_cleartext_would_refuse_it() {
    let says = |json: &str| ask(json).unwrap().message;
    let credential = says(r#"{"host":"api.example.com","protocol":"http"}"#);
    assert!(credential.contains("tls: originate"), "{credential}");
    let plain = says(r#"{"host":"git.example.com"}"#);
    assert_eq!(plain, "let through by rule git of policy sys/p");
}

#[test]
fn the_answer_names_the_rule_that_decides() {
    for (question, decision, rule) in [
        (
            r#"{"host":"git.example.com"}"#,
            Decision::Allow,
            Some("git"),
        ),
        (
            r#"{"host":"git.example.com","port":22}"#,
            Decision::Deny,
            None,
        ),
        (
            r#"{"host":"api.example.com","protocol":"http"}"#,
            Decision::Allow,
            Some("api"),
        ),
        (r#"{"host":"api.example.com"}"#, Decision::Deny, None),
        (
            r#"{"ip":"192.0.2.7","port":5432}"#,
            Decision::Allow,
            Some("net"),
        ),
        (
            r#"{"ip":"169.254.169.254","port":80}"#,
            Decision::Deny,
            None,
        ),
        (r#"{"ip":"169.254.9.7","port":80}"#, Decision::Deny, None),
        (
            r#"{"host":"git.example.com","addresses":["169.254.169.254"]}"#,
            Decision::Deny,
            None,
        ),
        (
            r#"{"host":"git.example.com","addresses":["169.254.169.254","192.0.2.1"]}"#,
            Decision::Allow,
            Some("git"),
        ),
        (
            r#"{"host":"safe.example.com","port":80,"addresses":["203.0.113.1"]}"#,
            Decision::Deny,
            Some("no-tls"),
        ),
        (
            r#"{"host":"safe.example.com","port":8080,"addresses":["203.0.113.1"]}"#,
            Decision::Allow,
            Some("safe"),
        ),
        (
            r#"{"host":"git.example.com","protocol":"http","port":443,"method":"post"}"#,
            Decision::Deny,
            Some("no-post"),
        ),
        (r#"{"target":"server"}"#, Decision::Allow, Some("call")),
        (r#"{"target":"other"}"#, Decision::Deny, None),
    ] {
        let answer = ask(question).unwrap();
        assert_eq!(
            (answer.decision, answer.rule.as_deref()),
            (decision, rule),
            "{question}: {}",
            answer.message
        );
        assert_eq!(answer.policies, ["sys/p"]);
    }
}

#[test]
fn a_denial_inside_tls_says_what_would_help() {
    let answer = ask(r#"{"host":"api.example.com"}"#).unwrap();
    assert!(
        answer.message.contains("cannot see inside TLS"),
        "{}",
        answer.message
    );
    assert!(
        answer.message.contains("tls to api.example.com:443"),
        "{}",
        answer.message
    );
}

#[test]
fn the_answer_refers_to_the_credential_and_never_holds_it() {
    let answer = ask(r#"{"host":"api.example.com","port":80}"#).unwrap();
    assert_eq!(answer.reason, ReasonCode::CredentialInjected);
    assert_eq!(answer.credential.unwrap().file, "s/k");
}

#[test]
fn questions_that_cannot_be_meant_are_refused() {
    assert_eq!(ask("{\"port\":1}"), Err(ExplainError::NoDestination));
    assert_eq!(
        ask(r#"{"target":"a","host":"b"}"#),
        Err(ExplainError::TwoDestinations)
    );
    assert!(matches!(
        ask(r#"{"host":"1.2.3.4"}"#),
        Err(ExplainError::Host(_))
    ));
    assert!(matches!(
        ask(r#"{"host":"a","path":"/../x"}"#),
        Err(ExplainError::Path(_))
    ));
}
