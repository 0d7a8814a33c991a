//! Walks DNS messages where they lie (RFC 1035 §4): headers, names, record boundaries.
//!
//! Owns the bounds checks and nothing else: what a message means is in [`super::query`] and
//! [`super::answer`]. Messages pass through the proxy as the bytes that the server sent, so that a
//! record type which nobody here has heard of stays what it was.

use std::ops::Range;

use thiserror::Error;

/// Bytes of a DNS header.
pub(crate) const HEADER_LEN: usize = 12;
/// Longest name on the wire, in bytes, with the root's zero byte (RFC 1035 §2.3.4).
pub(crate) const MAX_NAME_LEN: usize = 255;
/// Longest DNS message, in bytes: what a two-byte length can say.
pub(crate) const MAX_MESSAGE_LEN: usize = u16::MAX as usize;

/// Flag bits of the header's second word.
pub(crate) mod flag {
    /// Response.
    pub(crate) const QR: u16 = 0x8000;
    /// Mask of the operation code.
    pub(crate) const OPCODE: u16 = 0x7800;
    /// Truncated.
    pub(crate) const TC: u16 = 0x0200;
    /// Recursion desired.
    pub(crate) const RD: u16 = 0x0100;
    /// Recursion available.
    pub(crate) const RA: u16 = 0x0080;
    /// Authentic data (RFC 4035 §3.2.3).
    pub(crate) const AD: u16 = 0x0020;
    /// Checking disabled (RFC 4035 §3.2.2).
    pub(crate) const CD: u16 = 0x0010;
    /// Mask of the low four bits of the response code.
    pub(crate) const RCODE: u16 = 0x000f;
}

/// Record and question types that the proxy has to know; any other passes as it is.
pub(crate) mod rtype {
    /// IPv4 address.
    pub(crate) const A: u16 = 1;
    /// Start of authority.
    pub(crate) const SOA: u16 = 6;
    /// Text.
    #[cfg(test)]
    pub(crate) const TXT: u16 = 16;
    /// IPv6 address.
    pub(crate) const AAAA: u16 = 28;
    /// Service location.
    pub(crate) const SRV: u16 = 33;
    /// EDNS pseudo record.
    pub(crate) const OPT: u16 = 41;
    /// TLS certificate association.
    pub(crate) const TLSA: u16 = 52;
    /// Service binding.
    pub(crate) const SVCB: u16 = 64;
    /// Service binding of HTTP.
    pub(crate) const HTTPS: u16 = 65;
    /// Key exchange; a pseudo type.
    pub(crate) const TKEY: u16 = 249;
    /// Transaction signature; a pseudo type.
    pub(crate) const TSIG: u16 = 250;
    /// Incremental zone transfer.
    pub(crate) const IXFR: u16 = 251;
    /// Zone transfer.
    pub(crate) const AXFR: u16 = 252;
    /// Mail agent types of 1983.
    pub(crate) const MAILB: u16 = 253;
    /// Mail agent types of 1983.
    pub(crate) const MAILA: u16 = 254;
    /// Every type.
    pub(crate) const ANY: u16 = 255;
    /// Uniform resource identifier.
    pub(crate) const URI: u16 = 256;
}

/// The Internet class.
pub(crate) const CLASS_IN: u16 = 1;

/// Why bytes are not a DNS message.
#[derive(Debug, Error, PartialEq, Eq, Clone, Copy)]
pub(crate) enum WireError {
    /// The message ends inside a field.
    #[error("the message ends inside a field")]
    Short,
    /// A name is longer than 255 bytes, has a label of an unknown kind, or a pointer that doesn't point backwards.
    #[error("a name in the message is malformed")]
    Name,
    /// An address record's data is not as long as its type says.
    #[error("an address record has the wrong length")]
    RecordData,
    /// An EDNS record is repeated, misplaced or malformed.
    #[error("the EDNS record is malformed")]
    Edns,
}

/// The twelve bytes every message starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// What ties a reply to its query.
    pub(crate) id: u16,
    /// See [`flag`].
    pub(crate) flags: u16,
    /// Questions.
    pub(crate) questions: u16,
    /// Records in the answer section.
    pub(crate) answers: u16,
    /// Records in the authority section.
    pub(crate) authorities: u16,
    /// Records in the additional section.
    pub(crate) additionals: u16,
}

