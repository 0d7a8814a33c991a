//! Connections that the node itself makes to the proxy's port: to the local endpoints, or, as `localClient`, to the
//! proxy as an explicit one.
//!
//! Owns telling them apart, by the form of the first request's target (RFC 9112, section 3.2): a path is for the
//! endpoints; a whole URL, or an authority with CONNECT, is for somewhere else.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout_at};

use crate::context::WorkerCtx;
use crate::proxy;

/// Connections at the same time: probes, a scraper, a controller, a person, an end-to-end test.
const MAX_CONNECTIONS: usize = 128;
/// A client of the endpoints asks at once.
const FIRST_REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// The pause after a failed accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// The pause between two looks at a request line that comes in pieces.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// No method that anybody uses is longer.
const MAX_METHOD: usize = 32;

/// One connection for the local endpoints, not yet read from.
pub struct LocalConnection {
    /// The connection, in no runtime.
    pub stream: std::net::TcpStream,
    /// Who made it.
    pub peer: SocketAddrV4,
    /// Its place among those that may be open.
    pub place: OwnedSemaphorePermit,
}

/// Where workers bring the node's own connections.
#[derive(Clone)]
pub struct LocalDoor {
    places: Arc<Semaphore>,
    endpoints: mpsc::Sender<LocalConnection>,
}

impl LocalDoor {
    /// A door, and the end where the local endpoints take connections.
    pub fn new() -> (LocalDoor, mpsc::Receiver<LocalConnection>) {
        let (endpoints, receiver) = mpsc::channel(MAX_CONNECTIONS);
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        (LocalDoor { places, endpoints }, receiver)
    }

    /// Brings what other hosts connect to `listener` to the endpoints, whatever the first request is. Never returns.
    pub async fn admit(self, listener: TcpListener) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok((stream, SocketAddr::V4(peer))) => (stream, peer),
                Ok(_) => continue,
                Err(error) => {
                    tracing::warn!(error = %error, "the endpoints' listener can't accept");
                    sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                tracing::warn!(peer = %peer, "too many connections to adminListen; this one is closed");
                continue;
            };
            if let Ok(stream) = stream.into_std() {
                // Full or closed: the process is ending, or as many as may be open wait already.
                let _ = self.endpoints.try_send(LocalConnection {
                    stream,
                    peer,
                    place,
                });
            }
        }
    }

    /// Brings one connection to where it belongs; one too many is closed.
    pub(super) async fn enter(self, worker: Rc<WorkerCtx>, stream: TcpStream, peer: SocketAddrV4) {
        let Ok(place) = self.places.try_acquire_owned() else {
            tracing::warn!(peer = %peer, "too many connections of the node itself; this one is closed");
            return;
        };
        let deadline = Instant::now() + FIRST_REQUEST_WITHIN;
        let Ok(Some(aim)) = timeout_at(deadline, aim_of(&stream)).await else {
            return;
        };
        if aim == Aim::Elsewhere && worker.shared.config.local_client.is_some() {
            proxy::serve_local(worker, stream, peer).await;
            drop(place);
            return;
        }
        match stream.into_std() {
            Ok(stream) => {
                let connection = LocalConnection {
                    stream,
                    peer,
                    place,
                };
                // Full or closed: the process is ending, or as many as may be open wait already.
                let _ = self.endpoints.try_send(connection);
            }
            Err(error) => tracing::warn!(error = %error, "a local connection is lost"),
        }
    }
}

/// The listener of `adminListen`; the process before this one may still have it.
///
/// # Errors
/// When the address is not the node's, or somebody else has the port.
pub fn open_admin(address: SocketAddrV4) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(128)?;
    Ok(socket.into())
}

/// What the first request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aim {
    Endpoints,
    Elsewhere,
}

/// Looks at the first bytes without taking them; `None` at the end of the stream. Cancel safe.
async fn aim_of(stream: &TcpStream) -> Option<Aim> {
    let mut bytes = [0; MAX_METHOD + 2];
    loop {
        let seen = stream.peek(&mut bytes).await.ok()?;
        if seen == 0 {
            return None;
        }
        if let Some(aim) = bytes.get(..seen).and_then(aim) {
            return Some(aim);
        }
        // Peeking is ready as long as there is anything.
        sleep(LOOK_AGAIN).await;
    }
}

/// `None` while that can't be said.
fn aim(bytes: &[u8]) -> Option<Aim> {
    let Some(space) = bytes.iter().position(|byte| *byte == b' ') else {
        // No request line; the endpoints' parser says so.
        let hopeless = bytes.len() > MAX_METHOD || bytes.contains(&b'\n');
        return hopeless.then_some(Aim::Endpoints);
    };
    match bytes.get(space + 1) {
        None => None,
        Some(b'/' | b'*') => Some(Aim::Endpoints),
        Some(_) => Some(Aim::Elsewhere),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_for_the_endpoints_and_a_whole_target_for_elsewhere() {
        for (bytes, expected) in [
            ("GET /healthz HTTP/1.1", Some(Aim::Endpoints)),
            ("OPTIONS * HTTP/1.1", Some(Aim::Endpoints)),
            ("GET http://api.example/", Some(Aim::Elsewhere)),
            ("CONNECT api.example:443", Some(Aim::Elsewhere)),
            ("GET ", None),
            ("CONN", None),
            ("\x16\x03\x01\n", Some(Aim::Endpoints)),
            ("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", Some(Aim::Endpoints)),
        ] {
            assert_eq!(aim(bytes.as_bytes()), expected, "{bytes}");
        }
    }
}
