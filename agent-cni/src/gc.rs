//! GC: remove every attachment that the runtime no longer counts as valid, and what has no attachment at all.

use std::net::Ipv4Addr;

use agent_core::node::BRIDGE;
use agent_datapath::{
    bridge, compat::Compat, conntrack, footprint::is_pod_link, link, pins::Pins, rtnl::Rtnl,
};

use crate::{
    command::Target,
    del,
    error::{CniError, Code},
    names,
    netconf::{NetConf, ValidAttachment},
    state::StateDir,
    teardown::{self, Remains},
};

/// Collects garbage. Goes on after errors, and does not touch what a running verb holds.
///
/// # Errors
/// The list of valid attachments is missing (never read as empty: that would disconnect every pod), or something could
/// not be removed.
pub(crate) async fn gc(conf: &NetConf) -> Result<(), CniError> {
    let valid = conf.valid_attachments.as_deref().ok_or_else(|| {
        CniError::new(
            Code::InvalidConfig,
            "GC needs the key cni.dev/valid-attachments",
        )
    })?;
    if !conf.state_dir.exists() {
        return Ok(());
    }
    let dir = StateDir::open(&conf.state_dir)?;
    let rtnl = Rtnl::connect()?;
    let mut failures = Vec::new();
    for attachment in dir.attachments()? {
        let target = Target {
            container_id: attachment.container_id.clone(),
            ifname: attachment.ifname.clone(),
        };
        if !is_valid(valid, &target)
            && let Err(error) = collect(conf, &dir, &rtnl, &target).await
        {
            failures.push(format!("{}: {error}", target.container_id));
        }
    }
    crate::allocate::reap(conf, &dir, &rtnl, "").await?;
    if let Err(error) = strays(conf, &dir, &rtnl).await {
        failures.push(error.to_string());
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(CniError {
            code: Code::Network,
            msg: format!("{} attachments could not be removed", failures.len()),
            details: failures.join("; "),
        }),
    }
}

fn is_valid(valid: &[ValidAttachment], target: &Target) -> bool {
    valid
        .iter()
        .any(|one| one.container_id == target.container_id && one.ifname == target.ifname)
}

async fn collect(
    conf: &NetConf,
    dir: &StateDir,
    rtnl: &Rtnl,
    target: &Target,
) -> Result<(), CniError> {
    let pending = dir.lock_attachment(target)?;
    del::locked(conf, target, dir, rtnl, &pending).await?;
    Ok(pending.done()?)
}

/// Links, pins and neighbours of ours that neither an attachment nor a running ADD owns. The owners are read after the
/// strays, so that an ADD that begins meanwhile is not taken for one.
async fn strays(conf: &NetConf, dir: &StateDir, rtnl: &Rtnl) -> Result<(), CniError> {
    let bridge = link::index_of(rtnl, BRIDGE).await?;
    let (mut names, mut addresses) = match bridge {
        Some(bridge) => (
            link::ports_of(rtnl, bridge).await?,
            bridge::announced(rtnl, bridge).await?,
        ),
        None => Default::default(),
    };
    if let Ok(pins) = std::fs::read_dir(Pins::new(&conf.pin_dir).links()) {
        names.extend(
            pins.flatten()
                .filter_map(|pin| pin.file_name().into_string().ok()),
        );
    }
    if Compat::is_present()? {
        names.extend(Compat::open()?.pods()?.into_iter().map(|pod| pod.ifname));
    }
    names.sort();
    names.dedup();
    let owned = Owned::read(dir)?;
    names.retain(|name| is_pod_link(name) && !owned.veths.contains(name));
    addresses.retain(|address| !owned.addresses.contains(address));
    for host_veth in names {
        tracing::warn!(%host_veth, "interface, pin or chain without an attachment is removed");
        let remains = Remains {
            host_veth,
            ifindex: None,
            address: None,
        };
        teardown::remove(rtnl, conf, &remains).await?;
    }
    for address in addresses {
        if let Some(bridge) = bridge {
            tracing::warn!(%address, "neighbour without an attachment is removed");
            // before the neighbour, which keeps the address from being given away
            conntrack::forget(address)?;
            bridge::forget(rtnl, bridge, address).await?;
        }
    }
    Ok(())
}

/// What attachments and running verbs own.
struct Owned {
    veths: Vec<String>,
    addresses: Vec<Ipv4Addr>,
}

impl Owned {
    fn read(dir: &StateDir) -> Result<Self, CniError> {
        let mut owned = Self {
            veths: Vec::new(),
            addresses: Vec::new(),
        };
        // reservations first: one that ends meanwhile has become an attachment
        for (name, reservation) in dir.reservations()? {
            // a verb that has not written its reservation yet: its name is known all the same
            if let Some((container_id, ifname)) = name.rsplit_once('_') {
                owned.veths.push(names::host_veth(&Target {
                    container_id: container_id.to_owned(),
                    ifname: ifname.to_owned(),
                }));
            }
            owned
                .addresses
                .extend(reservation.map(|reservation| reservation.fake_ip));
        }
        for attachment in dir.attachments()? {
            owned.addresses.push(attachment.fake_ip);
            owned.veths.push(attachment.host_veth);
        }
        Ok(owned)
    }
}
