//! Ends a connection so that the peer still gets what was last written.
//!
//! Owns the lingering close: closing a socket that has unread bytes makes the kernel send a reset,
//! which can destroy an error answer on its way.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::relay::with_scratch;

/// How long a peer is waited for at the end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes that are thrown away at the end, at most.
const DRAIN: usize = 1 << 20;

/// Says that no more will come, and waits a moment for the peer to say so too.
pub(crate) async fn gracefully(mut stream: TcpStream) {
    if stream.shutdown().await.is_err() {
        return;
    }
    // Whatever comes of it, the stream is closed then.
    let _ = timeout(PATIENCE, drain(&stream)).await;
}

async fn drain(stream: &TcpStream) {
    let mut left = DRAIN;
    while stream.readable().await.is_ok() {
        match with_scratch(|scratch| stream.try_read(scratch)) {
            Ok(0) => return,
            Ok(n) if n < left => left -= n,
            Ok(_) => return,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
