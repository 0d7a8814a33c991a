//! The bill of materials of an image (CycloneDX 1.5, JSON): crates that are compiled into its program, and Debian's
//! packages.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::packages::Unpacked;
use super::programs::Programs;
use super::recipe::Recipe;
use crate::cargo;

/// The bill as text.
///
/// # Errors
/// When cargo can't say what a program is made of.
pub(super) fn of(
    recipe: &Recipe,
    programs: &Programs,
    packages: &Unpacked,
    tag: &str,
) -> Result<String> {
    let tree = cargo()
        .args(["tree", "--locked", "--edges", "normal", "--prefix", "none"])
        .args(["--package", recipe.program, "--target", programs.target])
        .args(["--format", "{p}|{l}"])
        .output()?;
    if !tree.status.success() {
        bail!(
            "cargo tree: {}",
            String::from_utf8_lossy(&tree.stderr).trim()
        );
    }
    let mut components = crates(&String::from_utf8_lossy(&tree.stdout));
    components.extend(packages.packages.iter().map(|package| {
        json!({
            "type": "library",
            "name": package.name,
            "version": package.version,
            "purl": packages.purl(package),
        })
    }));
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": recipe.name, "version": tag}},
        "components": components,
    });
    Ok(format!("{bill:#}\n"))
}

/// The components of what `cargo tree` prints: `name vX.Y.Z (where)|licence` a line, some of them more than once.
fn crates(tree: &str) -> Vec<Value> {
    let lines: BTreeSet<(&str, &str, &str)> = tree.lines().filter_map(one).collect();
    lines
        .into_iter()
        .map(|(name, version, licence)| {
            let mut component = json!({
                "type": "library",
                "name": name,
                "version": version,
                "purl": format!("pkg:cargo/{name}@{version}"),
            });
            if !licence.is_empty() {
                component["licenses"] = json!([{"expression": licence}]);
            }
            component
        })
        .collect()
}

fn one(line: &str) -> Option<(&str, &str, &str)> {
    let (what, licence) = line.split_once('|')?;
    let mut words = what.split(' ');
    let name = words.next()?;
    let version = words.next()?.strip_prefix('v')?;
    // `(*)`: printed before
    Some((name, version, licence.trim_end_matches(" (*)")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_is_listed_once_with_its_licence() {
        let tree = "agent-cni v0.3.0 (/src/agent-cni)|Apache-2.0\naya v0.14.0|MIT OR Apache-2.0\n\
                    libc v0.2.191|MIT OR Apache-2.0\naya v0.14.0|MIT OR Apache-2.0 (*)\n\nring v0.17.14|";
        let found = crates(tree);
        let names: Vec<_> = found.iter().map(|c| c["purl"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "pkg:cargo/agent-cni@0.3.0",
                "pkg:cargo/aya@0.14.0",
                "pkg:cargo/libc@0.2.191",
                "pkg:cargo/ring@0.17.14",
            ]
        );
        assert_eq!(found[1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(found[3].get("licenses"), None);
    }
}
