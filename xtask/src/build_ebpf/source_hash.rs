//! A hash of everything that the eBPF object is made of.
//!
//! Compiled into xtask, which writes the hash beside the object, and into agent-datapath's build script, which refuses
//! an object with another.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// Folders of the programs' own sources.
pub(crate) const FOLDERS: [&str; 2] = ["agent-ebpf", "agent-ebpf-common"];
/// Packages of the lock file that end up in the object, by the beginning of their names.
const LOCKED: [&str; 2] = ["name = \"aya-ebpf", "name = \"aya-log-"];

/// The hash of the checkout at `root`, in hexadecimal. Files with tests don't count.
///
/// # Errors
/// When a source can't be read.
pub(crate) fn of(root: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        collect(&root.join(folder), &mut files)?;
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in &files {
        let name = file.strip_prefix(root).unwrap_or(file).to_string_lossy();
        let content = fs::read(file)?;
        hash.update(format!("{name} {}\n", content.len()));
        hash.update(content);
    }
    let lock = fs::read_to_string(root.join("Cargo.lock"))?;
    for package in lock
        .split("\n\n")
        .filter(|p| LOCKED.iter().any(|start| p.contains(start)))
    {
        hash.update(package);
    }
    let mut hex = String::new();
    for byte in hash.finalize() {
        // writing into a String can't fail
        let _ = write!(hex, "{byte:02x}");
    }
    Ok(hex)
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            collect(&path, files)?;
        } else if (name.ends_with(".rs") && name != "tests.rs" && name != "testing.rs")
            || name == "Cargo.toml"
        {
            files.push(path);
        }
    }
    Ok(())
}
