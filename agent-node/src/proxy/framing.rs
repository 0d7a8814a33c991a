//! Follows a stream of requests byte by byte: where each head and body begins and ends.
//!
//! Owns the message framing of RFC 9112 sections 6 and 7, without I/O and without a copy: it is
//! shown bytes and says how many of them may go on to the HTTP server. A head goes on only whole
//! and only when it has one meaning, so hyper never sees an ambiguous one (it would drop a
//! Content-Length silently when Transfer-Encoding came first). Bodies go on as they come.

use super::fault::Fault;
use super::head::{BodyFraming, Head, HeadLimits, HeadScan, Scanned};

/// Bytes of one chunk-size line with its extensions.
const MAX_CHUNK_LINE: u32 = 256;
/// Bytes of all chunk extensions of one body (a client that sends more only wastes our time).
const MAX_EXTENSIONS: u32 = 16 * 1024;

/// Where the stream stands.
#[derive(Debug)]
enum State {
    Head(HeadScan),
    Length(u64),
    Chunked(Chunked),
    /// Behind the head that may turn the connection into a tunnel: nothing goes on.
    Tunnel,
    /// What is wrong, and whether that was inside a body.
    Failed(Fault, bool),
}

/// Follows one connection's requests.
#[derive(Debug)]
pub(crate) struct Framing {
    state: State,
    limits: HeadLimits,
    heads: u64,
}

impl Framing {
    pub(crate) fn new(limits: HeadLimits) -> Framing {
        Framing {
            state: State::Head(HeadScan::default()),
            limits,
            heads: 0,
        }
    }

    /// Looks at `bytes`, all that has arrived and has not gone on, and says how many may go on now.
    /// A fault shows in [`Framing::fault`]; from it on, nothing goes on any more.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> usize {
        let mut passed = 0;
        loop {
            let rest = &bytes[passed..];
            let next = match &mut self.state {
                State::Tunnel | State::Failed(..) => return passed,
                State::Head(scan) => {
                    // An empty line before a request line is skipped (RFC 9112 section 2.2).
                    if let Some(b'\r') = rest.first() {
                        match rest.get(1) {
                            Some(b'\n') => {
                                passed += 2;
                                continue;
                            }
                            Some(_) => self.state = State::Failed(Fault::BareCr, false),
                            None => {}
                        }
                        return passed;
                    }
                    match scan.scan(rest, self.limits) {
                        Ok(Scanned::Partial) => return passed,
                        Ok(Scanned::Complete(n, head)) => {
                            passed += n;
                            self.heads += 1;
                            State::after(head)
                        }
                        Err(fault) => State::Failed(fault, false),
                    }
                }
                State::Length(left) => {
                    let n = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    passed += n;
                    *left -= n as u64;
                    if *left > 0 {
                        return passed;
                    }
                    State::Head(HeadScan::default())
                }
                State::Chunked(chunked) => {
                    let (n, end) = chunked.advance(rest);
                    passed += n;
                    match end {
                        Ok(true) => State::Head(HeadScan::default()),
                        Ok(false) => return passed,
                        Err(fault) => State::Failed(fault, true),
                    }
                }
            };
            self.state = next;
        }
    }

    /// What is wrong with the stream, once something is.
    pub(crate) fn fault(&self) -> Option<Fault> {
        match self.state {
            State::Failed(fault, _) => Some(fault),
            _ => None,
        }
    }

    /// Whether that was inside a body, whose request the server has already.
    pub(crate) fn failed_in_body(&self) -> bool {
        matches!(self.state, State::Failed(_, true))
    }

    /// Ends the stream with a fault that the bytes don't show, such as their not coming.
    pub(crate) fn fail(&mut self, fault: Fault) {
        if !matches!(self.state, State::Failed(..)) {
            self.state = State::Failed(fault, self.in_body());
        }
    }

    /// Whether the stream is inside a body.
    pub(crate) fn in_body(&self) -> bool {
        matches!(self.state, State::Length(_) | State::Chunked(_))
    }

    /// The number, from 1, of the head that may turn the connection into a tunnel; it is the last.
    pub(crate) fn tunnel_head(&self) -> Option<u64> {
        matches!(self.state, State::Tunnel).then_some(self.heads)
    }
}

impl State {
    fn after(head: Head) -> State {
        match head.framing {
            _ if head.tunnel => State::Tunnel,
            BodyFraming::None => State::Head(HeadScan::default()),
            BodyFraming::Length(n) => State::Length(n),
            BodyFraming::Chunked => State::Chunked(Chunked::default()),
        }
    }
}

