//! The protocol's edges: verbs, versions, variables, bytes.

use proptest::prelude::*;
use serde_json::json;

use crate::support::{Node, PLUGIN, answer};

fn call(variables: &[(&str, &str)], stdin: &[u8]) -> crate::support::Answer {
    let mut command = std::process::Command::new(PLUGIN);
    command.env_clear().envs(variables.iter().copied());
    answer(command, stdin)
}

#[test]
fn version_lists_what_is_spoken_in_the_callers_version() {
    for asked in ["0.1.0", "1.0.0", "1.1.0", "9.9.9"] {
        let stdin = json!({"cniVersion": asked}).to_string();
        let versions = call(&[("CNI_COMMAND", "VERSION")], stdin.as_bytes()).ok();
        assert_eq!(versions["cniVersion"], asked);
        assert_eq!(
            versions["supportedVersions"],
            json!(["0.3.1", "0.4.0", "1.0.0", "1.1.0"])
        );
    }
    call(&[("CNI_COMMAND", "VERSION")], b"").ok();
}

#[test]
fn each_verb_exists_since_its_version() {
    let node = Node::new();
    node.pod("c1");
    for (verb, version, works) in [
        ("ADD", "0.3.1", true),
        ("DEL", "0.3.1", true),
        ("CHECK", "0.3.1", false),
        ("CHECK", "0.4.0", true),
        ("CHECK", "1.0.0", true),
        ("STATUS", "1.0.0", false),
        ("STATUS", "1.1.0", true),
        ("GC", "1.0.0", false),
        ("GC", "1.1.0", true),
        ("ADD", "0.2.0", false),
        ("ADD", "1.2.0", false),
        ("DEL", "", false),
    ] {
        let mut conf = node.with("cniVersion", json!(version));
        match verb {
            "CHECK" => {
                conf["prevResult"] = node.add("c1").ok();
            }
            "GC" => conf["cni.dev/valid-attachments"] = json!([]),
            _ => {}
        }
        let answer = node.call(verb, "c1", &conf);
        if works {
            answer.ok();
        } else {
            assert_eq!(answer.error().0, 1, "{verb} {version}");
        }
    }
}

#[test]
fn errors_have_the_specifications_codes() {
    let good = json!({"cniVersion": "1.1.0", "name": "n", "type": "agent-cni"}).to_string();
    let add = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_NETNS", "/nonexistent"),
        ("CNI_ARGS", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b"),
    ];
    let changed = |name: &'static str, value: &'static str| {
        add.map(|(key, old)| {
            if key == name {
                (key, value)
            } else {
                (key, old)
            }
        })
    };
    for (variables, stdin, code) in [
        (changed("CNI_COMMAND", "FROB"), good.clone(), 4),
        (changed("CNI_CONTAINERID", ""), good.clone(), 4),
        (
            changed("CNI_CONTAINERID", "../../etc/passwd"),
            good.clone(),
            4,
        ),
        (
            changed("CNI_IFNAME", "way-too-long-a-name"),
            good.clone(),
            4,
        ),
        (changed("CNI_ARGS", "K8S_POD_NAME=b"), good.clone(), 4),
        (
            changed("CNI_ARGS", "Surprise=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b"),
            good.clone(),
            4,
        ),
        (add, String::new(), 6),
        (add, "{".into(), 6),
        (add, json!({"cniVersion": "0.2.0"}).to_string(), 1),
        (
            add,
            json!({"cniVersion": "1.1.0", "ipMasq": true}).to_string(),
            2,
        ),
        (
            add,
            json!({"cniVersion": "1.1.0", "serviceCidrs": []}).to_string(),
            7,
        ),
        (
            add,
            json!({"cniVersion": "1.1.0", "fakeIPCIDR": "10.0.0.0/4"}).to_string(),
            7,
        ),
        (add, good.clone(), 3),
        (changed("CNI_NETNS", "/proc/self/ns/net"), good.clone(), 8),
        (changed("CNI_NETNS", "/proc/self/ns/mnt"), good.clone(), 8),
        (changed("CNI_NETNS", "/etc/hostname"), good.clone(), 8),
    ] {
        let (found, message) = call(&variables, stdin.as_bytes()).error();
        assert_eq!(found, code, "{variables:?} {stdin}: {message}");
        assert!(message.len() > 20, "{message}");
    }
}

#[test]
fn without_a_verb_it_says_what_it_is() {
    let output = std::process::Command::new(PLUGIN)
        .env_remove("CNI_COMMAND")
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for word in ["CNI plugin", "setup", "fakeIPCIDR", "VERSION"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_on_stdin_get_an_answer_in_the_protocols_form(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        verb in prop::sample::select(vec!["ADD", "DEL", "CHECK", "GC", "STATUS"]),
    ) {
        let variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/nonexistent"),
        ];
        let (code, _) = call(&variables, &bytes).error();
        prop_assert!(code == 6 || code == 1, "{}", code);
    }
}
