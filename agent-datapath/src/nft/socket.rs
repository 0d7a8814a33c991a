//! The netfilter netlink socket: sends one transaction or one question, and reads what the kernel says to it.

use std::{io, os::fd::AsRawFd, os::fd::BorrowedFd};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use nix::sys::{
    socket::{
        getsockopt, setsockopt,
        sockopt::{RcvBuf, RcvBufForce, ReceiveTimeout, SndBuf, SndBufForce},
    },
    time::TimeVal,
};

use super::encode::Batch;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;
/// `NLM_F_DUMP_INTR`: what is dumped has changed meanwhile.
const INTERRUPTED: u16 = 0x10;
const NFGENMSG: usize = 4;
/// How often a dump is asked for anew because it changed while it was made.
const DUMPS: u32 = 50;
/// How long the kernel may take; a transaction takes milliseconds unless the machine is overloaded.
const PATIENCE_SECONDS: i64 = 10;

/// What the kernel takes for an acknowledgement in a receive buffer, and more.
const ANSWER: usize = 1024;
/// What goes with a datagram in a socket's buffer.
const ROOM: usize = 64 * 1024;

/// A socket in the calling thread's network namespace.
pub(crate) struct NetfilterSocket(Socket);

impl NetfilterSocket {
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let patience = TimeVal::new(PATIENCE_SECONDS, 0);
        setsockopt(&borrow(&socket), ReceiveTimeout, &patience)?;
        Ok(Self(socket))
    }

    /// Sends a transaction and waits until the kernel has acknowledged every part of it.
    pub(crate) fn commit(&self, batch: &Batch) -> io::Result<()> {
        self.acknowledged(&batch.bytes, batch.acknowledgements)
    }

    /// Sends requests and waits for this many acknowledgements.
    ///
    /// A transaction is one datagram, and the kernel answers to all of it before anything is read: with many pods either
    /// is more than a socket holds by default.
    pub(crate) fn acknowledged(&self, requests: &[u8], mut waiting: usize) -> io::Result<()> {
        self.make_room(requests.len(), waiting)?;
        self.0.send(requests, 0)?;
        while waiting > 0 {
            let (datagram, _) = self.0.recv_from_full()?;
            for message in Messages(&datagram) {
                if message.kind == NLMSG_ERROR {
                    message.answer()?;
                    waiting = waiting.saturating_sub(1);
                }
            }
        }
        Ok(())
    }

    fn make_room(&self, to_send: usize, answers: usize) -> io::Result<()> {
        let socket = borrow(&self.0);
        let (send, receive) = (to_send + ROOM, answers.saturating_mul(ANSWER) + ROOM);
        if getsockopt(&socket, SndBuf)? < send {
            setsockopt(&socket, SndBufForce, &send)?;
        }
        if getsockopt(&socket, RcvBuf)? < receive {
            setsockopt(&socket, RcvBufForce, &receive)?;
        }
        Ok(())
    }

    /// Asks for one object and answers its attributes.
    pub(crate) fn one(&self, question: &[u8]) -> io::Result<Vec<u8>> {
        self.0.send(question, 0)?;
        let (datagram, _) = self.0.recv_from_full()?;
        for message in Messages(&datagram) {
            if message.kind == NLMSG_ERROR {
                message.answer()?;
            } else if let Some(body) = message.body.get(NFGENMSG..) {
                return Ok(body.to_vec());
            }
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the kernel's answer is empty",
        ))
    }

    /// Asks for a dump and answers what `read` makes of each object. Asks again when it changed meanwhile.
    pub(crate) fn all<T>(
        &self,
        question: &[u8],
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        for _ in 0..DUMPS {
            let mut found = Vec::new();
            match self.each(question, |object| found.extend(read(object))) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                other => return other.map(|()| found),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EINTR))
    }

    /// Asks for a dump and hands over the attributes of each object as it comes. Fails with EINTR, at the end, when
    /// what was dumped changed meanwhile, so that the answer may be of neither.
    pub(crate) fn each(&self, question: &[u8], mut object: impl FnMut(&[u8])) -> io::Result<()> {
        self.0.send(question, 0)?;
        let mut interrupted = false;
        loop {
            let (datagram, _) = self.0.recv_from_full()?;
            for message in Messages(&datagram) {
                interrupted |= message.flags & INTERRUPTED != 0;
                match message.kind {
                    // a dump that failed halfway says so at its end
                    NLMSG_DONE if interrupted => {
                        return Err(io::Error::from_raw_os_error(libc::EINTR));
                    }
                    NLMSG_DONE => return message.answer(),
                    NLMSG_ERROR => message.answer()?,
                    _ => message
                        .body
                        .get(NFGENMSG..)
                        .into_iter()
                        .for_each(&mut object),
                }
            }
        }
    }
}

/// Kinds and attributes of a datagram's messages.
pub(crate) fn bodies(datagram: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    Messages(datagram).filter_map(|message| Some((message.kind, message.body.get(NFGENMSG..)?)))
}

/// What a datagram answers to a request; none when it answers none.
pub(crate) fn answer(datagram: &[u8]) -> Option<io::Result<()>> {
    Messages(datagram)
        .find(|message| message.kind == NLMSG_ERROR)
        .map(|message| message.answer())
}

#[expect(
    unsafe_code,
    reason = "netlink-sys offers the descriptor as a number only"
)]
fn borrow(socket: &Socket) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is open for as long as the socket that the result borrows
    unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) }
}

struct Message<'a> {
    kind: u16,
    flags: u16,
    body: &'a [u8],
}

impl Message<'_> {
    /// The error number in an error message; zero is an acknowledgement.
    fn answer(&self) -> io::Result<()> {
        let code = self
            .body
            .first_chunk()
            .map_or(-libc::EPROTO, |code| i32::from_ne_bytes(*code));
        if code == 0 {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(-code))
        }
    }
}

/// The messages of one datagram.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let length = u32::from_ne_bytes(*self.0.first_chunk()?) as usize;
        let kind = u16::from_ne_bytes(self.0.get(4..6)?.try_into().ok()?);
        let flags = u16::from_ne_bytes(self.0.get(6..8)?.try_into().ok()?);
        let body = self.0.get(HEADER..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, flags, body })
    }
}

/// The value of the first attribute of a kind.
pub(crate) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes)
        .find(|(kind, _)| *kind == wanted)
        .map(|(_, value)| value)
}

/// Kinds and values of attributes, up to the first that is cut short.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_messages_and_attributes_end_the_reading() {
        assert_eq!(Messages(&[40, 0, 0, 0, 2, 0]).count(), 0);
        assert_eq!(Messages(&[0; 15]).count(), 0);
        assert_eq!(attribute(&[40, 0, 1, 0, 1], 1), None);
        assert_eq!(attribute(&[0, 0, 0, 0], 1), None);
        assert_eq!(
            attribute(&[5, 0, 1, 0, 9, 0, 0, 0, 6, 0, 2, 0, 7, 8], 2),
            Some(&[7, 8][..])
        );
    }
}
