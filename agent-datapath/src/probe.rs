//! Finds out by trying what this kernel and this process can do: the ground on which `auto` chooses a mode.
//!
//! Nothing is concluded from a version. A throw-away node is made (`stage`): network and mount namespaces that belong
//! to one thread and end with it, whatever happens to the process. In it the real object is loaded, attached to a real
//! veth and to the namespace, listeners are put into the real socket map, and a pod connects to an address that nobody
//! routes (`ebpf`); the same for the rules of the other mode (`compat`). The node's own namespaces are only looked at.
//! [`choose`] decides from the report, and is pure.

use std::{fmt, io, path::Path};

use agent_core::attachment::Mode;

use crate::attach::AttachKind;

mod choose;
mod compat;
mod ebpf;
mod explain;
mod stage;
mod surroundings;

pub use choose::{ChooseError, Reason, Requested, Stored, UnknownMode, choose};
use explain::explain;
pub use surroundings::Surroundings;

/// What is tried, in the order in which it is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeatureName {
    /// Namespaces of one's own to try things in.
    Isolation,
    /// A bpf file system where the pins are to be.
    Bpffs,
    /// The maps and both programs, through the kernel's verifier.
    Programs,
    /// The dispatch program on a network namespace (SK_LOOKUP).
    Dispatch,
    /// The classifier on a veth (TCX or clsact).
    Classifier,
    /// Bridge, settings, policy route and the nftables table of the eBPF mode.
    NodeNetwork,
    /// Listeners in the socket map.
    Sockets,
    /// A connection to an address that is nobody's arrives with that address.
    Delivery,
    /// Drop events through the ring buffer.
    Events,
    /// Bridge, settings and rules of the iptables-compat mode, written by the iptables that is installed.
    CompatRules,
    /// An nftables table of the bridge family, which holds pods to their addresses in the iptables-compat mode.
    BridgeTable,
    /// A redirected connection to an address that is nobody's is known as one to it.
    CompatDelivery,
}

impl FeatureName {
    /// What the eBPF mode needs, in the order in which it is tried.
    pub const EBPF: [Self; 9] = [
        Self::Isolation,
        Self::Bpffs,
        Self::Programs,
        Self::Dispatch,
        Self::Classifier,
        Self::NodeNetwork,
        Self::Sockets,
        Self::Delivery,
        Self::Events,
    ];

    /// A fixed label for tables, JSON and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Isolation => "isolation",
            Self::Bpffs => "bpffs",
            Self::Programs => "programs",
            Self::Dispatch => "dispatch",
            Self::Classifier => "classifier",
            Self::NodeNetwork => "node_network",
            Self::Sockets => "sockets",
            Self::Delivery => "delivery",
            Self::Events => "events",
            Self::CompatRules => "compat_rules",
            Self::BridgeTable => "bridge_table",
            Self::CompatDelivery => "compat_delivery",
        }
    }
}

/// How a try went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It works.
    Works,
    /// It was tried, and doesn't.
    Fails,
    /// Something that it builds on fails, so it could not be tried.
    Untried,
}

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Which.
    pub name: FeatureName,
    /// How it went.
    pub state: State,
    /// What it is, or why it fails.
    pub detail: String,
}

/// Why a mode can't be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// What fails.
    pub feature: FeatureName,
    /// What the system said, with all causes.
    pub said: String,
    /// What that means here, and what to do.
    pub meaning: String,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.feature.as_str(), self.said)?;
        if !self.meaning.is_empty() {
            write!(f, " ({})", self.meaning)?;
        }
        Ok(())
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// All that was tried, in order.
    pub features: Vec<Feature>,
    /// How the classifier is attached, or what is in the way of the eBPF mode; never an empty list.
    pub ebpf: Result<AttachKind, Vec<Why>>,
    /// Whether the iptables-compat mode works, or what is in its way; never an empty list.
    pub compat: Result<(), Vec<Why>>,
}

impl Report {
    /// Why a mode can't be had; empty when it can.
    #[must_use]
    pub fn against(&self, mode: Mode) -> &[Why] {
        match mode {
            Mode::Ebpf => self.ebpf.as_ref().map_or_else(Vec::as_slice, |_| &[]),
            Mode::IptablesCompat => self.compat.as_ref().map_or_else(Vec::as_slice, |()| &[]),
        }
    }

    /// Whether a mode works.
    #[must_use]
    pub fn works(&self, mode: Mode) -> bool {
        self.against(mode).is_empty()
    }
}

