//! What a node needs of the machine it runs on: the programs of this workspace, root, a kernel with BTF.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The path of one of this workspace's programs.
///
/// # Errors
/// When it hasn't been built.
pub fn program(name: &str) -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let found = exe
        .ancestors()
        .skip(1)
        .take(2)
        .map(|d| d.join(name))
        .find(|p| p.is_file());
    found.with_context(|| format!("{name} isn't built: run `cargo xtask build`"))
}

/// Whether node tests can run here. A machine that can't run them must not look as if they had passed: with `CI=true`
/// this is an error, otherwise a line on standard error.
///
/// # Errors
/// With `CI=true` on a machine that can't run them.
pub fn can_run() -> Result<bool> {
    let missing = if !nix::unistd::geteuid().is_root() {
        "root"
    } else if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        "a kernel with BTF (/sys/kernel/btf/vmlinux)"
    } else {
        return Ok(true);
    };
    if std::env::var("CI").is_ok_and(|v| v == "true") {
        bail!("node tests need {missing}, and CI=true skips none");
    }
    eprintln!("not run: node tests need {missing}");
    Ok(false)
}
