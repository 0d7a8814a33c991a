//! `cargo xtask check`: which package may depend on which, licences and sources, formatting and lints.
//!
//! The arrows are those of ARCHITECTURE.md. An arrow that isn't in [`ARROWS`] fails, so a new one is a decision that
//! somebody wrote down, not an accident.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{build, cargo, run, setup};

/// Every package of the workspace and the packages of the workspace that it may name.
const ARROWS: &[(&str, &[&str])] = &[
    ("agent-core", &[]),
    ("agent-ebpf-common", &[]),
    ("agent-ebpf", &["agent-ebpf-common"]),
    ("agent-datapath", &["agent-core", "agent-ebpf-common"]),
    ("agent-cni", &["agent-core", "agent-datapath"]),
    ("agent-node", &["agent-core", "agent-datapath"]),
    ("agent-api", &["agent-core"]),
    ("agent-controller", &["agent-api", "agent-core"]),
    ("oci-archive", &[]),
    ("e2e", &["agent-core"]),
    ("xtask", &["oci-archive"]),
];

/// Crates that only the named packages may depend on themselves.
const RESERVED: &[(&str, &[&str])] = &[
    ("aya", &["agent-datapath", "agent-ebpf-common"]),
    ("aya-ebpf", &["agent-ebpf"]),
    ("rtnetlink", &["agent-datapath"]),
    (
        "tokio",
        &[
            "agent-cni",
            "agent-controller",
            "agent-datapath",
            "agent-node",
        ],
    ),
    ("kube", &["agent-api", "agent-controller", "agent-node"]),
];

/// Formatting, arrows, licences and lints.
///
/// # Errors
/// When one of them is wrong; the message says which and what to do.
pub(crate) fn all() -> Result<()> {
    run(cargo().args(["fmt", "--all", "--check"]))
        .context("not formatted: run `cargo fmt --all`")?;
    arrows()?;
    licences()?;
    run(cargo().arg("clippy").args(build::HOST_PACKAGES).args([
        "--all-targets",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ]))
    .context("clippy found something")
}

/// The arrows between the packages.
///
/// # Errors
/// When a package depends on one that it may not depend on.
pub(crate) fn arrows() -> Result<()> {
    let out = cargo()
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .output()?;
    if !out.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    let wrong = wrong_arrows(&serde_json::from_slice(&out.stdout)?)?;
    if wrong.is_empty() {
        return Ok(());
    }
    bail!(
        "arrows that ARCHITECTURE.md doesn't have:\n  {}",
        wrong.join("\n  ")
    )
}

fn wrong_arrows(metadata: &Value) -> Result<Vec<String>> {
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata has no packages")?;
    let name = |v: &Value| v["name"].as_str().unwrap_or_default().to_owned();
    let ours: BTreeSet<String> = packages.iter().map(name).collect();
    let mut wrong = Vec::new();
    for package in packages {
        let from = name(package);
        let Some((_, allowed)) = ARROWS.iter().find(|(p, _)| *p == from) else {
            wrong.push(format!(
                "{from} is new: add it to ARROWS in xtask/src/check.rs"
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = name(dependency);
            let dev = dependency["kind"] == "dev";
            if ours.contains(&to) && to != from && !allowed.contains(&to.as_str()) {
                wrong.push(format!("{from} -> {to}"));
            }
            let reserved = RESERVED.iter().find(|(c, _)| *c == to);
            if reserved.is_some_and(|(_, who)| !dev && !who.contains(&from.as_str())) {
                wrong.push(format!("{from} -> {to} (reserved for others)"));
            }
        }
    }
    Ok(wrong)
}

/// Licences, bans and sources by cargo-deny, which is brought along when it is missing.
///
/// # Errors
/// When a dependency has a licence or a source that `deny.toml` doesn't name.
fn licences() -> Result<()> {
    let Some(deny) = setup::tool("cargo-deny")? else {
        bail!(
            "cargo-deny can't be had here, so licences can't be checked: install it with `cargo install cargo-deny`"
        );
    };
    run(Command::new(deny).args([
        "--log-level",
        "error",
        "check",
        "bans",
        "licenses",
        "sources",
    ]))
    .context("cargo-deny found something")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, dependencies: &[(&str, Value)]) -> Value {
        let list: Vec<Value> = dependencies
            .iter()
            .map(|(n, kind)| json!({"name": n, "kind": kind}))
            .collect();
        json!({"name": name, "dependencies": list})
    }

    #[test]
    fn an_arrow_that_is_not_listed_is_named() {
        let metadata = json!({"packages": [
            package("agent-core", &[("agent-cni", Value::Null)]),
            package("agent-cni", &[("agent-core", Value::Null)]),
        ]});
        assert_eq!(
            wrong_arrows(&metadata).unwrap(),
            ["agent-core -> agent-cni"]
        );
    }

    #[test]
    fn a_reserved_crate_is_refused_except_for_tests() {
        let metadata = json!({"packages": [
            package("agent-core", &[("tokio", Value::Null), ("tokio", json!("dev"))]),
        ]});
        assert_eq!(
            wrong_arrows(&metadata).unwrap(),
            ["agent-core -> tokio (reserved for others)"]
        );
    }

    #[test]
    fn a_package_nobody_decided_on_is_refused() {
        let wrong = wrong_arrows(&json!({"packages": [package("helpers", &[])]})).unwrap();
        assert!(wrong[0].contains("helpers is new"));
    }
}
