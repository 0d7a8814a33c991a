//! One worker's sockets, on the documented ports: on loopback for what the dispatch program sends, on the gateway for
//! what iptables redirects.
//!
//! Owns how they are made. All workers, and the next process, have the same ports (SO_REUSEPORT). The dispatch program
//! picks one socket and no group; whom the kernel picks for a redirected connection doesn't matter.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsFd;

use agent_core::attachment::Mode;
use agent_datapath::sockets::{Dispatch, DispatchError, SocketClass};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::TcpListener;

use super::UdpDns;
use crate::config::Config;

/// Connections whose handshake is done and that wait to be accepted: a burst of 100 pods.
const BACKLOG: i32 = 4096;
/// Room for bursts of queries from all pods; the kernel caps it at `net.core.rmem_max`.
const UDP_RECEIVE_BUFFER: usize = 1024 * 1024;

/// Why sockets can't be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Making or setting up one failed.
    #[error(
        "listen on {address} for {socket}: it needs CAP_NET_ADMIN for IP_TRANSPARENT, and no other program may have the port"
    )]
    Open {
        /// Which one.
        socket: &'static str,
        /// Where.
        address: SocketAddrV4,
        /// What the system said.
        source: io::Error,
    },
    /// The task that answers DNS over UDP is gone.
    #[error("serve DNS over UDP")]
    DnsUdp,
    /// The worker's runtime can't be built.
    #[error("build the worker's runtime")]
    Runtime(#[source] io::Error),
}

/// How pods' traffic comes to a socket, and with it where its original destination is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The dispatch program hands it over as it is: its destination is the socket's local address.
    Dispatched,
    /// iptables' REDIRECT rewrote it: connection tracking has the destination, and undoes the rewriting in replies.
    Redirected,
}

impl Arrival {
    /// The mode whose way this is.
    #[must_use]
    pub fn mode(self) -> Mode {
        match self {
            Arrival::Dispatched => Mode::Ebpf,
            Arrival::Redirected => Mode::IptablesCompat,
        }
    }
}

/// The three sockets of one worker.
#[derive(Debug)]
pub struct WorkerSockets {
    proxy: SocketAddrV4,
    dns: SocketAddrV4,
    arrival: Arrival,
    proxy_tcp: Socket,
    dns_tcp: Socket,
    dns_udp: Socket,
}

impl WorkerSockets {
    /// Opens those for dispatched traffic and for the node itself, at `listen` and `dns.listen`. They get no traffic of
    /// pods before they are registered.
    ///
    /// # Errors
    /// When the system refuses one, for example since somebody else has the port.
    pub fn open(config: &Config) -> Result<WorkerSockets, SocketError> {
        Self::at(config.listen, config.dns.listen, Arrival::Dispatched)
    }

    /// Opens those for redirected traffic: the same ports of `gateway`, which need not be on an interface yet.
    ///
    /// # Errors
    /// As [`WorkerSockets::open`].
    pub fn open_on_gateway(
        config: &Config,
        gateway: Ipv4Addr,
    ) -> Result<WorkerSockets, SocketError> {
        let at = |listen: SocketAddrV4| SocketAddrV4::new(gateway, listen.port());
        Self::at(
            at(config.listen),
            at(config.dns.listen),
            Arrival::Redirected,
        )
    }

    fn at(
        proxy: SocketAddrV4,
        dns: SocketAddrV4,
        arrival: Arrival,
    ) -> Result<WorkerSockets, SocketError> {
        Ok(WorkerSockets {
            proxy,
            dns,
            arrival,
            proxy_tcp: opened(PROXY_TCP, proxy, tcp(proxy))?,
            dns_tcp: opened(DNS_TCP, dns, tcp(dns))?,
            dns_udp: opened(DNS_UDP, dns, udp(dns))?,
        })
    }

    /// How traffic comes to them.
    pub(super) fn arrival(&self) -> Arrival {
        self.arrival
    }

    /// Puts them into the dispatch map's slots of `worker`.
    ///
    /// # Errors
    /// When the map refuses one.
    pub fn register(&self, dispatch: &mut Dispatch, worker: u16) -> Result<(), DispatchError> {
        dispatch.register(SocketClass::ProxyTcp, worker, self.proxy_tcp.as_fd())?;
        dispatch.register(SocketClass::DnsTcp, worker, self.dns_tcp.as_fd())?;
        dispatch.register(SocketClass::DnsUdp, worker, self.dns_udp.as_fd())
    }

    /// The same sockets for the worker's runtime, which must be the current one.
    ///
    /// # Errors
    /// When no descriptor is left, or the runtime refuses one.
    pub(super) fn listeners(&self) -> Result<(TcpListener, TcpListener, UdpDns), SocketError> {
        let listener = |from: &Socket| TcpListener::from_std(from.try_clone()?.into());
        Ok((
            opened(PROXY_TCP, self.proxy, listener(&self.proxy_tcp))?,
            opened(DNS_TCP, self.dns, listener(&self.dns_tcp))?,
            UdpDns {
                socket: opened(DNS_UDP, self.dns, self.dns_udp.try_clone())?.into(),
                arrival: self.arrival,
            },
        ))
    }
}

const PROXY_TCP: &str = "pods' TCP and the local endpoints";
const DNS_TCP: &str = "DNS over TCP";
const DNS_UDP: &str = "DNS over UDP";

fn opened<T>(
    socket: &'static str,
    address: SocketAddrV4,
    result: io::Result<T>,
) -> Result<T, SocketError> {
    result.map_err(|source| SocketError::Open {
        socket,
        address,
        source,
    })
}

fn tcp(address: SocketAddrV4) -> io::Result<Socket> {
    let socket = transparent(Type::STREAM, Protocol::TCP, address)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

fn udp(address: SocketAddrV4) -> io::Result<Socket> {
    let socket = transparent(Type::DGRAM, Protocol::UDP, address)?;
    socket.set_recv_buffer_size(UDP_RECEIVE_BUFFER)?;
    nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::Ipv4OrigDstAddr, &true)?;
    Ok(socket)
}

fn transparent(kind: Type, protocol: Protocol, address: SocketAddrV4) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, kind, Some(protocol))?;
    socket.set_nonblocking(true)?;
    socket.set_ip_transparent_v4(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket)
}