/// Tries everything. `pin_base` is where the node's pins are or would be; it is looked at only.
///
/// Takes some hundred milliseconds. Kernel modules that the tries need are loaded by the kernel, and stay; nothing
/// else does, also when the process is killed meanwhile.
#[must_use]
pub fn probe(pin_base: &Path) -> Report {
    let surroundings = Surroundings::read();
    let place = ebpf::pins_place(pin_base);
    let on = place.as_deref().unwrap_or_default().to_owned();
    let bpffs = Tried::from(FeatureName::Bpffs, &place, on);
    let ebpf = stage::on_a_throw_away_node(ebpf::attempt);
    let compat = stage::on_a_throw_away_node(compat::attempt);
    let isolation = match (&ebpf, &compat) {
        (Ok(_), Ok(_)) => Tried::ok(FeatureName::Isolation, "own network and mount namespaces"),
        (Err(error), _) | (_, Err(error)) => Tried::failed(FeatureName::Isolation, error),
    };
    let (ebpf, compat) = (ebpf.unwrap_or_default(), compat.unwrap_or_default());
    assemble(isolation, bpffs, ebpf, compat, &surroundings)
}

/// Puts together what was tried, and says what it means. What has no attempt builds on something that failed.
fn assemble(
    isolation: Tried,
    bpffs: Tried,
    ebpf: ebpf::Attempt,
    compat: Vec<Tried>,
    surroundings: &Surroundings,
) -> Report {
    let mut for_ebpf = vec![isolation.clone(), bpffs];
    for_ebpf.extend(ebpf.tried);
    fill(&mut for_ebpf, &ebpf::FEATURES);
    let mut for_compat = vec![isolation];
    for_compat.extend(compat);
    fill(&mut for_compat, &compat::FEATURES);

    let whys = |tried: &[Tried]| -> Vec<Why> {
        tried
            .iter()
            .filter_map(|tried| tried.why(surroundings))
            .collect()
    };
    let ebpf = match (ebpf.kind, whys(&for_ebpf)) {
        (Some(kind), whys) if whys.is_empty() => Ok(kind),
        (_, whys) => Err(whys),
    };
    let compat = match whys(&for_compat) {
        whys if whys.is_empty() => Ok(()),
        whys => Err(whys),
    };
    let features = for_ebpf
        .into_iter()
        .chain(for_compat.into_iter().skip(1))
        .map(Tried::into_feature)
        .collect();
    Report {
        features,
        ebpf,
        compat,
    }
}

fn fill(tried: &mut Vec<Tried>, all: &[FeatureName]) {
    for &name in all {
        if !tried.iter().any(|tried| tried.name == name) {
            tried.push(Tried {
                name,
                outcome: Outcome::Untried,
            });
        }
    }
}

/// One try with its outcome, before it is explained.
#[derive(Clone, Debug)]
struct Tried {
    name: FeatureName,
    outcome: Outcome,
}

#[derive(Clone, Debug)]
enum Outcome {
    Works(String),
    Fails { errno: Option<i32>, said: String },
    Untried,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Tried {
    fn ok(name: FeatureName, detail: impl Into<String>) -> Self {
        let outcome = Outcome::Works(detail.into());
        Self { name, outcome }
    }

    fn failed(name: FeatureName, error: &(dyn std::error::Error + 'static)) -> Self {
        let outcome = Outcome::Fails {
            errno: crate::load::errno(error),
            said: chain(error),
        };
        Self { name, outcome }
    }

    /// What became of a try; `detail` is said when it worked.
    fn from<T>(name: FeatureName, result: &Result<T, Failure>, detail: impl Into<String>) -> Self {
        match result {
            Ok(_) => Self::ok(name, detail),
            Err(error) => Self::failed(name, &**error),
        }
    }

    fn why(&self, surroundings: &Surroundings) -> Option<Why> {
        let Outcome::Fails { errno, said } = &self.outcome else {
            return None;
        };
        Some(Why {
            feature: self.name,
            said: said.clone(),
            meaning: explain(self.name, *errno, surroundings),
        })
    }

    fn into_feature(self) -> Feature {
        let (state, detail) = match self.outcome {
            Outcome::Works(detail) => (State::Works, detail),
            Outcome::Fails { said, .. } => (State::Fails, said),
            Outcome::Untried => (
                State::Untried,
                "not tried: something that it needs fails".to_owned(),
            ),
        };
        Feature {
            name: self.name,
            state,
            detail,
        }
    }
}

/// An error and its causes in one line; a cause that its successor already quotes is not said twice.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !line.contains(text.trim()) {
            line.push_str(": ");
            line.push_str(text.trim());
        }
        next = cause.source();
    }
    line
}

/// An error of one sentence.
fn sentence(text: impl Into<String>) -> Failure {
    Box::new(io::Error::other(text.into()))
}

#[cfg(test)]
mod tests;
