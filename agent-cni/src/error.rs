//! The error a runtime gets: a code of the CNI specification, a sentence, details.
//!
//! Every module has its own small error; this is what they become at the edge. Codes below 100 are the
//! specification's (section "Error"), the others are ours and documented here.

use serde::Serialize;

/// Error codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// `cniVersion` is not spoken, or has no such verb.
    IncompatibleVersion,
    /// A key of the configuration that this plugin cannot honour.
    UnsupportedField,
    /// The container is unknown or gone: nothing has to be cleaned up.
    UnknownContainer,
    /// An environment variable is missing or malformed.
    InvalidEnvironment,
    /// Reading or writing failed.
    Io,
    /// The configuration is not JSON of the right shape.
    Decode,
    /// The configuration is contradictory or incomplete.
    InvalidConfig,
    /// `CNI_NETNS` is something else than a pod's network namespace (libcni's `ErrInvalidNetNS`).
    InvalidNetns,
    /// Will pass by itself: addresses are resting after deletions.
    TryAgainLater,
    /// STATUS: an ADD cannot work now.
    NotAvailable,
    /// STATUS: an ADD cannot work now, and pods that are there have no network either.
    LimitedConnectivity,
    /// Every address belongs to a pod: somebody has to delete pods or enlarge the pool.
    PoolExhausted,
    /// The kernel refused a link, address, route, rule or setting.
    Network,
    /// A program or map could not be loaded, attached or read.
    Datapath,
    /// The same container and interface were added with another network namespace.
    Conflict,
    /// CHECK found a difference.
    CheckFailed,
    /// The node's Fake IP CIDR cannot be settled.
    NodeCidr,
    /// The primary network, which this pod belongs to, cannot be used.
    Primary,
    /// A defect of this plugin.
    Internal,
    /// What a plugin of the primary network answered: its code is passed on as it is.
    Delegated(u32),
}

impl Code {
    /// What goes into the JSON.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::IncompatibleVersion => 1,
            Self::UnsupportedField => 2,
            Self::UnknownContainer => 3,
            Self::InvalidEnvironment => 4,
            Self::Io => 5,
            Self::Decode => 6,
            Self::InvalidConfig => 7,
            Self::InvalidNetns => 8,
            Self::TryAgainLater => 11,
            Self::NotAvailable => 50,
            Self::LimitedConnectivity => 51,
            Self::PoolExhausted => 100,
            Self::Network => 101,
            Self::Datapath => 102,
            Self::Conflict => 103,
            Self::CheckFailed => 104,
            Self::NodeCidr => 105,
            Self::Primary => 106,
            Self::Internal => 999,
            Self::Delegated(number) => number,
        }
    }
}

/// An error in the form that goes to the runtime.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{msg}")]
pub(crate) struct CniError {
    /// The kind.
    pub(crate) code: Code,
    /// One sentence, with the remedy where there is one.
    pub(crate) msg: String,
    /// The causes below it, outermost first; may be empty.
    pub(crate) details: String,
}

impl CniError {
    /// An error without causes.
    pub(crate) fn new(code: Code, msg: impl Into<String>) -> Self {
        Self {
            code,
            msg: msg.into(),
            details: String::new(),
        }
    }

    /// An error that another one caused.
    pub(crate) fn caused(
        code: Code,
        msg: impl Into<String>,
        source: &dyn std::error::Error,
    ) -> Self {
        Self {
            code,
            msg: msg.into(),
            details: chain(Some(source)),
        }
    }

    /// An error whose sentence is another error's, with that one's causes as details.
    pub(crate) fn from_error(code: Code, error: &dyn std::error::Error) -> Self {
        Self {
            code,
            msg: error.to_string(),
            details: chain(error.source()),
        }
    }

    /// The JSON object for stdout.
    pub(crate) fn to_json(&self, cni_version: &str) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Object<'a> {
            cni_version: &'a str,
            code: u32,
            msg: &'a str,
            #[serde(skip_serializing_if = "str::is_empty")]
            details: &'a str,
        }
        let object = Object {
            cni_version,
            code: self.code.number(),
            msg: &self.msg,
            details: &self.details,
        };
        // strings and a number always serialise
        serde_json::to_string_pretty(&object).unwrap_or_default()
    }
}

fn chain(mut source: Option<&dyn std::error::Error>) -> String {
    let mut parts = Vec::new();
    while let Some(error) = source {
        parts.push(error.to_string());
        source = error.source();
    }
    parts.join(": ")
}

impl From<agent_datapath::error::NetError> for CniError {
    fn from(error: agent_datapath::error::NetError) -> Self {
        use agent_datapath::error::NetError;
        let code = match &error {
            NetError::NamespaceGone { .. } => Code::UnknownContainer,
            NetError::NotAPodNamespace { .. } => Code::InvalidNetns,
            _ => Code::Network,
        };
        Self::from_error(code, &error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_has_the_specifications_keys() {
        let error = CniError::caused(
            Code::Io,
            "cannot write the state file",
            &std::io::Error::other("disk full"),
        );
        let value: serde_json::Value = serde_json::from_str(&error.to_json("1.1.0")).unwrap();
        assert_eq!(
            value,
            serde_json::json!({
                "cniVersion": "1.1.0", "code": 5,
                "msg": "cannot write the state file", "details": "disk full"
            })
        );
    }
}
