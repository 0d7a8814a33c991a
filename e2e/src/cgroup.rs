//! The control groups of a world's containers: one subtree `agent-network-WORLD` in every hierarchy, the only thing of
//! a world that has a name outside. Made for kubelet, which wants its root to be there; containerd makes its own below.
//! Removed with the world, and after a killed run by the next one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::world::{WORLDS, World};

const MOUNT: &str = "/sys/fs/cgroup";
const PREFIX: &str = "agent-network-";

/// The path of a world's subtree, as runtimes want it: from the hierarchy's root.
pub fn path_of(world: &World) -> String {
    format!("/{PREFIX}{}", world.name())
}

/// Makes the subtree of a world in every hierarchy.
///
/// # Errors
/// When the kernel refuses it.
pub fn make(world: &World) -> Result<()> {
    let name = format!("{PREFIX}{}", world.name());
    for hierarchy in hierarchies() {
        let dir = hierarchy.join(&name);
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        // version 1: a new cpuset is empty, and nothing can run in it
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if dir.join("cpuset.cpu_exclusive").exists() {
                let of_all = fs::read_to_string(hierarchy.join(file))?;
                fs::write(dir.join(file), of_all).with_context(|| format!("fill {file}"))?;
            }
        }
    }
    Ok(())
}

/// Removes the subtree of the world called `name`, whose processes have ended or are about to.
pub(crate) fn remove(name: &str) {
    for hierarchy in hierarchies() {
        let dir = hierarchy.join(format!("{PREFIX}{name}"));
        // a killed process stays in its group until it is gone
        for _ in 0..50 {
            remove_tree(&dir);
            if !dir.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Removes the subtrees of worlds that are no more.
pub(crate) fn reap() {
    for hierarchy in hierarchies() {
        for dir in folders(&hierarchy) {
            let name = dir.file_name().unwrap_or_default().to_string_lossy();
            if let Some(world) = name.strip_prefix(PREFIX)
                && !Path::new(WORLDS).join(world).exists()
            {
                remove_tree(&dir);
            }
        }
    }
}

/// Version 1 has a hierarchy in each folder, version 2 is one.
fn hierarchies() -> Vec<PathBuf> {
    let mount = Path::new(MOUNT);
    if mount.join("cgroup.controllers").exists() {
        return vec![mount.to_owned()];
    }
    let mut found: Vec<PathBuf> = folders(mount)
        .into_iter()
        .filter(|d| d.join("cgroup.procs").exists())
        .collect();
    found.sort();
    found
}

/// Only an empty group can be removed, so nothing that still runs is touched.
fn remove_tree(dir: &Path) {
    for inner in folders(dir) {
        remove_tree(&inner);
    }
    let _ = fs::remove_dir(dir);
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let folders = entries
        .flatten()
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    folders.map(|e| e.path()).collect()
}
