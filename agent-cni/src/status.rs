//! STATUS: could an ADD work now? Looks only; mending is ADD's and `setup`'s.

use std::path::Path;

use agent_core::{attachment::Mode, node::NodeState};
use agent_datapath::{network, pins::Pins, plane::Plane, probe::Requested};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::{
    allocate, clock,
    error::{CniError, Code},
    netconf::NetConf,
    node,
    state::StateDir,
};

/// Answers whether an ADD can work now.
///
/// # Errors
/// Code 50 when it cannot, 51 when pods that are there suffer too; the message says what to do.
pub(crate) async fn status(conf: &NetConf) -> Result<(), CniError> {
    let dir = StateDir::open(&conf.state_dir).map_err(|error| unavailable(&error))?;
    dir.probe().map_err(|error| unavailable(&error))?;
    let stored = dir.node().map_err(|error| unavailable(&error))?;
    // with `auto` and nothing stored the first ADD finds a mode that can do without
    let mode = match conf.mode {
        Requested::This(mode) => Some(mode),
        Requested::Auto => stored.as_ref().map(|state| state.mode),
    };
    if mode == Some(Mode::Ebpf) {
        bpffs(&conf.pin_dir)?;
    }
    // nothing was ever set up: the first ADD does it
    let Some(state) = stored else {
        return Ok(());
    };
    let boot = clock::boot_id();
    let pods = dir
        .attachments()?
        .iter()
        .filter(|attachment| attachment.boot_id == boot)
        .count();
    if pods > 0 {
        // an ADD would mend the node, but the pods that are there wait for it
        established(conf, &dir, &state)
            .await
            .map_err(|error| CniError {
                code: Code::LimitedConnectivity,
                msg: format!("{error}; the next ADD or `agent-cni setup` mends it"),
                details: error.details.clone(),
            })?;
    }
    allocate::probe(conf, &dir, &state).map_err(|error| CniError {
        code: Code::NotAvailable,
        ..error
    })
}

async fn established(conf: &NetConf, dir: &StateDir, state: &NodeState) -> Result<(), CniError> {
    network::check_node(&node::network(conf, state, dir)?).await?;
    Plane::check(
        state.mode,
        &Pins::new(&conf.pin_dir),
        &node::datapath_config(state),
    )
    .map(|_| ())
    .map_err(|error| node::datapath_error("vouch for the data path", &error))
}

/// The pins' directory, or the nearest one above it that is there, must be on a bpf file system.
pub(crate) fn bpffs(pin_dir: &Path) -> Result<(), CniError> {
    let nearest = pin_dir
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"));
    match statfs(nearest) {
        Ok(found) if found.filesystem_type() == BPF_FS_MAGIC => Ok(()),
        Ok(_) => Err(CniError::new(
            Code::NotAvailable,
            format!(
                "{} is not on a bpf file system; mount one: mount -t bpf bpf /sys/fs/bpf",
                pin_dir.display()
            ),
        )),
        Err(errno) => Err(CniError::caused(
            Code::NotAvailable,
            format!("cannot look at {}", nearest.display()),
            &errno,
        )),
    }
}

fn unavailable(error: &dyn std::error::Error) -> CniError {
    CniError::from_error(Code::NotAvailable, error)
}
