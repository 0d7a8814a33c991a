use super::*;
use crate::parse_manifests;

const CODING: &str = include_str!("../../../chart/examples/coding-agent.yaml");
const MULTI: &str = include_str!("../../../chart/examples/multi-agent.yaml");

fn policies(text: &str) -> Vec<NamedPolicy> {
    parse_manifests(text, SYSTEM_NAMESPACE).unwrap()
}

#[test]
fn the_proxy_reads_what_the_compiler_writes() {
    let (document, invalid) = compile(
        &policies(&format!("{CODING}\n---\n{MULTI}")),
        &CompileOptions::default(),
    );
    assert!(invalid.is_empty(), "{invalid:?}");
    let read = RuntimePolicy::parse(document.to_json().as_bytes()).unwrap();
    assert_eq!(read.policies.len(), 2);
    assert_eq!(read.rules.len(), 5);
    assert_eq!(read.version, document.version);
}

#[test]
fn the_first_policy_of_the_readme_compiles() {
    let readme = include_str!("../../../README.md");
    let yaml = readme.split("```yaml\n").nth(1).unwrap();
    let yaml = yaml.split("```").next().unwrap();
    let (document, invalid) = compile(&policies(yaml), &CompileOptions::default());
    assert!(invalid.is_empty(), "{invalid:?}");
    assert_eq!(document.rules.len(), 3);
}

#[test]
fn a_secret_reference_becomes_a_file_below_the_credentials_directory() {
    let (document, _) = compile(&policies(CODING), &CompileOptions::default());
    let rule = document
        .rules
        .iter()
        .find(|rule| rule.kind == RuleKind::Credential)
        .unwrap();
    assert_eq!(
        rule.value_from_file.as_deref(),
        Some("zeroproxy-credentials/REPO_TOKEN")
    );
}

#[test]
fn the_order_of_the_objects_changes_nothing() {
    let mut objects = policies(&format!("{CODING}\n---\n{MULTI}"));
    let (one, _) = compile(&objects, &CompileOptions::default());
    objects.reverse();
    let (other, _) = compile(&objects, &CompileOptions::default());
    assert_eq!(one.to_json(), other.to_json());
}

#[test]
fn a_policy_of_another_namespace_applies_to_its_own_pods_only() {
    let text = MULTI.replace("tke-agent-network-real", "team-a");
    let (document, invalid) = compile(&policies(&text), &CompileOptions::default());
    assert!(invalid.is_empty(), "{invalid:?}");
    assert_eq!(document.policies[0].subjects.namespaces, ["team-a"]);
    assert!(!document.policies[0].subjects.all_namespaces);
}

#[test]
fn an_invalid_policy_is_left_out_and_takes_no_other_down() {
    for (from, to, says) in [
        (
            "name: zeroproxy-credentials",
            "name: other-secret",
            "zeroproxy.credentialSecrets",
        ),
        (
            "host: git.internal.example.com",
            "host: \"bad host\"",
            "private-git",
        ),
        (
            "namespace: tke-agent-network-real",
            "namespace: team-a",
            "is for policies in namespace",
        ),
    ] {
        let text = format!("{}\n---\n{MULTI}", CODING.replace(from, to));
        let (document, invalid) = compile(&policies(&text), &CompileOptions::default());
        assert_eq!(invalid.len(), 1, "{to}");
        assert!(invalid[0].to_string().contains(says), "{}", invalid[0]);
        assert!(
            invalid[0].to_string().contains("coding-agent-network"),
            "{}",
            invalid[0]
        );
        assert_eq!(document.policies.len(), 1, "{to}");
        assert_eq!(document.policies[0].name, "multi-agent-gateway");
    }
}

#[test]
fn one_of_two_objects_with_the_same_name_is_left_out() {
    let (document, invalid) = compile(
        &policies(&format!("{MULTI}\n---\n{MULTI}")),
        &CompileOptions::default(),
    );
    assert_eq!((document.policies.len(), invalid.len()), (1, 1));
}

