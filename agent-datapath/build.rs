//! Embeds the eBPF object that `cargo xtask build-ebpf` made, and refuses one that is not made of these sources.
//!
//! Compiles nothing itself, so that a plain `cargo build` needs no eBPF toolchain.

#[path = "../xtask/src/build_ebpf/source_hash.rs"]
mod source_hash;
#[path = "../xtask/src/build_ebpf/stamp.rs"]
mod stamp;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use sha2::{Digest, Sha256};

fn main() -> ExitCode {
    match embed() {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            println!("cargo::error={sentence}");
            ExitCode::FAILURE
        }
    }
}

fn embed() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for folder in source_hash::FOLDERS {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
    }
    println!(
        "cargo::rerun-if-changed={}",
        root.join("Cargo.lock").display()
    );
    println!("cargo::rerun-if-changed=build.rs");

    let out_dir = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets no OUT_DIR")?);
    // xtask puts it into the target folder, which lies above OUT_DIR, more or less deep
    let dir = out_dir
        .ancestors()
        .map(|dir| dir.join("ebpf"))
        .find(|dir| dir.join("agent-ebpf.stamp").exists())
        .ok_or(stamp::ABSENT)?;
    let (object, made_of) = (dir.join("agent-ebpf"), dir.join("agent-ebpf.stamp"));
    println!("cargo::rerun-if-changed={}", made_of.display());
    println!("cargo::rerun-if-changed={}", object.display());

    let sources = source_hash::of(&root)
        .map_err(|e| format!("can't read the sources of the eBPF programs: {e}"))?;
    stamp::check(&fs::read_to_string(&made_of).unwrap_or_default(), &sources)?;
    let bytes = fs::read(&object).map_err(|e| {
        format!(
            "can't read {} ({e}); run: cargo xtask build-ebpf",
            object.display()
        )
    })?;
    fs::write(out_dir.join("agent-ebpf"), &bytes)
        .map_err(|e| format!("can't write to {}: {e}", out_dir.display()))?;
    fs::write(out_dir.join("agent-ebpf.sha256"), Sha256::digest(&bytes))
        .map_err(|e| format!("can't write to {}: {e}", out_dir.display()))
}
