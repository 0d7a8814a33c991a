//! Where programs, maps and links are pinned.
//!
//! Owns the paths only; [`crate::load`] decides what is put there.

use std::path::{Path, PathBuf};

use agent_ebpf_common::names;

/// The directory of one map layout below a pin base, such as `/sys/fs/bpf/agent-network/v1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins(PathBuf);

impl Pins {
    /// The layout's directory below `base`, which is `/sys/fs/bpf/agent-network` on a real node.
    #[must_use]
    pub fn new(base: &Path) -> Self {
        Self(base.join(names::LAYOUT_DIR))
    }

    /// The layout's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// The pin of a map.
    #[must_use]
    pub fn map(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The directory of the pinned programs.
    #[must_use]
    pub fn programs(&self) -> PathBuf {
        self.0.join(names::PROGRAMS_DIR)
    }

    /// The pin of a program.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs().join(name)
    }

    /// The directory of the pinned links.
    #[must_use]
    pub fn links(&self) -> PathBuf {
        self.0.join(names::LINKS_DIR)
    }

    /// The pin of the link between the dispatch program and the node's network namespace.
    #[must_use]
    pub fn dispatch_link(&self) -> PathBuf {
        self.links().join(names::DISPATCH_LINK)
    }

    /// The pin of the link between the classifier and a pod's host interface.
    ///
    /// The bpf file system refuses names with a dot; a colon, which no interface name has, stands for it.
    #[must_use]
    pub fn pod_link(&self, ifname: &str) -> PathBuf {
        self.links().join(ifname.replace('.', ":"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_links_hold_no_dot_and_never_are_the_dispatch_link() {
        let pins = Pins::new(Path::new("/sys/fs/bpf/agent-network"));
        assert_eq!(pins.dir(), Path::new("/sys/fs/bpf/agent-network/v1"));
        assert!(pins.pod_link("veth.1").ends_with("links/veth:1"));
        assert_ne!(pins.pod_link("dispatch"), pins.dispatch_link());
    }
}
