//! Finds where a permitted request may be connected to, and connects there.
//!
//! Owns resolution (the operator's `upstreams`, else the proxy's own resolver), the check of every
//! address, and the attempts. Each function takes a [`Permit`]: without one there is no dial.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use agent_core::audit::ReasonCode;
use agent_core::policy::{Denial, DialBy, HostName, Permit};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::error::Failure;
use super::source::{Source, Subject};
use crate::config::{Scheme, Upstream};

/// One address is given this long. A SYN that is lost once is sent again after 1 s.
const ATTEMPT: Duration = Duration::from_secs(4);
/// All addresses together are given this long.
const ALL_ATTEMPTS: Duration = Duration::from_secs(12);
/// Addresses that are tried.
const MAX_ADDRESSES: usize = 6;
/// A TLS handshake with an upstream is given this long.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(10);

/// Where a request may go. Every address in it has been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    /// In the order in which they are tried; never empty.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Whether the upstream is spoken to by TLS (of the proxy's own).
    pub(crate) tls: bool,
    /// Whether the operator's `upstreams` gave the addresses.
    pub(crate) fixed: bool,
}

/// What a route is wanted to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The request's name.
    pub(crate) host: Option<&'a HostName>,
    /// The target of a call between agents.
    pub(crate) target: Option<&'a str>,
    /// The port that was decided on.
    pub(crate) port: u16,
    /// Whether the proxy speaks HTTP to the upstream, and so may choose TLS for it.
    pub(crate) speaks_http: bool,
}

/// Finds where `permit` lets a connection be made to.
///
/// # Errors
/// When the name has no address, or none that may be connected to.
pub(crate) async fn route(
    source: &Source,
    subject: &Subject,
    permit: &Permit,
    wanted: Wanted<'_>,
) -> Result<Route, Failure> {
    let config = &source.worker.shared.config;
    match permit.dial_by() {
        DialBy::OriginalDestination(dst) => direct(source, subject, permit, dst, wanted),
        DialBy::Target => {
            let target = wanted.target.unwrap_or_default();
            // Name -> fixed upstream. The Services and peer nodes of agents.md join here.
            match config.upstreams.get(target, wanted.port) {
                Some(upstream) => fixed(source, subject, permit, upstream, wanted),
                None => Err(Failure::NoTarget(target.to_owned())),
            }
        }
        DialBy::Name => {
            let host = wanted.host.ok_or(Failure::NoHost)?;
            match config.upstreams.get(host.as_str(), wanted.port) {
                Some(upstream) => fixed(source, subject, permit, upstream, wanted),
                None => resolved(source, subject, permit, host, wanted).await,
            }
        }
    }
}

/// The address that the pod dialled, for a permit (or an operator) that lets it be used as such.
///
/// # Errors
/// When it may not be connected to.
pub(crate) fn direct(
    source: &Source,
    subject: &Subject,
    permit: &Permit,
    dst: SocketAddrV4,
    wanted: Wanted<'_>,
) -> Result<Route, Failure> {
    let tls = wanted.speaks_http && permit.tls_originate();
    let port = Permit::upstream_port(dst.port(), tls);
    let address = SocketAddr::new(IpAddr::V4(*dst.ip()), port);
    let nets = source.worker.shared.nets.load();
    subject
        .snapshot
        .set
        .check_address(permit, address.ip(), address.port(), &nets)
        .map_err(Failure::Address)?;
    Ok(Route {
        addresses: vec![address],
        tls,
        fixed: false,
    })
}

fn fixed(
    source: &Source,
    subject: &Subject,
    permit: &Permit,
    upstream: &Upstream,
    wanted: Wanted<'_>,
) -> Result<Route, Failure> {
    let tls = wanted.speaks_http
        && match upstream.scheme {
            Some(Scheme::Https) => true,
            Some(Scheme::Http) => false,
            None => permit.tls_originate(),
        };
    let port = match (upstream.port, permit.dial_by()) {
        (Some(port), _) => port,
        // What the pod dialled says nothing about where its target listens.
        (None, DialBy::Target) if upstream.any_port => Permit::upstream_port(80, tls),
        (None, _) => Permit::upstream_port(wanted.port, tls),
    };
    let pods_choice = upstream.any_port && permit.dial_by() != DialBy::Target;
    for ip in &upstream.addresses {
        check_port(source, SocketAddr::new(*ip, port), pods_choice).map_err(Failure::Address)?;
    }
    let set = &subject.snapshot.set;
    let ips = upstream.addresses.iter().copied();
    let addresses = permitted(ips, port, |ip| set.check_fixed_address(permit, ip, port))?;
    Ok(Route {
        addresses,
        tls,
        fixed: true,
    })
}

