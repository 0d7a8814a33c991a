//! `cargo xtask demo`: sets up, builds, and runs the main job on this machine.

use std::process::Command;

use anyhow::{Context, Result};

use crate::{build, run, setup};

/// Sets up what is missing, builds, and runs the demo; with `keep` the node stays up.
///
/// # Errors
/// When anything that the demo shows doesn't hold.
pub(crate) fn demo(keep: bool) -> Result<()> {
    setup::for_demo()?;
    let programs = build::programs()?;
    show(&programs, keep)
}

/// Runs the demo with programs that are built already.
///
/// # Errors
/// As [`demo`].
pub(crate) fn show(programs: &std::path::Path, keep: bool) -> Result<()> {
    let mut command = Command::new(programs.join("e2e"));
    command.arg("demo");
    if keep {
        command.arg("--keep");
    }
    run(&mut command).context("the demo did not show all that it must")
}
