//! Answers DNS datagrams.

use std::net::SocketAddrV4;
use std::rc::Rc;
use std::time::Instant;

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

/// Serves DNS datagrams until the worker ends; then what is in flight ends with it, and clients
/// ask again.
pub async fn serve_udp(worker: Rc<WorkerCtx>, socket: UdpDns) {
    let receiver = match Receiver::new(socket.socket) {
        Ok(receiver) => receiver,
        Err(error) => {
            tracing::error!(worker = worker.index, error = %error, "DNS over UDP can't be served");
            return;
        }
    };
    let replies = Replies::default();
    let mut running = FuturesUnordered::new();
    loop {
        let mut batch = Vec::new();
        tokio::select! {
            biased;
            Some(done) = running.next() => {
                let Done { peer, dst, reply } = done;
                if let Some(reply) = reply {
                    send(&worker, &replies, dst, peer, &reply);
                }
            }
            received = receiver.receive(BATCH, |datagram| batch.push(datagram)) => {
                if let Err(error) = received {
                    tracing::error!(worker = worker.index, error = %error, "the DNS socket fails");
                    return;
                }
            }
        }
        for datagram in batch {
            if admitted(&worker, &datagram) {
                running.push(answer(Rc::clone(&worker), datagram));
            }
        }
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
    replies: &Replies,
    from: SocketAddrV4,
    peer: SocketAddrV4,
    reply: &[u8],
) {
    let Some(gateway) = worker.shared.nets.gateway() else {
        tracing::warn!("a DNS reply is lost: the node's gateway is not known yet");
        return;
    };
    if let Err(error) = replies.send(gateway, from, peer, reply) {
        tracing::warn!(error = %error, src.ip = %from.ip(), dst.ip = %peer.ip(), "a DNS reply is lost");
    }
}
