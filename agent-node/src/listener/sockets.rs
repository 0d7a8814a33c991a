//! One worker's sockets: transparent, and reached by pods only through the dispatch program.
//!
//! The DNS sockets of all workers share the documented port. Those for TCP take any port of loopback: on the
//! documented one the local endpoints answer.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsFd;

use agent_datapath::sockets::{Dispatch, DispatchError, SocketClass};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::TcpListener;

use super::UdpDns;

/// Connections whose handshake is done and that wait to be accepted: a burst of 100 pods.
const BACKLOG: i32 = 4096;
/// Room for bursts of queries from all pods; the kernel caps it at `net.core.rmem_max`.
const UDP_RECEIVE_BUFFER: usize = 1024 * 1024;

/// Why sockets can't be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Making or setting up one failed.
    #[error(
        "open the {socket} listener (this needs CAP_NET_ADMIN for IP_TRANSPARENT, and dns.listen must be free)"
    )]
    Open {
        /// Which one.
        socket: &'static str,
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

/// The three sockets of one worker.
#[derive(Debug)]
pub struct WorkerSockets {
    proxy_tcp: Socket,
    dns_tcp: Socket,
    dns_udp: Socket,
}

impl WorkerSockets {
    /// Opens them, the DNS sockets at `dns`. They get no traffic of pods before they are registered.
    ///
    /// # Errors
    /// When the system refuses one, for example since somebody else has the port.
    pub fn open(dns: SocketAddrV4) -> Result<WorkerSockets, SocketError> {
        let open = |socket, result: io::Result<Socket>| {
            result.map_err(|source| SocketError::Open { socket, source })
        };
        let any_port = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        Ok(WorkerSockets {
            proxy_tcp: open("proxy TCP", tcp(any_port))?,
            dns_tcp: open("DNS TCP", tcp(dns))?,
            dns_udp: open("DNS UDP", udp(dns))?,
        })
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
        let listen = |socket, from: &Socket| {
            from.try_clone()
                .and_then(|socket| TcpListener::from_std(socket.into()))
                .map_err(|source| SocketError::Open { socket, source })
        };
        let udp = self
            .dns_udp
            .try_clone()
            .map_err(|source| SocketError::Open {
                socket: "DNS UDP",
                source,
            })?;
        Ok((
            listen("proxy TCP", &self.proxy_tcp)?,
            listen("DNS TCP", &self.dns_tcp)?,
            UdpDns { socket: udp.into() },
        ))
    }
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
    // The other workers, and the next process, have the same port; the dispatch program picks one socket, not a group.
    socket.set_reuse_port(true)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket)
}
