//! DEL: detach a pod. Says yes also when there is nothing left to detach.

use agent_datapath::rtnl::Rtnl;

use crate::{
    clock,
    command::Target,
    error::CniError,
    names,
    netconf::NetConf,
    state::{Pending, StateDir},
    teardown::{self, Remains},
};

/// Detaches the pod and lets its address rest.
///
/// # Errors
/// Its link or its connections cannot be removed, or state cannot be written: then calling again is right.
pub(crate) async fn del(conf: &NetConf, target: &Target) -> Result<(), CniError> {
    let rtnl = Rtnl::connect()?;
    if !conf.state_dir.exists() {
        // an uninstalled or read-only node: whatever is left of the link goes all the same
        return teardown::remove(&rtnl, conf, &by_name(target))
            .await
            .map(|_| ());
    }
    let dir = StateDir::open(&conf.state_dir)?;
    let pending = dir.lock_attachment(target)?;
    locked(conf, target, &dir, &rtnl, &pending).await?;
    Ok(pending.done()?)
}

/// As [`del`], with the attachment's lock held.
///
/// # Errors
/// As [`del`].
pub(crate) async fn locked(
    conf: &NetConf,
    target: &Target,
    dir: &StateDir,
    rtnl: &Rtnl,
    pending: &Pending,
) -> Result<(), CniError> {
    let mut remains = by_name(target);
    let attachment = dir.attachment(target)?;
    if let Some(attachment) = &attachment {
        remains.address = Some(attachment.fake_ip);
        // an ifindex of another boot may be another pod's by now
        if attachment.boot_id == clock::boot_id() {
            remains.ifindex = Some(attachment.ifindex);
        }
    } else if let Some(reservation) = pending.reservation() {
        remains.address = Some(reservation.fake_ip);
    }
    if let Some(address) = teardown::remove(rtnl, conf, &remains).await? {
        // resting before it is free: nobody can claim it in between
        let lock = dir.lock_allocation()?;
        dir.release(&lock, address)?;
        dir.remove_attachment(target)?;
    }
    Ok(())
}

fn by_name(target: &Target) -> Remains {
    Remains {
        host_veth: names::host_veth(target),
        ifindex: None,
        address: None,
    }
}
