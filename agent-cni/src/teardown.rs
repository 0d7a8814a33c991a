//! Removing one attachment from the kernel, as far as it is there. DEL, GC and the repair of half-made attachments
//! all come here.

use std::net::Ipv4Addr;

use agent_core::{attachment::Mode, node::BRIDGE};
use agent_datapath::{
    bridge, conntrack, link,
    pins::Pins,
    plane::{Plane, PlaneError},
    rtnl::Rtnl,
};

use crate::{error::CniError, names, netconf::NetConf};

/// What may be there of an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remains {
    /// The host's end of its veth.
    pub(crate) host_veth: String,
    /// Its ifindex, where the state knows one.
    pub(crate) ifindex: Option<u32>,
    /// Its address, where the state knows one.
    pub(crate) address: Option<Ipv4Addr>,
}

/// Removes link, program, entry, tracked connections and neighbour, in this order: a link is never without its program,
/// without it no connection begins anew, and the neighbour keeps the address from being given away. Answers the address
/// that it had, which a lost state file does not hide: the forwarding entry tells.
///
/// Only the link and the connections can fail the whole: once they are gone, nothing of the pod can send and nobody
/// gets its answers, and an entry or a pin that could not be removed is harmless and logged.
///
/// # Errors
/// The link is there and cannot be removed, or connections of the address cannot be ended.
pub(crate) async fn remove(
    rtnl: &Rtnl,
    conf: &NetConf,
    remains: &Remains,
) -> Result<Option<Ipv4Addr>, CniError> {
    let present = link::index_of(rtnl, &remains.host_veth).await?;
    let address = match (remains.address, present) {
        (None, Some(port)) => bridge::announced_mac(rtnl, port)
            .await?
            .and_then(names::address_of),
        (known, _) => known,
    };
    link::delete_link(rtnl, &remains.host_veth).await?;
    let indexes: Vec<u32> = [present, remains.ifindex].into_iter().flatten().collect();
    detach(conf, &remains.host_veth, &indexes);
    if let Some(address) = address {
        conntrack::forget(address)?;
    }
    if let Some(address) = address
        && let Some(bridge) = link::index_of(rtnl, BRIDGE).await?
        && let Err(error) = bridge::forget(rtnl, bridge, address).await
    {
        tracing::warn!(%address, error = %error, "neighbour entry stays");
    }
    Ok(address)
}

/// From both modes: a node that was on its way from one to the other has the pod in both.
fn detach(conf: &NetConf, host_veth: &str, indexes: &[u32]) {
    let pins = Pins::new(&conf.pin_dir);
    for mode in [Mode::Ebpf, Mode::IptablesCompat] {
        match present(mode, &pins) {
            Ok(None) => {}
            // its chains have the interface's name, whatever index it had
            Ok(Some(Plane::Compat(compat))) => {
                if let Err(error) = compat.detach_pod(host_veth) {
                    tracing::warn!(host_veth, error = %error, "the pod's chains stay");
                }
            }
            Ok(Some(plane)) => {
                for &index in indexes {
                    if let Err(error) = plane.detach_pod(index, host_veth) {
                        tracing::warn!(host_veth, index, error = %error, "data path entry stays");
                    }
                }
            }
            Err(error) => {
                tracing::warn!(mode = mode.as_str(), error = %error, "the data path cannot be opened");
            }
        }
    }
    // without the maps, or without an index to detach by, the pin is still ours to remove
    if let Err(error) = std::fs::remove_file(pins.pod_link(host_veth))
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(host_veth, error = %error, "pinned link stays");
    }
}

fn present(mode: Mode, pins: &Pins) -> Result<Option<Plane>, PlaneError> {
    match Plane::is_present(mode, pins)? {
        true => Plane::open(mode, pins).map(Some),
        false => Ok(None),
    }
}
