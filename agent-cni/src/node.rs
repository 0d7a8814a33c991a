//! The node that pods are attached to: its choices, its network, its data path, made ready or only looked at.

use std::path::Path;

use agent_core::{
    attachment::{Attachment, Mode},
    node::{NodeState, ROUTE_TABLE, RULE_PREFERENCE},
};
use agent_datapath::{
    bridge::Bridge,
    load::{DatapathConfig, Marks},
    network::{self, MaskedMark, NodeNetwork, WithoutProxy},
    pins::Pins,
    plane::Plane,
    probe::{ChooseError, Reason, Report},
    routing,
    rtnl::Rtnl,
};
use ipnet::Ipv4Net;

use crate::{
    choice::{self, ChoiceError},
    clock,
    error::{CniError, Code},
    listeners,
    lock::LockFile,
    mode::{self, Care, Decided},
    netconf::NetConf,
    state::{StateDir, StateError},
};

mod switch;

/// Drop events a pod may cause per second; what is above is counted only. Enough to see what a pod tries, too few to
/// make the node's log its victim.
const EVENTS_PER_SECOND: u32 = 20;

/// A node that is ready.
#[derive(Debug)]
pub(crate) struct Node {
    /// Its choices.
    pub(crate) state: NodeState,
    /// The bridge's ifindex.
    pub(crate) bridge: u32,
    /// What controls its pods' packets.
    pub(crate) plane: Plane,
    /// Keeps its mode as it is: a pod that is attached in one mode while the node goes to the other would be left
    /// behind.
    pub(crate) _mode: Option<LockFile>,
    /// Why this mode, when the kernel was asked.
    pub(crate) reason: Option<Reason>,
}

/// Makes the node ready for pods: settles and stores its choices, sets its network up, loads the programs or writes the
/// tables. The same on every ADD: what is right already is left alone, what is not is mended. A node that is in the
/// other mode, or half in it, goes to this one first, with all its pods.
///
/// # Errors
/// The range cannot be settled, or the kernel refuses a step.
pub(crate) async fn ensure(conf: &NetConf, dir: &StateDir, care: Care) -> Result<Node, CniError> {
    let mut decided = mode::decide(conf, dir, care)?;
    loop {
        let mode = dir.keep_mode()?;
        let lock = dir.lock_node()?;
        let settled = settle(conf, dir, &mut decided).await?;
        if !switch::is_due(conf, &settled)? {
            return ready(conf, dir, &settled, mode, decided.reason()).await;
        }
        // whoever changes the mode must be alone with it
        drop((lock, mode));
        let _mode = dir.change_mode()?;
        let _lock = dir.lock_node()?;
        let settled = settle(conf, dir, &mut decided).await?;
        if switch::is_due(conf, &settled)? {
            switch::run(conf, dir, &settled).await?;
        }
    }
}

async fn ready(
    conf: &NetConf,
    dir: &StateDir,
    settled: &Settled,
    mode: LockFile,
    reason: Option<Reason>,
) -> Result<Node, CniError> {
    settled.store(dir)?;
    let state = settled.chosen.clone();
    // the data path first: it is what a later change of the mode looks for
    let plane = Plane::ensure(
        state.mode,
        &Pins::new(&conf.pin_dir),
        &datapath_config(&state),
    )
    .map_err(|error| {
        datapath_error(
            &format!("set up the {} data path", state.mode.as_str()),
            &error,
        )
    })?;
    let bridge = network::ensure_node(&network(conf, &state, dir)?).await?;
    Ok(Node {
        state,
        bridge,
        plane,
        _mode: Some(mode),
        reason,
    })
}

/// The node's choices, as they are stored and as they should be.
#[derive(Debug)]
struct Settled {
    stored: Option<NodeState>,
    chosen: NodeState,
}

impl Settled {
    /// Stores what was chosen. The words about why are not worth a node that stays broken while its disk is full.
    fn store(&self, dir: &StateDir) -> Result<(), CniError> {
        let Some(stored) = &self.stored else {
            return Ok(dir.save_node(&self.chosen)?);
        };
        if *stored == self.chosen {
            return Ok(());
        }
        match dir.save_node(&self.chosen) {
            Err(error) if same_choices(stored, &self.chosen) => {
                tracing::warn!(%error, "why the node is in its mode cannot be written down");
                Ok(())
            }
            other => Ok(other?),
        }
    }
}

/// Whether two records differ in their explanations at most.
fn same_choices(a: &NodeState, b: &NodeState) -> bool {
    let unexplained = |node: &NodeState| NodeState {
        mode_reason: None,
        mode_cause: None,
        ebpf_missing: Vec::new(),
        ..node.clone()
    };
    unexplained(a) == unexplained(b)
}

