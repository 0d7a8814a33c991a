//! Who else is on the node: programs of others on our hooks, networks of others; and the kernel's view of its clock and of a process's memory
//! lock limit. For doctor; nothing here changes anything.

use std::{fs, io};

use agent_ebpf_common::names;
use aya::programs::{SchedClassifier, TcAttachType, loaded_programs};

mod networks;

pub use networks::{Place, Used, networks_in_use};

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

/// A program of others at an interface's ingress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherProgram {
    /// Which.
    pub program: ProgramName,
    /// Whether it sees packets before what is ours does, and so decides what that sees.
    pub before: bool,
    /// Where it is.
    pub place: Attached,
}

/// How a program of others is attached, which says how it is taken off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attached {
    /// At the TCX hook by a link of this ID.
    TcxLink(u32),
    /// At the TCX hook, without a link.
    Tcx,
    /// In a filter, as `tc filter del` names it: `protocol all pref 7 handle 0x1`.
    Filter(String),
}

impl OtherProgram {
    /// The command that takes it off a device.
    #[must_use]
    pub fn removal(&self, device: &str) -> String {
        match &self.place {
            Attached::TcxLink(id) => format!("bpftool link detach id {id}"),
            Attached::Tcx => format!("bpftool net detach tcx_ingress dev {device}"),
            Attached::Filter(filter) => format!("tc filter del dev {device} ingress {filter} bpf"),
        }
    }
}

/// What is ours for an interface, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ours {
    /// This program, at the TCX hook or as a filter.
    Program(u32),
    /// A filter that is no program.
    Filter,
    /// Nothing at the ingress itself: what comes after it, such as the bridge's own tables.
    After,
}

/// The programs at the ingress of an interface in the calling thread's network namespace that are not ours: TCX programs
/// and filters.
///
/// # Errors
/// When the kernel doesn't tell.
pub fn others_at_ingress(ifname: &str, ifindex: u32, ours: Ours) -> io::Result<Vec<OtherProgram>> {
    // kernels before 6.6 have no such hook
    let tcx = SchedClassifier::query_tcx(ifname, TcAttachType::Ingress)
        .map(|(_, programs)| programs)
        .unwrap_or_default();
    let links = match tcx.is_empty() {
        true => Vec::new(),
        false => bpf::tcx_links(ifindex).unwrap_or_default(),
    };
    let tcx = tcx
        .iter()
        .map(|program| {
            let link = links.iter().find(|(id, _)| *id == program.id());
            let place = match link {
                Some((_, link)) if *link != 0 => Attached::TcxLink(*link),
                _ => Attached::Tcx,
            };
            let program = ProgramName {
                id: program.id(),
                name: String::from_utf8_lossy(program.name()).into_owned(),
            };
            (program, place)
        })
        .collect();
    let filters = filter::foreign(ifindex)?;
    let filters = filters.into_iter().map(|filter| {
        let program = ProgramName {
            id: filter.program,
            name: filter.name,
        };
        (program, Attached::Filter(filter.place))
    });
    Ok(others(tcx, filters.collect(), ours))
}

/// Which of them are others', and before ours: the TCX hook is before all filters, and ours is the first of those. Pure.
fn others(
    tcx: Vec<(ProgramName, Attached)>,
    filters: Vec<(ProgramName, Attached)>,
    ours: Ours,
) -> Vec<OtherProgram> {
    let is_ours = |program: &ProgramName| ours == Ours::Program(program.id);
    let at = tcx.iter().position(|(program, _)| is_ours(program));
    let at = at.unwrap_or(tcx.len());
    let tcx = tcx
        .into_iter()
        .enumerate()
        .filter(|(_, (program, _))| !is_ours(program))
        .map(|(at_place, (program, place))| OtherProgram {
            program,
            before: at_place < at,
            place,
        });
    let filters = filters.into_iter().map(|(program, place)| OtherProgram {
        program,
        before: ours == Ours::After,
        place,
    });
    // the filters are without ours already: our program once more in somebody's filter is somebody's
    tcx.chain(filters).collect()
}

impl Datapath {
    /// As [`others_at_ingress`], on a pod's interface.
    ///
    /// # Errors
    /// When the kernel doesn't tell.
    pub fn foreign_classifiers(
        &self,
        ifname: &str,
        ifindex: u32,
    ) -> Result<Vec<OtherProgram>, LoadError> {
        let ours = Ours::Program(program_id(&self.pins, names::POD_INGRESS)?);
        others_at_ingress(ifname, ifindex, ours)
            .map_err(LoadError::pin("list the filters of", ifname.as_ref()))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(ids: &[u32]) -> Vec<(ProgramName, Attached)> {
        let program = |id: &u32| {
            let name = format!("p{id}");
            (ProgramName { id: *id, name }, Attached::Tcx)
        };
        ids.iter().map(program).collect()
    }

    #[test]
    fn what_is_before_ours_depends_on_where_ours_is() {
        let told = |tcx: &[u32], filters: &[u32], ours| -> Vec<(u32, bool)> {
            others(programs(tcx), programs(filters), ours)
                .iter()
                .map(|other| (other.program.id, other.before))
                .collect()
        };
        let ours = Ours::Program(1);
        assert_eq!(told(&[1], &[], ours), []);
        assert_eq!(
            told(&[2, 1, 3], &[4], ours),
            [(2, true), (3, false), (4, false)]
        );
        // ours is a filter, of kernels that have no TCX or were told to do without
        assert_eq!(told(&[2], &[4], ours), [(2, true), (4, false)]);
        assert_eq!(told(&[1], &[1], ours), [(1, false)]);
        assert_eq!(told(&[2], &[4], Ours::Filter), [(2, true), (4, false)]);
        assert_eq!(told(&[2], &[4], Ours::After), [(2, true), (4, true)]);
    }
}
