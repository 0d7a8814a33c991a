//! What the runtime asks for, from the environment: the verb and its parameters, checked.
//!
//! Owns the specification's section "Parameters"; the configuration on stdin is `netconf`'s.

use std::path::PathBuf;

use agent_core::attachment::{is_container_id, is_interface_name};

use crate::version::SpecVersion;

/// A verb of the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Attach a container.
    Add,
    /// Detach it.
    Del,
    /// Compare what is with what should be.
    Check,
    /// Remove what no valid attachment needs.
    Gc,
    /// Can an ADD work now?
    Status,
    /// Which versions are spoken?
    Version,
}

impl Verb {
    /// As in `CNI_COMMAND`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }

    /// The oldest version of the specification that has the verb.
    pub(crate) fn since(self) -> SpecVersion {
        match self {
            Self::Add | Self::Del | Self::Version => SpecVersion::V0_3_1,
            Self::Check => SpecVersion::V0_4_0,
            Self::Gc | Self::Status => SpecVersion::V1_1_0,
        }
    }
}

/// One attachment, as a runtime names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// `CNI_CONTAINERID`.
    pub(crate) container_id: String,
    /// `CNI_IFNAME`.
    pub(crate) ifname: String,
}

/// A checked request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// ADD with the pod's namespace and `CNI_ARGS`.
    Add {
        /// What to attach.
        target: Target,
        /// `CNI_NETNS`.
        netns: PathBuf,
        /// `CNI_ARGS`.
        args: String,
    },
    /// DEL. Whatever `CNI_NETNS` says is of no use: the host's end is enough.
    Del {
        /// What to detach.
        target: Target,
    },
    /// CHECK.
    Check {
        /// What to compare.
        target: Target,
        /// `CNI_NETNS`.
        netns: PathBuf,
    },
    /// GC.
    Gc,
    /// STATUS.
    Status,
    /// VERSION.
    Version,
}

impl Request {
    /// The verb of the request.
    pub(crate) fn verb(&self) -> Verb {
        match self {
            Self::Add { .. } => Verb::Add,
            Self::Del { .. } => Verb::Del,
            Self::Check { .. } => Verb::Check,
            Self::Gc => Verb::Gc,
            Self::Status => Verb::Status,
            Self::Version => Verb::Version,
        }
    }
}

/// An environment that makes no request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnvError {
    /// Not a verb.
    #[error("CNI_COMMAND is \"{0}\"; it must be ADD, DEL, CHECK, GC, STATUS or VERSION")]
    UnknownVerb(String),
    /// Variables that the verb needs.
    #[error("{verb} needs the environment variable{} {}", if .names.len() > 1 { "s" } else { "" }, .names.join(", "))]
    Missing {
        /// The verb.
        verb: &'static str,
        /// The variables' names.
        names: Vec<&'static str>,
    },
    /// A variable with a value that cannot be.
    #[error("{name} is \"{value}\", which is not {expected}")]
    Malformed {
        /// The variable's name.
        name: &'static str,
        /// Its value, shortened.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
}

/// Reads the request; `env` answers a variable's value.
///
/// # Errors
/// A variable is missing or malformed.
pub(crate) fn parse(verb: &str, env: impl Fn(&str) -> Option<String>) -> Result<Request, EnvError> {
    let verb = match verb {
        "ADD" => Verb::Add,
        "DEL" => Verb::Del,
        "CHECK" => Verb::Check,
        "GC" => return Ok(Request::Gc),
        "STATUS" => return Ok(Request::Status),
        "VERSION" => return Ok(Request::Version),
        other => return Err(EnvError::UnknownVerb(short(other))),
    };
    let value = |name| env(name).filter(|value| !value.is_empty());
    let container_id = value("CNI_CONTAINERID");
    let ifname = value("CNI_IFNAME");
    let netns = value("CNI_NETNS");
    let (Some(container_id), Some(ifname)) = (container_id.clone(), ifname.clone()) else {
        return Err(missing(verb, &container_id, &ifname, &netns));
    };
    if !is_container_id(&container_id) {
        return Err(EnvError::Malformed {
            name: "CNI_CONTAINERID",
            value: short(&container_id),
            expected: "an alphanumeric followed by alphanumerics, '_', '.' and '-'",
        });
    }
    if !is_interface_name(&ifname) || ifname == "lo" {
        return Err(EnvError::Malformed {
            name: "CNI_IFNAME",
            value: short(&ifname),
            expected: "an interface name of 1 to 15 characters without '/', ':' and spaces",
        });
    }
    let target = Target {
        container_id,
        ifname,
    };
    match (verb, netns) {
        (Verb::Add, Some(netns)) => Ok(Request::Add {
            target,
            netns: netns.into(),
            args: value("CNI_ARGS").unwrap_or_default(),
        }),
        (Verb::Check, Some(netns)) => Ok(Request::Check {
            target,
            netns: netns.into(),
        }),
        (Verb::Add | Verb::Check, None) => Err(EnvError::Missing {
            verb: verb.as_str(),
            names: vec!["CNI_NETNS"],
        }),
        _ => Ok(Request::Del { target }),
    }
}

fn missing(
    verb: Verb,
    container_id: &Option<String>,
    ifname: &Option<String>,
    netns: &Option<String>,
) -> EnvError {
    let needs_netns = verb != Verb::Del;
    let names = [
        ("CNI_CONTAINERID", container_id.is_none()),
        ("CNI_NETNS", needs_netns && netns.is_none()),
        ("CNI_IFNAME", ifname.is_none()),
    ];
    let names = names
        .into_iter()
        .filter(|(_, absent)| *absent)
        .map(|(name, _)| name)
        .collect();
    EnvError::Missing {
        verb: verb.as_str(),
        names,
    }
}

fn short(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(verb: &str, variables: &[(&str, &str)]) -> Result<Request, EnvError> {
        parse(verb, |name| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn every_missing_variable_is_named_at_once() {
        let error = request("ADD", &[("CNI_CONTAINERID", "")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "ADD needs the environment variables CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME"
        );
        let error = request("DEL", &[("CNI_CONTAINERID", "a")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "DEL needs the environment variable CNI_IFNAME"
        );
    }

    #[test]
    fn a_container_id_or_interface_that_could_leave_the_state_directory_is_refused() {
        for (id, ifname) in [
            ("../x", "eth0"),
            ("a/b", "eth0"),
            (".hidden", "eth0"),
            ("a", "../eth0"),
            ("a", "much-too-long-name"),
            ("a", "lo"),
        ] {
            let variables = [("CNI_CONTAINERID", id), ("CNI_IFNAME", ifname)];
            let error = request("DEL", &variables).unwrap_err();
            assert!(matches!(error, EnvError::Malformed { .. }), "{id} {ifname}");
        }
    }

    #[test]
    fn del_works_without_a_namespace() {
        let variables = [("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0")];
        assert_eq!(request("DEL", &variables).unwrap().verb(), Verb::Del);
        assert!(request("CHECK", &variables).is_err());
    }

    #[test]
    fn an_unknown_verb_lists_the_known_ones() {
        let error = request("UPDATE", &[]).unwrap_err();
        assert!(error.to_string().contains("STATUS"), "{error}");
    }
}
