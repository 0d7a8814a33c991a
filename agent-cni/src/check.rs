//! CHECK: is the attachment as ADD made it?

use std::path::Path;

use agent_core::attachment::Attachment;
use agent_datapath::{
    bridge, error::NetError, link, netns::Netns, network, pins::Pins, plane::Plane, rtnl::Rtnl,
};
use serde_json::Value;

use crate::{
    apply::pod_side,
    clock,
    command::Target,
    error::{CniError, Code},
    netconf::NetConf,
    node::{self, Node, datapath_error, endpoint},
    result::addresses_in,
    state::StateDir,
};

/// Compares state, node, links, addresses, routes, program and entry with what an ADD makes.
///
/// # Errors
/// Code 3 for an attachment that is unknown, 104 for the first difference, others for what could not be looked at.
pub(crate) async fn check(conf: &NetConf, target: &Target, netns: &Path) -> Result<(), CniError> {
    let previous = conf.prev_result.as_ref().ok_or_else(|| {
        CniError::new(
            Code::InvalidConfig,
            "CHECK needs the result of the ADD as prevResult",
        )
    })?;
    if !conf.state_dir.exists() {
        return Err(unknown(target));
    }
    let dir = StateDir::open(&conf.state_dir)?;
    let pending = dir.lock_attachment(target)?;
    let outcome = locked(conf, target, netns, previous, &dir).await;
    pending.done()?;
    outcome
}

async fn locked(
    conf: &NetConf,
    target: &Target,
    netns: &Path,
    previous: &Value,
    dir: &StateDir,
) -> Result<(), CniError> {
    let attachment = dir
        .attachment(target)?
        .filter(|attachment| attachment.boot_id == clock::boot_id())
        .ok_or_else(|| unknown(target))?;
    if Path::new(&attachment.netns) != netns {
        return Err(failed(format!(
            "the network namespace is {}, wanted {}",
            netns.display(),
            attachment.netns
        )));
    }
    let told = addresses_in(previous);
    if !told.contains(&attachment.fake_ip.to_string()) {
        return Err(failed(format!(
            "prevResult has the address {}, the attachment {}",
            told.first().map_or("none", String::as_str),
            attachment.fake_ip
        )));
    }
    let state = dir
        .node()?
        .ok_or_else(|| failed("node.json is missing, so the node's choices are unknown".into()))?;
    let bridge = network::check_node(&node::network(conf, &state, dir)?)
        .await
        .map_err(differs)?;
    let plane = Plane::check(
        state.mode,
        &Pins::new(&conf.pin_dir),
        &node::datapath_config(&state),
    )
    .map_err(|error| CniError {
        code: Code::CheckFailed,
        ..datapath_error("vouch for the data path", &error)
    })?;
    let namespace = Netns::open_pod(netns)?;
    let rtnl = Rtnl::connect()?;
    let node = Node {
        state,
        bridge,
        plane,
        _mode: None,
        reason: None,
    };
    self::attachment(&rtnl, &node, &namespace, &attachment, 0).await
}

/// Compares one attachment's links, addresses, routes, program and entry on a node that is right.
///
/// # Errors
/// The first difference.
pub(crate) async fn attachment(
    rtnl: &Rtnl,
    node: &Node,
    netns: &Netns,
    attachment: &Attachment,
    mtu: u32,
) -> Result<(), CniError> {
    let host_veth = &attachment.host_veth;
    let found = link::index_of(rtnl, host_veth).await.map_err(differs)?;
    if found != Some(attachment.ifindex) {
        return Err(failed(match found {
            None => format!("there is no interface {host_veth}"),
            Some(index) => format!(
                "the ifindex of {host_veth} is {index}, wanted {}",
                attachment.ifindex
            ),
        }));
    }
    if !link::is_up(rtnl, host_veth).await.map_err(differs)? {
        return Err(failed(format!("{host_veth} is down")));
    }
    bridge::check_port(rtnl, node.bridge, host_veth)
        .await
        .map_err(differs)?;
    bridge::check_announced(
        rtnl,
        node.bridge,
        attachment.ifindex,
        attachment.fake_ip,
        attachment.mac.octets(),
    )
    .await
    .map_err(differs)?;
    node.plane
        .check_pod(host_veth, attachment.ifindex, &endpoint(attachment))
        .map_err(|error| CniError {
            code: Code::CheckFailed,
            ..datapath_error(&format!("vouch for the data path of {host_veth}"), &error)
        })?;
    let side = pod_side(attachment, &node.state, mtu);
    netns
        .run_async(|| async move { link::check_pod_side(&side).await })
        .map_err(differs)
}

fn unknown(target: &Target) -> CniError {
    CniError::new(
        Code::UnknownContainer,
        format!(
            "container {} has no {} of agent-cni",
            target.container_id, target.ifname
        ),
    )
}

fn failed(msg: String) -> CniError {
    CniError::new(Code::CheckFailed, msg)
}

/// What a comparison found is 104; what could not be compared keeps its own code.
fn differs(error: NetError) -> CniError {
    let found = error.is_difference();
    let error = CniError::from(error);
    if found {
        CniError {
            code: Code::CheckFailed,
            ..error
        }
    } else {
        error
    }
}
