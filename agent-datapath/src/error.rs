//! The error of everything that touches links, addresses, routes, rules, sysctls and nftables.
//!
//! One type for all of them, because a caller acts on the step that failed and on the kernel's answer, not on the
//! netlink family that carried it. Loading and attaching programs has errors of its own.

use std::{io, path::PathBuf};

/// A step on the node's or a pod's network that did not work.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The kernel refused a request; `action` says what was asked for.
    #[error("cannot {action}")]
    Refused {
        /// What was asked for, as an infinitive: `create bridge agentcni0`.
        action: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The kernel sent something that is not an answer to what was asked.
    #[error("cannot {action}: unexpected netlink answer: {detail}")]
    Protocol {
        /// What was asked for.
        action: String,
        /// What came instead.
        detail: String,
    },
    /// A link that must be there is not.
    #[error("there is no interface {name}")]
    NoLink {
        /// The interface's name.
        name: String,
    },
    /// A link of our name exists and is something else.
    #[error("{name} exists but is not {expected}; remove or rename it")]
    ForeignLink {
        /// The interface's name.
        name: String,
        /// What it should be: `a bridge`.
        expected: &'static str,
    },
    /// The path given for a network namespace cannot be opened.
    #[error("cannot open network namespace {}", path.display())]
    NamespaceGone {
        /// The path as given by the runtime.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The path given is not a network namespace, or it is the node's own.
    #[error("{} {problem}", path.display())]
    NotAPodNamespace {
        /// The path as given by the runtime.
        path: PathBuf,
        /// What is wrong with it, as a predicate: `is not a network namespace`.
        problem: &'static str,
    },
    /// What the kernel has differs from what is wanted.
    #[error("{what} is {found}, wanted {wanted}")]
    Differs {
        /// The thing compared.
        what: String,
        /// What is there.
        found: String,
        /// What should be there.
        wanted: String,
    },
    /// A teardown, or a look at several things, went on after errors; these are all of them.
    #[error("{}", .0.iter().map(describe).collect::<Vec<_>>().join("; "))]
    Several(Vec<NetError>),
}

impl NetError {
    /// A refused request, from the operating system's error.
    pub(crate) fn refused(action: impl Into<String>, source: io::Error) -> Self {
        Self::Refused {
            action: action.into(),
            source,
        }
    }

    /// A difference between what is there and what should be.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "literals, numbers and addresses read best as they are"
    )]
    pub(crate) fn differs(
        what: impl Into<String>,
        found: impl ToString,
        wanted: impl ToString,
    ) -> Self {
        Self::Differs {
            what: what.into(),
            found: found.to_string(),
            wanted: wanted.to_string(),
        }
    }

    /// One error for all of these; fine when there are none.
    ///
    /// # Errors
    /// What is in the list.
    pub(crate) fn of_all(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }

    /// Whether a comparison ended, and found something else than it should: not what could not be compared.
    #[must_use]
    pub fn is_difference(&self) -> bool {
        match self {
            Self::Differs { .. } | Self::NoLink { .. } | Self::ForeignLink { .. } => true,
            Self::Several(errors) => errors.iter().all(Self::is_difference),
            _ => false,
        }
    }

    /// The kernel's error number, when the kernel answered with one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } | Self::NamespaceGone { source, .. } => {
                source.raw_os_error()
            }
            _ => None,
        }
    }

    /// A fixed label for logs and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused",
            Self::Protocol { .. } => "protocol",
            Self::NoLink { .. } => "no_link",
            Self::ForeignLink { .. } => "foreign_link",
            Self::NamespaceGone { .. } => "namespace_gone",
            Self::NotAPodNamespace { .. } => "not_a_pod_namespace",
            Self::Differs { .. } => "differs",
            Self::Several(_) => "several",
        }
    }
}

/// So many differences are named; the rest is counted, so that a table that was flushed is one line.
const NAMED: usize = 5;

/// Several differences in one line.
#[must_use]
pub fn some_of(all: &[String], separator: &str) -> String {
    let mut text = all[..all.len().min(NAMED)].join(separator);
    if all.len() > NAMED {
        text.push_str(&format!("{separator}and {} more", all.len() - NAMED));
    }
    text
}

/// The error and its sources in one line.
fn describe(error: &NetError) -> String {
    let mut line = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        line.push_str(": ");
        line.push_str(&cause.to_string());
        source = cause.source();
    }
    line
}
