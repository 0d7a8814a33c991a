//! The sources of Rust's core library, which `-Z build-std` compiles.
//!
//! In order: the toolchain's own, the cache, `rustup component add`, and on Debian a pinned package, unpacked into
//! the cache and never installed (it conflicts with rustup).

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::Toolchain;
use crate::{apt::Apt, run, setup};

/// The Debian package, for the compiler release it fits.
struct Package {
    release: &'static str,
    version: &'static str,
    suite: &'static str,
    sha256: &'static str,
}

const PACKAGE: Package = Package {
    release: "1.95.0",
    version: "1.95.0+dfsg1-2~bpo13+1",
    suite: "trixie-backports",
    sha256: "7b76db5b880a77f9e52975d2baa6209d2f76d2c9c2789515c3088cb960e2c83b",
};

/// Where a library folder's sources are known to begin.
const PROOF: &str = "core/src/lib.rs";

/// The folder with the library's sources when it is not the toolchain's own.
pub(super) fn ensure(toolchain: &Toolchain) -> Result<Option<PathBuf>> {
    let own = toolchain.sysroot.join("lib/rustlib/src/rust/library");
    if own.join(PROOF).exists() {
        return Ok(None);
    }
    let cached = setup::cache()?
        .join(format!("rust-src-{}", toolchain.release))
        .join("library");
    if cached.join(PROOF).exists() {
        return Ok(Some(cached));
    }
    if setup::which("rustup").is_some() {
        println!("xtask: rustup component add rust-src");
        let _ = Command::new("rustup")
            .args(["component", "add", "rust-src"])
            .status();
        if own.join(PROOF).exists() {
            return Ok(None);
        }
    }
    if setup::which("apt-get").is_some()
        && setup::which("dpkg-deb").is_some()
        && toolchain.release == PACKAGE.release
    {
        from_debian(&cached).context(
            "rust-src is missing, rustup could not add it, and Debian's package could not be unpacked; \
             type: rustup component add rust-src",
        )?;
        return Ok(Some(cached));
    }
    bail!(
        "the sources of Rust's core library are missing and could not be added; type: rustup component add rust-src"
    )
}

/// Unpacks the package's library folder to `library`.
fn from_debian(library: &Path) -> Result<()> {
    println!(
        "xtask: unpacking rust-src {} from Debian {}",
        PACKAGE.version, PACKAGE.suite
    );
    let parent = library.parent().context("the cache has no folder")?;
    let work = parent.with_extension("work");
    let _ = fs::remove_dir_all(&work);
    let result = unpack(&work).and_then(|unpacked| {
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        fs::rename(&unpacked, library).with_context(|| format!("create {}", library.display()))
    });
    let _ = fs::remove_dir_all(&work);
    result
}

/// Downloads and unpacks below `work`; returns the library folder there.
fn unpack(work: &Path) -> Result<PathBuf> {
    let apt = Apt::new(work, &[PACKAGE.suite])?;
    let package = apt.download(&format!("rust-src={}", PACKAGE.version), work)?;
    let bytes = fs::read(&package).with_context(|| format!("read {}", package.display()))?;
    let hash: String = Sha256::digest(&bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    if hash != PACKAGE.sha256 {
        bail!(
            "{} has SHA-256 {hash}, not {}",
            package.display(),
            PACKAGE.sha256
        );
    }
    let out = work.join("unpacked");
    run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&out))?;
    let library = out.join(format!("usr/src/rustc-{}/library", PACKAGE.release));
    if !library.join(PROOF).exists() {
        bail!("{} holds no library folder", package.display());
    }
    Ok(library)
}
