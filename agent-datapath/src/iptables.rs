//! The documented iptables rules of the iptables-compat mode.
//!
//! - `rules`: what must be there, as text. Pure.
//! - `save`: what is there, and what has to change. Pure.
//! - `backend`: which of the two worlds of iptables is this node's. Pure.
//! - `command`: the programs, which are the interface that iptables has.
//!
//! A change is one call of `iptables-restore --noflush`, which is one transaction per table, so that at no instant is
//! there half of a chain. What is right already is not written.

use std::collections::BTreeSet;

use crate::{
    error::{NetError, some_of},
    network::NodeNetwork,
};

mod backend;
pub(crate) mod command;
mod ipset;
mod rules;
mod save;

use backend::Seen;
pub use backend::{Backend, Choice, Why};
use command::Tools;
pub use ipset::NEXT as NEXT_SET;
pub use rules::{CHAINS, SERVICES_SET};
use save::Saved;

/// What [`ensure`] found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ensured {
    /// Which iptables the rules are in, and why.
    pub choice: Choice,
    /// What was not as it should be, in words; empty when nothing was written.
    pub mended: Vec<String>,
}

/// Makes the rules of a node be as they should in the calling thread's network namespace, in the iptables that is this
/// node's, and removes ours from the other one.
///
/// # Errors
/// There is no iptables, or it refuses; then what it refused has not changed.
pub fn ensure(node: &NodeNetwork) -> Result<Ensured, NetError> {
    let (choice, worlds) = look()?;
    let set = ipset::ensure(&node.service_cidrs)?;
    let wanted = rules::rules(node, set);
    let mut mended = Vec::new();
    for world in &worlds {
        let change = if world.tools.backend == choice.backend {
            save::change(&wanted, &world.saved)
        } else {
            save::removal(&world.saved)
        };
        if let Some(change) = change {
            command::restore(&world.tools, &change.text)?;
            mended.extend(
                change
                    .reasons
                    .into_iter()
                    .map(|reason| format!("{}: {reason}", world.tools.backend.name())),
            );
        }
    }
    if !set {
        // no rule needs it any more
        ipset::remove()?;
    }
    Ok(Ensured { choice, mended })
}

/// Compares the rules with what [`ensure`] makes.
///
/// # Errors
/// `Differs`, naming the differences.
pub fn check(node: &NodeNetwork) -> Result<Choice, NetError> {
    let (choice, worlds) = look()?;
    let set = ipset::check(&node.service_cidrs)?;
    let wanted = rules::rules(node, set);
    let mut found = Vec::new();
    for world in &worlds {
        let change = if world.tools.backend == choice.backend {
            save::change(&wanted, &world.saved)
        } else {
            save::removal(&world.saved)
        };
        found.extend(change.into_iter().flat_map(|change| change.reasons));
    }
    if found.is_empty() {
        Ok(choice)
    } else {
        Err(NetError::differs(
            format!("iptables ({})", choice.backend.name()),
            some_of(&found, ", "),
            "our rules",
        ))
    }
}

/// Removes all of ours from every iptables that is there. Fine when there is nothing, also no iptables.
///
/// # Errors
/// iptables refuses.
pub fn remove() -> Result<(), NetError> {
    for world in worlds()? {
        if let Some(change) = save::removal(&world.saved) {
            command::restore(&world.tools, &change.text)?;
        }
    }
    ipset::remove()
}

/// Names of our chains that are in one of the iptables, each as `table/chain (backend)`.
///
/// # Errors
/// iptables refuses to list its rules.
pub fn remains() -> Result<BTreeSet<String>, NetError> {
    let mut found = BTreeSet::new();
    for world in worlds()? {
        for (table, chain) in world.saved.ours() {
            found.insert(format!("{table}/{chain} ({})", world.tools.backend.name()));
        }
    }
    if ipset::exists()? {
        found.insert(format!("ipset {SERVICES_SET}"));
    }
    Ok(found)
}

/// Which iptables is this node's.
///
/// # Errors
/// There is none that works.
pub fn choice() -> Result<Choice, NetError> {
    Ok(look()?.0)
}

/// One of the two iptables, with what is in it.
struct World {
    tools: Tools,
    saved: Saved,
}

fn worlds() -> Result<Vec<World>, NetError> {
    let mut worlds = Vec::new();
    for tools in command::installed() {
        let text = match command::save(&tools) {
            Ok(text) => text,
            // of a kernel without this one of the two
            Err(error) if tools.backend == Backend::Legacy => {
                tracing::debug!(error = %error, "iptables-legacy does not work here");
                continue;
            }
            Err(error) => return Err(error),
        };
        worlds.push(World {
            tools,
            saved: Saved::parse(&text),
        });
    }
    Ok(worlds)
}

fn look() -> Result<(Choice, Vec<World>), NetError> {
    let worlds = worlds()?;
    let seen: Vec<Seen> = worlds
        .iter()
        .map(|world| Seen {
            backend: world.tools.backend,
            hint: world.saved.has_kubelet_hint(),
            kube_proxy: world.saved.has_kube_proxy(),
            foreign_rules: world.saved.foreign_rules(),
        })
        .collect();
    let choice = backend::choose(&seen).ok_or_else(|| {
        NetError::refused(
            "find iptables",
            std::io::Error::new(
                std::io::ErrorKind::NotFound,
                "neither iptables-nft nor iptables-legacy is installed and working; install the package iptables, \
                 or use mode ebpf",
            ),
        )
    })?;
    Ok((choice, worlds))
}
