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

/// Builds all programs and all tests in one go: cargo gives dependencies the features that the tests want, so building
/// the programs alone before would compile half of the dependencies twice.
///
/// # Errors
/// When a build fails.
pub(crate) fn programs_and_tests() -> Result<PathBuf> {
    build_ebpf::build()?;
    println!("xtask: building the programs and the tests (some minutes the first time)");
    let targets = ["--lib", "--bins", "--tests"];
    run(cargo().arg("build").args(HOST_PACKAGES).args(targets)).context("build the tests")?;
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
