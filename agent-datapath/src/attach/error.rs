//! Why the classifier could not be attached, and what a check found wrong.

use std::io;

use aya::programs::ProgramError;

use crate::{
    load::LoadError,
    maps::{MapError, PodEndpoint},
};

/// The classifier could not be attached or detached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The name and the index are not one interface's in this network namespace.
    #[error("{ifname} is not interface {ifindex} of this network namespace")]
    NoInterface {
        /// The name given.
        ifname: String,
        /// The index given.
        ifindex: u32,
    },
    /// The kernel refused.
    #[error("cannot {action} the classifier {preposition} {ifname}")]
    Program {
        /// What was tried.
        action: &'static str,
        /// Between the program and the interface.
        preposition: &'static str,
        /// The interface.
        ifname: String,
        /// Why it failed.
        #[source]
        source: Box<ProgramError>,
    },
    /// The link's pin could not be used.
    #[error("cannot {action} the pinned link of {ifname}")]
    Pin {
        /// What was tried.
        action: &'static str,
        /// The interface.
        ifname: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The pinned programs could not be opened or locked.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A map could not be used.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl AttachError {
    /// A fixed label for logs and metrics.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NoInterface { .. } => "no_interface",
            Self::Program { .. } => "program",
            Self::Pin { .. } => "pin",
            Self::Load(error) => error.reason(),
            Self::Map(error) => error.reason(),
        }
    }
}

/// What a check found wrong.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The classifier is not attached.
    #[error("the classifier is not attached to {ifname}")]
    NotAttached {
        /// The interface.
        ifname: String,
    },
    /// Another program is attached in the place of the pinned one.
    #[error("{ifname} runs program {found}, not the pinned classifier {wanted}")]
    OtherProgram {
        /// The interface.
        ifname: String,
        /// ID of the program that runs.
        found: u32,
        /// ID of the pinned program.
        wanted: u32,
    },
    /// Somebody's program runs before the classifier, and could let packets pass it.
    #[error("program {before} runs before the classifier on {ifname}")]
    NotFirst {
        /// The interface.
        ifname: String,
        /// ID of the first program.
        before: u32,
    },
    /// There is no endpoint entry.
    #[error("{ifname} has no endpoint entry")]
    NoEndpoint {
        /// The interface.
        ifname: String,
    },
    /// The endpoint entry is another's.
    #[error("{ifname} is held to {found:?}, not {wanted:?}")]
    OtherEndpoint {
        /// The interface.
        ifname: String,
        /// What the map says.
        found: PodEndpoint,
        /// What it should say.
        wanted: PodEndpoint,
    },
    /// The kernel could not be asked.
    #[error(transparent)]
    Unknown(#[from] AttachError),
}

impl CheckError {
    /// A fixed label for logs and metrics.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NotAttached { .. } => "not_attached",
            Self::OtherProgram { .. } => "other_program",
            Self::NotFirst { .. } => "not_first",
            Self::NoEndpoint { .. } => "no_endpoint",
            Self::OtherEndpoint { .. } => "other_endpoint",
            Self::Unknown(error) => error.reason(),
        }
    }
}
