//! Attaching the classifier to pods' interfaces, and checking that it is.
//!
//! Owns a pod's endpoint entry, its link or filter, and its counters. The programs themselves are [`crate::load`]'s.

use std::io;

use agent_ebpf_common::names::POD_INGRESS;
use aya::programs::{
    LinkOrder, ProgramError, SchedClassifier, TcAttachType, links::FdLink, tc::TcAttachOptions,
};

use crate::{
    bpf::{LinkTarget, PinnedLink},
    filter,
    load::{
        Datapath, errno,
        pinned::{lock, program_id, remove_file},
    },
    maps::{self, PodEndpoint},
};

mod error;

pub use error::{AttachError, CheckError};

/// How the classifier is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachKind {
    /// By a pinned TCX link (Linux 6.6 and later).
    Tcx,
    /// By a filter on the clsact qdisc.
    Clsact,
}

impl Datapath {
    /// Holds an interface of this network namespace to a pod's addresses: writes its endpoint entry, then attaches the
    /// pinned classifier before all other programs. Idempotent; loads no program.
    ///
    /// # Errors
    /// When there is no such interface, or the kernel refuses. The interface may then be half attached: the caller
    /// deletes it, or tries again.
    pub fn attach_pod(
        &self,
        ifname: &str,
        ifindex: u32,
        pod: &PodEndpoint,
    ) -> Result<AttachKind, AttachError> {
        require_interface(ifname, ifindex)?;
        maps::put_endpoint(&self.pins, ifindex, *pod)?;
        // two of a kind at once would meet each other's link before it is pinned
        let _lock = lock(&self.pins)?;
        let failed = program_failed("attach", "to", ifname);
        let mut program =
            SchedClassifier::from_pin(self.pins.program(POD_INGRESS)).map_err(failed)?;
        if self.adopt_link(ifname, ifindex, &program)? {
            return Ok(AttachKind::Tcx);
        }
        let first = TcAttachOptions::TcxOrder(LinkOrder::first());
        match program.attach_with_options(ifname, TcAttachType::Ingress, first) {
            Ok(id) => {
                let link = program.take_link(id).map_err(failed)?;
                let link = FdLink::try_from(link)
                    .map_err(|error| failed(ProgramError::IOError(io::Error::other(error))))?;
                link.pin(self.pins.pod_link(ifname))
                    .map_err(|error| pin_failed("create", ifname)(io::Error::other(error)))?;
                // left by a time when TCX was refused: never both
                filter::detach(ifname, ifindex).map_err(failed)?;
                Ok(AttachKind::Tcx)
            }
            Err(error) if tcx_is_unknown(&error) => {
                filter::attach(&mut program, ifname, ifindex).map_err(failed)?;
                Ok(AttachKind::Clsact)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Whether the interface's pinned link runs the program now, before all others; a stale pin is removed.
    ///
    /// A link cannot be moved, nor a program attached twice: ours is taken off, and attached again before whoever came before
    /// it. That one may have let everything past ours already; what the bridge brings without a mark is dropped meanwhile, as
    /// when a program is lost.
    fn adopt_link(
        &self,
        ifname: &str,
        ifindex: u32,
        program: &SchedClassifier,
    ) -> Result<bool, AttachError> {
        let path = self.pins.pod_link(ifname);
        let Some(link) = PinnedLink::open(&path).map_err(pin_failed("open", ifname))? else {
            return Ok(false);
        };
        if link.target != LinkTarget::Interface(ifindex) {
            // of an earlier interface with this name
            remove_file(&path).map_err(pin_failed("remove", ifname))?;
            return Ok(false);
        }
        let wanted = program_id(&self.pins, POD_INGRESS)?;
        if link.program_id != wanted {
            let fd = program
                .fd()
                .map_err(program_failed("update", "of", ifname))?;
            link.update(fd).map_err(pin_failed("update", ifname))?;
        }
        if first_tcx_program(ifname).is_some_and(|first| first != wanted) {
            link.detach().map_err(pin_failed("detach", ifname))?;
            remove_file(&path).map_err(pin_failed("remove", ifname))?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Lets go of a pod: removes its endpoint entry, its link or filter, and folds its counters into the node's.
    /// Fine when any of them, or the interface, is gone.
    ///
    /// The interface's packets are no longer checked afterwards: delete it, or set it down, first.
    ///
    /// # Errors
    /// When something is there and can't be removed.
    pub fn detach_pod(&self, ifindex: u32, ifname: &str) -> Result<(), AttachError> {
        maps::remove_endpoint(&self.pins, ifindex)?;
        let path = self.pins.pod_link(ifname);
        if let Some(link) = PinnedLink::open(&path).map_err(pin_failed("open", ifname))? {
            link.detach().map_err(pin_failed("detach", ifname))?;
        }
        remove_file(&path).map_err(pin_failed("remove", ifname))?;
        if require_interface(ifname, ifindex).is_ok() {
            filter::detach(ifname, ifindex).map_err(program_failed("detach", "from", ifname))?;
        }
        let _lock = lock(&self.pins)?;
        maps::fold_counters(&self.pins, ifindex)?;
        Ok(())
    }

    /// Checks that the interface runs the pinned classifier before everything else, and is held to the pod's addresses.
    ///
    /// # Errors
    /// The first thing that is not so.
    pub fn check_pod(
        &self,
        ifname: &str,
        ifindex: u32,
        pod: &PodEndpoint,
    ) -> Result<(), CheckError> {
        require_interface(ifname, ifindex)?;
        self.check_program(ifname, ifindex)?;
        match maps::endpoint(&self.pins, ifindex).map_err(AttachError::from)? {
            None => Err(CheckError::NoEndpoint {
                ifname: ifname.to_owned(),
            }),
            Some(found) if found != *pod => Err(CheckError::OtherEndpoint {
                ifname: ifname.to_owned(),
                found,
                wanted: *pod,
            }),
            Some(_) => Ok(()),
        }
    }

    fn check_program(&self, ifname: &str, ifindex: u32) -> Result<(), CheckError> {
        let wanted = program_id(&self.pins, POD_INGRESS).map_err(AttachError::from)?;
        let link =
            PinnedLink::open(&self.pins.pod_link(ifname)).map_err(pin_failed("open", ifname))?;
        let linked = link.filter(|link| link.target == LinkTarget::Interface(ifindex));
        let by_link = linked.is_some();
        let found = match linked {
            Some(link) => Some(link.program_id),
            None => filter::attached(ifindex)
                .map_err(ProgramError::IOError)
                .map_err(program_failed("find", "on", ifname))?,
        };
        match found {
            None => Err(CheckError::NotAttached {
                ifname: ifname.to_owned(),
            }),
            Some(found) if found != wanted => Err(CheckError::OtherProgram {
                ifname: ifname.to_owned(),
                found,
                wanted,
            }),
            Some(_) => match first_tcx_program(ifname).filter(|first| !by_link || *first != wanted)
            {
                Some(before) => Err(CheckError::NotFirst {
                    ifname: ifname.to_owned(),
                    before,
                }),
                None => Ok(()),
            },
        }
    }
}

fn require_interface(ifname: &str, ifindex: u32) -> Result<(), AttachError> {
    match nix::net::if_::if_nametoindex(ifname) {
        Ok(found) if found == ifindex => Ok(()),
        _ => Err(AttachError::NoInterface {
            ifname: ifname.to_owned(),
            ifindex,
        }),
    }
}

/// The ID of the first program at the interface's TCX hook; none when the kernel has no such hook.
fn first_tcx_program(ifname: &str) -> Option<u32> {
    let (_, programs) = SchedClassifier::query_tcx(ifname, TcAttachType::Ingress).ok()?;
    programs.first().map(aya::programs::ProgramInfo::id)
}

/// Kernels before 6.6 don't know the attach type, and say that it is invalid.
fn tcx_is_unknown(error: &ProgramError) -> bool {
    errno(error) == Some(libc::EINVAL)
}

fn program_failed(
    action: &'static str,
    preposition: &'static str,
    ifname: &str,
) -> impl Fn(ProgramError) -> AttachError + Copy {
    move |source| AttachError::Program {
        action,
        preposition,
        ifname: ifname.to_owned(),
        source: Box::new(source),
    }
}

fn pin_failed(action: &'static str, ifname: &str) -> impl Fn(io::Error) -> AttachError + Copy {
    move |source| AttachError::Pin {
        action,
        ifname: ifname.to_owned(),
        source,
    }
}
