//! What can be wrong with the bytes of a request, and how it is answered.
//!
//! Owns the closed list of faults, their status codes and sentences. Who finds them: `head` and
//! `framing` (bytes), `authority` (hosts), `guard` (time and size).

use http::StatusCode;

/// A request that is refused for its form, before any policy is asked.
///
/// After one of these the connection is closed: where the next request would begin is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the request line is not `METHOD target HTTP/1.1` with single spaces")]
    RequestLine,
    #[error("the request target holds a byte that no URI may hold")]
    Target,
    #[error("only HTTP/1.1 and HTTP/1.0 are spoken here")]
    Version,
    #[error("a line ends in LF without CR")]
    BareLf,
    #[error("a CR stands alone")]
    BareCr,
    #[error("a header is folded over two lines")]
    ObsFold,
    #[error("there is space between a header's name and its colon")]
    SpaceBeforeColon,
    #[error("a header's name is empty or holds a byte that no name may hold")]
    HeaderName,
    #[error("a header's value holds a control character")]
    HeaderValue,
    #[error("Content-Length and Transfer-Encoding are both there")]
    LengthAndEncoding,
    #[error("Content-Length is there more than once")]
    SeveralLengths,
    #[error("Content-Length is not one decimal number")]
    Length,
    #[error("Transfer-Encoding is there more than once or is empty")]
    SeveralEncodings,
    #[error("the only transfer coding understood is `chunked`")]
    Encoding,
    #[error("HTTP/1.0 has no Transfer-Encoding")]
    EncodingOnHttp10,
    #[error("CONNECT has no body")]
    ConnectBody,
    #[error("a chunk is not `size CRLF data CRLF`")]
    Chunk,
    #[error("the Host header is missing")]
    NoHost,
    #[error("the Host header is there more than once")]
    SeveralHosts,
    #[error("the Host header is empty or is no host name or address")]
    Host,
    #[error("the request target names another host than the Host header")]
    HostConflict,
    #[error("the Host header is an address, and not the one that was dialled")]
    HostNotDialled,
    #[error("the request target is not one this proxy can follow")]
    Form,
    #[error("the path has no canonical form")]
    Path,
    #[error("the request's head is larger than this proxy takes")]
    HeadTooLarge,
    #[error("the request has more headers than this proxy takes")]
    TooManyHeaders,
    #[error("the request's head did not arrive in time")]
    HeadTimeout,
    #[error("the request's body stopped arriving")]
    BodyTimeout,
    #[error("X-Agent-Target is there more than once or is no target's name")]
    AgentHeader,
    #[error("the HTTP parser refused the request")]
    Parser,
    #[error("HTTP/2 without TLS is not spoken here; use HTTP/1.1")]
    Http2,
}

impl Fault {
    /// The status that says whose mistake it was.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Fault::HeadTooLarge | Fault::TooManyHeaders => {
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            }
            Fault::HeadTimeout | Fault::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Fault::Version | Fault::Http2 => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            Fault::Encoding => StatusCode::NOT_IMPLEMENTED,
            Fault::RequestLine
            | Fault::Target
            | Fault::BareLf
            | Fault::BareCr
            | Fault::ObsFold
            | Fault::SpaceBeforeColon
            | Fault::HeaderName
            | Fault::HeaderValue
            | Fault::LengthAndEncoding
            | Fault::SeveralLengths
            | Fault::Length
            | Fault::SeveralEncodings
            | Fault::EncodingOnHttp10
            | Fault::ConnectBody
            | Fault::Chunk
            | Fault::NoHost
            | Fault::SeveralHosts
            | Fault::Host
            | Fault::HostConflict
            | Fault::HostNotDialled
            | Fault::Form
            | Fault::Path
            | Fault::AgentHeader
            | Fault::Parser => StatusCode::BAD_REQUEST,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_a_client_or_version_error_with_a_sentence() {
        for fault in [
            Fault::LengthAndEncoding,
            Fault::HeadTooLarge,
            Fault::Version,
            Fault::Chunk,
        ] {
            assert!(fault.status().as_u16() >= 400);
            assert!(fault.to_string().len() > 10);
        }
        assert_eq!(Fault::HeadTooLarge.status().as_u16(), 431);
        assert_eq!(Fault::HeadTimeout.status().as_u16(), 408);
        assert_eq!(Fault::BareCr.status().as_u16(), 400);
    }
}
