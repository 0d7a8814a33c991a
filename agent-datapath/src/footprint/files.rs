//! Files of ours: configuration, plugin, state, and pins of every layout.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};

use super::{CONF, Places, STAGED_BINARY, STAGED_CONF, Thing};
use crate::{bpf::PinnedLink, error::NetError};

/// Directories below a layout are two deep; more is not ours to walk.
const DEPTH: usize = 4;
/// The last part of the documented state directory.
const STATE_NAME: &str = "agent-cni";
/// What a state directory has from its first moment to its last.
const PENDING: &str = "pending";
/// By any of these a state directory is known; older versions had some of them.
const STATE_MARKS: [&str; 7] = [
    PENDING,
    "node.json",
    "version",
    "install.json",
    "sysctls",
    "released",
    "settings",
];
/// The lock that every running installer shares; see `agent-cni`'s `claim`.
const ALIVE: &str = "alive";

pub(super) fn find(thing: Thing, places: &Places) -> Result<Vec<(String, String)>, NetError> {
    let mut found = Vec::new();
    for path in single_files(thing, places) {
        if is_there(&path)? {
            // one that holds something is others', and is not removed by a program
            let remove = if path.is_dir() { "rm -r" } else { "rm" };
            found.push((text(&path), format!("{remove} {}", path.display())));
        }
    }
    if thing == Thing::State {
        let state = &places.state_dir;
        if holds_anything(state)? {
            found.push((text(state), format!("rm -r {}", state.display())));
        }
        let claim = places.claim_dir();
        // an installer that still runs needs it: it is what keeps it from installing again
        if holds_anything(&claim)? && !installer_lives(&claim)? {
            found.push((text(&claim), format!("rm -r {}", claim.display())));
        }
    }
    Ok(found)
}

pub(super) fn remove(thing: Thing, places: &Places) -> Result<(), NetError> {
    let mut errors = Vec::new();
    for path in single_files(thing, places) {
        let removed = match fs::symlink_metadata(&path) {
            // a mount of a file that was not there makes an empty directory
            Ok(metadata) if metadata.is_dir() => fs::remove_dir(&path),
            _ => fs::remove_file(&path),
        };
        errors.extend(removing(&path, removed).err());
    }
    if thing == Thing::State {
        errors.extend(empty(&places.state_dir).err());
        let claim = places.claim_dir();
        match installer_lives(&claim) {
            Ok(true) => {}
            Ok(false) => errors.extend(empty(&claim).err()),
            Err(error) => errors.push(error),
        }
        if let Some(above) = places.state_dir.parent() {
            // others of the product may keep files there: then it stays
            let _ = fs::remove_dir(above);
        }
    }
    NetError::of_all(errors)
}

/// The layouts' directories, of whatever version.
pub(super) fn layouts(base: &Path) -> Result<Vec<PathBuf>, NetError> {
    let entries = match fs::read_dir(base) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(refused("read", base))?,
    };
    let mut layouts = Vec::new();
    for entry in entries {
        layouts.push(entry.map_err(refused("read", base))?.path());
    }
    layouts.sort();
    Ok(layouts)
}

pub(super) fn find_pins(base: &Path) -> Result<Vec<(String, String)>, NetError> {
    Ok(layouts(base)?
        .iter()
        .map(|path| (text(path), format!("rm -r {}", path.display())))
        .collect())
}

pub(super) fn remove_pins(base: &Path) -> Result<(), NetError> {
    let mut errors = Vec::new();
    for layout in layouts(base)? {
        errors.extend(remove_layout(&layout).err());
    }
    errors.extend(removing(base, fs::remove_dir(base)).err());
    NetError::of_all(errors)
}

pub(super) fn remove_layout(layout: &Path) -> Result<(), NetError> {
    // at once: the kernel takes its time with links whose pin is merely removed
    detach(layout, DEPTH);
    removing(layout, remove_any(layout))
}

fn detach(path: &Path, depth: usize) {
    let Ok(entries) = fs::read_dir(path) else {
        // what is no link answers with an error, and stays as it is
        if let Ok(Some(link)) = PinnedLink::open(path) {
            let _ = link.detach();
        }
        return;
    };
    if depth > 0 {
        for entry in entries.flatten() {
            detach(&entry.path(), depth - 1);
        }
    }
}

fn single_files(thing: Thing, places: &Places) -> Vec<PathBuf> {
    match thing {
        Thing::Conf => vec![
            places.conf_dir.join(CONF),
            places.conf_dir.join(STAGED_CONF),
        ],
        Thing::Binary => vec![places.binary(), places.bin_dir.join(STAGED_BINARY)],
        _ => Vec::new(),
    }
}

fn is_there(path: &Path) -> Result<bool, NetError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(refused("look at", path)(error)),
    }
}

/// An empty directory is nobody's state: a container's mount makes one.
fn holds_anything(path: &Path) -> Result<bool, NetError> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => is_there(path),
        Err(error) => Err(refused("read", path)(error)),
    }
}

/// What in a directory says that it is none of ours: the first name, when it holds anything, and nothing by which a state
/// directory is known. The documented one is known by its own name.
pub(super) fn stranger(state: &Path) -> Option<String> {
    if state.file_name().is_some_and(|name| name == STATE_NAME) {
        return None;
    }
    let mut names: Vec<String> = fs::read_dir(state)
        .ok()?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let known = |name: &String| STATE_MARKS.contains(&name.as_str());
    match names.iter().any(known) {
        true => None,
        false => names.into_iter().next(),
    }
}

/// Removes what a directory holds, and the directory where it is no mount.
fn empty(path: &Path) -> Result<(), NetError> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return removing(path, fs::remove_file(path));
        }
        other => other.map_err(refused("read", path))?,
    };
    let entries: io::Result<Vec<fs::DirEntry>> = entries.collect();
    let mut entries = entries.map_err(refused("read", path))?;
    // by this a state directory is still known when the process dies on the way
    entries.sort_by_key(|entry| entry.file_name() == PENDING);
    let mut errors = Vec::new();
    for entry in entries {
        let entry = entry.path();
        errors.extend(removing(&entry, remove_any(&entry)).err());
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
        other => errors.extend(removing(path, other).err()),
    }
    NetError::of_all(errors)
}

fn remove_any(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path)?.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    }
}

fn installer_lives(claim: &Path) -> Result<bool, NetError> {
    let path = claim.join(ALIVE);
    let file = match fs::File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.map_err(refused("open", &path))?,
    };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(_) => Ok(false),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(true),
        Err((_, errno)) => Err(refused("lock", &path)(errno.into())),
    }
}

fn removing(path: &Path, result: io::Result<()>) -> Result<(), NetError> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(refused("remove", path)(error))
        }
        _ => Ok(()),
    }
}

fn refused(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NetError {
    let path = path.display().to_string();
    move |source| NetError::refused(format!("{action} {path}"), source)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
