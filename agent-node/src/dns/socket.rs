//! Datagrams with the address that the pod asked, and replies that come from it.
//!
//! Dispatched queries arrive on a socket that the kernel's dispatch program hands them to, whatever address
//! the pod dialled; `IP_RECVORIGDSTADDR` tells which. Replies leave from one transparent socket on
//! the gateway's port 53, and `IP_PKTINFO` says per datagram which source address they carry: no
//! socket per destination, so nothing for a pod to use up. (An `IP_TRANSPARENT` socket may send
//! from any address; net/ipv4/route.c, `FLOWI_FLAG_ANYSRC`. Seen on 6.18.)

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;

use nix::cmsg_space;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg,
};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::listener::{Arrival, UdpDns};

/// The longest query that is read, in bytes; see [`super::frame::MAX_QUERY_LEN`].
const MAX_QUERY_LEN: usize = super::frame::MAX_QUERY_LEN;

/// One query as it came.
#[derive(Debug)]
pub(crate) struct Datagram {
    /// Who sent it.
    pub(crate) peer: SocketAddrV4,
    /// Where to: the source of the reply.
    pub(crate) dst: SocketAddrV4,
    /// What.
    pub(crate) message: Vec<u8>,
}

/// The receiving side.
pub(crate) struct Receiver {
    socket: UdpSocket,
    arrival: Arrival,
    control: RefCell<Vec<u8>>,
}

impl Receiver {
    /// Takes over a non-blocking socket with `IP_RECVORIGDSTADDR` on.
    ///
    /// # Errors
    /// When the runtime can't watch it.
    pub(crate) fn new(dns: UdpDns) -> io::Result<Receiver> {
        Ok(Receiver {
            socket: UdpSocket::from_std(dns.socket)?,
            arrival: dns.arrival,
            control: RefCell::new(cmsg_space!(libc::sockaddr_in)),
        })
    }

    /// Waits for datagrams and gives up to `most` of them to `each`. Cancel safe.
    ///
    /// # Errors
    /// When the socket is broken.
    pub(crate) async fn receive(
        &self,
        most: usize,
        mut each: impl FnMut(Datagram),
    ) -> io::Result<()> {
        self.socket.readable().await?;
        for _ in 0..most {
            match self
                .socket
                .try_io(Interest::READABLE, || self.try_receive())
            {
                Ok(Some(datagram)) => each(datagram),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Answers a redirected query from where it came to: connection tracking writes the address that the pod asked
    /// into the reply. `None` for a dispatched one, whose reply [`Replies`] sends.
    pub(crate) fn reply(&self, peer: SocketAddrV4, reply: &[u8]) -> Option<io::Result<()>> {
        (self.arrival == Arrival::Redirected)
            .then(|| self.socket.try_send_to(reply, peer.into()).map(drop))
    }

    /// One datagram; `None` for one that is too long or came without its addresses.
    fn try_receive(&self) -> io::Result<Option<Datagram>> {
        let mut buffer = [0; MAX_QUERY_LEN];
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let mut control = self.control.borrow_mut();
        let fd = self.socket.as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT;
        let received = recvmsg::<SockaddrIn>(fd, &mut parts, Some(&mut control), flags)?;
        let truncated = received
            .flags
            .intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
        let peer = received.address.map(SocketAddrV4::from);
        let dst = received.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::Ipv4OrigDstAddr(dst) => Some(SocketAddrV4::new(
                Ipv4Addr::from(u32::from_be(dst.sin_addr.s_addr)),
                u16::from_be(dst.sin_port),
            )),
            _ => None,
        });
        let length = received.bytes;
        let (Some(peer), Some(dst), false) = (peer, dst, truncated) else {
            return Ok(None);
        };
        Ok(Some(Datagram {
            peer,
            dst,
            message: buffer.get(..length).unwrap_or_default().to_vec(),
        }))
    }
}

/// The sending side: one socket, made when the first reply needs it and again when the node's
/// gateway changes.
#[derive(Default)]
pub(crate) struct Replies {
    socket: RefCell<Option<(SocketAddrV4, Socket)>>,
}

impl Replies {
    /// Sends `reply` to `peer` as if it came from `from`. A full send buffer loses the reply, as
    /// the network might: the client asks again.
    ///
    /// # Errors
    /// When the socket can't be made (another program has the gateway's port 53) or refuses.
    pub(crate) fn send(
        &self,
        gateway: Ipv4Addr,
        from: SocketAddrV4,
        peer: SocketAddrV4,
        reply: &[u8],
    ) -> io::Result<()> {
        // The port is that of the query: 53 whenever the dispatch program sent it here.
        let at = SocketAddrV4::new(gateway, from.port());
        let mut slot = self.socket.borrow_mut();
        let socket = match &mut *slot {
            Some((bound, socket)) if *bound == at => socket,
            other => &mut other.insert((at, bind(at)?)).1,
        };
        let info = libc::in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: libc::in_addr {
                s_addr: u32::from(*from.ip()).to_be(),
            },
            ipi_addr: libc::in_addr { s_addr: 0 },
        };
        sendmsg(
            socket.as_raw_fd(),
            &[IoSlice::new(reply)],
            &[ControlMessage::Ipv4PacketInfo(&info)],
            MsgFlags::MSG_DONTWAIT,
            Some(&SockaddrIn::from(peer)),
        )?;
        Ok(())
    }
}

/// A transparent socket at `at`, shared with the other workers and with the next process.
fn bind(at: SocketAddrV4) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    socket.set_ip_transparent_v4(true)?;
    socket.set_reuse_address(true)?;
    // Nothing is read here; what the node itself sends to the gateway's port 53 needs no memory.
    socket.set_recv_buffer_size(0)?;
    socket.bind(&SockAddr::from(at))?;
    Ok(socket)
}
