//! bpf-linker, of a pinned version and linked to the compiler's own LLVM.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{Toolchain, output_of};
use crate::{run, setup};

/// The pinned version.
pub(super) const VERSION: &str = "0.13.0";
const PROGRAM: &str = "bpf-linker";

/// Finds bpf-linker in the cache or on PATH, or builds it into the cache.
pub(super) fn ensure(toolchain: &Toolchain) -> Result<PathBuf> {
    let dir = setup::cache()?.join(format!("{PROGRAM}-{VERSION}-llvm{}", toolchain.llvm_major));
    let cached = dir.join("bin").join(PROGRAM);
    for candidate in [cached.as_path(), Path::new(PROGRAM)] {
        if is_pinned_version(candidate) {
            return Ok(candidate.to_owned());
        }
    }
    install(toolchain, &dir).with_context(|| {
        format!(
            "bpf-linker {VERSION} could not be built; by hand, with LLVM {llvm} installed: \
             cargo install bpf-linker --version {VERSION} --locked --no-default-features --features llvm-{llvm}",
            llvm = toolchain.llvm_major
        )
    })?;
    if !is_pinned_version(&cached) {
        bail!("{} was built but does not start", cached.display());
    }
    Ok(cached)
}

fn is_pinned_version(program: &Path) -> bool {
    output_of(program, &["--version"]).is_some_and(|v| v == format!("{PROGRAM} {VERSION}"))
}

/// The crate is checked against the registry's index, its dependencies against its own lock file.
fn install(toolchain: &Toolchain, dir: &Path) -> Result<()> {
    println!(
        "xtask: building bpf-linker {VERSION} into {} (a minute or two, once)",
        dir.display()
    );
    let llvm = dir.join("llvm");
    link_llvm(toolchain, &llvm)?;
    let build_dir = dir.join("build");
    let mut command = Command::new("cargo");
    command
        .args([
            "install",
            "--quiet",
            PROGRAM,
            "--version",
            &format!("={VERSION}"),
            "--locked",
        ])
        .args([
            "--no-default-features",
            "--features",
            &format!("llvm-{}", toolchain.llvm_major),
        ])
        .args(["--no-track", "--force", "--root"])
        .arg(dir)
        .env("LLVM_PREFIX", &llvm)
        .env("CARGO_TARGET_DIR", &build_dir)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET");
    let result = run(&mut command);
    // some hundred megabytes that nobody needs again
    let _ = fs::remove_dir_all(build_dir);
    result
}

/// Makes an LLVM prefix of the library that the compiler itself is linked to.
fn link_llvm(toolchain: &Toolchain, prefix: &Path) -> Result<()> {
    let lib = toolchain.sysroot.join("lib");
    let name = fs::read_dir(&lib)
        .with_context(|| format!("read {}", lib.display()))?
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .find(|name| name.starts_with("libLLVM.so."))
        .with_context(|| {
            format!(
                "{} has no libLLVM.so: the compiler is linked to a static LLVM",
                lib.display()
            )
        })?;
    let target = prefix.join("lib");
    fs::create_dir_all(&target).with_context(|| format!("create {}", target.display()))?;
    for (from, to) in [
        (lib.join(&name), &*name),
        (PathBuf::from(&name), "libLLVM.so"),
    ] {
        relink(&from, &target.join(to)).with_context(|| format!("link {to}"))?;
    }
    Ok(())
}

fn relink(from: &Path, to: &Path) -> io::Result<()> {
    match fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(from, to)
}
