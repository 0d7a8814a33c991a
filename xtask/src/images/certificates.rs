//! The roots that Debian trusts, in one file: what `update-ca-certificates` makes when the package is installed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The certificates below `folder` one after another, in the order of their names.
///
/// # Errors
/// When there is none, or one can't be read.
pub(super) fn bundle(folder: &Path) -> Result<Vec<u8>> {
    let mut files = Vec::new();
    collect(folder, &mut files)?;
    files.sort_unstable();
    let mut bundle = Vec::new();
    for file in &files {
        let pem = fs::read(file).with_context(|| format!("read {}", file.display()))?;
        bundle.extend_from_slice(pem.trim_ascii());
        bundle.push(b'\n');
    }
    if bundle.is_empty() {
        bail!("there is no certificate in {}", folder.display());
    }
    Ok(bundle)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "crt") {
            files.push(path);
        }
    }
    Ok(())
}
