//! Reads the server name out of a TLS ClientHello that may be cut anywhere.
//!
//! Owns the record layer's first flight (RFC 8446 sections 4.1.2 and 5.1), `server_name` (RFC 6066
//! section 3), and whether Encrypted ClientHello is offered. It does no I/O, decides nothing, and
//! keeps no state: the caller hands all the bytes it has and is told whether they are enough.

use std::borrow::Cow;

/// The largest ClientHello that is read, in bytes of handshake message. Post-quantum key shares
/// make 2 KiB usual; what is larger than this has no honest reason.
pub(crate) const MAX_HELLO: usize = 32 * 1024;

/// Records that a ClientHello may be spread over. Two or three are usual; what is cut finer hides.
const MAX_RECORDS: usize = 16;
const RECORD_HEADER: usize = 5;
const MAX_RECORD: usize = 1 << 14;
const TYPE_HANDSHAKE: u8 = 22;
const HANDSHAKE_CLIENT_HELLO: u8 = 1;
const EXT_SERVER_NAME: u16 = 0;
const EXT_ALPN: u16 = 16;
/// `encrypted_client_hello` (RFC 9849), its drafts' numbers, and ESNI before them.
const EXT_ECH: [u16; 5] = [0xfe0d, 0xfe0a, 0xfe09, 0xfe08, 0xffce];

/// What the bytes so far amount to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progress {
    /// A whole ClientHello.
    Hello(Hello),
    /// A correct beginning. Fewer than `total` bytes can't say more.
    NeedMore { total: usize },
}

/// The parts of a ClientHello that a decision needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Hello {
    /// The one `host_name` of the `server_name` extension, as sent.
    pub(crate) server_name: Option<String>,
    /// Whether the real name may be hidden inside an encrypted ClientHello.
    pub(crate) ech: bool,
    /// Whether HTTP is offered by ALPN (`h2` or `http/1.1`).
    pub(crate) offers_http: bool,
}

/// Why bytes that begin like TLS are no ClientHello that has one meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HelloError {
    #[error("a record that is no handshake before the ClientHello was complete")]
    NotHandshake,
    #[error("a TLS record of impossible length")]
    RecordLength,
    #[error("the first handshake message is no ClientHello")]
    NotClientHello,
    #[error("a ClientHello of more than {MAX_HELLO} bytes")]
    TooLong,
    #[error("a ClientHello in more than {MAX_RECORDS} records")]
    TooManyRecords,
    #[error("a ClientHello cut short inside {0}")]
    Truncated(&'static str),
    #[error("bytes left over after {0}")]
    LeftOver(&'static str),
    #[error("the same extension twice")]
    DuplicateExtension,
    #[error("a server_name extension that is not exactly one ASCII host name")]
    ServerName,
}

/// Reads `bytes`, everything received so far. A caller that comes back with
/// [`Progress::NeedMore`]'s `total` bytes and not before does linear work, however the bytes come:
/// each record is waited for as a whole, and there are at most [`MAX_RECORDS`].
///
/// # Errors
/// When no further byte can make this a ClientHello with one meaning.
pub(crate) fn parse(bytes: &[u8]) -> Result<Progress, HelloError> {
    match handshake_message(bytes)? {
        Joined::Whole(message) => hello(&message).map(Progress::Hello),
        Joined::NeedMore { total } => Ok(Progress::NeedMore { total }),
    }
}

/// The body of a handshake message, or how many bytes it takes to know more of it.
enum Joined<'a> {
    Whole(Cow<'a, [u8]>),
    NeedMore { total: usize },
}

/// The body of the first handshake message, joined over records when it spans several.
fn handshake_message(bytes: &[u8]) -> Result<Joined<'_>, HelloError> {
    let mut joined: Vec<u8> = Vec::new();
    let mut rest = bytes;
    for _ in 0..MAX_RECORDS {
        let (fragment, after) = match record(rest)? {
            Record::Whole(fragment, after) => (fragment, after),
            Record::NeedMore { length } => {
                let total = bytes.len() - rest.len() + length;
                return Ok(Joined::NeedMore { total });
            }
        };
        let seen: &[u8] = if joined.is_empty() && rest.len() == bytes.len() {
            fragment
        } else {
            joined.extend_from_slice(fragment);
            &joined
        };
        match message_length(seen)? {
            Some(length) if seen.len() >= 4 + length => {
                return Ok(Joined::Whole(if joined.is_empty() {
                    Cow::Borrowed(&fragment[4..4 + length])
                } else {
                    joined.truncate(4 + length);
                    joined.drain(..4);
                    Cow::Owned(joined)
                }));
            }
            _ => {}
        }
        if joined.is_empty() {
            joined.extend_from_slice(fragment);
        }
        rest = after;
    }
    Err(HelloError::TooManyRecords)
}

