//! The one list of everything that agent-network owns on a host.
//!
//! [`Thing`] names the kinds in the order in which they may go: first what brings new pods in, then the pods' links,
//! then what controls packets, then files. [`survey`] looks for each and changes nothing; [`remove`] removes one kind
//! and is fine when there is none. Installer, doctor, rollback and residue check read this list and no other, so what
//! one of them leaves another one finds.
//!
//! Names of other versions are here too: every layout's pins, chains of both iptables backends, any port of our bridge.

use std::path::{Path, PathBuf};

use agent_core::node::{
    BRIDGE, DROP_RULE_PREFERENCE, POOL_ROUTE_TABLE, PROXY_MARK, PROXY_MARK_MASK, ROUTE_TABLE,
};
use agent_ebpf_common::names;

use crate::{error::NetError, link::HOST_VETH_PREFIX, network::MaskedMark, routing::DropRules};

mod files;
mod iptables;
mod kernel;
mod netfilter;

pub use iptables::{Chains, chains_in, removal};

/// What the names of all our iptables chains begin with, those of older versions included.
pub const CHAIN_PREFIX: &str = "AGENT-CNI";
/// The nftables tables' name, in whatever family.
pub const TABLE: &str = crate::nft::ruleset::TABLE;
/// The ipset of more Service CIDRs than rules are worth, and the one that becomes it.
pub const IPSETS: [&str; 2] = [crate::iptables::SERVICES_SET, crate::iptables::NEXT_SET];
/// The plugin in the runtime's directory.
pub const BINARY: &str = "agent-cni";
/// The plugin while it is being written. No configuration's `type` can name it: a type has no dot in front.
pub const STAGED_BINARY: &str = ".agent-cni.staged";
/// The configuration that the kubelet's runtime reads first.
pub const CONF: &str = "00-agent-cni.conf";
/// The configuration while it is being written: runtimes read `.conf`, `.conflist` and `.json` only.
pub const STAGED_CONF: &str = "00-agent-cni.conf.staged";
/// In the configuration: which version wrote it.
pub const CONF_VERSION_KEY: &str = "agentVersion";
/// In the state directory: which version is installed, as JSON with the key `version`.
pub const VERSION_RECORD: &str = "version";
/// In the state directory: what the running installer says of itself.
pub const INSTALL_STATUS: &str = agent_core::install::FILE;

/// Where our things lie, as this process sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The runtime's directory of plugins.
    pub bin_dir: PathBuf,
    /// The runtime's directory of configurations.
    pub conf_dir: PathBuf,
    /// The state directory.
    pub state_dir: PathBuf,
    /// The directory above the layouts' pin directories.
    pub pin_base: PathBuf,
}

impl Places {
    /// The documented places below a root: `/` on a node, where the host is mounted in a container.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Self {
            bin_dir: root.join("opt/cni/bin"),
            conf_dir: root.join("etc/cni/net.d"),
            state_dir: root.join("var/lib/tke-agent-network/agent-cni"),
            pin_base: root.join("sys/fs/bpf/agent-network"),
        }
    }

    /// The plugin.
    #[must_use]
    pub fn binary(&self) -> PathBuf {
        self.bin_dir.join(BINARY)
    }

    /// The configuration.
    #[must_use]
    pub fn conf(&self) -> PathBuf {
        self.conf_dir.join(CONF)
    }

    /// Where the installer's and the rollback's claim on the node and their locks are: beside the state directory, so
    /// that they outlive it.
    #[must_use]
    pub fn claim_dir(&self) -> PathBuf {
        let mut path = self.state_dir.clone().into_os_string();
        path.push(".installer");
        path.into()
    }

    /// Where sysctl values from before are kept.
    #[must_use]
    pub fn sysctl_record(&self) -> PathBuf {
        self.state_dir.join("sysctls")
    }

    /// Why the state directory is none that may be filled or emptied.
    #[must_use]
    pub fn unfit_state_dir(&self) -> Option<UnfitStateDir> {
        // a container that mounts the host somewhere would follow a link to another place than the host does
        if let Ok(target) = std::fs::read_link(&self.state_dir) {
            return Some(UnfitStateDir::Link {
                path: self.state_dir.clone(),
                target,
            });
        }
        files::stranger(&self.state_dir).map(|name| UnfitStateDir::OfOthers {
            path: self.state_dir.clone(),
            name,
        })
    }

    /// The pins' directory of this build's layout.
    #[must_use]
    pub fn current_pins(&self) -> PathBuf {
        self.pin_base.join(names::LAYOUT_DIR)
    }
}

