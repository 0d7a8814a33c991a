use proptest::prelude::*;

use super::*;

const LIMITS: HeadLimits = HeadLimits {
    bytes: 4096,
    count: 20,
};

/// Feeds `bytes` in pieces of `size` as the guard does; what went on, and the fault.
fn feed(bytes: &[u8], size: usize) -> (Vec<u8>, Option<Fault>) {
    let mut framing = Framing::new(LIMITS);
    let (mut on, mut held) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(size) {
        held.extend_from_slice(piece);
        let n = framing.advance(&held);
        on.extend(held.drain(..n));
    }
    (on, framing.fault())
}

#[test]
fn pipelined_requests_all_go_on() {
    let bytes = b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n\
        POST /2 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello\r\n\
        POST /3 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nT: v\r\n\r\n\
        GET /4 HTTP/1.1\r\n\r\n";
    for size in [1, 2, 7, 64, 4096] {
        assert_eq!(feed(bytes, size), (bytes.to_vec(), None), "size {size}");
    }
}

#[test]
fn an_ambiguous_second_request_never_goes_on() {
    let first = b"POST /1 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc";
    let second =
        b"POST /2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n";
    let bytes = [first.as_slice(), second].concat();
    for size in [1, 5, 1000] {
        assert_eq!(
            feed(&bytes, size),
            (first.to_vec(), Some(Fault::LengthAndEncoding))
        );
    }
}

#[test]
fn malformed_chunks_stop_the_stream_where_they_stand() {
    let head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let cases: &[(&[u8], Fault)] = &[
        (b"\r\n", Fault::Chunk),
        (b"g\r\n", Fault::Chunk),
        (b"-1\r\n", Fault::Chunk),
        (b"0x1\r\n", Fault::Chunk),
        (b"1 \r\na\r\n", Fault::Chunk),
        (b"1\na\r\n", Fault::Chunk),
        (b"1;a\nb\r\n", Fault::Chunk),
        (b"1\r\nab\r\n", Fault::Chunk),
        (b"1\r\na\n", Fault::Chunk),
        (b"fffffffffffffffff\r\n", Fault::Chunk),
        (b"0\r\n Fold: a\r\n\r\n", Fault::ObsFold),
        (b"0\r\nA : b\r\n\r\n", Fault::SpaceBeforeColon),
        (b"0\r\nA: b\n\r\n", Fault::BareLf),
        (b"0\r\nA: b\rc\r\n\r\n", Fault::BareCr),
    ];
    for (body, fault) in cases {
        let bytes = [head.as_slice(), body].concat();
        let (on, found) = feed(&bytes, 3);
        assert_eq!(found, Some(*fault), "{:?}", String::from_utf8_lossy(body));
        assert!(on.len() >= head.len() && on.len() < bytes.len());
    }
}

#[test]
fn nothing_goes_on_behind_a_head_that_may_become_a_tunnel() {
    let head = b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n";
    let bytes = [head.as_slice(), b"GET / HTTP/1.1\r\n\r\n"].concat();
    let mut framing = Framing::new(LIMITS);
    assert_eq!(framing.advance(&bytes), head.len());
    assert_eq!(framing.tunnel_head(), Some(1));
    assert_eq!(framing.advance(&bytes[head.len()..]), 0);
}

#[test]
fn endless_trailers_and_extensions_are_cut() {
    let head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let trailers = format!("{head}0\r\n{}", "A: b\r\n".repeat(10_000));
    assert_eq!(feed(trailers.as_bytes(), 100).1, Some(Fault::HeadTooLarge));
    let extensions = format!(
        "{head}{}",
        format!("1;{}\r\na\r\n", "x".repeat(200)).repeat(1000)
    );
    assert_eq!(feed(extensions.as_bytes(), 100).1, Some(Fault::Chunk));
}

#[test]
fn a_body_larger_than_memory_is_followed_by_number_only() {
    let mut framing = Framing::new(LIMITS);
    let head = b"PUT / HTTP/1.1\r\nContent-Length: 999999999999999999\r\n\r\n";
    assert_eq!(framing.advance(head), head.len());
    assert_eq!(framing.advance(&[0; 65536]), 65536);
    assert!(framing.in_body());
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), size in 1usize..50) {
        let _ = feed(&bytes, size);
    }

    #[test]
    fn cutting_changes_nothing(
        body in "([0-9a-f]{1,2}(;[a-z=]{0,5})?\r\n[a-z]{0,20}\r\n){0,3}(0\r\n\r\n)?",
        size in 1usize..30,
    ) {
        let bytes = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{body}GET / HTTP/1.1\r\n\r\n");
        prop_assert_eq!(feed(bytes.as_bytes(), size), feed(bytes.as_bytes(), 1 << 20));
    }
}
