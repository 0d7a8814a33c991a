//! What is pinned: finding, comparing, locking, replacing and removing it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use agent_ebpf_common::names;
use aya::{maps::MapInfo, programs::ProgramInfo};
use nix::{
    fcntl::{Flock, FlockArg},
    sys::statfs::{BPF_FS_MAGIC, statfs},
};

use super::LoadError;
use crate::{bpf::PinnedLink, maps, pins::Pins, shapes::MAPS};

/// The first pin that should be there and is not.
pub(crate) fn missing_pin(pins: &Pins) -> Option<PathBuf> {
    let programs = [names::POD_INGRESS, names::DISPATCH].map(|name| pins.program(name));
    programs
        .into_iter()
        .chain(MAPS.iter().map(|map| pins.map(map.name)))
        .find(|path| !path.exists())
}

/// Compares every map that is pinned with what the programs need.
pub(crate) fn check_shapes(pins: &Pins) -> Result<(), LoadError> {
    for shape in &MAPS {
        let path = pins.map(shape.name);
        if !path.exists() {
            continue;
        }
        let info = MapInfo::from_pin(&path)
            .map_err(maps::failed("open", shape.name))
            .map_err(|error| LoadError::from(error).explained("open the pinned maps"))?;
        if let Some(difference) = shape.difference(&info) {
            return Err(LoadError::Shape { path, difference });
        }
    }
    Ok(())
}

/// Finds the nearest directory that exists, and asks for its file system.
pub(crate) fn require_bpffs(dir: &Path) -> Result<(), LoadError> {
    let existing = dir.ancestors().find(|dir| dir.exists()).unwrap_or(dir);
    let info = statfs(existing)
        .map_err(io::Error::from)
        .map_err(LoadError::pin("open", existing))?;
    if info.filesystem_type() == BPF_FS_MAGIC {
        Ok(())
    } else {
        Err(LoadError::NotBpffs(dir.to_owned()))
    }
}

/// Takes the lock of the pin directory: the directory itself, so that everybody who sees the pins sees the lock.
pub(crate) fn lock(pins: &Pins) -> Result<Flock<fs::File>, LoadError> {
    let dir = pins.dir();
    let file = fs::File::open(dir).map_err(LoadError::pin("open", dir))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, errno)| LoadError::pin("lock", dir)(errno.into()))
}

/// Pins a program under its name in one step, whether or not another has that name.
pub(crate) fn pin_program(
    pins: &Pins,
    name: &str,
    pin: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), LoadError> {
    let new = pins.program(&format!("{name}:new"));
    remove_file(&new).map_err(LoadError::pin("remove", &new))?;
    pin(&new).map_err(LoadError::pin("pin", &new))?;
    let path = pins.program(name);
    fs::rename(&new, &path).map_err(LoadError::pin("replace", &path))
}

/// Removes a file; fine when it is not there.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The ID of a pinned program.
pub(crate) fn program_id(pins: &Pins, name: &'static str) -> Result<u32, LoadError> {
    ProgramInfo::from_pin(pins.program(name))
        .map(|info| info.id())
        .map_err(LoadError::program("open", name))
}

/// Takes the programs off at once; a link that can't be opened goes with its pin, a little later.
pub(crate) fn detach_all(links: &Path) {
    for path in fs::read_dir(links)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
    {
        if let Ok(Some(link)) = PinnedLink::open(&path) {
            let _ = link.detach();
        }
    }
}

/// Removes a directory and the files in it; fine when it is not there.
pub(crate) fn remove_dir(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_dir(dir)
}