/// What is wrong with a state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnfitStateDir {
    /// It is a symbolic link, wherever that leads.
    Link {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// There is something in it, and nothing of ours: it is the wrong directory.
    OfOthers {
        /// The directory.
        path: PathBuf,
        /// The first name in it.
        name: String,
    },
}

impl UnfitStateDir {
    /// What is so.
    #[must_use]
    pub fn what(&self) -> String {
        match self {
            Self::Link { path, target } => format!(
                "the state directory {} is a symbolic link to {}",
                path.display(),
                target.display()
            ),
            Self::OfOthers { path, name } => format!(
                "{} is not agent-network's state directory: it holds {name}, and nothing of agent-network's",
                path.display()
            ),
        }
    }

    /// What mends it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Link { path, target } => {
                let (path, target) = (path.display(), target.display());
                format!(
                    "put the directory itself there: rm {path} && mv -T {target} {path}; or, where {target} is gone: rm {path}"
                )
            }
            Self::OfOthers { .. } => {
                "name a directory of agent-network's own: --state-dir".to_owned()
            }
        }
    }
}

/// One kind of thing that is ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thing {
    /// The configuration in `net.d`, staged or in place.
    Conf,
    /// The pods' links: interfaces of our name, and whatever is a port of our bridge.
    PodLinks,
    /// `agentcni0`, and with it the filter at its ingress.
    Bridge,
    /// Pinned programs, maps and links of every layout.
    Pins,
    /// The policy rules, and the table that they lead to.
    PolicyRoute,
    /// The policy rules that drop what may not be routed out.
    DropRules,
    /// The policy rule and the table of the way to the pods.
    PoolRoute,
    /// Tables `agent_network` of every nftables family.
    NftTables,
    /// Chains `AGENT-CNI…` and the rules that lead there, in both iptables backends.
    IptablesChains,
    /// The ipsets of Service CIDRs.
    Ipset,
    /// Kernel settings that are recorded with another value than they have.
    Sysctls,
    /// The plugin, staged or in place.
    Binary,
    /// The state directory.
    State,
}

impl Thing {
    /// All kinds, in the order in which they may go.
    pub const ALL: [Self; 13] = [
        Self::Conf,
        Self::PodLinks,
        Self::Bridge,
        Self::Pins,
        Self::PolicyRoute,
        Self::DropRules,
        Self::PoolRoute,
        Self::NftTables,
        Self::IptablesChains,
        Self::Ipset,
        Self::Sysctls,
        Self::Binary,
        Self::State,
    ];

    /// A fixed label for logs and JSON.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Conf => "conf",
            Self::PodLinks => "pod_links",
            Self::Bridge => "bridge",
            Self::Pins => "pins",
            Self::PolicyRoute => "policy_route",
            Self::DropRules => "drop_rules",
            Self::PoolRoute => "pool_route",
            Self::NftTables => "nft_tables",
            Self::IptablesChains => "iptables_chains",
            Self::Ipset => "ipset",
            Self::Sysctls => "sysctls",
            Self::Binary => "binary",
            Self::State => "state",
        }
    }

    /// Whether it is one of the five residues that the product's documentation lists.
    #[must_use]
    pub const fn is_documented(self) -> bool {
        matches!(
            self,
            Self::Conf | Self::Bridge | Self::IptablesChains | Self::Binary | Self::State
        )
    }
}

/// Something of ours that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Residue {
    /// Its kind.
    pub thing: Thing,
    /// What it is: a path, an interface, a rule.
    pub what: String,
    /// The command that removes it by hand.
    pub by_hand: String,
}

/// What a look at the node found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// What is there, in the order of [`Thing::ALL`].
    pub residues: Vec<Residue>,
    /// What could not be looked at, and why: a survey with such a line vouches for nothing of that kind.
    pub unseen: Vec<(Thing, String)>,
}

