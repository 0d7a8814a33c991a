//! The bearer token of the endpoints that change or reveal policy.

use std::path::Path;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use zeroize::Zeroizing;

/// A token is short; what is longer isn't one.
const MAX_TOKEN_BYTES: u64 = 4096;

/// Why a request may not use the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum AuthError {
    #[error("this endpoint is off: set `reloadTokenFile` in the configuration to turn it on")]
    Off,
    #[error("the file of `reloadTokenFile` is missing or empty")]
    NoToken,
    #[error("send `Authorization: Bearer <token>` with the token of `reloadTokenFile`")]
    Wrong,
}

/// Checks a request's bearer token against the file's content, which is read each time: it is
/// asked rarely, and may change.
pub(super) fn check(file: Option<&Path>, headers: &HeaderMap) -> Result<(), AuthError> {
    let file = file.ok_or(AuthError::Off)?;
    let content = read(file).ok_or(AuthError::NoToken)?;
    let token = content.trim_ascii();
    if token.is_empty() {
        return Err(AuthError::NoToken);
    }
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else {
        return Err(AuthError::Wrong);
    };
    let presented = bearer(value.as_bytes()).ok_or(AuthError::Wrong)?;
    if same(presented, token) {
        Ok(())
    } else {
        Err(AuthError::Wrong)
    }
}

fn read(file: &Path) -> Option<Zeroizing<Vec<u8>>> {
    let file = std::fs::File::open(file).ok()?;
    let metadata = file.metadata().ok()?;
    crate::file_watch::read_open(&file, &metadata, MAX_TOKEN_BYTES)
        .ok()
        .map(Zeroizing::new)
}

/// The token of `Bearer <token>`; the scheme's case doesn't matter (RFC 9110, section 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

/// Compares in a time that depends on the lengths only.
fn same(a: &[u8], b: &[u8]) -> bool {
    use subtle::ConstantTimeEq;
    a.ct_eq(b).into()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_the_files_token_is_let_in() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let mut headers = HeaderMap::new();
        assert_eq!(check(None, &headers), Err(AuthError::Off));
        assert_eq!(check(Some(&file), &headers), Err(AuthError::NoToken));
        std::fs::write(&file, " \n").unwrap();
        assert_eq!(check(Some(&file), &headers), Err(AuthError::NoToken));
        std::fs::write(&file, "s3cret\n").unwrap();
        assert_eq!(check(Some(&file), &headers), Err(AuthError::Wrong));
        for (value, right) in [
            ("Bearer s3cret", true),
            ("bearer s3cret", true),
            ("Bearer s3cre", false),
            ("Bearer s3cret2", false),
            ("Bearer ", false),
            ("Basic s3cret", false),
            ("s3cret", false),
        ] {
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
            assert_eq!(check(Some(&file), &headers).is_ok(), right, "{value}");
        }
        headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer s3cret"));
        assert_eq!(check(Some(&file), &headers), Err(AuthError::Wrong));
    }
}
