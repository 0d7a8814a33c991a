//! The programs that go into images.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use oci_archive::Platform;

use crate::{build, cargo, run, setup};

/// The three of the product.
const PACKAGES: [&str; 3] = ["agent-cni", "agent-node", "agent-controller"];

/// Built programs for one platform.
pub(super) struct Programs {
    pub(super) platform: Platform,
    /// Where they are.
    pub(super) folder: PathBuf,
    /// Whether they bring the C library along.
    pub(super) is_static: bool,
    /// By rustc's name.
    pub(super) target: &'static str,
}

/// What the tests run, for this machine.
///
/// # Errors
/// When a build fails.
pub(super) fn development() -> Result<Programs> {
    if !cfg!(target_arch = "x86_64") {
        bail!("--dev makes images for amd64 from a build for amd64, and this machine is none");
    }
    Ok(Programs {
        platform: Platform::Amd64,
        folder: build::programs_and_tests()?,
        is_static: false,
        target: "x86_64-unknown-linux-gnu",
    })
}

/// What people run: static, optimised, without debug information and without this machine's paths.
///
/// # Errors
/// When the target or its C compiler can't be had, or a build fails.
pub(super) fn released(platform: Platform) -> Result<Programs> {
    let (target, c_compiler) = match platform {
        Platform::Amd64 => ("x86_64-unknown-linux-musl", setup::MUSL),
        Platform::Arm64 => ("aarch64-unknown-linux-musl", setup::AARCH64),
    };
    setup::for_images(target, c_compiler)?;
    println!("xtask: building the programs for {target} (many minutes the first time)");
    let root = super::workspace().canonicalize()?;
    let home = setup::cargo_home()?;
    let flags = [
        format!("--remap-path-prefix={}=/agent-network", root.display()),
        format!("--remap-path-prefix={}=/cargo", home.display()),
    ];
    let upper = target.to_uppercase().replace('-', "_");
    let mut command = cargo();
    command
        .args(["build", "--release", "--bins", "--target", target])
        .args(PACKAGES.iter().flat_map(|p| ["-p", p]))
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo")
        .env(format!("CC_{}", target.replace('-', "_")), c_compiler.0);
    if platform == Platform::Arm64 {
        // rustc brings musl's start files and library along; any linker that knows the processor will do.
        command.env(format!("CARGO_TARGET_{upper}_LINKER"), c_compiler.0);
    }
    run(&mut command).with_context(|| format!("build the programs for {target}"))?;
    Ok(Programs {
        platform,
        folder: root.join("target").join(target).join("release"),
        is_static: true,
        target,
    })
}