/// The one place where a node's choices are made, its mode among them (`choice::choose`).
async fn settle(
    conf: &NetConf,
    dir: &StateDir,
    decided: &mut Decided<impl Fn() -> Report>,
) -> Result<Settled, CniError> {
    let stored = dir.node()?;
    let mode = decided.mode(stored.as_ref())?;
    let keeps = stored.as_ref().is_some_and(|stored| {
        conf.fake_ip_cidr
            .is_none_or(|wanted| wanted == stored.fake_ip_cidr)
    });
    // the node's routes and pods matter only when a new range is chosen
    let (in_use, live) = if keeps {
        (Vec::new(), Vec::new())
    } else {
        let rtnl = Rtnl::connect()?;
        let in_use = routing::networks_in_use(&rtnl, agent_core::node::BRIDGE).await?;
        let boot = clock::boot_id();
        let live = dir
            .attachments()?
            .iter()
            .filter(|attachment| attachment.boot_id == boot)
            .map(|attachment| attachment.fake_ip)
            .collect();
        (in_use, live)
    };
    let name = conf.node_name.clone().unwrap_or_else(host_name);
    let mut chosen = choice::choose(conf, mode, &name, stored.as_ref(), &in_use, &live)?;
    decided.explain(stored.as_ref(), &mut chosen);
    Ok(Settled { stored, chosen })
}

/// The network that belongs to the node's choices.
///
/// # Errors
/// The choices hold a length that cannot be.
pub(crate) fn network(
    conf: &NetConf,
    state: &NodeState,
    dir: &StateDir,
) -> Result<NodeNetwork, CniError> {
    let address = Ipv4Net::new(state.gateway, state.fake_ip_cidr.prefix_len())
        .map_err(|error| CniError::from_error(Code::NodeCidr, &error))?;
    Ok(NodeNetwork {
        mode: state.mode,
        leaving_other: false,
        bridge: Bridge {
            name: state.bridge.clone(),
            mac: state.gateway_mac.octets(),
            address,
        },
        proxy: MaskedMark {
            value: state.marks.proxy,
            mask: state.marks.proxy_mask,
        },
        service: MaskedMark {
            value: state.marks.service,
            mask: state.marks.service_mask,
        },
        service_cidrs: state.service_cidrs.clone(),
        ports: conf.ports,
        route_table: ROUTE_TABLE,
        rule_pref: RULE_PREFERENCE,
        without_proxy: without_proxy(conf, state.mode),
        sensitive: conf.sensitive_cidrs.clone(),
        sysctl_record: dir.sysctl_record(),
    })
}

/// What becomes of pods' traffic while the proxy is away, and whether it is. A list that can't be read shows nobody away.
fn without_proxy(conf: &NetConf, mode: Mode) -> WithoutProxy {
    match conf.fail_open {
        false => WithoutProxy::Dropped,
        true => WithoutProxy::Out {
            // the other mode asks for each packet
            away: mode == Mode::IptablesCompat && proxy_is_away(conf),
        },
    }
}

/// Whether nobody listens on the proxy's port.
pub(crate) fn proxy_is_away(conf: &NetConf) -> bool {
    matches!(listeners::is_there(conf.ports.proxy), Ok(false))
}

/// What the programs are told about the node.
pub(crate) fn datapath_config(state: &NodeState) -> DatapathConfig {
    DatapathConfig {
        gateway: state.gateway,
        gateway_mac: state.gateway_mac.octets(),
        fake_cidrs: vec![state.fake_ip_cidr],
        service_cidrs: state.service_cidrs.clone(),
        marks: Marks {
            proxy: state.marks.proxy,
            proxy_mask: state.marks.proxy_mask,
            service: state.marks.service,
            service_mask: state.marks.service_mask,
        },
        // with it a connection would look for a server of the node's own; `without_proxy` is what a class means
        fail_open: false,
        events_per_second: EVENTS_PER_SECOND,
    }
}

/// The endpoint that the data path holds an attachment's packets to.
pub(crate) fn endpoint(attachment: &Attachment) -> agent_datapath::maps::PodEndpoint {
    agent_datapath::maps::PodEndpoint {
        fake_ip: attachment.fake_ip,
        mac: attachment.mac.octets(),
    }
}

/// An error of the data path in the runtime's terms.
pub(crate) fn datapath_error(action: &str, error: &dyn std::error::Error) -> CniError {
    CniError::caused(Code::Datapath, format!("cannot {action}"), error)
}

/// The host's name; empty when the kernel tells none.
pub(crate) fn host_name() -> String {
    std::fs::read_to_string(Path::new("/proc/sys/kernel/hostname"))
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

impl From<ChoiceError> for CniError {
    fn from(error: ChoiceError) -> Self {
        Self::from_error(Code::NodeCidr, &error)
    }
}

impl From<ChooseError> for CniError {
    fn from(error: ChooseError) -> Self {
        Self::from_error(Code::Datapath, &error)
    }
}

impl From<StateError> for CniError {
    fn from(error: StateError) -> Self {
        Self::from_error(Code::Io, &error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_core::attachment::Mode;

    #[test]
    fn the_words_about_a_mode_are_no_choice() {
        let node = |mode| {
            let cidr = "169.254.9.0/24".parse().unwrap();
            NodeState::new(cidr, vec![], mode, "/pins").unwrap()
        };
        let mut told = node(Mode::Ebpf);
        told.mode_reason = Some("it was asked for".into());
        told.mode_cause = Some("requested".into());
        told.ebpf_missing = vec!["programs".into()];
        assert!(same_choices(&node(Mode::Ebpf), &told));
        assert!(!same_choices(&node(Mode::IptablesCompat), &told));
    }
}
