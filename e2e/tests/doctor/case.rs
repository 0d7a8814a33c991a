//! One thing that can be wrong with a node, and the mode that has it.

/// One thing that can be wrong with a node.
pub(crate) struct Case {
    /// A shell line that breaks it.
    pub(crate) spoil: &'static str,
    /// What the doctor is called by, to take something from it alone.
    pub(crate) under: &'static str,
    /// The checks that name it, and how bad each is; `?` for one that may name it, because the proxy notices it in its own
    /// time. The first is the one that is meant; others look through it.
    pub(crate) names: &'static [(&'static str, &'static str)],
    /// A word of the first one's finding.
    pub(crate) says: &'static str,
    /// A shell line that does what the remedy says.
    pub(crate) mend: &'static str,
    /// The mode that has the thing; empty for both.
    pub(crate) only: &'static str,
}

impl Case {
    pub(crate) const fn only(self, mode: &'static str) -> Self {
        Self { only: mode, ..self }
    }
}

pub(crate) const EBPF: &str = "ebpf";
pub(crate) const COMPAT: &str = "iptables-compat";

/// The mode that the suite runs in.
pub(crate) fn mode() -> &'static str {
    match std::env::var("AGENT_NETWORK_TEST_MODE").as_deref() {
        Ok(COMPAT) => COMPAT,
        _ => EBPF,
    }
}

pub(crate) const fn case(
    spoil: &'static str,
    names: &'static [(&'static str, &'static str)],
    says: &'static str,
    mend: &'static str,
) -> Case {
    Case {
        spoil,
        under: "",
        names,
        says,
        mend,
        only: "",
    }
}

pub(crate) const fn under(
    under: &'static str,
    names: &'static [(&'static str, &'static str)],
    says: &'static str,
) -> Case {
    Case {
        spoil: "true",
        under,
        names,
        says,
        mend: "true",
        only: "",
    }
}
