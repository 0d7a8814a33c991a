use proptest::prelude::*;

use super::*;

const LIMITS: HeadLimits = HeadLimits {
    bytes: 4096,
    count: 10,
};

fn scan(bytes: &[u8]) -> Result<Scanned, Fault> {
    HeadScan::default().scan(bytes, LIMITS)
}

fn head(lines: &str) -> Result<Head, Fault> {
    let bytes = lines.replace('\n', "\r\n") + "\r\n";
    match scan(bytes.as_bytes())? {
        Scanned::Complete(n, head) => {
            assert_eq!(n, bytes.len());
            Ok(head)
        }
        Scanned::Partial => panic!("partial: {lines}"),
    }
}

#[test]
fn body_framing_is_read_from_the_head() {
    let cases = [
        ("GET / HTTP/1.1\nHost: a\n", BodyFraming::None),
        (
            "POST / HTTP/1.1\nHost: a\nContent-Length: 0\n",
            BodyFraming::None,
        ),
        (
            "POST / HTTP/1.1\ncontent-LENGTH:\t42 \n",
            BodyFraming::Length(42),
        ),
        (
            "POST / HTTP/1.0\nContent-Length: 7\n",
            BodyFraming::Length(7),
        ),
        (
            "POST / HTTP/1.1\nTransfer-Encoding: Chunked\n",
            BodyFraming::Chunked,
        ),
    ];
    for (lines, framing) in cases {
        assert_eq!(head(lines).map(|h| h.framing), Ok(framing), "{lines}");
    }
}

#[test]
fn what_two_parsers_could_read_two_ways_is_refused() {
    let cases: &[(&[u8], Fault)] = &[
        (
            b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            Fault::LengthAndEncoding,
        ),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
            Fault::LengthAndEncoding,
        ),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
            Fault::LengthAndEncoding,
        ),
        (
            b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
            Fault::SeveralLengths,
        ),
        (
            b"POST / HTTP/1.1\r\nContent-Length: 5\r\ncontent-length: 6\r\n\r\n",
            Fault::SeveralLengths,
        ),
        (
            b"POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\n",
            Fault::Length,
        ),
        (
            b"POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n",
            Fault::Length,
        ),
        (
            b"POST / HTTP/1.1\r\nContent-Length: 0x5\r\n\r\n",
            Fault::Length,
        ),
        (b"POST / HTTP/1.1\r\nContent-Length:\r\n\r\n", Fault::Length),
        (
            b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
            Fault::Length,
        ),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            Fault::SeveralEncodings,
        ),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            Fault::Encoding,
        ),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n",
            Fault::Encoding,
        ),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n",
            Fault::Encoding,
        ),
        (
            b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
            Fault::EncodingOnHttp10,
        ),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n",
            Fault::SpaceBeforeColon,
        ),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding\t: chunked\r\n\r\n",
            Fault::SpaceBeforeColon,
        ),
        (b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", Fault::ObsFold),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\tb\r\n\r\n", Fault::ObsFold),
        (b"GET / HTTP/1.1\r\nX: a\rHost: b\r\n\r\n", Fault::BareCr),
        (b"GET / HTTP/1.1\r\nX: a\r\r\n\r\n", Fault::BareCr),
        (b"GET / HTTP/1.1\nHost: a\n\n", Fault::BareLf),
        (b"GET / HTTP/1.1\r\nX: a\nHost: b\r\n\r\n", Fault::BareLf),
        (b"GET / HTTP/1.1\r\nX: a\0b\r\n\r\n", Fault::HeaderValue),
        (b"GET / HTTP/1.1\r\nX: a\x7fb\r\n\r\n", Fault::HeaderValue),
        (b"GET / HTTP/1.1\r\n: a\r\n\r\n", Fault::HeaderName),
        (b"GET / HTTP/1.1\r\nX Y: a\r\n\r\n", Fault::HeaderName),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", Fault::HeaderName),
        (b"GET / HTTP/1.1\r\nX\xc3: a\r\n\r\n", Fault::HeaderName),
        (b"GET  / HTTP/1.1\r\n\r\n", Fault::RequestLine),
        (b"GET / x HTTP/1.1\r\n\r\n", Fault::RequestLine),
        (b"GET /\tx HTTP/1.1\r\n\r\n", Fault::Target),
        (b"GET\t/\tHTTP/1.1\r\n\r\n", Fault::RequestLine),
        (b"GET /\r\n\r\n", Fault::RequestLine),
        (b"GET / \r\n\r\n", Fault::RequestLine),
        (b" GET / HTTP/1.1\r\n\r\n", Fault::RequestLine),
        (b"GET /\x80 HTTP/1.1\r\n\r\n", Fault::Target),
        (b"GET /#x HTTP/1.1\r\n\r\n", Fault::Target),
        (b"GET / HTTP/1.1\r\r\n\r\n", Fault::Version),
        (b"GET / HTTP/2.0\r\n\r\n", Fault::Version),
        (b"GET / HTTP/1.10\r\n\r\n", Fault::Version),
        (b"GET / http/1.1\r\n\r\n", Fault::RequestLine),
        (
            b"CONNECT a:1 HTTP/1.1\r\nContent-Length: 3\r\n\r\n",
            Fault::ConnectBody,
        ),
    ];
    for (bytes, fault) in cases {
        assert_eq!(
            scan(bytes),
            Err(*fault),
            "{:?}",
            String::from_utf8_lossy(bytes)
        );
    }
}

