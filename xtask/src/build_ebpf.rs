//! `cargo xtask build-ebpf`: compiles `agent-ebpf` for the kernel, with what that needs.
//!
//! Owns the object and its stamp in `target/ebpf/`; agent-datapath's build script embeds them. What is missing on
//! the machine is [`rust_src`]'s and [`linker`]'s to bring, into a cache outside of the checkout.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{cargo, run};

mod linker;
mod rust_src;
mod source_hash;
// agent-datapath's build script uses it; its tests run here
#[cfg(test)]
#[path = "build_ebpf/stamp.rs"]
mod stamp_check;
mod toolchain;

use toolchain::Toolchain;

const TARGET: &str = "bpfel-unknown-none";
const PACKAGE: &str = "agent-ebpf";
/// Raised when [`compile`] changes, so that objects of the old way are made anew.
const RECIPE: u32 = 2;

/// Compiles the programs, unless neither they nor their tools changed since the last time.
///
/// # Errors
/// When a tool is missing and can't be installed (the message says what to type), or when the programs don't compile.
pub(crate) fn build() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = root.canonicalize().context("find the checkout")?;
    let dir = target_dir(&root)?.join("ebpf");
    let object = dir.join(PACKAGE);
    let stamp_file = dir.join(format!("{PACKAGE}.stamp"));

    let toolchain = Toolchain::find()?;
    let stamp = stamp(&root, &toolchain)?;
    if object.exists() && fs::read_to_string(&stamp_file).is_ok_and(|old| old == stamp) {
        return Ok(());
    }
    println!("xtask: compiling the eBPF programs");
    let rust_src = rust_src::ensure(&toolchain)?;
    let linker = linker::ensure(&toolchain)?;
    let remap = remap_paths(&root, &toolchain, rust_src.as_deref());
    let built = compile(&dir.join("build"), rust_src.as_deref(), &linker, remap)?;
    replace(&built, &object)?;
    fs::write(&stamp_file, stamp).with_context(|| format!("write {}", stamp_file.display()))
}

/// What an object was made of: the first line is compared by agent-datapath's build script too.
fn stamp(root: &Path, toolchain: &Toolchain) -> Result<String> {
    let sources = source_hash::of(root).context("read the sources of the eBPF programs")?;
    let tools = format!(
        "{} bpf-linker {} recipe {RECIPE}",
        toolchain.version,
        linker::VERSION
    );
    Ok(format!("{sources}\n{tools}\n"))
}

fn target_dir(root: &Path) -> Result<PathBuf> {
    if let Some(dir) = env::var_os("CARGO_TARGET_DIR") {
        return Ok(root.join(dir));
    }
    let output = cargo()
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .output()
        .context("start cargo metadata")?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("read the answer of cargo metadata")?;
    let dir = metadata["target_directory"]
        .as_str()
        .context("cargo metadata names no folder")?;
    Ok(dir.into())
}

/// Flags that keep the machine's folders out of the object, so that it is the same wherever it is built.
fn remap_paths(root: &Path, toolchain: &Toolchain, rust_src: Option<&Path>) -> Vec<String> {
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo_home =
        cargo_home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    let own = toolchain.sysroot.join("lib/rustlib/src/rust/library");
    let folders = [
        (Some(root), "/agent-network"),
        (cargo_home.as_deref(), "/cargo"),
        (Some(rust_src.unwrap_or(&own)), "/rust/library"),
    ];
    folders
        .into_iter()
        .filter_map(|(from, to)| Some(format!("--remap-path-prefix={}={to}", from?.display())))
        .collect()
}

fn compile(
    target_dir: &Path,
    rust_src: Option<&Path>,
    linker: &Path,
    remap: Vec<String>,
) -> Result<PathBuf> {
    // As aya-build does it; bpf_target_arch is the architecture whose registers the bindings describe.
    let mut flags = vec![
        format!("--cfg=bpf_target_arch=\"{}\"", env::consts::ARCH),
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
    ];
    flags.extend(remap);
    let mut command = cargo();
    command
        .args(["build", "--package", PACKAGE, "--bins", "--release"])
        .args(["-Z", "build-std=core", "--target", TARGET, "--target-dir"])
        .arg(target_dir)
        // build-std is unstable: this lets the stable compiler have it, for this one build
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", linker)
        .env_remove("RUSTC")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CARGO_BUILD_TARGET");
    if let Some(library) = rust_src {
        // cargo's own tests keep the library's sources elsewhere by this variable; it saves writing into the toolchain
        command.env("__CARGO_TESTS_ONLY_SRC_ROOT", library);
    }
    run(&mut command).context("compile the eBPF programs")?;
    Ok(target_dir.join(TARGET).join("release").join(PACKAGE))
}

/// Puts a copy of `from` at `to` in one step.
fn replace(from: &Path, to: &Path) -> Result<()> {
    let new = to.with_extension("new");
    fs::copy(from, &new)
        .with_context(|| format!("copy {} to {}", from.display(), new.display()))?;
    fs::rename(&new, to).with_context(|| format!("rename {} to {}", new.display(), to.display()))
}

/// What a program writes to its output, when it succeeds.
fn output_of(program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
