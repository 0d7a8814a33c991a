//! `e2e demo --keep` as a person uses it: the lines that it prints lead into a pod, and remove everything.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::Path;
use std::process::{Command, Output};

use e2e::machine::{can_run, program};

fn sh(line: &str) -> Output {
    Command::new("bash").args(["-c", line]).output().unwrap()
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// What the printed line that starts with `label` says to type.
fn printed<'a>(output: &'a str, label: &str) -> &'a str {
    output
        .lines()
        .find_map(|line| line.trim().strip_prefix(label))
        .unwrap_or_else(|| panic!("no line `{label}` in {output}"))
        .trim()
}

#[test]
fn a_kept_node_can_be_entered_as_printed_and_removed_as_printed() {
    if !can_run().unwrap() {
        return;
    }
    let demo = Command::new(program("e2e").unwrap())
        .args(["demo", "--keep"])
        .output()
        .unwrap();
    let output = text(&demo);
    let folder = printed(&output, "logs").trim_end_matches("/logs");
    let remove = printed(&output, "remove everything");
    let kept = std::panic::catch_unwind(|| {
        assert!(demo.status.success(), "{output}");
        let pod = printed(&output, "enter pod planner");
        let line = pod.strip_suffix("bash").unwrap();
        let allowed = sh(&format!(
            "{line} curl -sS -i -m 10 http://docs.example.com/"
        ));
        assert!(
            text(&allowed).contains("HTTP/1.1 200"),
            "{}",
            text(&allowed)
        );
        let denied = sh(&format!("{line} curl -sS -i -m 10 http://198.51.100.7/"));
        let denied = text(&denied);
        assert!(denied.contains("HTTP/1.1 403"), "{denied}");
        assert!(denied.contains("EGRESS_DENIED_BY_POLICY"), "{denied}");
        let node = printed(&output, "enter the node");
        let ready = sh(&format!(
            "{} curl -sS -f -m 10 http://127.0.0.1:18080/readyz",
            node.strip_suffix("bash").unwrap()
        ));
        assert!(ready.status.success(), "{}", text(&ready));
    });
    let removed = sh(remove);
    assert!(removed.status.success(), "{}", text(&removed));
    assert!(!Path::new(folder).exists(), "{folder} is still there");
    let left = sh(&format!("grep -c '{folder}' /proc/mounts"));
    assert_eq!(text(&left).trim(), "0");
    if let Err(panic) = kept {
        std::panic::resume_unwind(panic);
    }
}
