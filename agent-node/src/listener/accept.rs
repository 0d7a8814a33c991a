//! The accept loop: backs off when descriptors run out, keeps one pod from taking all, hands over.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_core::audit::{AuditDestination, AuditPod, AuditRecord, Decision, Direction, ReasonCode};
use agent_core::identity::{ClientAddr, OrigDst};
use agent_core::time::Timestamp;
use futures_util::FutureExt;
use socket2::{SockFilter, SockRef};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::{Arrival, Live, LocalDoor, PodLimits};
use crate::context::WorkerCtx;
use crate::metrics::{Counter, Gauge};

/// The first pause after a failed accept, and the longest one. Connections wait in the queue.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// A pod's connection, and what is known of it without reading a byte.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub stream: TcpStream,
    /// Where the pod dialled from; the kernel's word, not the pod's.
    pub peer: ClientAddr,
    /// What the pod dialled.
    pub dst: OrigDst,
    /// Cancelled when the node leaves the mode that brought the connection here.
    pub stay: CancellationToken,
}

/// Accepts for one class of connections on one worker.
pub(super) struct Acceptor {
    worker: Rc<WorkerCtx>,
    live: Rc<Live>,
    limits: Arc<PodLimits>,
    listener: TcpListener,
    arrival: Arrival,
    /// Where the node's own connections go; there are none on the DNS port.
    local: Option<LocalDoor>,
    accepted: Counter,
    open: Gauge,
    pause: Option<Duration>,
}

impl Acceptor {
    /// For DNS over TCP.
    pub(super) fn new(
        worker: Rc<WorkerCtx>,
        live: Rc<Live>,
        limits: Arc<PodLimits>,
        listener: TcpListener,
        arrival: Arrival,
    ) -> Acceptor {
        Acceptor {
            worker,
            live,
            limits,
            listener,
            arrival,
            local: None,
            accepted: Counter::DnsConnections,
            open: Gauge::DnsConnections,
            pause: None,
        }
    }

    /// For the proxy's port, where the node itself comes too.
    pub(super) fn for_proxy(self, local: LocalDoor) -> Acceptor {
        Acceptor {
            local: Some(local),
            accepted: Counter::ProxyConnections,
            open: Gauge::ProxyConnections,
            ..self
        }
    }