#[test]
fn a_bad_line_is_refused_before_the_head_is_complete() {
    assert_eq!(scan(b"GET / HTTP/1.1\nHost"), Err(Fault::BareLf));
    assert_eq!(
        scan(b"GET / HTTP/1.1\r\nA : b\r\nHo"),
        Err(Fault::SpaceBeforeColon)
    );
}

#[test]
fn limits_hold_for_complete_and_endless_heads() {
    assert_eq!(scan(&[b'a'; 5000]), Err(Fault::HeadTooLarge));
    let long = format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(5000));
    assert_eq!(scan(long.as_bytes()), Err(Fault::HeadTooLarge));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(11));
    assert_eq!(scan(many.as_bytes()), Err(Fault::TooManyHeaders));
    let enough = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(10));
    assert!(scan(enough.as_bytes()).is_ok());
}

#[test]
fn tunnels_are_connect_and_nominated_upgrades_without_body() {
    let cases = [
        ("CONNECT a:443 HTTP/1.1\nHost: a:443\n", true),
        (
            "GET / HTTP/1.1\nConnection: keep-alive, Upgrade\nUpgrade: websocket\n",
            true,
        ),
        ("GET / HTTP/1.1\nUpgrade: websocket\n", false),
        (
            "GET / HTTP/1.0\nConnection: Upgrade\nUpgrade: websocket\n",
            false,
        ),
        (
            "GET / HTTP/1.1\nConnection: Upgrade, HTTP2-Settings\nUpgrade: h2c\n",
            false,
        ),
        (
            "GET / HTTP/1.1\nConnection: Upgrade\nUpgrade: websocket\nUpgrade: h2c\n",
            false,
        ),
        (
            "GET / HTTP/1.1\nConnection: Upgrade\nUpgrade: websocket\nContent-Length: 1\n",
            false,
        ),
    ];
    for (lines, tunnel) in cases {
        assert_eq!(head(lines).map(|h| h.tunnel), Ok(tunnel), "{lines}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = scan(&bytes);
    }

    #[test]
    fn arriving_in_pieces_changes_nothing(
        text in "(GET|POST|CONNECT) [ -~]{0,10} HTTP/1.[01]\r\n([A-Za-z-]{0,18}:?[ -~\r\n]{0,20}\r\n){0,6}\r\n",
        cuts in proptest::collection::vec(1usize..40, 1..12),
    ) {
        let bytes = text.as_bytes();
        let whole = scan(bytes);
        let mut scanner = HeadScan::default();
        let mut upto = 0;
        let mut cuts = cuts.into_iter().cycle();
        let pieces = loop {
            upto = (upto + cuts.next().unwrap()).min(bytes.len());
            match scanner.scan(&bytes[..upto], LIMITS) {
                Ok(Scanned::Partial) if upto < bytes.len() => {}
                other => break other,
            }
        };
        prop_assert_eq!(whole, pieces);
    }

    /// What is let through, httparse (hyper's parser) reads as the same number of bytes and headers.
    #[test]
    fn what_is_accepted_another_parser_reads_alike(
        text in "(GET|POST) /[!-~]{0,10} HTTP/1.[01]\r\n([A-Za-z_-]{1,8}: ?[ -~\t]{0,20}\r\n){0,6}\r\n",
    ) {
        if let Ok(Scanned::Complete(n, _)) = scan(text.as_bytes()) {
            let mut headers = [httparse::EMPTY_HEADER; 16];
            let mut request = httparse::Request::new(&mut headers);
            prop_assert_eq!(request.parse(text.as_bytes()), Ok(httparse::Status::Complete(n)));
        }
    }
}