impl Header {
    /// Reads the header of `message`.
    pub(crate) fn read(message: &[u8]) -> Result<Header, WireError> {
        Ok(Header {
            id: u16_at(message, 0)?,
            flags: u16_at(message, 2)?,
            questions: u16_at(message, 4)?,
            answers: u16_at(message, 6)?,
            authorities: u16_at(message, 8)?,
            additionals: u16_at(message, 10)?,
        })
    }

    /// Appends the header to `out`.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for word in [
            self.id,
            self.flags,
            self.questions,
            self.answers,
            self.authorities,
            self.additionals,
        ] {
            out.extend_from_slice(&word.to_be_bytes());
        }
    }
}

/// One record of a message, by its places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordAt {
    /// Where the owner name starts.
    pub(crate) owner: usize,
    /// Record type.
    pub(crate) rtype: u16,
    /// Class; the sender's UDP size in an OPT record.
    pub(crate) class: u16,
    /// Where the four bytes of TTL are.
    pub(crate) ttl_at: usize,
    /// The TTL as sent, in seconds.
    pub(crate) ttl: u32,
    /// Where the data is.
    pub(crate) rdata: Range<usize>,
}

impl RecordAt {
    /// Reads the record that starts at `at`; the next one starts at `rdata.end`.
    pub(crate) fn read(message: &[u8], at: usize) -> Result<RecordAt, WireError> {
        let fixed = skip_name(message, at)?;
        let length = usize::from(u16_at(message, fixed + 8)?);
        let data = fixed + 10;
        if message.len() < data + length {
            return Err(WireError::Short);
        }
        Ok(RecordAt {
            owner: at,
            rtype: u16_at(message, fixed)?,
            class: u16_at(message, fixed + 2)?,
            ttl_at: fixed + 4,
            ttl: u32_at(message, fixed + 4)?,
            rdata: data..data + length,
        })
    }
}

/// The big-endian word at `at`.
pub(crate) fn u16_at(message: &[u8], at: usize) -> Result<u16, WireError> {
    match message.get(at..at + 2) {
        Some(&[high, low]) => Ok(u16::from_be_bytes([high, low])),
        _ => Err(WireError::Short),
    }
}

/// The big-endian double word at `at`.
pub(crate) fn u32_at(message: &[u8], at: usize) -> Result<u32, WireError> {
    match message.get(at..at + 4) {
        Some(&[a, b, c, d]) => Ok(u32::from_be_bytes([a, b, c, d])),
        _ => Err(WireError::Short),
    }
}

