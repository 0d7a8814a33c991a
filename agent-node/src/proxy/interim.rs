//! Passes interim responses (1xx) on to the pod.
//!
//! Owns their way around hyper, whose server sends none but `100 Continue`: what an upstream says
//! before its answer waits here until everything that hyper has written is out, and goes out before
//! the answer does.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::{HeaderMap, StatusCode};

/// Bytes that may wait; an upstream that says more before its answer is not listened to.
const MAX_WAITING: usize = 16 * 1024;

/// The interim responses of one connection that are not out yet. `Sync` only because hyper wants
/// its callback to be; everything happens on one thread.
#[derive(Default)]
pub(crate) struct Interim {
    waiting: AtomicBool,
    bytes: Mutex<Vec<u8>>,
    waker: AtomicWaker,
}

impl Interim {
    /// Adds a response, and wakes whoever can send it.
    pub(crate) fn push(&self, status: StatusCode, headers: &HeaderMap) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let before = bytes.len();
        // Writing to a Vec can't fail.
        let _ = write!(
            bytes,
            "HTTP/1.1 {} {}\r\n",
            status.as_str(),
            status.canonical_reason().unwrap_or("Interim")
        );
        for (name, value) in headers {
            bytes.extend_from_slice(name.as_str().as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        if bytes.len() > MAX_WAITING {
            bytes.truncate(before);
        }
        self.waiting.store(!bytes.is_empty(), Ordering::Release);
        self.waker.wake();
    }

    /// Whoever is to be woken by the next response.
    pub(crate) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// What is to go out now; usually nothing, at the cost of one load.
    pub(crate) fn take(&self) -> Bytes {
        if !self.waiting.load(Ordering::Acquire) {
            return Bytes::new();
        }
        self.waiting.store(false, Ordering::Release);
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        Bytes::from(std::mem::take(&mut *bytes))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn responses_go_out_once_and_in_order() {
        let interim = Interim::default();
        assert!(interim.take().is_empty());
        let mut headers = HeaderMap::new();
        headers.append("link", HeaderValue::from_static("</a>"));
        headers.append("link", HeaderValue::from_static("</b>"));
        interim.push(StatusCode::EARLY_HINTS, &headers);
        interim.push(StatusCode::PROCESSING, &HeaderMap::new());
        let expected = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\nlink: </b>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n";
        assert_eq!(interim.take(), expected);
        assert!(interim.take().is_empty());
    }

    #[test]
    fn a_flood_is_bounded() {
        let interim = Interim::default();
        for _ in 0..10_000 {
            interim.push(StatusCode::PROCESSING, &HeaderMap::new());
        }
        assert!(interim.take().len() <= MAX_WAITING);
    }
}
