//! `cargo xtask crds`: the CustomResourceDefinitions in `chart/crds/`, which `agent-controller crds` writes. That they
//! are those of the types is a test of agent-api.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::{cargo, run};

/// Writes `chart/crds/` anew, without what an older kind left.
///
/// # Errors
/// When the controller doesn't build, or the folder can't be written.
pub(crate) fn write() -> Result<()> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/crds");
    empty(&target)?;
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
        .arg(&target))?;
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../chart/crds");
    empty(&chart)?;
    for entry in fs::read_dir(&target).with_context(|| format!("read {}", target.display()))? {
        let entry = entry?;
        let to = chart.join(entry.file_name());
        fs::copy(entry.path(), &to).with_context(|| format!("write {}", to.display()))?;
    }
    Ok(())
}

fn empty(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("empty {}", dir.display()))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))
}