/// Where a chunked body stands.
#[derive(Debug, Default)]
struct Chunked {
    at: At,
    line: u32,
    extensions: u32,
}

#[derive(Debug, Default, Clone, Copy)]
enum At {
    /// Before the first digit of a size.
    #[default]
    SizeStart,
    Size(u64),
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    /// At the start of a trailer line.
    LineStart,
    Name,
    Value,
    ValueLf,
    EndLf,
}

impl Chunked {
    /// How many of `bytes` belong to the body, and whether it ends there.
    fn advance(&mut self, bytes: &[u8]) -> (usize, Result<bool, Fault>) {
        let mut i = 0;
        while i < bytes.len() {
            if let At::Data(left) = self.at {
                let n = (bytes.len() - i).min(usize::try_from(left).unwrap_or(usize::MAX));
                i += n;
                let left = left - n as u64;
                self.at = if left == 0 {
                    At::DataCr
                } else {
                    At::Data(left)
                };
                continue;
            }
            match self.step(bytes[i]) {
                Ok(Some(at)) => self.at = at,
                Ok(None) => return (i + 1, Ok(true)),
                Err(fault) => return (i, Err(fault)),
            }
            i += 1;
        }
        (i, Ok(false))
    }

    /// The state after `b`; `None` at the body's end.
    fn step(&mut self, b: u8) -> Result<Option<At>, Fault> {
        self.line += 1;
        let in_size = matches!(self.at, At::SizeStart | At::Size(_) | At::Extension(_));
        if in_size && self.line > MAX_CHUNK_LINE {
            return Err(Fault::Chunk);
        }
        if self.line > MAX_EXTENSIONS {
            return Err(Fault::HeadTooLarge);
        }
        let next = match (self.at, b) {
            (At::SizeStart, _) => At::Size(digit(b)?),
            (At::Size(n), b'\r') => At::SizeLf(n),
            (At::Size(n), b';') => At::Extension(n),
            // Fifteen digits: far from where any parser's integer overflows.
            (At::Size(n), _) if n < 1 << 56 => At::Size(n * 16 + digit(b)?),
            (At::Size(_), _) => return Err(Fault::Chunk),
            (At::Extension(n), b'\r') => At::SizeLf(n),
            (At::Extension(n), b'\t' | b' '..=b'~' | 0x80..) => {
                self.extensions += 1;
                if self.extensions > MAX_EXTENSIONS {
                    return Err(Fault::Chunk);
                }
                At::Extension(n)
            }
            (At::SizeLf(0), b'\n') => {
                self.line = 0;
                At::LineStart
            }
            (At::SizeLf(n), b'\n') => At::Data(n),
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => {
                self.line = 0;
                At::SizeStart
            }
            (At::LineStart, b'\r') => At::EndLf,
            (At::EndLf, b'\n') => return Ok(None),
            (At::LineStart, _) if super::sniff::is_token(b) => At::Name,
            (At::LineStart, b' ' | b'\t') => return Err(Fault::ObsFold),
            (At::Name, b':') => At::Value,
            (At::Name, _) if super::sniff::is_token(b) => At::Name,
            (At::Name, b' ' | b'\t') => return Err(Fault::SpaceBeforeColon),
            (At::LineStart | At::Name, _) => return Err(Fault::HeaderName),
            (At::Value, b'\r') => At::ValueLf,
            (At::Value, b'\t' | b' '..=b'~' | 0x80..) => At::Value,
            (At::Value, b'\n') => return Err(Fault::BareLf),
            (At::Value, _) => return Err(Fault::HeaderValue),
            (At::ValueLf, b'\n') => At::LineStart,
            (At::ValueLf, _) => return Err(Fault::BareCr),
            (
                At::Extension(_)
                | At::SizeLf(_)
                | At::DataCr
                | At::DataLf
                | At::EndLf
                | At::Data(_),
                _,
            ) => return Err(Fault::Chunk),
        };
        Ok(Some(next))
    }
}

fn digit(b: u8) -> Result<u64, Fault> {
    match b {
        b'0'..=b'9' => Ok(u64::from(b - b'0')),
        b'a'..=b'f' => Ok(u64::from(b - b'a') + 10),
        b'A'..=b'F' => Ok(u64::from(b - b'A') + 10),
        _ => Err(Fault::Chunk),
    }
}

#[cfg(test)]
#[path = "framing/tests.rs"]
mod tests;
