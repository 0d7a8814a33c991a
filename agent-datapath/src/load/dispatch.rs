//! The dispatch program's link to the node's network namespace.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use agent_ebpf_common::names;
use aya::programs::{SkLookup, links::FdLink};

use super::{
    LoadError,
    pinned::{program_id, remove_file},
};
use crate::{
    bpf::{LinkTarget, PinnedLink},
    pins::Pins,
};

/// The inode of the calling thread's network namespace.
fn current_netns() -> Result<(fs::File, u32), LoadError> {
    let path = Path::new("/proc/thread-self/ns/net");
    let file = fs::File::open(path).map_err(LoadError::pin("open", path))?;
    let inode = file.metadata().map_err(LoadError::pin("read", path))?.ino();
    // the kernel's own field is as wide
    Ok((file, inode as u32))
}

/// Whether the pinned dispatch program serves this network namespace.
pub(super) fn is_attached(pins: &Pins) -> Result<bool, LoadError> {
    let path = pins.dispatch_link();
    let link = PinnedLink::open(&path).map_err(LoadError::pin("open", &path))?;
    let (_, here) = current_netns()?;
    let program = program_id(pins, names::DISPATCH)?;
    Ok(link.is_some_and(|l| l.target == LinkTarget::Netns(here) && l.program_id == program))
}

/// Attaches the pinned dispatch program to this network namespace, or updates the link that is there.
pub(super) fn ensure(pins: &Pins) -> Result<(), LoadError> {
    if is_attached(pins)? {
        return Ok(());
    }
    let failed = LoadError::program("attach", names::DISPATCH);
    let mut program = SkLookup::from_pin(pins.program(names::DISPATCH)).map_err(failed)?;
    let path = pins.dispatch_link();
    let (netns, here) = current_netns()?;
    if let Some(link) = PinnedLink::open(&path).map_err(LoadError::pin("open", &path))? {
        match link.target {
            LinkTarget::Netns(inode) if inode == here => {
                let fd = program.fd().map_err(failed)?;
                return link.update(fd).map_err(LoadError::pin("update", &path));
            }
            LinkTarget::Netns(0) | LinkTarget::Other | LinkTarget::Interface(_) => {
                remove_file(&path).map_err(LoadError::pin("remove", &path))?;
            }
            LinkTarget::Netns(other) => return Err(LoadError::OtherNamespace { other }),
        }
    }
    let id = program.attach(&netns).map_err(failed)?;
    let link: FdLink = program.take_link(id).map_err(failed)?.into();
    link.pin(&path)
        .map_err(|error| LoadError::pin("pin", &path)(io::Error::other(error)))?;
    Ok(())
}
