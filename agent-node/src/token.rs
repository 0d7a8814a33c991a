//! Tokens in files, and what a client presents of them (RFC 9110, section 11).
//!
//! Owns reading and comparing. The file is read each time: it is asked rarely, and may change.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::HeaderName;
use zeroize::Zeroizing;

/// A token is short; what is longer isn't one.
const MAX_TOKEN_BYTES: u64 = 4096;

/// Why a client is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The file is missing or empty.
    NoToken,
    /// The header is missing, there twice, or has another token.
    Wrong,
}

/// Compares what `header` presents as `Bearer <token>`, or as the password of `Basic`, with the file's content.
///
/// # Errors
/// When they are not the same.
pub(crate) fn check(file: &Path, headers: &HeaderMap, header: &HeaderName) -> Result<(), Refused> {
    let content = read(file).ok_or(Refused::NoToken)?;
    let token = content.trim_ascii();
    if token.is_empty() {
        return Err(Refused::NoToken);
    }
    let mut given = headers.get_all(header).iter();
    let (Some(value), None) = (given.next(), given.next()) else {
        return Err(Refused::Wrong);
    };
    let presented = presented(value.as_bytes()).ok_or(Refused::Wrong)?;
    if same(&presented, token) {
        Ok(())
    } else {
        Err(Refused::Wrong)
    }
}

fn read(file: &Path) -> Option<Zeroizing<Vec<u8>>> {
    let file = std::fs::File::open(file).ok()?;
    let metadata = file.metadata().ok()?;
    crate::file_watch::read_open(&file, &metadata, MAX_TOKEN_BYTES)
        .ok()
        .map(Zeroizing::new)
}

/// The token in a header's value; the scheme's case doesn't matter (RFC 9110, section 11.1).
fn presented(value: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let at = value.iter().position(|byte| *byte == b' ')?;
    let (scheme, rest) = value.split_at(at);
    let rest = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(Zeroizing::new(rest.to_vec()));
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    // RFC 7617: the user name ends at the first colon; it says nothing here.
    let pair = Zeroizing::new(STANDARD.decode(rest).ok()?);
    let colon = pair.iter().position(|byte| *byte == b':')?;
    pair.get(colon + 1..)
        .map(|password| Zeroizing::new(password.to_vec()))
}

/// Compares in a time that depends on the lengths only.
fn same(a: &[u8], b: &[u8]) -> bool {
    use subtle::ConstantTimeEq;
    a.ct_eq(b).into()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::AUTHORIZATION;

    use super::*;

    #[test]
    fn only_the_files_token_is_let_in() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let mut headers = HeaderMap::new();
        let check = |headers: &HeaderMap| check(&file, headers, &AUTHORIZATION);
        assert_eq!(check(&headers), Err(Refused::NoToken));
        std::fs::write(&file, " \n").unwrap();
        assert_eq!(check(&headers), Err(Refused::NoToken));
        std::fs::write(&file, "s3cret\n").unwrap();
        assert_eq!(check(&headers), Err(Refused::Wrong));
        for (value, right) in [
            ("Bearer s3cret", true),
            ("bearer s3cret", true),
            ("Bearer s3cre", false),
            ("Bearer s3cret2", false),
            ("Bearer ", false),
            ("Basic s3cret", false),
            // `printf 'anybody:s3cret' | base64`, and without the colon
            ("Basic YW55Ym9keTpzM2NyZXQ=", true),
            ("Basic czNjcmV0", false),
            ("Digest s3cret", false),
            ("s3cret", false),
        ] {
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
            assert_eq!(check(&headers).is_ok(), right, "{value}");
        }
        headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer s3cret"));
        assert_eq!(check(&headers), Err(Refused::Wrong));
    }
}
