//! What is in which image.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

/// One image.
pub(super) struct Recipe {
    /// Its name, as the chart has it.
    pub(super) name: &'static str,
    /// What it is, for its label.
    about: &'static str,
    /// The program of ours, in the image's root and started by it.
    pub(super) program: &'static str,
    /// The program's arguments, when a container gives none.
    pub(super) arguments: &'static [&'static str],
    /// Debian packages that the program runs, or reads; what they depend on comes along.
    pub(super) packages: &'static [&'static str],
    /// Whether it speaks TLS to the outside, and needs the roots that Debian trusts.
    pub(super) certificates: bool,
    /// Who it runs as; empty: root. The chart says the same, and which capabilities are left.
    pub(super) user: &'static str,
}

/// The user of what needs no rights on the node.
const NOBODY: &str = "65532:65532";
pub(super) const PASSWD: &str =
    "root:x:0:0:root:/:/none\nnonroot:x:65532:65532:nonroot:/tmp:/none\n";
pub(super) const GROUP: &str = "root:x:0:\nnonroot:x:65532:\n";

/// All images.
pub(super) const ALL: &[Recipe] = &[
    Recipe {
        name: "agent-cni-installer",
        about: "takes a node over for agent-network, keeps it right, and gives it back",
        program: "agent-cni",
        arguments: &["install"],
        // both of iptables' backends are in one package
        packages: &["iptables", "ipset"],
        certificates: false,
        user: "",
    },
    Recipe {
        name: "zeroproxy",
        about: "the policy proxy of a node",
        program: "agent-node",
        arguments: &["zeroproxy"],
        packages: &[],
        certificates: true,
        // root without root's rights: the chart drops all capabilities but those that sockets and maps need
        user: "",
    },
    Recipe {
        name: "agent-network-controller",
        about: "brings policies to the proxies",
        program: "agent-controller",
        arguments: &["run"],
        packages: &[],
        certificates: false,
        user: NOBODY,
    },
];

impl Recipe {
    /// The annotations of the image specification.
    pub(super) fn labels(&self, tag: &str, commit: &str) -> BTreeMap<String, String> {
        let labels = [
            ("title", self.name),
            ("description", self.about),
            ("version", tag),
            ("revision", commit),
            ("licenses", env!("CARGO_PKG_LICENSE")),
        ];
        labels
            .into_iter()
            .map(|(key, value)| (format!("org.opencontainers.image.{key}"), value.to_owned()))
            .collect()
    }
}

/// `registry/name:tag`, as the distribution specification has names.
///
/// # Errors
/// When registry or tag have a letter that no name has.
pub(super) fn reference(registry: &str, name: &str, tag: &str) -> Result<String> {
    let path_has = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-/:".contains(c);
    if registry.is_empty() || !registry.chars().all(path_has) || registry.ends_with(['/', ':']) {
        bail!(
            "`{registry}` is no registry: write a host, and folders if there are any, as registry.example.com/agents"
        );
    }
    let tag_has = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if tag.is_empty() || tag.len() > 128 || !tag.chars().all(tag_has) || tag.starts_with(['.', '-'])
    {
        bail!("`{tag}` is no tag: up to 128 letters, digits, `_`, `.` and `-`, as v0.3.0");
    }
    Ok(format!("{registry}/{name}:{tag}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_of_registry_and_tag_and_others_are_refused() {
        assert_eq!(
            reference("registry.example.com:5000/agents", "zeroproxy", "v0.3.0").unwrap(),
            "registry.example.com:5000/agents/zeroproxy:v0.3.0"
        );
        for (registry, tag) in [
            ("", "v1"),
            ("Registry", "v1"),
            ("a/", "v1"),
            ("a b", "v1"),
            ("a", ""),
            ("a", "v1+2"),
            ("a", ".v1"),
        ] {
            assert!(reference(registry, "x", tag).is_err(), "{registry} {tag}");
        }
    }
}