    /// Accepts for as long as it is polled. Cancel safe: no accepted connection is lost.
    pub(super) async fn run<F>(&mut self, serve: impl Fn(Rc<WorkerCtx>, Accepted) -> F)
    where
        F: Future<Output = ()> + 'static,
    {
        loop {
            if let Some(pause) = self.pause {
                tokio::time::sleep(pause).await;
            }
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    self.pause = None;
                    self.hand_over(stream, peer, &serve);
                }
                Err(error) => self.failed(&error),
            }
        }
    }

    /// New handshakes get no answer from here on; those under way can still be completed. A
    /// client whose SYN is dropped sends it again, and by then the next process has the slots;
    /// closing the listener at once would answer with RST.
    pub(super) fn refuse_new(&self) {
        if let Err(error) = SockRef::from(&self.listener).attach_filter(&DROP_SYN) {
            tracing::warn!(error = %error, "the listener can't be closed gracefully");
        }
    }

    /// Takes what is still in the queue, and closes the listener.
    pub(super) fn finish<F>(self, serve: impl Fn(Rc<WorkerCtx>, Accepted) -> F)
    where
        F: Future<Output = ()> + 'static,
    {
        while let Some(Ok((stream, peer))) = self.listener.accept().now_or_never() {
            self.hand_over(stream, peer, &serve);
        }
    }

    fn hand_over<F>(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        serve: &impl Fn(Rc<WorkerCtx>, Accepted) -> F,
    ) where
        F: Future<Output = ()> + 'static,
    {
        let metrics = self.worker.metrics();
        let (SocketAddr::V4(peer), Ok(SocketAddr::V4(at))) = (peer, stream.local_addr()) else {
            metrics.inc(Counter::RefusedNotIpv4);
            return;
        };
        if let Some(local) = &self.local
            && self.worker.shared.nets.is_node_itself((*peer.ip()).into())
        {
            let entering = local.clone().enter(self.worker.clone(), stream, peer);
            let open = self.live.open();
            tokio::task::spawn_local(async move {
                let _held = open;
                entering.await;
            });
            return;
        }
        metrics.inc(self.accepted);
        let dst = self.original_destination(&stream, at);
        let Some(slot) = self.limits.take(*peer.ip()) else {
            metrics.inc(Counter::RefusedPodLimit);
            self.refuse(stream, peer, dst);
            return;
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(error = %error, "TCP_NODELAY is refused");
        }
        let open = self.live.open();
        let gauge = self.open;
        let worker = self.worker.clone();
        let accepted = Accepted {
            stream,
            peer: ClientAddr(peer),
            dst: OrigDst(dst),
            stay: worker.shared.nets.stay(self.arrival.mode()),
        };
        let serving = serve(self.worker.clone(), accepted);
        tokio::task::spawn_local(async move {
            let _held = (open, slot, worker.metrics().hold(gauge));
            serving.await;
        });
    }

    /// What the pod dialled. A connection that reached a redirecting socket without being redirected was made to that
    /// very address.
    fn original_destination(&self, stream: &TcpStream, at: SocketAddrV4) -> SocketAddrV4 {
        if self.arrival == Arrival::Dispatched {
            return at;
        }
        let original = SockRef::from(stream).original_dst_v4();
        original
            .ok()
            .and_then(|address| address.as_socket_ipv4())
            .unwrap_or(at)
    }

    /// Closes with RST and leaves an audit line.
    fn refuse(&self, stream: TcpStream, peer: SocketAddrV4, dst: SocketAddrV4) {
        // Without it the close is a FIN, which reads as an empty answer; a failure changes nothing.
        let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        drop(stream);
        let known = self.worker.shared.workloads.known(*peer.ip());
        let pod = match &known {
            Some(known) => AuditPod::from(&known.workload),
            None => AuditPod::unknown(*peer.ip()),
        };
        let policy = self.worker.shared.policy.peek();
        let direction = match self.accepted {
            Counter::DnsConnections => Direction::Dns,
            _ => Direction::Egress,
        };
        let record = AuditRecord {
            destination: AuditDestination {
                ip: Some((*dst.ip()).into()),
                port: Some(dst.port()),
                protocol: Some("tcp".into()),
                ..AuditDestination::default()
            },
            detail: Some(
                "the pod has as many connections as limits.connectionsPerPod lets it".into(),
            ),
            ..AuditRecord::new(
                now().to_string(),
                format!("{:016x}", fastrand::u64(..)),
                direction,
                pod,
                Decision::Deny,
                ReasonCode::LimitExceeded,
                policy.version.as_str(),
            )
        };
        self.worker.record(&record);
    }

    fn failed(&mut self, error: &io::Error) {
        let (counter, pause) = match error.raw_os_error() {
            Some(libc::EMFILE) => (Counter::AcceptEmfile, true),
            Some(libc::ENFILE) => (Counter::AcceptEnfile, true),
            // The client went away while it waited in the queue (accept(2), "Error handling").
            Some(libc::ECONNABORTED | libc::EINTR | libc::EPROTO) => (Counter::AcceptOther, false),
            _ => (Counter::AcceptOther, true),
        };
        self.worker.metrics().inc(counter);
        if !pause {
            return;
        }
        if self.pause.is_none() {
            tracing::error!(error = %error, "connections can't be accepted; open ones go on");
        }
        self.pause = Some(next_pause(self.pause));
    }
}

fn next_pause(last: Option<Duration>) -> Duration {
    let (first, longest) = BACKOFF;
    last.map_or(first, |last| (last * 2).min(longest))
}

fn now() -> Timestamp {
    // A clock before 1970 reads as 1970; lines have an order of their own in the file.
    Timestamp::from_duration(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    )
}

/// Classic BPF, run on packets for the listening socket with the TCP header first: drops those
/// with SYN and without ACK. (`tcp_filter` in net/ipv4/tcp_ipv4.c.)
const DROP_SYN: [SockFilter; 5] = {
    let load_byte = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    let and = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
    let jump_equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let give = (libc::BPF_RET | libc::BPF_K) as u16;
    [
        // The flags are in byte 13 (RFC 9293, section 3.1).
        SockFilter::new(load_byte, 0, 0, 13),
        // Of them ACK (16) and SYN (2).
        SockFilter::new(and, 0, 0, 0x12),
        SockFilter::new(jump_equal, 0, 1, 0x02),
        SockFilter::new(give, 0, 0, 0),
        SockFilter::new(give, 0, 0, u32::MAX),
    ]
};

#[cfg(test)]
mod tests;
