//! Says which protocol a connection's first bytes belong to.
//!
//! Owns the classification, a pure function of the bytes so far; the waiting is
//! `connection`'s. What it calls HTTP is still checked byte by byte in `framing`, and what it calls
//! TLS in `clienthello`.

/// How many bytes a first line may have before it must have shown what it is.
pub(crate) const MAX_FIRST_LINE: usize = 16 * 1024;

/// HTTP/2 with prior knowledge begins with this (RFC 9113 section 3.4).
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Methods that make an unfinished or versionless first line HTTP all the same, so that the client
/// gets its error in words.
const KNOWN_METHODS: [&[u8]; 9] = [
    b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH",
];

/// The protocol of a connection's first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sniffed {
    /// An HTTP/1.x request line, or enough of one.
    Http1,
    /// HTTP/2 without TLS.
    Http2,
    /// A TLS handshake record.
    Tls,
    /// None of these: only addresses can be decided on.
    Opaque,
}

/// Classifies `bytes`; `None` when more are needed.
pub(crate) fn classify(bytes: &[u8]) -> Option<Sniffed> {
    match bytes {
        [] => None,
        [0x16] => None,
        [0x16, 0x03, ..] => Some(Sniffed::Tls),
        _ if H2_PREFACE.starts_with(bytes) => None,
        _ if bytes.starts_with(H2_PREFACE) => Some(Sniffed::Http2),
        _ => request_line(bytes),
    }
}

/// Classifies `bytes` when no more may be waited for: time or size is used up.
pub(crate) fn classify_final(bytes: &[u8]) -> Sniffed {
    classify(bytes).unwrap_or_else(|| match bytes {
        [0x16, ..] => Sniffed::Tls,
        _ => match method(bytes) {
            Method::Known => Sniffed::Http1,
            Method::Other | Method::Unfinished | Method::None => Sniffed::Opaque,
        },
    })
}

enum Method {
    Known,
    Other,
    Unfinished,
    None,
}

fn method(bytes: &[u8]) -> Method {
    let window = &bytes[..bytes.len().min(32)];
    match window.iter().position(|b| !is_token(*b)) {
        Some(0) => Method::None,
        Some(end) if window[end] == b' ' => {
            if KNOWN_METHODS.contains(&&window[..end]) {
                Method::Known
            } else {
                Method::Other
            }
        }
        // "GET\t/": no request line that we accept, but HTTP's to refuse.
        Some(end) if KNOWN_METHODS.contains(&&window[..end]) => Method::Known,
        Some(_) => Method::None,
        None if window.len() < 32 => Method::Unfinished,
        None => Method::None,
    }
}

fn request_line(bytes: &[u8]) -> Option<Sniffed> {
    let kind = method(bytes);
    match kind {
        Method::Known => Some(Sniffed::Http1),
        Method::None => Some(Sniffed::Opaque),
        Method::Unfinished => None,
        Method::Other => {
            let Some(end) = memchr::memchr(b'\n', bytes) else {
                return (bytes.len() >= MAX_FIRST_LINE).then_some(Sniffed::Opaque);
            };
            let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
            Some(match line.last_chunk::<9>() {
                Some([b' ', b'H', b'T', b'T', b'P', b'/', major, b'.', minor])
                    if major.is_ascii_digit() && minor.is_ascii_digit() =>
                {
                    Sniffed::Http1
                }
                _ => Sniffed::Opaque,
            })
        }
    }
}

/// Whether `b` may stand in a method or header name (`tchar`, RFC 9110 section 5.6.2).
pub(crate) const fn is_token(b: u8) -> bool {
    matches!(b,
        b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_'
        | b'`' | b'|' | b'~' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_say_the_protocol() {
        let cases: &[(&[u8], Option<Sniffed>)] = &[
            (b"", None),
            (b"G", None),
            (b"GET / HTTP/1.1\r\n", Some(Sniffed::Http1)),
            (b"GET /", Some(Sniffed::Http1)),
            (b"PROPFIND / HTT", None),
            (b"PROPFIND / HTTP/1.1\r\n", Some(Sniffed::Http1)),
            (b"PRI * HTTP/2.0\r\n\r\nSM", None),
            (
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0",
                Some(Sniffed::Http2),
            ),
            (b"\x16", None),
            (b"\x16\x03", Some(Sniffed::Tls)),
            (b"\x16\x02", Some(Sniffed::Opaque)),
            (b"SSH-2.0-OpenSSH_9.2\r\n", Some(Sniffed::Opaque)),
            (b"EHLO mail.example\r\n", Some(Sniffed::Opaque)),
            (b"get key\r\n", Some(Sniffed::Opaque)),
            (b"*1\r\n$4\r\nPING\r\n", Some(Sniffed::Opaque)),
            (b"\0\0\0\x08\x04\xd2\x16\x2f", Some(Sniffed::Opaque)),
        ];
        for (bytes, expected) in cases {
            assert_eq!(
                classify(bytes),
                *expected,
                "{}",
                String::from_utf8_lossy(bytes)
            );
        }
    }

    #[test]
    fn out_of_time_means_opaque_unless_it_began_as_http_or_tls() {
        assert_eq!(classify_final(b""), Sniffed::Opaque);
        assert_eq!(classify_final(b"PROPFIND /"), Sniffed::Opaque);
        assert_eq!(classify_final(b"GET"), Sniffed::Opaque);
        assert_eq!(classify_final(b"\x16"), Sniffed::Tls);
        assert_eq!(classify_final(b"GET /x"), Sniffed::Http1);
    }

    #[test]
    fn more_bytes_never_change_an_answer() {
        for whole in [
            &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0",
            b"\x16\x03\x01\0\x05",
            b"EHLO mail.example\r\nHELP\r\n",
            b"REPORT /cal HTTP/1.1\r\n\r\n",
        ] {
            let mut seen = None;
            for cut in 0..=whole.len() {
                let now = classify(&whole[..cut]);
                if seen.is_some() {
                    assert_eq!(now, seen);
                }
                seen = now;
            }
        }
    }
}
