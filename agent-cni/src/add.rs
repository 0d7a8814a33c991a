//! ADD: attach a pod, or say again how it is attached.

use std::{net::Ipv4Addr, path::Path};

use agent_core::attachment::{Attachment, PodRef, SCHEMA_VERSION};
use agent_datapath::{bridge, link, netns::Netns, rtnl::Rtnl};

use crate::{
    allocate,
    apply::Work,
    args::{self, ArgsError},
    check, claim, clock,
    command::Target,
    error::{CniError, Code},
    mode::Care,
    names,
    netconf::NetConf,
    node::{self, Node},
    result::Added,
    state::{Pending, StateDir},
    teardown::{self, Remains},
};

/// What an Ethernet carries, for a node without a route to the outside.
const DEFAULT_MTU: u32 = 1500;

/// Attaches the pod.
///
/// Repeating an ADD for the same container, interface and namespace answers the same; what is broken of it is made
/// anew under the same address.
///
/// # Errors
/// Nothing is left of a failed ADD.
pub(crate) async fn add(
    conf: &NetConf,
    target: &Target,
    netns: &Path,
    args: &str,
) -> Result<Added, CniError> {
    if conf.prev_result.is_some() {
        return Err(CniError::new(
            Code::InvalidConfig,
            "agent-cni makes the pod's interface and must be the first plugin of its list, but a prevResult was passed",
        ));
    }
    claim::refuse_if_rolled_back(&conf.state_dir)?;
    let pod = args::parse(args)?;
    let namespace = Netns::open_pod(netns)?;
    let dir = StateDir::open(&conf.state_dir)?;
    let rtnl = Rtnl::connect()?;
    let pending = dir.lock_attachment(target)?;
    // again, now that a rollback that begins waits for us
    let added = match claim::refuse_if_rolled_back(&conf.state_dir) {
        Ok(()) => locked(conf, target, &namespace, pod, &dir, &rtnl, &pending).await,
        Err(refused) => Err(refused),
    };
    // also after a failure: what was made is undone, so the claim on the address ends
    pending.done()?;
    added
}

async fn locked(
    conf: &NetConf,
    target: &Target,
    netns: &Netns,
    pod: PodRef,
    dir: &StateDir,
    rtnl: &Rtnl,
    pending: &Pending,
) -> Result<Added, CniError> {
    let node = node::ensure(conf, dir, Care::Trust).await?;
    let mtu = match conf.mtu {
        Some(mtu) => mtu,
        None => link::uplink_mtu(rtnl).await?.unwrap_or(DEFAULT_MTU),
    };
    let mut keep = None;
    if let Some(attachment) = existing(target, netns.path(), dir)? {
        match check::attachment(rtnl, &node, netns, &attachment, mtu).await {
            Ok(()) => return Ok(added(&attachment, &node, mtu)),
            Err(error) => {
                tracing::warn!(error = %error, "attachment is broken and made anew");
                keep = Some(discard(conf, dir, rtnl, target, &attachment).await?);
            }
        }
    }
    allocate::reap(conf, dir, rtnl, &pending.name()).await?;
    let attached = bridge::announced(rtnl, node.bridge).await?;
    let fake_ip = allocate::claim(conf, dir, &node.state, target, pending, &attached, keep)?;
    let work = Work {
        rtnl,
        conf,
        dir,
        node: &node,
        netns,
        mtu,
        attachment: Attachment {
            schema_version: SCHEMA_VERSION,
            container_id: target.container_id.clone(),
            ifname: target.ifname.clone(),
            netns: netns.path().to_string_lossy().into_owned(),
            pod,
            fake_ip,
            mac: names::pod_mac(fake_ip),
            host_veth: names::host_veth(target),
            ifindex: 0,
            mode: node.plane.mode(),
            created: clock::timestamp(),
            boot_id: clock::boot_id(),
        },
    };
    let attachment = work.run().await?;
    Ok(added(&attachment, &node, mtu))
}

/// The attachment of an earlier ADD of this boot.
fn existing(target: &Target, netns: &Path, dir: &StateDir) -> Result<Option<Attachment>, CniError> {
    let Some(attachment) = dir.attachment(target)? else {
        return Ok(None);
    };
    if attachment.boot_id != clock::boot_id() {
        dir.remove_attachment(target)?;
        return Ok(None);
    }
    if Path::new(&attachment.netns) != netns {
        return Err(CniError::new(
            Code::Conflict,
            format!(
                "container {} already has {} in {}; call DEL before an ADD with another CNI_NETNS ({})",
                target.container_id,
                target.ifname,
                attachment.netns,
                netns.display()
            ),
        ));
    }
    Ok(Some(attachment))
}

/// Removes a broken attachment and answers the address it may keep: it is still the same pod's.
async fn discard(
    conf: &NetConf,
    dir: &StateDir,
    rtnl: &Rtnl,
    target: &Target,
    attachment: &Attachment,
) -> Result<Ipv4Addr, CniError> {
    let remains = Remains {
        host_veth: attachment.host_veth.clone(),
        ifindex: Some(attachment.ifindex),
        address: Some(attachment.fake_ip),
    };
    teardown::remove(rtnl, conf, &remains).await?;
    dir.remove_attachment(target)?;
    Ok(attachment.fake_ip)
}

fn added(attachment: &Attachment, node: &Node, mtu: u32) -> Added {
    Added {
        bridge: node.state.bridge.clone(),
        bridge_mac: node.state.gateway_mac,
        host_veth: attachment.host_veth.clone(),
        ifname: attachment.ifname.clone(),
        mac: attachment.mac,
        mtu,
        sandbox: attachment.netns.clone(),
        address: attachment.fake_ip,
        gateway: node.state.gateway,
    }
}

impl From<ArgsError> for CniError {
    fn from(error: ArgsError) -> Self {
        Self::from_error(Code::InvalidEnvironment, &error)
    }
}
