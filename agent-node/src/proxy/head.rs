//! Checks one HTTP/1.x request head, line by line, for having one meaning only.
//!
//! Owns the strict grammar of RFC 9112 sections 2 to 6 as far as message framing depends on it.
//! What this module lets through, hyper reads in the same way; what two parsers could read in two
//! ways is a [`Fault`]. It does not look at hosts, paths or policy.

use super::fault::Fault;
use super::sniff::is_token;
use super::upgrade;

/// Limits on one head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadLimits {
    /// Bytes, from the request line to the empty line.
    pub(crate) bytes: usize,
    /// Header lines.
    pub(crate) count: usize,
}

/// How the body after a head is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    None,
    Length(u64),
    Chunked,
}

/// What a complete head says about the bytes behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) framing: BodyFraming,
    /// Whether a success turns the connection into a tunnel (`CONNECT`, or an upgrade that
    /// [`upgrade::is_allowed`] lets be asked for).
    pub(crate) tunnel: bool,
}

/// The state of a head that is being read.
#[derive(Debug, Default)]
pub(crate) struct HeadScan {
    line_start: usize,
    scanned: usize,
    headers: usize,
    seen_request_line: bool,
    connect: bool,
    http10: bool,
    length: Option<u64>,
    chunked: bool,
    upgrades: usize,
    upgrade_allowed: bool,
    upgrade_nominated: bool,
}

/// How far a scan got.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Scanned {
    /// The head ends at this offset.
    Complete(usize, Head),
    /// More bytes are needed.
    Partial,
}

impl HeadScan {
    /// Looks at the lines that `bytes` has got since the last call. `bytes` begins where the head
    /// begins, every time.
    pub(crate) fn scan(&mut self, bytes: &[u8], limits: HeadLimits) -> Result<Scanned, Fault> {
        while let Some(at) = memchr::memchr(b'\n', &bytes[self.scanned..]) {
            let end = self.scanned + at;
            if end >= limits.bytes {
                return Err(Fault::HeadTooLarge);
            }
            self.scanned = end + 1;
            let Some(line) = bytes[self.line_start..end].strip_suffix(b"\r") else {
                return Err(Fault::BareLf);
            };
            self.line_start = end + 1;
            if !self.seen_request_line {
                self.seen_request_line = true;
                self.request_line(line)?;
            } else if line.is_empty() {
                return Ok(Scanned::Complete(end + 1, self.finish()?));
            } else {
                self.headers += 1;
                if self.headers > limits.count {
                    return Err(Fault::TooManyHeaders);
                }
                self.header(line)?;
            }
        }
        self.scanned = bytes.len();
        if bytes.len() >= limits.bytes {
            return Err(Fault::HeadTooLarge);
        }
        Ok(Scanned::Partial)
    }

    fn request_line(&mut self, line: &[u8]) -> Result<(), Fault> {
        let method_end = memchr::memchr(b' ', line).ok_or(Fault::RequestLine)?;
        let target_end = memchr::memrchr(b' ', line).ok_or(Fault::RequestLine)?;
        let (method, version) = (&line[..method_end], &line[target_end + 1..]);
        let target = line
            .get(method_end + 1..target_end)
            .ok_or(Fault::RequestLine)?;
        if method.is_empty() || !method.iter().all(|b| is_token(*b)) || target.is_empty() {
            return Err(Fault::RequestLine);
        }
        if target.contains(&b' ') {
            return Err(Fault::RequestLine);
        }
        // A fragment is never sent; a parser that drops it sees another target than one that doesn't.
        if !target
            .iter()
            .all(|b| matches!(b, b'!'..=b'~') && *b != b'#')
        {
            return Err(Fault::Target);
        }
        match version {
            b"HTTP/1.1" => {}
            b"HTTP/1.0" => self.http10 = true,
            [b'H', b'T', b'T', b'P', b'/', ..] => return Err(Fault::Version),
            _ => return Err(Fault::RequestLine),
        }
        self.connect = method == b"CONNECT";
        Ok(())
    }

    fn header(&mut self, line: &[u8]) -> Result<(), Fault> {
        if matches!(line[0], b' ' | b'\t') {
            return Err(Fault::ObsFold);
        }
        let colon = memchr::memchr(b':', line).ok_or(Fault::HeaderName)?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        match name.last() {
            None => return Err(Fault::HeaderName),
            Some(b' ' | b'\t') => return Err(Fault::SpaceBeforeColon),
            Some(_) if !name.iter().all(|b| is_token(*b)) => return Err(Fault::HeaderName),
            Some(_) => {}
        }
        for b in value {
            match b {
                b'\r' => return Err(Fault::BareCr),
                b'\t' | b' '..=b'~' | 0x80.. => {}
                _ => return Err(Fault::HeaderValue),
            }
        }
        let value = value.trim_ascii();
        match name.len() {
            7 if name.eq_ignore_ascii_case(b"upgrade") => {
                self.upgrades += 1;
                self.upgrade_allowed = upgrade::is_allowed(value);
            }
            10 if name.eq_ignore_ascii_case(b"connection") => {
                self.upgrade_nominated |= upgrade::list_has(value, b"upgrade");
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                if self.length.is_some() {
                    return Err(Fault::SeveralLengths);
                }
                self.length = Some(content_length(value)?);
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if self.chunked || value.is_empty() {
                    return Err(Fault::SeveralEncodings);
                }
                if !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Fault::Encoding);
                }
                self.chunked = true;
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&self) -> Result<Head, Fault> {
        let framing = match (self.length, self.chunked) {
            (Some(_), true) => return Err(Fault::LengthAndEncoding),
            (None, true) if self.http10 => return Err(Fault::EncodingOnHttp10),
            (None, true) => BodyFraming::Chunked,
            (Some(0) | None, false) => BodyFraming::None,
            (Some(n), false) => BodyFraming::Length(n),
        };
        let bodiless = framing == BodyFraming::None;
        if self.connect && !bodiless {
            return Err(Fault::ConnectBody);
        }
        let upgrade = self.upgrades == 1
            && self.upgrade_allowed
            && self.upgrade_nominated
            && bodiless
            && !self.http10;
        Ok(Head {
            framing,
            tunnel: self.connect || upgrade,
        })
    }
}

fn content_length(value: &[u8]) -> Result<u64, Fault> {
    if value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) {
        return Err(Fault::Length);
    }
    Ok(value.iter().fold(0, |n, b| n * 10 + u64::from(b - b'0')))
}

#[cfg(test)]
#[path = "head/tests.rs"]
mod tests;
