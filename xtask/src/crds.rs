//! `cargo xtask crds`: the CustomResourceDefinitions in `chart/crds/`, which `agent-controller crds` writes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{cargo, run};

/// Writes `chart/crds/` anew.
///
/// # Errors
/// When the controller doesn't build, or the folder can't be written.
pub(crate) fn write() -> Result<()> {
    let (new, dir) = (read(&fresh()?)?, committed());
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    for name in differences(&read(&dir)?, &new) {
        let path = dir.join(&name);
        match new.get(&name) {
            Some(text) => fs::write(&path, text),
            None => fs::remove_file(&path),
        }
        .with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Compares `chart/crds/` with what the types give.
///
/// # Errors
/// When a file differs, is missing, or is there for no kind.
pub(crate) fn check() -> Result<()> {
    let wrong = differences(&read(&committed())?, &read(&fresh()?)?);
    if !wrong.is_empty() {
        bail!(
            "chart/crds/ is not what the types in agent-api give ({}): run `cargo xtask crds`",
            wrong.join(", ")
        );
    }
    Ok(())
}

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../chart/crds")
}

/// A folder with what the types give.
fn fresh() -> Result<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/crds");
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("empty {}", dir.display()))?;
    }
    generate(&dir)?;
    Ok(dir)
}

fn generate(dir: &Path) -> Result<()> {
    run(cargo()
        .args([
            "run",
            "--quiet",
            "-p",
            "agent-controller",
            "--",
            "crds",
            "--output-dir",
        ])
        .arg(dir))
}

fn read(dir: &Path) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    let Ok(entries) = fs::read_dir(dir) else {
        return Ok(files);
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        files.insert(name.into_owned(), text);
    }
    Ok(files)
}

fn differences(
    committed: &BTreeMap<String, String>,
    fresh: &BTreeMap<String, String>,
) -> Vec<String> {
    let mut names: Vec<&String> = committed.keys().chain(fresh.keys()).collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .filter(|name| committed.get(*name) != fresh.get(*name))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        list.iter().map(owned).collect()
    }

    #[test]
    fn changed_missing_and_left_over_files_are_named() {
        let committed = files(&[("a", "1"), ("changed", "1"), ("left-over", "1")]);
        let fresh = files(&[("a", "1"), ("changed", "2"), ("missing", "1")]);
        assert_eq!(
            differences(&committed, &fresh),
            ["changed", "left-over", "missing"]
        );
        assert!(differences(&fresh, &fresh).is_empty());
    }
}
