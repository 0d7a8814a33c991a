//! Small responses.

use http::header::{ALLOW, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use serde::Serialize;

pub(super) type Reply = Response<Full<Bytes>>;

#[derive(Serialize)]
struct Problem<'a> {
    error: &'a str,
}

pub(super) fn text(status: StatusCode, body: impl Into<Bytes>, kind: &'static str) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = status;
    reply
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Reply {
    match serde_json::to_vec(body) {
        Ok(mut bytes) => {
            bytes.push(b'\n');
            text(status, bytes, "application/json")
        }
        Err(error) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            error.to_string(),
            "text/plain",
        ),
    }
}

pub(super) fn problem(status: StatusCode, error: &str) -> Reply {
    json(status, &Problem { error })
}

pub(super) fn unauthorized(error: &str) -> Reply {
    let mut reply = problem(StatusCode::UNAUTHORIZED, error);
    reply
        .headers_mut()
        .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    reply
}

pub(super) fn wrong_method(allow: &'static str) -> Reply {
    let mut reply = problem(
        StatusCode::METHOD_NOT_ALLOWED,
        "this endpoint has another method",
    );
    reply
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allow));
    reply
}
