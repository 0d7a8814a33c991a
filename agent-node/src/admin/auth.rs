//! The bearer token of the endpoints that change or reveal policy.

use std::path::Path;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::token::{self, Refused};

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

/// Checks a request's token against the file's content.
pub(super) fn check(file: Option<&Path>, headers: &HeaderMap) -> Result<(), AuthError> {
    let file = file.ok_or(AuthError::Off)?;
    token::check(file, headers, &AUTHORIZATION).map_err(|refused| match refused {
        Refused::NoToken => AuthError::NoToken,
        Refused::Wrong => AuthError::Wrong,
    })
}
