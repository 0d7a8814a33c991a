//! Takes messages out of a byte stream (RFC 1035 §4.2.2, RFC 7766 §8). Doesn't read the stream.

use super::wire::MAX_MESSAGE_LEN;

/// The longest query that is taken over TCP, in bytes. A question with EDNS is at most some 300
/// bytes and its padding rounds up to 512 (RFC 8467); what is longer only costs memory.
pub(crate) const MAX_QUERY_LEN: usize = 4096;

/// Bytes that came and are not yet a whole message.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    bytes: Vec<u8>,
}

/// The stream holds a message that no client has reason to send; it has to be closed.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) struct TooLong;

impl Frames {
    /// Adds what came.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message, if there is one.
    ///
    /// # Errors
    /// [`TooLong`] as soon as the length says so.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let Some(&[high, low]) = self.bytes.get(..2) else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length > MAX_QUERY_LEN {
            return Err(TooLong);
        }
        if self.bytes.len() < 2 + length {
            return Ok(None);
        }
        let message = self.bytes.get(2..2 + length).unwrap_or_default().to_vec();
        self.bytes.drain(..2 + length);
        if self.bytes.is_empty() {
            // An idle connection holds no buffer.
            self.bytes = Vec::new();
        }
        Ok(Some(message))
    }

    /// Whether a message has begun and not ended.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// `message` with its length in front.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let message = message.get(..MAX_MESSAGE_LEN).unwrap_or(message);
    let mut out = Vec::with_capacity(2 + message.len());
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_whole_however_the_bytes_come_in() {
        let stream = [framed(b"first"), framed(b""), framed(b"third")].concat();
        for step in 1..stream.len() {
            let mut frames = Frames::default();
            let mut seen = Vec::new();
            for bytes in stream.chunks(step) {
                frames.push(bytes);
                while let Some(message) = frames.next().unwrap() {
                    seen.push(message);
                }
            }
            assert_eq!(seen, [&b"first"[..], b"", b"third"], "step {step}");
            assert!(frames.is_empty());
        }
    }

    #[test]
    fn an_overlong_message_is_refused_by_its_length_alone() {
        let mut frames = Frames::default();
        frames.push(&[0x10, 0x01]);
        assert_eq!(frames.next(), Err(TooLong));
    }
}