enum Record<'a> {
    /// Its fragment, and what follows it.
    Whole(&'a [u8], &'a [u8]),
    /// It takes `length` bytes to know more of it.
    NeedMore { length: usize },
}

/// Reads the record that `bytes` begins with.
fn record(bytes: &[u8]) -> Result<Record<'_>, HelloError> {
    // A header is looked at byte by byte, so that what is no handshake is not waited for.
    let length = bytes.len() + 1;
    match bytes.first() {
        None => return Ok(Record::NeedMore { length }),
        Some(&TYPE_HANDSHAKE) => {}
        Some(_) => return Err(HelloError::NotHandshake),
    }
    if bytes.get(1).is_some_and(|major| *major != 3) {
        return Err(HelloError::NotHandshake);
    }
    let Some(header) = bytes.get(..RECORD_HEADER) else {
        return Ok(Record::NeedMore { length });
    };
    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if length == 0 || length > MAX_RECORD {
        return Err(HelloError::RecordLength);
    }
    let length = RECORD_HEADER + length;
    Ok(match bytes.split_at_checked(length) {
        Some((whole, after)) => Record::Whole(&whole[RECORD_HEADER..], after),
        None => Record::NeedMore { length },
    })
}

fn message_length(message: &[u8]) -> Result<Option<usize>, HelloError> {
    match message.first() {
        None => return Ok(None),
        Some(&HANDSHAKE_CLIENT_HELLO) => {}
        Some(_) => return Err(HelloError::NotClientHello),
    }
    let Some(&[_, a, b, c]) = message.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = (usize::from(a) << 16) | (usize::from(b) << 8) | usize::from(c);
    if length > MAX_HELLO {
        return Err(HelloError::TooLong);
    }
    Ok(Some(length))
}

fn hello(body: &[u8]) -> Result<Hello, HelloError> {
    let mut r = Reader(body);
    r.take(2 + 32, "version and random")?;
    r.vector8("session id")?;
    r.vector16("cipher suites")?;
    r.vector8("compression methods")?;
    let mut found = Hello::default();
    if r.0.is_empty() {
        return Ok(found);
    }
    let mut extensions = Reader(r.vector16("extensions")?);
    if !r.0.is_empty() {
        return Err(HelloError::LeftOver("the extensions"));
    }
    let mut seen: Vec<u16> = Vec::with_capacity(24);
    while !extensions.0.is_empty() {
        let kind = extensions.u16("an extension's type")?;
        let data = extensions.vector16("an extension")?;
        if seen.contains(&kind) {
            return Err(HelloError::DuplicateExtension);
        }
        // More distinct extensions than exist: refused by the hello's own length, not by a count.
        seen.push(kind);
        match kind {
            EXT_SERVER_NAME => found.server_name = Some(server_name(data)?),
            EXT_ALPN => found.offers_http = offers_http(data)?,
            kind if EXT_ECH.contains(&kind) => found.ech = true,
            _ => {}
        }
    }
    Ok(found)
}

fn server_name(data: &[u8]) -> Result<String, HelloError> {
    let mut r = Reader(data);
    let mut list = Reader(r.vector16("server_name")?);
    let kind = list.take(1, "server_name")?;
    let name = list.vector16("server_name")?;
    if kind != [0] || !list.0.is_empty() || !r.0.is_empty() || name.is_empty() {
        return Err(HelloError::ServerName);
    }
    match std::str::from_utf8(name) {
        Ok(name) if name.is_ascii() && !name.bytes().any(|b| b.is_ascii_control()) => {
            Ok(name.to_owned())
        }
        _ => Err(HelloError::ServerName),
    }
}

fn offers_http(data: &[u8]) -> Result<bool, HelloError> {
    let mut r = Reader(data);
    let mut list = Reader(r.vector16("ALPN")?);
    let mut found = false;
    while !list.0.is_empty() {
        let name = list.vector8("ALPN")?;
        found |= name == b"h2" || name == b"http/1.1";
    }
    Ok(found)
}

/// A cursor that can't run past its end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], HelloError> {
        let (taken, rest) = self
            .0
            .split_at_checked(n)
            .ok_or(HelloError::Truncated(what))?;
        self.0 = rest;
        Ok(taken)
    }

    fn u16(&mut self, what: &'static str) -> Result<u16, HelloError> {
        let b = self.take(2, what)?;
        Ok(u16::from_be_bytes([b[0], b[1]]))
    }

    fn vector8(&mut self, what: &'static str) -> Result<&'a [u8], HelloError> {
        let n = self.take(1, what)?[0];
        self.take(usize::from(n), what)
    }

    fn vector16(&mut self, what: &'static str) -> Result<&'a [u8], HelloError> {
        let n = self.u16(what)?;
        self.take(usize::from(n), what)
    }
}

#[cfg(test)]
#[path = "clienthello/tests.rs"]
mod tests;
