use super::*;
use proptest::prelude::*;

const HEADER: &str = r#"{"namespace":"sys","name":"p","subjects":{"allNamespaces":true}}"#;

fn with_rule(rule: &str) -> Result<RuntimePolicy, DocumentError> {
    let text = format!(r#"{{"schemaVersion":1,"policies":[{HEADER}],"rules":[{rule}]}}"#);
    RuntimePolicy::parse(text.as_bytes())
}

fn with_header(header: &str) -> Result<RuntimePolicy, DocumentError> {
    RuntimePolicy::parse(format!(r#"{{"schemaVersion":1,"policies":[{header}]}}"#).as_bytes())
}

/// The error with its cause, as a log line shows it.
fn chain(error: &DocumentError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}

#[test]
fn the_originals_example_is_a_document() {
    let document = with_rule(
        r#"{"policy":0,"name":"public-git","kind":"allow","host":"git.example.com","protocol":"tcp","port":443},
           {"policy":0,"name":"private-git","kind":"credential","host":"git.internal.example.com",
            "header":"Authorization","valueFromFile":"zeroproxy-credentials/REPO_TOKEN","prefix":"Bearer "},
           {"policy":0,"name":"production-db","kind":"deny","host":"prod-db.internal"},
           {"policy":0,"name":"planner","kind":"allow","direction":"ingress",
            "caller":"sa:agent-workloads:planner","target":"agent-server"}"#,
    )
    .unwrap();
    assert_eq!(document.rules.len(), 4);
    assert!(document.version.unwrap().starts_with("sha256:"));
}

#[test]
fn a_written_document_is_read_back_with_the_same_version() {
    let document =
        with_rule(r#"{"policy":0,"name":"a","kind":"allow","host":"*","ports":[80,"8000-8999"]}"#)
            .unwrap();
    let text = document.to_json();
    assert_eq!(RuntimePolicy::parse(text.as_bytes()).unwrap(), document);
    assert_eq!(document.to_json(), text);
}

#[test]
fn the_version_is_the_contents_and_another_is_refused() {
    let document =
        with_rule(r#"{"policy":0,"name":"a","kind":"allow","host":"a.example"}"#).unwrap();
    let other = with_rule(r#"{"policy":0,"name":"a","kind":"allow","host":"b.example"}"#).unwrap();
    assert_ne!(document.version, other.version);
    let forged = document.to_json().replace("a.example", "b.example");
    let error = RuntimePolicy::parse(forged.as_bytes()).unwrap_err();
    assert_eq!(error.reason(), "version_mismatch");
    assert!(
        error
            .to_string()
            .contains(other.version.as_deref().unwrap()),
        "{error}"
    );
}

#[test]
fn rules_that_cannot_be_run_are_named_with_what_to_write() {
    let long = format!("[{}]", vec!["1"; 65].join(","));
    let many_ports =
        format!(r#"{{"policy":0,"name":"r","kind":"allow","host":"*","ports":{long}}}"#);
    for (rule, says) in [
        (r#"{"policy":0,"name":"r","kind":"allow"}"#, "write host"),
        (
            r#"{"policy":0,"name":"r","kind":"allow","host":"*","cidr":"10.0.0.0/8"}"#,
            "write two rules",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","hots":"*"}"#,
            "unknown field `hots`",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"permit","host":"*"}"#,
            "unknown variant `permit`",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","host":"a.*"}"#,
            "*.example.com",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","host":"192.0.2.1"}"#,
            "`cidr`",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","cidr":"192.0.2.1"}"#,
            "192.0.2.0/24",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","host":"*","port":0}"#,
            "from 1 to 65535",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","host":"*","port":80,"ports":[81]}"#,
            "put all into ports",
        ),
        (many_ports.as_str(), "65 entries"),
        (
            r#"{"policy":0,"name":"r","kind":"allow","host":"*","methods":["get"]}"#,
            "in capitals",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","host":"*","paths":["x"]}"#,
            "/v1/*",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","host":"*","paths":["/a*"]}"#,
            "/v1/*",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","host":"*","paths":["/a/../b/*"]}"#,
            "write `/b/*`",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","host":"*","paths":["/a?b"]}"#,
            "without parameters",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","host":"*","paths":["/a"],"protocol":"tls"}"#,
            "protocol: https",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"deny","host":"*","tls":"originate"}"#,
            "leave tls out",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","cidr":"10.0.0.0/8","tls":"originate"}"#,
            "write host",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","host":"*","header":"X"}"#,
            "kind: credential",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"credential","host":"a.example","valueFromFile":"a/b"}"#,
            "needs header",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"credential","host":"*","header":"X","valueFromFile":"a/b"}"#,
            "write the host it is for",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"credential","host":"a.example","header":"X"}"#,
            "needs valueFromFile",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"credential","host":"a.example","header":"X","valueFromEnv":"T"}"#,
            "write valueFromFile",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"credential","host":"a.example","header":"X","valueFromFile":"/etc/shadow"}"#,
            "<secret>/<key>",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"credential","host":"a.example","header":"X","valueFromFile":"../x"}"#,
            "<secret>/<key>",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"credential","host":"a.example","header":"X","valueFromFile":"a/..data"}"#,
            "<secret>/<key>",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"credential","host":"a.example","header":"Host","valueFromFile":"a/b"}"#,
            "the message itself",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"credential","host":"a.example","header":"X y","valueFromFile":"a/b"}"#,
            "no header's name",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"credential","host":"a.example","header":"X","valueFromFile":"a/b","prefix":"x\r\n"}"#,
            "printable",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"credential","host":"a.example","header":"X","valueFromFile":"a/b","format":"basic"}"#,
            "needs username",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"credential","host":"a.example","header":"X","valueFromFile":"a/b","username":"u"}"#,
            "format: basic",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","host":"*","caller":"*"}"#,
            "direction: ingress",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","direction":"ingress","caller":"*"}"#,
            "write target",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","direction":"ingress","target":"*"}"#,
            "write caller",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","direction":"ingress","caller":"bob","target":"*"}"#,
            "sa:<namespace>",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"allow","direction":"ingress","caller":"*","target":"*","host":"*"}"#,
            "nothing of an egress rule",
        ),
        (
            r#"{"policy":0,"name":"r","kind":"deny","host":"a"},{"policy":0,"name":"r","kind":"deny","host":"b"}"#,
            "a name of its own",
        ),
    ] {
        let error = with_rule(rule).unwrap_err();
        let text = chain(&error);
        assert_eq!(error.reason(), "rule", "{rule}: {text}");
        assert!(text.starts_with("policy sys/p, rule r: "), "{rule}: {text}");
        assert!(text.contains(says), "{rule}: {text}");
    }
    let error = with_rule(r#"{"policy":7,"name":"r","kind":"allow","host":"*"}"#).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("policy number 7 is not in the list of 1 policies"),
        "{error}"
    );
    let error = with_rule(r#"{"policy":0,"name":"a;b","kind":"allow","host":"*"}"#).unwrap_err();
    assert!(error.to_string().contains("response header"), "{error}");
}

#[test]
fn headers_that_cannot_be_run_are_named_with_what_to_write() {
    for (header, says) in [
        (
            r#"{"namespace":"sys","name":"p","subjects":{}}"#,
            "allNamespaces: true",
        ),
        (
            r#"{"namespace":"sys","name":"p","subjects":{"allNamespaces":true,"namespaces":["a"]}}"#,
            "exactly one way",
        ),
        (
            r#"{"namespace":"sys","name":"p","subjects":{"namespaces":["A b"]}}"#,
            "no namespace's name",
        ),
        (
            r#"{"namespace":"sys","name":"p","subjects":{"allNamespaces":true,"podSelector":{"matchExpressions":[{"key":"a","operator":"In"}]}}}"#,
            "at least one value",
        ),
        (
            r#"{"namespace":"sys","name":"p","subjects":{"allNamespaces":true},"mode":"dry"}"#,
            "unknown variant `dry`",
        ),
        (
            r#"{"namespace":"sys","name":"p"}"#,
            "missing field `subjects`",
        ),
        (
            r#"{"namespace":"","name":"p","subjects":{"allNamespaces":true}}"#,
            "AgentNetworkPolicy object",
        ),
    ] {
        let error = with_header(header).unwrap_err();
        assert_eq!(error.reason(), "policy", "{header}: {error}");
        assert!(chain(&error).contains(says), "{header}: {}", chain(&error));
    }
    let twice = with_header(&format!("{HEADER},{HEADER}")).unwrap_err();
    assert!(twice.to_string().contains("listed twice"), "{twice}");
}

#[test]
fn what_is_no_document_is_told_apart() {
    for (bytes, reason) in [
        (&b""[..], "empty"),
        (b" \n", "empty"),
        (b"{", "not_a_document"),
        (b"[]", "not_a_document"),
        (b"{}", "not_a_document"),
        (b"{\"schemaVersion\":2}", "schema_version"),
        (b"{\"schemaVersion\":2,\"later\":1}", "schema_version"),
        (b"{\"schemaVersion\":1,\"later\":1}", "not_a_document"),
        (
            b"{\"schemaVersion\":1,\"schemaVersion\":1}",
            "not_a_document",
        ),
    ] {
        assert_eq!(
            RuntimePolicy::parse(bytes).unwrap_err().reason(),
            reason,
            "{bytes:?}"
        );
    }
    assert!(RuntimePolicy::parse(b"{\"schemaVersion\":1}").is_ok());
}

proptest! {
    #[test]
    fn parsing_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = RuntimePolicy::parse(&bytes);
    }

    #[test]
    fn parsing_a_damaged_document_never_panics(
        at in 0usize..400,
        with in any::<u8>(),
        cut in 0usize..500,
    ) {
        let whole = with_rule(
            r#"{"policy":0,"name":"a","kind":"credential","host":"x.example","ports":[1,"2-3"],"methods":["GET"],
                "paths":["/a/*"],"header":"X","valueFromFile":"a/b"}"#,
        ).unwrap().to_json();
        let mut bytes = whole.into_bytes();
        let at = at % bytes.len();
        bytes[at] = with;
        bytes.truncate(cut);
        let _ = RuntimePolicy::parse(&bytes);
    }
}