impl Survey {
    /// True when everything could be looked at and nothing is there.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.residues.is_empty() && self.unseen.is_empty()
    }
}

/// Looks for everything of ours in the calling thread's network namespace and at these places. Changes nothing.
/// Must be called inside a tokio runtime.
pub async fn survey(places: &Places) -> Survey {
    let mut survey = Survey::default();
    for thing in Thing::ALL {
        match find(thing, places).await {
            Ok(found) => {
                let residues = found.into_iter().map(|(what, by_hand)| Residue {
                    thing,
                    what,
                    by_hand,
                });
                survey.residues.extend(residues);
            }
            Err(error) => survey.unseen.push((thing, error.to_string())),
        }
    }
    survey
}

/// Removes every thing of one kind; fine when there is none. Goes on after errors.
///
/// # Errors
/// `Several`, with all that did not work.
pub async fn remove(thing: Thing, places: &Places) -> Result<(), NetError> {
    match thing {
        Thing::Conf | Thing::Binary | Thing::State => files::remove(thing, places),
        Thing::Pins => files::remove_pins(&places.pin_base),
        Thing::PodLinks => kernel::remove_pod_links().await,
        Thing::Bridge => kernel::remove_bridge().await,
        Thing::PolicyRoute => kernel::remove_table(ROUTE_TABLE).await,
        Thing::PoolRoute => kernel::remove_table(POOL_ROUTE_TABLE).await,
        Thing::DropRules => kernel::remove_drop_rules(&drop_rules()).await,
        Thing::NftTables => netfilter::remove_tables(),
        Thing::IptablesChains => iptables::remove(),
        Thing::Ipset => netfilter::remove_ipsets(),
        Thing::Sysctls => crate::sysctl::restore(
            &crate::sysctl::node_settings(BRIDGE),
            &places.sysctl_record(),
        ),
    }
}

/// Pin directories of other layouts than this build's.
///
/// # Errors
/// `Refused` when the directory cannot be read.
pub fn foreign_layouts(pin_base: &Path) -> Result<Vec<PathBuf>, NetError> {
    let mut layouts = files::layouts(pin_base)?;
    layouts.retain(|path| path.file_name() != Some(names::LAYOUT_DIR.as_ref()));
    Ok(layouts)
}

/// Takes the programs of one layout off their hooks, at once, and removes its pins; fine when there is nothing.
///
/// # Errors
/// `Refused` when a pin cannot be removed.
pub fn remove_layout(layout: &Path) -> Result<(), NetError> {
    files::remove_layout(layout)
}

/// True for a name that our host-side interfaces have.
#[must_use]
pub fn is_pod_link(name: &str) -> bool {
    name.strip_prefix(HOST_VETH_PREFIX).is_some_and(|digits| {
        digits.len() == 12
            && digits
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

/// What is there of one kind, each with the command that removes it by hand.
async fn find(thing: Thing, places: &Places) -> Result<Vec<(String, String)>, NetError> {
    match thing {
        Thing::Conf | Thing::Binary | Thing::State => files::find(thing, places),
        Thing::Pins => files::find_pins(&places.pin_base),
        Thing::PodLinks => kernel::find_pod_links().await,
        Thing::Bridge => kernel::find_bridge().await,
        Thing::PolicyRoute => kernel::find_table(ROUTE_TABLE).await,
        Thing::PoolRoute => kernel::find_table(POOL_ROUTE_TABLE).await,
        Thing::DropRules => kernel::find_drop_rules(&drop_rules()).await,
        Thing::NftTables => netfilter::find_tables(),
        Thing::IptablesChains => iptables::find(),
        Thing::Ipset => netfilter::find_ipsets(),
        Thing::Sysctls => kernel::find_sysctls(&places.sysctl_record()),
    }
}

/// For whatever marks and Service CIDRs they are.
fn drop_rules() -> DropRules {
    DropRules {
        iif: BRIDGE.to_owned(),
        pref: DROP_RULE_PREFERENCE,
        mark: MaskedMark {
            value: PROXY_MARK,
            mask: PROXY_MARK_MASK,
        },
        services: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
