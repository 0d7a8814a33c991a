//! A node goes from one mode to the other, with its pods.
//!
//! The order is the security argument. First every pod is in the new mode as well: each of its packets must pass both,
//! which say the same and set the same marks. Then what redirects in the new mode stands beside the old; then the stored
//! choice changes; and only then the old mode's part goes: its programs, its redirection, and last what is left of its
//! data path. Whatever the step after which the process dies, each pod is controlled by one mode or by both, and the next
//! run finds the other mode's data path still there, the first thing to come and the last to go, and begins again.
//!
//! Connections through the proxy end, because the proxy knows each by what its mode redirected; both ends are told so.
//! Connections to Services and kubelet's probes go on.

use std::time::Duration;

use agent_core::attachment::Mode;
use agent_datapath::{
    bridge,
    compat::HostPod,
    conntrack, link, network,
    network::NodeNetwork,
    pins::Pins,
    plane::{Plane, PlaneError},
    rtnl::Rtnl,
};

use super::{Settled, datapath_config, datapath_error, endpoint};
use crate::{clock, error::CniError, netconf::NetConf, state::StateDir};

/// How long connection tracking's entries of redirected connections are kept after `node.json` says the new mode. The proxy
/// reads it within 250 ms and resets what the old mode brought; to whom such a reset goes, only those entries know.
const PROXY_READS: Duration = Duration::from_millis(600);

/// Whether anything of the mode that was not chosen is there.
///
/// # Errors
/// The kernel cannot be asked.
pub(super) fn is_due(conf: &NetConf, settled: &Settled) -> Result<bool, CniError> {
    Plane::is_present(other(settled.chosen.mode), &Pins::new(&conf.pin_dir))
        .map_err(|error| datapath_error("look for the other mode's data path", &error))
}

fn other(mode: Mode) -> Mode {
    match mode {
        Mode::Ebpf => Mode::IptablesCompat,
        Mode::IptablesCompat => Mode::Ebpf,
    }
}

/// Goes to the mode that was chosen. The caller is alone with the node's mode and network.
///
/// # Errors
/// The kernel refuses a step: the pods are then controlled by the old mode, or by both.
pub(super) async fn run(conf: &NetConf, dir: &StateDir, settled: &Settled) -> Result<(), CniError> {
    let state = &settled.chosen;
    let (new, old) = (state.mode, other(state.mode));
    tracing::info!(
        from = old.as_str(),
        to = new.as_str(),
        "the node changes its mode"
    );
    let pins = Pins::new(&conf.pin_dir);
    let rtnl = Rtnl::connect()?;
    let node = NodeNetwork {
        leaving_other: true,
        ..super::network(conf, state, dir)?
    };
    let pods = pods(dir, &rtnl).await?;
    let plane = Plane::take_over(new, &pins, &datapath_config(state), &pods).map_err(|error| {
        datapath_error(&format!("take the pods over to {}", new.as_str()), &error)
    })?;
    network::ensure_node(&node).await?;
    settled.store(dir)?;
    leave(old, &pins, &pods).map_err(|error| {
        datapath_error(&format!("take the pods out of {}", old.as_str()), &error)
    })?;
    network::leave_mode(&node).await?;
    Plane::remove(old, &pins).map_err(|error| {
        datapath_error(&format!("remove the {} data path", old.as_str()), &error)
    })?;
    if old == Mode::IptablesCompat && !pods.is_empty() {
        tokio::time::sleep(PROXY_READS).await;
    }
    for pod in &pods {
        // a DEL that ran meanwhile may have looked before the pod was taken over
        if link::index_of(&rtnl, &pod.ifname).await? != Some(pod.ifindex) {
            plane
                .detach_pod(pod.ifindex, &pod.ifname)
                .map_err(|error| {
                    datapath_error(&format!("let go of {}, which went", pod.ifname), &error)
                })?;
        }
        conntrack::forget_proxied(pod.endpoint.fake_ip, state.gateway)?;
    }
    tracing::info!(
        mode = new.as_str(),
        pods = pods.len(),
        "the node is in its new mode"
    );
    Ok(())
}

/// The pods of this boot whose interfaces are there.
async fn pods(dir: &StateDir, rtnl: &Rtnl) -> Result<Vec<HostPod>, CniError> {
    let boot = clock::boot_id();
    let mut pods = Vec::new();
    for attachment in dir.attachments()? {
        if attachment.boot_id != boot
            || link::index_of(rtnl, &attachment.host_veth).await? != Some(attachment.ifindex)
        {
            continue;
        }
        match bridge::hand_nothing_up(rtnl, attachment.ifindex, &attachment.host_veth).await {
            Err(_) if link::index_of(rtnl, &attachment.host_veth).await?.is_none() => continue,
            other => other?,
        }
        pods.push(HostPod {
            endpoint: endpoint(&attachment),
            ifname: attachment.host_veth,
            ifindex: attachment.ifindex,
        });
    }
    Ok(pods)
}

/// Takes pods out of the old mode, where that is done one by one: a program goes on marking what it sees for as long as it
/// is attached, while the table of the bridge goes as a whole, so that at no instant it is there without its pods. A data
/// path that cannot be opened has lost them already.
fn leave(old: Mode, pins: &Pins, pods: &[HostPod]) -> Result<(), PlaneError> {
    match Plane::open(old, pins) {
        Ok(Plane::Ebpf(datapath)) => pods.iter().try_for_each(|pod| {
            datapath
                .detach_pod(pod.ifindex, &pod.ifname)
                .map_err(PlaneError::from)
        }),
        Ok(Plane::Compat(_)) => Ok(()),
        Err(error) => {
            tracing::warn!(mode = old.as_str(), error = %error, "the old data path cannot be opened");
            Ok(())
        }
    }
}
