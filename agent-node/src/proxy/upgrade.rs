//! Which protocol upgrades may be asked for, and which answers to them are believed.
//!
//! Owns the rules on `Upgrade` (RFC 9110 section 7.8); the raw relay after a 101 is `relay`'s.

use http::HeaderMap;
use http::header::UPGRADE;

/// Whether an upgrade to `protocols`, an `Upgrade` header's value, may be passed on.
///
/// One protocol only, so that what a 101 means is known beforehand. HTTP and TLS in any version
/// are not: inside them further requests would run that nobody decides on. Such an `Upgrade` is not
/// passed on, and the request is served as the HTTP/1.1 that it is (as RFC 9110 has it).
pub(crate) fn is_allowed(protocols: &[u8]) -> bool {
    let name = match memchr::memchr(b'/', protocols) {
        Some(at) => &protocols[..at],
        None => protocols,
    };
    if name.is_empty() || protocols.iter().any(|b| matches!(b, b',' | b' ' | b'\t')) {
        return false;
    }
    ![b"h2c".as_slice(), b"h2", b"h3", b"http", b"https", b"tls"]
        .iter()
        .any(|refused| name.eq_ignore_ascii_case(refused))
}

/// Whether a 101 with `answer`'s headers is the one that was asked for.
pub(crate) fn is_expected(asked: &[u8], answer: &HeaderMap) -> bool {
    let mut values = answer.get_all(UPGRADE).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.as_bytes().trim_ascii().eq_ignore_ascii_case(asked),
        _ => false,
    }
}

/// Whether the comma-separated `list` has `token`, in any case.
pub(crate) fn list_has(list: &[u8], token: &[u8]) -> bool {
    list.split(|b| *b == b',')
        .any(|item| item.trim_ascii().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_protocol_that_is_no_http_may_be_asked_for() {
        for good in ["websocket", "WebSocket", "SPDY/3.1", "tcp"] {
            assert!(is_allowed(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            "h2c",
            "H2C",
            "h2",
            "HTTP/2.0",
            "TLS/1.2",
            "websocket, h2c",
            "/",
            "a b",
        ] {
            assert!(!is_allowed(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn an_answer_must_name_the_protocol_that_was_asked_for() {
        let mut answer = HeaderMap::new();
        assert!(!is_expected(b"websocket", &answer));
        answer.append(UPGRADE, http::HeaderValue::from_static("WebSocket"));
        assert!(is_expected(b"websocket", &answer));
        assert!(!is_expected(b"tcp", &answer));
        answer.append(UPGRADE, http::HeaderValue::from_static("h2c"));
        assert!(!is_expected(b"websocket", &answer));
    }
}