/// Checks the port of an address that the operator's `upstreams` name. `check_fixed_address` lets
/// this node and its pods be upstreams, but only where the operator named the port too, and never
/// for the local endpoints, which take a connection from this node for the operator's.
fn check_port(source: &Source, address: SocketAddr, pods_choice: bool) -> Result<(), Denial> {
    let (ip, port) = (address.ip().to_canonical(), address.port());
    let deny = |reason, why: &str| Err(Denial::built_in(reason, format!("{ip}:{port} is {why}")));
    let nets = source.worker.shared.nets.load();
    let local = ip.is_loopback() || ip.is_unspecified() || nets.is_node(ip);
    let listen = source.worker.shared.config.listen;
    let nets_gateway = source.worker.shared.nets.gateway().map(IpAddr::V4);
    let same = ip == *listen.ip()
        || nets_gateway == Some(ip)
        || (local && (ip.is_unspecified() || listen.ip().is_unspecified()));
    if same && port == listen.port() {
        return deny(ReasonCode::NodeAddressDenied, "this proxy's own endpoint");
    }
    match pods_choice {
        true if local => deny(
            ReasonCode::NodeAddressDenied,
            "on this node, and its entry in `upstreams` has no port",
        ),
        true if nets.is_fake(ip) => deny(
            ReasonCode::DirectBypassDenied,
            "an agent pod's, and its entry in `upstreams` has no port",
        ),
        _ => Ok(()),
    }
}

async fn resolved(
    source: &Source,
    subject: &Subject,
    permit: &Permit,
    host: &HostName,
    wanted: Wanted<'_>,
) -> Result<Route, Failure> {
    let found = source
        .worker
        .resolver
        .resolve(host)
        .await
        .map_err(|e| Failure::Resolve {
            name: host.as_str().to_owned(),
            source: e,
        })?;
    let tls = wanted.speaks_http && permit.tls_originate();
    let port = Permit::upstream_port(wanted.port, tls);
    let nets = source.worker.shared.nets.load();
    let set = &subject.snapshot.set;
    let ips = found.addresses.iter().map(|ip| IpAddr::V4(*ip));
    let addresses = permitted(ips, port, |ip| set.check_address(permit, ip, port, &nets))?;
    Ok(Route {
        addresses,
        tls,
        fixed: false,
    })
}

/// Those of `ips` that `check` lets through; the first denial when it lets none.
fn permitted(
    ips: impl Iterator<Item = IpAddr>,
    port: u16,
    check: impl Fn(IpAddr) -> Result<(), Denial>,
) -> Result<Vec<SocketAddr>, Failure> {
    let mut addresses = Vec::new();
    let mut denial = None;
    for ip in ips {
        match check(ip) {
            Ok(()) if addresses.len() < MAX_ADDRESSES => addresses.push(SocketAddr::new(ip, port)),
            Ok(()) => {}
            Err(denied) => denial = denial.or(Some(denied)),
        }
    }
    match denial {
        Some(denial) if addresses.is_empty() => Err(Failure::Address(denial)),
        _ if addresses.is_empty() => Err(Failure::NoHost),
        _ => Ok(addresses),
    }
}

/// Connects to the first address of `route` that answers.
///
/// # Errors
/// That of the last address tried.
pub(crate) async fn connect(
    _permit: &Permit,
    route: &Route,
) -> Result<(TcpStream, SocketAddr), Failure> {
    let all = tokio::time::Instant::now() + ALL_ATTEMPTS;
    let mut last = Failure::NoHost;
    for address in &route.addresses {
        let left = all.saturating_duration_since(tokio::time::Instant::now());
        if left.is_zero() {
            break;
        }
        match timeout(ATTEMPT.min(left), open(*address)).await {
            Ok(Ok(stream)) => return Ok((stream, *address)),
            Ok(Err(source)) => {
                last = Failure::Connect {
                    address: *address,
                    source,
                }
            }
            Err(_) => last = Failure::ConnectTimeout { address: *address },
        }
    }
    Err(last)
}

async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