#[test]
fn an_ingress_rule_without_a_name_gets_one_that_answers_can_carry() {
    let text = MULTI
        .replace("- name: planner-calls-server\n        caller", "- caller")
        .replace("- name: untrusted-never\n        caller", "- caller")
        .replace("sa:agent-workloads:untrusted-agent", "*");
    let (document, invalid) = compile(&policies(&text), &CompileOptions::default());
    assert!(invalid.is_empty(), "{invalid:?}");
    let names: Vec<&str> = document
        .rules
        .iter()
        .map(|rule| rule.name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "any/agent-server",
            "sa:agent-workloads:planner/agent-server"
        ]
    );
}

#[test]
fn defaults_that_the_api_server_fills_in_change_nothing() {
    let filled = CODING.replace(
        "        tls: originate",
        "        tls: originate\n        format: raw\n        stripFromResponse: true\n        allowCleartext: false",
    );
    assert_ne!(filled, CODING);
    let compiled = |text: &str| {
        compile(&policies(text), &CompileOptions::default())
            .0
            .to_json()
    };
    assert_eq!(compiled(&filled), compiled(CODING));
}

#[test]
fn a_namespaces_policy_takes_only_the_secrets_that_are_opened_to_it() {
    let text = CODING.replace("namespace: tke-agent-network-real", "namespace: team-a");
    for (list, allowed) in [
        (&["zeroproxy-credentials"][..], false),
        (&["zeroproxy-credentials@team-b"], false),
        (
            &[
                "zeroproxy-credentials@team-b",
                "zeroproxy-credentials@team-a",
            ],
            true,
        ),
    ] {
        let options = CompileOptions::with_secrets(SYSTEM_NAMESPACE, list.iter().copied()).unwrap();
        let (document, invalid) = compile(&policies(&text), &options);
        assert_eq!(
            (document.policies.len(), invalid.len()),
            if allowed { (1, 0) } else { (0, 1) }
        );
        // and an opened Secret stays one that the operator's own policies may name
        assert!(compile(&policies(CODING), &options).1.is_empty());
    }
    for entry in ["", "@team-a", "a@", "a@b@c"] {
        assert!(
            CompileOptions::with_secrets(SYSTEM_NAMESPACE, [entry]).is_err(),
            "{entry}"
        );
    }
}

#[test]
fn no_priority_brings_a_namespaces_policy_before_the_operators() {
    let with = |namespace: &str, priority: i32| {
        let text = MULTI.replace("tke-agent-network-real", namespace).replace(
            "  podSelector",
            &format!("  priority: {priority}\n  podSelector"),
        );
        assert!(text.contains(&format!("priority: {priority}")));
        compile(&policies(&text), &CompileOptions::default())
            .0
            .policies[0]
            .priority
    };
    assert!(with("team-a", 1_000_000) < with(SYSTEM_NAMESPACE, -1_000_000));
    assert!(with("team-a", -1_000_000) < with("team-a", 1_000_000));
    assert_eq!(with(SYSTEM_NAMESPACE, 7), 7);
}

#[test]
fn a_document_is_the_same_whether_its_policies_are_compiled_together_or_one_by_one() {
    let objects = policies(&format!("{CODING}\n---\n{MULTI}"));
    let options = CompileOptions::default();
    let parts: Vec<CompiledPolicy> = objects
        .iter()
        .rev()
        .map(|policy| compile_policy(policy, &options).unwrap())
        .collect();
    assert_eq!(assemble(&parts, &[]), compile(&objects, &options).0);
    assert_eq!(
        parts[1].credential_files().collect::<Vec<_>>(),
        ["zeroproxy-credentials/REPO_TOKEN"]
    );
    let again = CompiledPolicy::of_document(assemble(&parts, &[]));
    assert!(again.into_values().all(|policy| parts.contains(&policy)));
    let range: IpCidr = "192.0.2.0/24".parse().unwrap();
    let closed = assemble(&parts, &[range, range]);
    assert_eq!(closed.sensitive_cidrs, [range]);
    assert_ne!(closed.version, assemble(&parts, &[]).version);
}

#[test]
fn the_examples_compile_to_the_bytes_that_they_always_did() {
    let (document, _) = compile(
        &policies(&format!("{CODING}\n---\n{MULTI}")),
        &CompileOptions::default(),
    );
    // another text is another version: every proxy of every cluster reloads at the upgrade
    assert_eq!(document.to_json() + "\n", include_str!("examples.json"));
}
