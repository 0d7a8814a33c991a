//! Answers DNS datagrams.

use std::io;
use std::net::SocketAddrV4;
use std::rc::Rc;
use std::time::{Duration, Instant};

use agent_core::identity::{ClientAddr, OrigDst};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::limits::Admission;
use super::respond::Transport;
use super::service;
use super::socket::{Datagram, Receiver, Replies};
use crate::context::WorkerCtx;
use crate::listener::UdpDns;
use crate::metrics::Counter;

/// Datagrams that are read before answers are sent.
const BATCH: usize = 64;
/// After a failed read, so that an error that stays does not take the worker's whole time.
const BACKOFF: Duration = Duration::from_millis(10);
/// How often failed reads are logged; all are counted.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Serves DNS datagrams until the worker ends; then what is in flight ends with it, and clients
/// ask again. Ends by itself only when the socket can't be watched; the worker must end then too.
pub async fn serve_udp(worker: Rc<WorkerCtx>, socket: UdpDns) {
    let receiver = match Receiver::new(socket) {
        Ok(receiver) => receiver,
        Err(error) => {
            tracing::error!(worker = worker.index, error = %error, "DNS over UDP can't be served");
            return;
        }
    };
    let mut incoming = Incoming::new(receiver);
    let replies = Replies::default();
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(done) = running.next() => {
                let Done { peer, dst, reply } = done;
                if let Some(reply) = reply {
                    send(&worker, &incoming.receiver, &replies, (dst, peer), &reply);
                }
            }
            received = incoming.receive() => {
                if let Err(error) = received {
                    worker.metrics().inc(Counter::DnsReceiveErrors);
                    if incoming.is_log_due() {
                        tracing::error!(worker = worker.index, error = %error, "DNS queries can't be read; it is tried again");
                    }
                }
            }
        }
        for datagram in incoming.batch.drain(..) {
            if admitted(&worker, &datagram) {
                running.push(answer(Rc::clone(&worker), datagram));
            }
        }
    }
}

/// What comes, with a pause after each failed read.
struct Incoming {
    receiver: Receiver,
    /// What came and was not taken out yet.
    batch: Vec<Datagram>,
    paused_until: Option<tokio::time::Instant>,
    logged: Option<Instant>,
}

impl Incoming {
    fn new(receiver: Receiver) -> Incoming {
        Incoming {
            receiver,
            batch: Vec::new(),
            paused_until: None,
            logged: None,
        }
    }

    /// Waits for datagrams and adds them to the batch. Cancel safe. An error is not the end: one
    /// datagram's is gone with it.
    async fn receive(&mut self) -> io::Result<()> {
        if let Some(until) = self.paused_until {
            tokio::time::sleep_until(until).await;
            self.paused_until = None;
        }
        let batch = &mut self.batch;
        let received = self
            .receiver
            .receive(BATCH, |datagram| batch.push(datagram));
        let received = received.await;
        if received.is_err() {
            self.paused_until = Some(tokio::time::Instant::now() + BACKOFF);
        }
        received
    }

    fn is_log_due(&mut self) -> bool {
        let now = Instant::now();
        let due = self
            .logged
            .is_none_or(|last| now.saturating_duration_since(last) >= LOG_EVERY);
        if due {
            self.logged = Some(now);
        }
        due
    }
}

struct Done {
    peer: SocketAddrV4,
    dst: SocketAddrV4,
    reply: Option<Vec<u8>>,
}

async fn answer(worker: Rc<WorkerCtx>, datagram: Datagram) -> Done {
    let Datagram { peer, dst, message } = datagram;
    let client = (ClientAddr(peer), OrigDst(dst));
    let reply = service::answer(&worker, &message, client, Transport::Udp).await;
    Done { peer, dst, reply }
}

fn admitted(worker: &WorkerCtx, datagram: &Datagram) -> bool {
    match worker
        .dns
        .limits()
        .admit(*datagram.peer.ip(), Instant::now())
    {
        Admission::Admitted => true,
        Admission::Excess { report } => {
            worker.metrics().inc(Counter::DnsShed);
            if report {
                service::report_excess(worker, ClientAddr(datagram.peer), OrigDst(datagram.dst));
            }
            false
        }
    }
}

fn send(
    worker: &WorkerCtx,
    receiver: &Receiver,
    replies: &Replies,
    (from, peer): (SocketAddrV4, SocketAddrV4),
    reply: &[u8],
) {
    let sent = receiver.reply(peer, reply).unwrap_or_else(|| {
        let gateway = worker.shared.nets.gateway();
        let gateway = gateway.ok_or_else(|| io::Error::other("the gateway is not known yet"))?;
        replies.send(gateway, from, peer, reply)
    });
    if let Err(error) = sent {
        tracing::warn!(error = %error, src.ip = %from.ip(), dst.ip = %peer.ip(), "a DNS reply is lost");
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use nix::sys::socket::{setsockopt, sockopt};

    use super::*;
    use crate::listener::Arrival;

    #[tokio::test]
    async fn a_failed_read_is_not_the_end() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        setsockopt(&socket, sockopt::Ipv4RecvErr, &true).unwrap();
        setsockopt(&socket, sockopt::Ipv4OrigDstAddr, &true).unwrap();
        let shared = socket.try_clone().unwrap();
        let mut incoming = Incoming::new(
            Receiver::new(UdpDns {
                socket,
                arrival: Arrival::Dispatched,
            })
            .unwrap(),
        );
        // Nobody is there: the ICMP message becomes the next read's error.
        let gone = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let nobody = gone.local_addr().unwrap();
        drop(gone);
        shared.send_to(b"x", nobody).unwrap();
        let asker = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = shared.local_addr().unwrap();
        asker.send_to(b"query", address).unwrap();
        let begun = Instant::now();
        let mut failed = 0;
        while incoming.batch.is_empty() {
            let received = tokio::time::timeout(Duration::from_secs(5), incoming.receive()).await;
            if received.unwrap().is_err() {
                failed += 1;
                assert_eq!(incoming.is_log_due(), failed == 1);
            }
        }
        assert_eq!(failed, 1);
        assert_eq!(incoming.batch[0].message, b"query");
        assert!(begun.elapsed() >= BACKOFF);
    }
}
