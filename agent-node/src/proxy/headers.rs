//! Edits header maps in place: what may not pass a proxy, what a pod may not claim, what a
//! credential rule sets, and what an upstream may not echo.
//!
//! Owns the lists of names and the order of edits (RFC 9110 section 7.6.1: first remove what
//! `Connection` nominates, then inject). It never sees why; the caller decided.

use http::HeaderMap;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};

use crate::credential::Secret;

pub(crate) const X_AGENT_CALLER: HeaderName = HeaderName::from_static("x-agent-caller");
pub(crate) const X_AGENT_TARGET: HeaderName = HeaderName::from_static("x-agent-target");
/// On responses that the proxy made itself.
pub(crate) const DECISION: HeaderName = HeaderName::from_static("x-agent-network-decision");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Whether two header names are the same to an upstream that maps `_` to `-` (CGI, WSGI and many
/// frameworks do). Header names are lower case in a `HeaderMap`.
pub(crate) fn same_folded(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).all(|(a, b)| fold(a) == fold(b))
}

const fn fold(b: u8) -> u8 {
    if b == b'_' { b'-' } else { b }
}

fn starts_folded(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len())
        .is_some_and(|start| same_folded(start, prefix))
}

/// Claims about who calls and from where, which only the proxy may make.
fn is_claim(name: &str) -> bool {
    match name.len() {
        9 => name == "forwarded",
        14 => {
            same_folded(name, "x-agent-caller")
                || same_folded(name, "x-agent-target")
                || starts_folded(name, "x-forwarded-")
        }
        12.. => starts_folded(name, "x-forwarded-"),
        _ => false,
    }
}

/// Removes from a request what goes no further than this proxy, and every claim of the pod's.
/// Returns whether the client takes trailers.
pub(crate) fn clean_request(headers: &mut HeaderMap) -> bool {
    let takes_trailers = headers
        .get_all(TE)
        .iter()
        .any(|v| super::upgrade::list_has(v.as_bytes(), b"trailers"));
    clean(headers);
    headers.remove(PROXY_AUTHORIZATION);
    remove_where(headers, is_claim);
    takes_trailers
}

/// Removes from a response what goes no further than this proxy, and what only the proxy says.
pub(crate) fn clean_response(headers: &mut HeaderMap) {
    clean(headers);
    headers.remove(PROXY_AUTHENTICATE);
    headers.remove(DECISION);
}

/// Removes from trailers what may not stand there, the pod's claims, and `credential`.
pub(crate) fn clean_trailers(trailers: &mut HeaderMap, credential: Option<&HeaderName>) {
    clean(trailers);
    trailers.remove(CONTENT_LENGTH);
    trailers.remove(HOST);
    remove_where(trailers, |name| {
        is_claim(name) || credential.is_some_and(|c| same_folded(name, c.as_str()))
    });
}

fn clean(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let mut nominated: Vec<HeaderName> = Vec::new();
        for value in headers.get_all(CONNECTION) {
            for name in value.as_bytes().split(|b| *b == b',') {
                if let Ok(name) = HeaderName::from_bytes(name.trim_ascii()) {
                    nominated.push(name);
                }
            }
        }
        for name in &nominated {
            // Nominating these would change what the message is, not how it travels.
            if *name != HOST && *name != CONTENT_LENGTH {
                headers.remove(name);
            }
        }
        headers.remove(CONNECTION);
    }
    for name in [
        KEEP_ALIVE,
        PROXY_CONNECTION,
        TE,
        TRANSFER_ENCODING,
        UPGRADE,
        HTTP2_SETTINGS,
    ] {
        headers.remove(name);
    }
}

fn remove_where(headers: &mut HeaderMap, mut unwanted: impl FnMut(&str) -> bool) {
    // Nearly always none: no allocation then.
    let found: Vec<HeaderName> = headers
        .keys()
        .filter(|name| unwanted(name.as_str()))
        .cloned()
        .collect();
    for name in found {
        headers.remove(name);
    }
}

/// Sets `name` to exactly `value`, after removing every spelling of it.
pub(crate) fn set_only(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    remove_where(headers, |present| same_folded(present, name.as_str()));
    headers.insert(name, value);
}

/// Replaces `secret`, in every form it has, in `headers`' values. Returns how many values held it.
pub(crate) fn redact(headers: &mut HeaderMap, secret: &Secret) -> u64 {
    let mut redacted = 0;
    for value in headers.values_mut() {
        if let Some(clean) = secret.redact(value) {
            *value = clean;
            redacted += 1;
        }
    }
    redacted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        headers
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn hop_by_hop_and_nominated_headers_go_no_further() {
        let mut headers = map(&[
            ("Host", "a.example"),
            ("Connection", "keep-alive, X-Mine ,Authorization"),
            ("connection", "X-Agent-Caller, Host, Content-Length"),
            ("Content-Length", "3"),
            ("X-Mine", "1"),
            ("Authorization", "pod's"),
            ("X-Agent-Caller", "sa:a:b"),
            ("Keep-Alive", "5"),
            ("Proxy-Connection", "keep-alive"),
            ("Proxy-Authorization", "Basic x"),
            ("TE", "trailers, deflate"),
            ("Transfer-Encoding", "chunked"),
            ("Upgrade", "h2c"),
            ("HTTP2-Settings", "AAA"),
            ("Accept", "*/*"),
        ]);
        assert!(clean_request(&mut headers));
        assert_eq!(names(&headers), ["accept", "content-length", "host"]);
    }

    #[test]
    fn claims_of_the_pod_go_no_further_in_any_spelling() {
        let mut headers = map(&[
            ("X-Agent-Caller", "1"),
            ("X_Agent_Caller", "2"),
            ("x-agent_target", "3"),
            ("X-Forwarded-For", "4"),
            ("X_Forwarded_Proto", "5"),
            ("x-forwarded-x", "5"),
            ("Forwarded", "6"),
            ("X-Forwarded", "kept: it is not of the family"),
            ("X-Agent", "kept"),
        ]);
        clean_request(&mut headers);
        assert_eq!(names(&headers), ["x-agent", "x-forwarded"]);
    }

    #[test]
    fn a_credential_replaces_every_spelling_that_the_pod_sent() {
        let mut headers = map(&[
            ("X-API-Key", "a"),
            ("x-api-key", "b"),
            ("X_API_KEY", "c"),
            ("x-api_key", "d"),
            ("Other", "e"),
        ]);
        set_only(
            &mut headers,
            HeaderName::from_static("x-api-key"),
            HeaderValue::from_static("ours"),
        );
        assert_eq!(headers.get_all("x-api-key").iter().count(), 1);
        assert_eq!(headers["x-api-key"], "ours");
        assert_eq!(headers.len(), 2);
    }

    #[test]
    fn trailers_carry_neither_claims_nor_the_credential() {
        let mut trailers = map(&[
            ("X_Api_Key", "a"),
            ("X-Forwarded-For", "b"),
            ("Content-Length", "1"),
            ("Checksum", "c"),
        ]);
        clean_trailers(&mut trailers, Some(&HeaderName::from_static("x-api-key")));
        assert_eq!(names(&trailers), ["checksum"]);
    }
}
