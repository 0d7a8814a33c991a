//! The Rust compiler that the programs are built with.

use std::{env, path::PathBuf};

use anyhow::{Context, Result};

use super::output_of;

/// What has to match the compiler: the library's sources by its release, the linker by its LLVM.
pub(super) struct Toolchain {
    /// First line of `rustc -vV`.
    pub(super) version: String,
    /// `1.95.0`.
    pub(super) release: String,
    /// `22`.
    pub(super) llvm_major: String,
    /// Where it is installed.
    pub(super) sysroot: PathBuf,
}

impl Toolchain {
    /// Asks the `rustc` beside the running cargo.
    pub(super) fn find() -> Result<Self> {
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let verbose =
            output_of(&rustc, &["-vV"]).context("rustc is not installed (https://rustup.rs)")?;
        let field = |name: &str| {
            verbose
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim)
                .with_context(|| format!("rustc -vV has no line `{name}`"))
        };
        let sysroot = output_of(&rustc, &["--print", "sysroot"]).context("rustc has no sysroot")?;
        let llvm = field("LLVM version:")?;
        Ok(Self {
            version: verbose.lines().next().unwrap_or_default().to_owned(),
            release: field("release:")?.to_owned(),
            llvm_major: llvm.split('.').next().unwrap_or(llvm).to_owned(),
            sysroot: sysroot.into(),
        })
    }
}
