//! One try: a query to one server over UDP, and over TCP when the answer doesn't fit.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::LazyLock;

use nix::sys::socket::{MsgFlags, recv};
use rustls::crypto::SecureRandom;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UdpSocket};

use super::AttemptError;
use crate::dns::answer::{Answer, NotAnAnswer, Question, Reply, rcode};
use crate::dns::respond;

/// The largest datagram that is read, in bytes: more than we say we take.
const MAX_DATAGRAM: usize = 4096;
/// Messages on one socket that may answer something else before the try ends.
const MAX_FOREIGN: usize = 32;
/// The kernel's random numbers, as TLS uses them.
static RANDOM: LazyLock<&'static dyn SecureRandom> =
    LazyLock::new(|| rustls::crypto::ring::default_provider().secure_random);

/// Asks `server`. Has no deadline of its own: whoever waits for it has.
pub(super) async fn attempt(
    server: SocketAddr,
    question: &Question,
) -> Result<Answer, AttemptError> {
    match exchange(server, question, false).await? {
        // A server from before EDNS; what it says about a plain query counts.
        answer if matches!(answer.rcode, rcode::FORM_ERR | rcode::NOT_IMP) => {
            exchange(server, question, true).await
        }
        answer => Ok(answer),
    }
}

async fn exchange(
    server: SocketAddr,
    question: &Question,
    plain: bool,
) -> Result<Answer, AttemptError> {
    match over_udp(server, question, plain).await? {
        Reply::Whole(answer) => Ok(answer),
        Reply::Truncated => match over_tcp(server, question, plain).await? {
            Reply::Whole(answer) => Ok(answer),
            Reply::Truncated => Err(AttemptError::Noise),
        },
    }
}

async fn over_udp(
    server: SocketAddr,
    question: &Question,
    plain: bool,
) -> Result<Reply, AttemptError> {
    let id = message_id()?;
    let query = respond::upstream_query(id, question, plain);
    let socket = connected(server).await.map_err(AttemptError::Send)?;
    socket.send(&query).await.map_err(AttemptError::Send)?;
    let fd = socket.as_raw_fd();
    // An ICMP error ("port unreachable") is no readable event; without it a try would wait.
    let events = Interest::READABLE | Interest::ERROR;
    for _ in 0..MAX_FOREIGN {
        let read = socket.async_io(events, || {
            // Not kept while it waits: thousands of tries may.
            let mut buffer = [0; MAX_DATAGRAM];
            let length = recv(fd, &mut buffer, MsgFlags::MSG_DONTWAIT)?;
            Ok(Reply::parse(
                buffer.get(..length).unwrap_or_default(),
                id,
                question,
            ))
        });
        match read.await.map_err(AttemptError::Receive)? {
            Err(NotAnAnswer::Foreign) => {}
            Err(malformed) => return Err(AttemptError::Answer(malformed)),
            Ok(reply) => return Ok(reply),
        }
    }
    Err(AttemptError::Noise)
}

/// A message id that nobody can foresee from those before it (RFC 5452 section 9.2).
fn message_id() -> Result<u16, AttemptError> {
    let mut id = [0; 2];
    match RANDOM.fill(&mut id) {
        Ok(()) => Ok(u16::from_ne_bytes(id)),
        Err(_) => Err(AttemptError::Send(io::Error::other(
            "there are no random numbers for the message's id",
        ))),
    }
}

/// A socket on a port that the kernel picks at random, which hears `server` only.
async fn connected(server: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    Ok(socket)
}

async fn over_tcp(
    server: SocketAddr,
    question: &Question,
    plain: bool,
) -> Result<Reply, AttemptError> {
    let id = message_id()?;
    let query = respond::upstream_query(id, question, plain);
    let mut framed = Vec::with_capacity(2 + query.len());
    framed.extend_from_slice(&(query.len() as u16).to_be_bytes());
    framed.extend_from_slice(&query);
    let mut stream = TcpStream::connect(server)
        .await
        .map_err(AttemptError::Send)?;
    stream
        .write_all(&framed)
        .await
        .map_err(AttemptError::Send)?;
    let length = stream.read_u16().await.map_err(AttemptError::Receive)?;
    let mut message = vec![0; usize::from(length)];
    stream
        .read_exact(&mut message)
        .await
        .map_err(AttemptError::Receive)?;
    Reply::parse(&message, id, question).map_err(AttemptError::Answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_ids_spread_over_all_bits() {
        let ids: Vec<u16> = (0..256).map(|_| message_id().unwrap()).collect();
        let (any, all) = ids
            .iter()
            .fold((0, u16::MAX), |(any, all), id| (any | id, all & id));
        assert_eq!((any, all), (u16::MAX, 0));
    }
}
