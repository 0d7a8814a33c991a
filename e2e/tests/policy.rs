//! Policy documents come and go, good and bad ones; and the order in which rules win, seen from a pod.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use e2e::policy::Policy;
use serde_json::json;

mod support;
use support::{node_and_pod, status};

#[test]
fn a_document_that_cannot_be_run_changes_nothing_and_is_named() {
    let Some((node, pod)) = node_and_pod("policy") else {
        return;
    };
    let version = node.policy_version().unwrap();
    let good = Policy::demo().document();
    let mut unknown = good.clone();
    unknown["rules"][0]["hots"] = json!("docs.example.com");
    let mut env = good.clone();
    env["rules"][0]["valueFromEnv"] = json!("TOKEN");
    let mut wrong = good.clone();
    wrong["version"] = json!("sha256:0000");
    for (what, bytes) in [
        ("unknown field", unknown.to_string()),
        ("valueFromEnv", env.to_string()),
        ("a version that isn't the content's", wrong.to_string()),
        ("cut short", good.to_string()[..200].to_owned()),
        ("empty", String::new()),
        ("binary", "\u{0}\u{1}".repeat(100)),
    ] {
        node.write("policy.json", bytes.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(node.policy_version().unwrap(), version, "{what}");
        assert_eq!(
            status(&pod.curl(&["http://docs.example.com/"]).unwrap()),
            200,
            "{what}"
        );
    }
    let log = node.proxy().unwrap().log_text();
    assert!(
        log.contains("valueFromEnv") && log.contains("hots"),
        "the log doesn't say what is wrong"
    );
    node.apply_policy(&Policy::new().document()).unwrap();
    assert_eq!(
        status(
            &pod.curl(&[
                "--resolve",
                "docs.example.com:80:203.0.113.10",
                "http://docs.example.com/"
            ])
            .unwrap()
        ),
        403
    );
}

#[test]
fn deny_wins_over_credential_wins_over_allow_and_methods_and_paths_count() {
    let Some((node, pod)) = node_and_pod("policy") else {
        return;
    };
    let token = json!({"header": "Authorization", "prefix": "Bearer ", "valueFromFile": "api/API_TOKEN", "allowCleartext": true});
    let policy = Policy::new()
        .allow("all", "*.example.com", json!({}))
        .credential("api", "api.example.com", token)
        .deny("no-git", "git.example.com")
        .allow(
            "internal-read",
            "*.internal.example.com",
            json!({"methods": ["GET"], "paths": ["/public/*"]}),
        );
    node.apply_policy(&policy.document()).unwrap();
    let get = |arguments: &[&str]| status(&pod.curl(arguments).unwrap());
    assert_eq!(get(&["http://docs.example.com/"]), 200);
    assert_eq!(
        get(&["http://api.example.com/"]),
        200,
        "the credential rule must win over the allow rule"
    );
    assert_eq!(
        get(&[
            "--resolve",
            "git.example.com:80:203.0.113.12",
            "http://git.example.com/"
        ]),
        403
    );
    let narrow = Policy::new().allow(
        "read",
        "docs.example.com",
        json!({"methods": ["GET"], "paths": ["/public/*"]}),
    );
    node.apply_policy(&narrow.document()).unwrap();
    assert_eq!(get(&["http://docs.example.com/public/x"]), 200);
    assert_eq!(
        get(&["-I", "http://docs.example.com/public/x"]),
        200,
        "HEAD goes with GET"
    );
    assert_eq!(
        get(&["-X", "POST", "http://docs.example.com/public/x"]),
        403
    );
    for path in [
        "/secret",
        "/public/../secret",
        "/public/%2e%2e/secret",
        "/public",
        "//secret",
        "/public/..;/secret",
    ] {
        let url = format!("http://docs.example.com{path}");
        let got = get(&["--path-as-is", &url]);
        assert!(matches!(got, 400 | 403), "{path}: {got}");
    }
    let seen = node.outside.requests_to("docs.example.com").unwrap();
    assert!(
        seen.iter().all(|s| !s.request.contains("secret")),
        "{seen:?}"
    );
}

#[test]
fn a_policy_in_audit_mode_lets_through_and_says_what_it_would_have_denied() {
    let Some((node, pod)) = node_and_pod("policy") else {
        return;
    };
    let mut document = Policy::new()
        .allow("docs", "docs.example.com", json!({}))
        .deny("docs-off", "docs.example.com")
        .document();
    document["policies"][0]["mode"] = json!("audit");
    node.apply_policy(&document).unwrap();
    assert_eq!(
        status(&pod.curl(&["http://docs.example.com/"]).unwrap()),
        200
    );
    let line = node
        .audit_line("would_deny", |l| l["decision"] == "would_deny")
        .unwrap();
    assert_eq!(line["would_deny"]["rule"], "docs-off", "{line}");
}

#[test]
fn reload_answers_the_active_version_to_whoever_has_the_token() {
    let Some((node, _pod)) = node_and_pod("policy") else {
        return;
    };
    let version = node.policy_version().unwrap();
    let post = |token: &str, version: &str| {
        let script = format!(
            "curl -sS -i -m 15 -X POST -H 'Authorization: Bearer '$(cat) -d '{{\"version\":\"{version}\"}}' -H 'Content-Type: application/json' http://127.0.0.1:18080/reload"
        );
        node.place()
            .run_with(&["bash", "-c", &script], &[], token.as_bytes(), 20)
            .unwrap()
    };
    let token = node.secrets.reload_token.clone();
    assert_eq!(status(&post(&token, &version)), 200);
    let done = post(&token, "sha256:ffff");
    assert_eq!(status(&done), 409, "{done}");
    assert!(done.stdout.contains("not yet projected"), "{done}");
    assert!(matches!(status(&post("wrong", &version)), 401 | 403));
}
