//! Builds the programs that the demo and the tests run, in the same profile, so that every crate is built once.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::{build_ebpf, cargo, run};

/// Every package but agent-ebpf, which is compiled for the kernel by `build-ebpf`.
pub(crate) const HOST_PACKAGES: &[&str] = &["--workspace", "--exclude", "agent-ebpf"];

/// Builds all programs; returns the folder they are in.
///
/// # Errors
/// When a build fails.
pub(crate) fn programs() -> Result<PathBuf> {
    build_ebpf::build()?;
    println!("xtask: building the programs (some minutes the first time)");
    run(cargo().arg("build").args(HOST_PACKAGES)).context("build the programs")?;
    folder()
}

/// The folder of this very program: the others are put beside it.
///
/// # Errors
/// When the system can't say where this program is.
pub(crate) fn folder() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("find this program")?;
    Ok(exe
        .parent()
        .context("this program is in no folder")?
        .to_owned())
}