/// Overwrites the word at `at`; does nothing past the end.
pub(crate) fn put_u16(message: &mut [u8], at: usize, value: u16) {
    if let Some(place) = message.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// Overwrites the double word at `at`; does nothing past the end.
pub(crate) fn put_u32(message: &mut [u8], at: usize, value: u32) {
    if let Some(place) = message.get_mut(at..at + 4) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// Where the bytes after the name at `at` start. The name's pointers are checked too, so that a
/// message that passes here can be decoded by anybody.
fn skip_name(message: &[u8], at: usize) -> Result<usize, WireError> {
    walk_name(message, at, |_| ())
}

/// The name at `at`, decompressed, in lower case; and where the bytes after it start.
pub(crate) fn read_name(message: &[u8], at: usize) -> Result<(Vec<u8>, usize), WireError> {
    let mut name = Vec::with_capacity(64);
    let end = walk_name(message, at, |label| {
        // A label is at most 63 bytes long: `walk_name` has checked it.
        name.push(label.len() as u8);
        name.extend(label.iter().map(u8::to_ascii_lowercase));
    })?;
    name.push(0);
    Ok((name, end))
}

/// Calls `each` for each label of the name at `at`.
fn walk_name(message: &[u8], at: usize, mut each: impl FnMut(&[u8])) -> Result<usize, WireError> {
    let mut position = at;
    let mut after = None;
    // Pointers must go strictly backwards, so that a chain of them ends.
    let mut lowest = at;
    let mut length = 1;
    loop {
        let kind = *message.get(position).ok_or(WireError::Short)?;
        match kind {
            0 => return Ok(after.unwrap_or(position + 1)),
            1..=63 => {
                let start = position + 1;
                let end = start + usize::from(kind);
                let label = message.get(start..end).ok_or(WireError::Short)?;
                length += 1 + label.len();
                if length > MAX_NAME_LEN {
                    return Err(WireError::Name);
                }
                each(label);
                position = end;
            }
            0xc0..=0xff => {
                let target = usize::from(u16_at(message, position)? & 0x3fff);
                if target >= lowest || target < HEADER_LEN {
                    return Err(WireError::Name);
                }
                after = after.or(Some(position + 2));
                lowest = target;
                position = target;
            }
            // 0x40 and 0x80 were never given a meaning that is still in use.
            _ => return Err(WireError::Name),
        }
    }
}

/// The labels of an uncompressed wire name, without the root.
pub(crate) fn labels(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = name;
    std::iter::from_fn(move || {
        let (&length, tail) = rest.split_first()?;
        let length = usize::from(length);
        if length == 0 || tail.len() < length {
            return None;
        }
        let (label, tail) = tail.split_at(length);
        rest = tail;
        Some(label)
    })
}

/// An uncompressed wire name as people write it, without the final dot; bytes that a host name
/// can't have are escaped as RFC 1035 §5.1 does.
pub(crate) fn display_name(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for label in labels(name) {
        if !text.is_empty() {
            text.push('.');
        }
        for &byte in label {
            match byte {
                b'.' | b'\\' => {
                    text.push('\\');
                    text.push(char::from(byte));
                }
                0x21..=0x7e => text.push(char::from(byte)),
                _ => text.push_str(&format!("\\{byte:03}")),
            }
        }
    }
    if text.is_empty() {
        text.push('.');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_with(names: &[u8]) -> Vec<u8> {
        let mut message = vec![0; HEADER_LEN];
        message.extend_from_slice(names);
        message
    }

    #[test]
    fn a_compressed_name_is_read_whole_and_in_lower_case() {
        let message = message_with(b"\x07Example\x03COM\x00\x03www\xc0\x0c\xff");
        let (name, end) = read_name(&message, 25).unwrap();
        assert_eq!(name, b"\x03www\x07example\x03com\x00");
        assert_eq!(end, 31);
    }

    #[test]
    fn a_pointer_to_itself_or_forwards_is_refused() {
        for bytes in [
            &b"\xc0\x0c"[..],
            b"\xc0\x0e\x00",
            b"\x01a\xc0\x0c",
            b"\xc0\x00",
        ] {
            assert_eq!(
                read_name(&message_with(bytes), 12),
                Err(WireError::Name),
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn a_name_of_256_bytes_is_refused_and_one_of_255_is_read() {
        let mut bytes = Vec::new();
        for _ in 0..3 {
            bytes.push(63);
            bytes.extend_from_slice(&[b'a'; 63]);
        }
        let mut longest = bytes.clone();
        longest.push(61);
        longest.extend_from_slice(&[b'a'; 61]);
        longest.push(0);
        assert_eq!(longest.len(), 255);
        assert!(read_name(&message_with(&longest), 12).is_ok());
        bytes.push(62);
        bytes.extend_from_slice(&[b'a'; 62]);
        bytes.push(0);
        assert_eq!(read_name(&message_with(&bytes), 12), Err(WireError::Name));
    }

    #[test]
    fn odd_bytes_are_escaped_for_people() {
        assert_eq!(display_name(b"\x04a.b\x00\x01c\x00"), "a\\.b\\000.c");
        assert_eq!(display_name(b"\x00"), ".");
    }

    #[test]
    fn a_record_that_says_more_than_is_there_is_short() {
        let mut message = message_with(b"\x00\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x05");
        message.extend_from_slice(&[192, 0, 2, 1]);
        assert_eq!(RecordAt::read(&message, 12), Err(WireError::Short));
        message.push(0);
        let record = RecordAt::read(&message, 12).unwrap();
        assert_eq!((record.rtype, record.ttl, record.rdata.len()), (1, 60, 5));
    }
}
