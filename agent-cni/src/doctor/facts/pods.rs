//! Each pod of this boot: its namespace, its link on both ends, its program.

use std::path::Path;

use agent_core::attachment::{Attachment, Mode};
use agent_datapath::{
    attach::{AttachError, CheckError},
    bridge,
    error::NetError,
    inspect::{self, OtherProgram, Ours},
    link,
    netns::Netns,
    plane::{Plane, PlaneError},
    rtnl::Rtnl,
};

use super::{chain, network::Network, seen, state::State};
use crate::{
    apply::pod_side,
    doctor::{check::Seen, options::Options},
    node::endpoint,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Pod {
    /// What the state says.
    pub(crate) attachment: Attachment,
    /// Its network namespace.
    pub(crate) namespace: Namespace,
    /// What is wrong with its link, if anything.
    pub(crate) link: Seen<()>,
    /// What is wrong with the program on it, if anything.
    pub(crate) program: Program,
    /// Programs of others on its link.
    pub(crate) foreign: Seen<Vec<OtherProgram>>,
}

/// A pod's network namespace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Namespace {
    /// It is there.
    Alive,
    /// There is nothing at its path, or something else.
    Gone(String),
    /// It cannot be looked at.
    Unseen(String),
}

/// The program on a pod's link.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// Ours, and first.
    Right,
    /// Not ours, not first, or none.
    Wrong(String),
    /// It cannot be looked at.
    Unseen(String),
}

/// Reads every pod.
pub(crate) async fn read(
    rtnl: &Seen<Rtnl>,
    state: &State,
    network: &Network,
    plane: &Seen<Plane>,
    options: &Options,
) -> Vec<Pod> {
    let mut pods = Vec::new();
    for attachment in &state.attachments {
        let path = options.on_host(Path::new(&attachment.netns));
        let opened = Netns::open_pod(&path);
        let link = match (rtnl, &state.node) {
            (Ok(rtnl), Ok(node)) => {
                let host = host_side(rtnl, network, attachment).await;
                host.and_then(|()| inside(&opened, attachment, node))
            }
            (Err(why), _) | (_, Err(why)) => Err(why.clone()),
        };
        pods.push(Pod {
            namespace: namespace(&opened, &path),
            link,
            program: program(plane, attachment),
            foreign: foreign(state, plane, attachment),
            attachment: attachment.clone(),
        });
    }
    pods
}

fn namespace(opened: &Result<Netns, NetError>, path: &std::path::Path) -> Namespace {
    match opened {
        Ok(_) => Namespace::Alive,
        Err(NetError::NamespaceGone { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            Namespace::Gone(format!("there is nothing at {}", path.display()))
        }
        Err(error @ NetError::NotAPodNamespace { .. }) => Namespace::Gone(error.to_string()),
        Err(error) => Namespace::Unseen(chain(error)),
    }
}

async fn host_side(rtnl: &Rtnl, network: &Network, attachment: &Attachment) -> Seen<()> {
    let name = &attachment.host_veth;
    let index = match seen(link::index_of(rtnl, name).await)? {
        None => return Err(format!("there is no interface {name}")),
        Some(index) => index,
    };
    if index != attachment.ifindex {
        return Err(format!(
            "{name} has ifindex {index}, its state file says {}",
            attachment.ifindex
        ));
    }
    if !seen(link::is_up(rtnl, name).await)? {
        return Err(format!("{name} is down"));
    }
    // a bridge that is not right is the bridge's problem, not each pod's
    let Ok(bridge) = network.bridge else {
        return Ok(());
    };
    seen(bridge::check_port(rtnl, bridge, name).await)?;
    let mac = attachment.mac.octets();
    seen(bridge::check_announced(rtnl, bridge, index, attachment.fake_ip, mac).await)
}

/// The pod's own end. A namespace that cannot be entered is told by [`namespace`].
fn inside(
    opened: &Result<Netns, NetError>,
    attachment: &Attachment,
    node: &agent_core::node::NodeState,
) -> Seen<()> {
    let Ok(namespace) = opened else {
        return Ok(());
    };
    let side = pod_side(attachment, node, 0);
    seen(namespace.run_async(|| async move { link::check_pod_side(&side).await }))
}

fn program(plane: &Seen<Plane>, attachment: &Attachment) -> Program {
    let plane = match plane {
        Ok(plane) => plane,
        Err(why) => return Program::Unseen(why.clone()),
    };
    let (name, index) = (&attachment.host_veth, attachment.ifindex);
    match plane.check_pod(name, index, &endpoint(attachment)) {
        Ok(()) => Program::Right,
        Err(PlaneError::Check(error)) => match error {
            // the entry is judged with the others, in both directions, and a link that is gone is the link's problem
            CheckError::NoEndpoint { .. }
            | CheckError::OtherEndpoint { .. }
            | CheckError::Unknown(AttachError::NoInterface { .. }) => Program::Right,
            CheckError::NotAttached { .. }
            | CheckError::OtherProgram { .. }
            | CheckError::NotFirst { .. } => Program::Wrong(error.to_string()),
            CheckError::Unknown(_) => Program::Unseen(chain(&error)),
        },
        Err(PlaneError::Net(NetError::NoLink { .. })) => Program::Right,
        Err(PlaneError::Net(error)) if error.is_difference() => Program::Wrong(chain(&error)),
        Err(error) => Program::Unseen(chain(&error)),
    }
}

/// Programs of others on the pod's link. What the iptables-compat mode has is a table of the bridge, which comes after all of
/// them.
fn foreign(state: &State, plane: &Seen<Plane>, attachment: &Attachment) -> Seen<Vec<OtherProgram>> {
    let (name, index) = (&attachment.host_veth, attachment.ifindex);
    match plane {
        Ok(Plane::Ebpf(datapath)) => seen(datapath.foreign_classifiers(name, index)),
        Ok(Plane::Compat(_)) => seen(inspect::others_at_ingress(name, index, Ours::After)),
        // a table that is gone keeps nobody from looking
        Err(_)
            if state
                .node
                .as_ref()
                .is_ok_and(|node| node.mode == Mode::IptablesCompat) =>
        {
            seen(inspect::others_at_ingress(name, index, Ours::After))
        }
        Err(why) => Err(why.clone()),
    }
}
