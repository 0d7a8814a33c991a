//! Why the data path could not be loaded or opened.

use std::{
    io,
    path::{Path, PathBuf},
};

use aya::{EbpfError, programs::ProgramError};

use crate::maps::MapError;

/// The data path could not be loaded or opened.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The settings contradict themselves.
    #[error("the data path's settings are wrong: {0}")]
    Settings(&'static str),
    /// The pin directory is on another file system.
    #[error("{} is not on a bpf file system; mount one: mount -t bpf bpf /sys/fs/bpf", .0.display())]
    NotBpffs(PathBuf),
    /// The pin directory could not be read or written.
    #[error("cannot {action} {}", path.display())]
    Pin {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Nothing is pinned, or not everything.
    #[error("the data path is not loaded: {} is missing", .0.display())]
    NotLoaded(PathBuf),
    /// A pinned map is not what the programs need.
    #[error("pinned map {} {difference}; it is not this version's: drain the node, then remove {}", path.display(), path.parent().unwrap_or(path).display())]
    Shape {
        /// The map's pin.
        path: PathBuf,
        /// What is different.
        difference: String,
    },
    /// The kernel refuses for want of privilege.
    #[error(
        "the kernel refuses to {action} (EPERM): this needs CAP_BPF and CAP_NET_ADMIN, and before Linux 5.11 room under \
         the memory lock limit too (LimitMEMLOCK=infinity)"
    )]
    Privilege {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: Box<LoadError>,
    },
    /// bpf(2) is refused, whatever is asked for.
    #[error("cannot call bpf(2)")]
    Call(#[source] io::Error),
    /// The object could not be loaded.
    #[error("cannot load the eBPF object")]
    Object(#[source] Box<EbpfError>),
    /// A program could not be loaded or attached.
    #[error("cannot {action} program {program}")]
    Program {
        /// What was tried.
        action: &'static str,
        /// The program's name.
        program: &'static str,
        /// Why it failed.
        #[source]
        source: Box<ProgramError>,
    },
    /// The pins belong to another, living network namespace.
    #[error(
        "the pinned programs serve another network namespace (inode {other}): one pin directory serves one node"
    )]
    OtherNamespace {
        /// The inode of the namespace that is served.
        other: u32,
    },
    /// A map could not be used.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl LoadError {
    /// A fixed label for logs and metrics.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Settings(_) => "settings",
            Self::NotBpffs(_) => "not_bpffs",
            Self::Pin { .. } => "pin",
            Self::NotLoaded(_) => "not_loaded",
            Self::Shape { .. } => "shape",
            Self::Privilege { .. } => "privilege",
            Self::Call(_) => "call",
            Self::Object(_) => "object",
            Self::Program { .. } => "program",
            Self::OtherNamespace { .. } => "other_namespace",
            Self::Map(error) => error.reason(),
        }
    }

    pub(crate) fn pin(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Pin {
            action,
            path,
            source,
        }
    }

    pub(crate) fn program(
        action: &'static str,
        program: &'static str,
    ) -> impl Fn(ProgramError) -> Self + Copy {
        move |source| Self::Program {
            action,
            program,
            source: Box::new(source),
        }
    }

    /// Says what privilege is missing when that is the cause.
    pub(crate) fn explained(self, action: &'static str) -> Self {
        if errno(&self) == Some(libc::EPERM) {
            return Self::Privilege {
                action,
                source: Box::new(self),
            };
        }
        self
    }
}

/// The system's error number at the root of an error, if it has one.
pub(crate) fn errno(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(errno) = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error)
        {
            return Some(errno);
        }
        next = error.source();
    }
    None
}
