//! The iptables-compat mode, tried: its rules by whatever backend is there, its table, a real connection.

use std::net::{SocketAddrV4, TcpListener, TcpStream};

use agent_core::attachment::Mode;
use nix::sys::socket::{getsockopt, sockopt::OriginalDst};

use super::{
    Failure, FeatureName, Tried, sentence,
    stage::{GATEWAY, HOST_VETH, Stage, WORLD, endpoint, settings},
};
use crate::{compat::Compat, network::ProxyPorts};

/// What is tried here.
pub(super) const FEATURES: [FeatureName; 3] = [
    FeatureName::CompatRules,
    FeatureName::BridgeTable,
    FeatureName::CompatDelivery,
];

/// Tries everything that doesn't build on something that failed.
pub(super) fn attempt(stage: &Stage) -> Vec<Tried> {
    let links = stage.links(Mode::IptablesCompat);
    let mut tried = vec![Tried::from(
        FeatureName::CompatRules,
        &links,
        "bridge, veth, sysctls, iptables chains, nftables table",
    )];
    let compat = Compat::ensure(&settings()).map_err(Failure::from);
    let controlled = match (&compat, &links) {
        (Ok(compat), Ok(links)) => compat
            .attach_pod(HOST_VETH, links.port, &endpoint())
            .map_err(Failure::from),
        (Ok(_), Err(_)) => Ok(()),
        (Err(error), _) => Err(sentence(super::chain(&**error))),
    };
    tried.push(Tried::from(
        FeatureName::BridgeTable,
        &controlled,
        "an nftables chain for each pod, before br_netfilter",
    ));
    let (Ok(()), Ok(links)) = (controlled, links) else {
        return tried;
    };
    let delivered = stage.open(links).and_then(|()| deliver(stage));
    tried.push(Tried::from(
        FeatureName::CompatDelivery,
        &delivered,
        format!("a connection to {WORLD} is redirected, and known as one"),
    ));
    tried
}

fn deliver(stage: &Stage) -> Result<(), Failure> {
    let listener = TcpListener::bind((GATEWAY, ProxyPorts::default().proxy))?;
    listener.set_nonblocking(true)?;
    let dialled = original(&stage.connect(&listener, WORLD)?)?;
    if dialled == WORLD {
        return Ok(());
    }
    Err(sentence(format!(
        "a connection to {WORLD} arrives as one to {dialled}"
    )))
}

/// The destination before REDIRECT.
fn original(stream: &TcpStream) -> Result<SocketAddrV4, Failure> {
    let address = getsockopt(stream, OriginalDst)?;
    Ok(SocketAddrV4::new(
        u32::from_be(address.sin_addr.s_addr).into(),
        u16::from_be(address.sin_port),
    ))
}
