//! Who else is on the node: programs of others on our hooks; and the kernel's view of its clock and of a process's memory
//! lock limit. For doctor; nothing here changes anything.

use std::{fs, io};

use agent_ebpf_common::names;
use aya::programs::{SchedClassifier, TcAttachType, loaded_programs};

use crate::{
    bpf, filter,
    load::{Datapath, LoadError, pinned::program_id},
};

/// A program as the kernel names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramName {
    /// Its ID.
    pub id: u32,
    /// Its name, at most 15 characters.
    pub name: String,
}

/// Every program that is loaded on this machine, in any namespace.
///
/// # Errors
/// When the kernel doesn't tell, for want of CAP_SYS_ADMIN as a rule.
pub fn programs() -> io::Result<Vec<ProgramName>> {
    loaded_programs()
        .map(|program| {
            let program = program.map_err(io::Error::other)?;
            Ok(ProgramName {
                id: program.id(),
                name: String::from_utf8_lossy(program.name()).into_owned(),
            })
        })
        .collect()
}

impl Datapath {
    /// The programs at the ingress of an interface that are not ours: TCX programs and filters.
    ///
    /// # Errors
    /// When the kernel doesn't tell.
    pub fn foreign_classifiers(
        &self,
        ifname: &str,
        ifindex: u32,
    ) -> Result<Vec<ProgramName>, LoadError> {
        let ours = program_id(&self.pins, names::POD_INGRESS)?;
        // kernels before 6.6 have no such hook
        let tcx = SchedClassifier::query_tcx(ifname, TcAttachType::Ingress)
            .map(|(_, programs)| programs)
            .unwrap_or_default();
        let mut found: Vec<_> = tcx
            .iter()
            .map(|program| ProgramName {
                id: program.id(),
                name: String::from_utf8_lossy(program.name()).into_owned(),
            })
            .filter(|program| program.id != ours)
            .collect();
        let filters = filter::foreign(ifindex)
            .map_err(LoadError::pin("list the filters of", ifname.as_ref()))?;
        found.extend(
            filters
                .into_iter()
                .map(|(id, name)| ProgramName { id, name }),
        );
        Ok(found)
    }

    /// How many programs besides ours look sockets up in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel doesn't tell.
    pub fn foreign_dispatchers(&self) -> Result<usize, LoadError> {
        let ours = program_id(&self.pins, names::DISPATCH)?;
        let path = std::path::Path::new("/proc/thread-self/ns/net");
        let netns = fs::File::open(path).map_err(LoadError::pin("open", path))?;
        let ids = bpf::socket_lookups(&netns).map_err(LoadError::pin("query", path))?;
        Ok(ids.into_iter().filter(|id| *id != ours).count())
    }
}

/// Whether somebody keeps the node's clock (the kernel's STA_UNSYNC is off).
///
/// # Errors
/// When the kernel doesn't tell.
#[expect(unsafe_code, reason = "nix and the standard library have no adjtimex")]
pub fn clock_is_kept() -> io::Result<bool> {
    // SAFETY: all zeros is a valid `timex`: it holds integers only.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `timex` lives through the call; `modes` of 0 makes it a reading one.
    if unsafe { libc::adjtimex(&raw mut timex) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(timex.status & libc::STA_UNSYNC == 0)
}

/// Whether this kernel counts maps against the memory lock limit (those before 5.11 do): tries to make one without any.
/// The limit of the calling process is as before when this returns.
///
/// # Errors
/// When the limit can't be read or lowered, or the kernel refuses the map for another reason.
pub fn memlock_is_counted() -> io::Result<bool> {
    use nix::sys::resource::{Resource::RLIMIT_MEMLOCK, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(RLIMIT_MEMLOCK)?;
    setrlimit(RLIMIT_MEMLOCK, 0, hard)?;
    let made = bpf::is_allowed();
    setrlimit(RLIMIT_MEMLOCK, soft, hard)?;
    match made {
        Ok(_) => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(true),
        Err(error) => Err(error),
    }
}
