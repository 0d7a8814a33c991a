//! Claiming an address for an ADD, under the lock for allocation.

use std::net::Ipv4Addr;

use agent_core::{
    ipam::{self, PoolExhausted},
    node::NodeState,
};
use agent_datapath::rtnl::Rtnl;

use crate::{
    clock,
    command::Target,
    error::{CniError, Code},
    names,
    netconf::NetConf,
    state::{AllocationLock, Pending, Reservation, StateDir},
    teardown::{self, Remains},
};

/// Chooses an address and writes the reservation. With `keep`, that address is taken when nobody else has it.
///
/// `attached` are addresses that the kernel has for pods. State is the truth about addresses, but a state file may be
/// lost while its pod lives: its address must not be given to a second one.
///
/// # Errors
/// The pool is exhausted, or state cannot be read or written.
pub(crate) fn claim(
    conf: &NetConf,
    dir: &StateDir,
    node: &NodeState,
    target: &Target,
    pending: &Pending,
    attached: &[Ipv4Addr],
    keep: Option<Ipv4Addr>,
) -> Result<Ipv4Addr, CniError> {
    let lock = dir.lock_allocation()?;
    let mut used = used(dir, target)?;
    used.extend_from_slice(attached);
    let address = match keep.filter(|address| {
        !used.contains(address) && node.fake_ip_cidr.contains(address) && *address != node.gateway
    }) {
        Some(address) => address,
        None => choose(conf, dir, node, &used, &lock)?,
    };
    let reservation = Reservation {
        container_id: target.container_id.clone(),
        ifname: target.ifname.clone(),
        fake_ip: address,
        host_veth: names::host_veth(target),
    };
    pending.reserve(&lock, &reservation)?;
    Ok(address)
}

/// Whether an address could be claimed now.
///
/// # Errors
/// As [`claim`].
pub(crate) fn probe(conf: &NetConf, dir: &StateDir, node: &NodeState) -> Result<(), CniError> {
    let lock = dir.lock_allocation()?;
    let nobody = Target {
        container_id: String::new(),
        ifname: String::new(),
    };
    choose(conf, dir, node, &used(dir, &nobody)?, &lock).map(|_| ())
}

fn choose(
    conf: &NetConf,
    dir: &StateDir,
    node: &NodeState,
    used: &[Ipv4Addr],
    lock: &AllocationLock,
) -> Result<Ipv4Addr, CniError> {
    ipam::allocate(
        node.fake_ip_cidr,
        node.gateway,
        used,
        &dir.released(lock)?,
        clock::now_seconds(),
        conf.cool_down_seconds,
    )
    .map_err(|exhausted| exhausted_error(&exhausted))
}

/// The addresses of all attachments of this boot and of all reservations but the target's own. Files of another boot
/// are removed: their links, programs and pods are gone.
fn used(dir: &StateDir, target: &Target) -> Result<Vec<Ipv4Addr>, CniError> {
    let boot = clock::boot_id();
    let mut used = Vec::new();
    // reservations before attachments: an ADD that ends meanwhile has left the one and is in the other
    let own = format!("{}_{}", target.container_id, target.ifname);
    for (name, reservation) in dir.reservations()? {
        if name != own {
            used.extend(reservation.map(|reservation| reservation.fake_ip));
        }
    }
    for attachment in dir.attachments()? {
        if attachment.boot_id == boot {
            used.push(attachment.fake_ip);
            continue;
        }
        tracing::info!(file = %attachment.file_name(), "attachment of an earlier boot removed");
        dir.remove_attachment(&Target {
            container_id: attachment.container_id,
            ifname: attachment.ifname,
        })?;
    }
    Ok(used)
}

/// An exhausted pool is a passing condition only while addresses rest: then the runtime should try again (code 11).
/// When every address belongs to a pod, trying again would only hide that somebody has to act, so that is ours (100).
fn exhausted_error(exhausted: &PoolExhausted) -> CniError {
    let code = if exhausted.retry_in_secs.is_some() {
        Code::TryAgainLater
    } else {
        Code::PoolExhausted
    };
    CniError::from_error(code, exhausted)
}

/// Removes what ADDs left that died halfway: their lock is free, their reservation is not.
///
/// # Errors
/// The directory cannot be read. What cannot be removed is logged and left for the next time.
pub(crate) async fn reap(
    conf: &NetConf,
    dir: &StateDir,
    rtnl: &Rtnl,
    own: &str,
) -> Result<(), CniError> {
    for (name, _) in dir.reservations()? {
        if name == own {
            continue;
        }
        let Some(pending) = dir.take_over(&name)? else {
            continue;
        };
        let Some(reservation) = pending.reservation() else {
            pending.done()?;
            continue;
        };
        let target = Target {
            container_id: reservation.container_id.clone(),
            ifname: reservation.ifname.clone(),
        };
        // one that died between writing its attachment and letting go is complete: DEL's business
        if dir.attachment(&target)?.is_none() {
            tracing::warn!(container = %target.container_id, "remains of an ADD that died are removed");
            let remains = Remains {
                host_veth: reservation.host_veth,
                ifindex: None,
                address: Some(reservation.fake_ip),
            };
            if let Err(error) = teardown::remove(rtnl, conf, &remains).await {
                tracing::error!(error = %error, "remains of an ADD that died stay");
                continue;
            }
        }
        pending.done()?;
    }
    Ok(())
}
