//! The versions of the CNI specification that this plugin speaks, and which verbs each has.

use std::str::FromStr;

/// A version of the CNI specification. Ordered by age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SpecVersion {
    /// 0.3.1: ADD, DEL, VERSION.
    V0_3_1,
    /// 0.4.0: and CHECK.
    V0_4_0,
    /// 1.0.0: results without an IP version.
    V1_0_0,
    /// 1.1.0: and GC, STATUS; MTU and scopes in results.
    V1_1_0,
}

/// All versions, the oldest first.
pub(crate) const SUPPORTED: [SpecVersion; 4] = [
    SpecVersion::V0_3_1,
    SpecVersion::V0_4_0,
    SpecVersion::V1_0_0,
    SpecVersion::V1_1_0,
];

/// The version of a result when the caller named none.
pub(crate) const NEWEST: SpecVersion = SpecVersion::V1_1_0;

impl SpecVersion {
    /// As it is written in `cniVersion`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }
}

/// A version that is not spoken here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cniVersion \"{0}\" is not supported; use one of {list}", list = SUPPORTED.map(SpecVersion::as_str).join(", "))]
pub(crate) struct UnknownVersion(pub String);

impl FromStr for SpecVersion {
    type Err = UnknownVersion;

    fn from_str(text: &str) -> Result<Self, UnknownVersion> {
        SUPPORTED
            .into_iter()
            .find(|version| version.as_str() == text)
            .ok_or_else(|| UnknownVersion(text.chars().take(40).collect()))
    }
}
