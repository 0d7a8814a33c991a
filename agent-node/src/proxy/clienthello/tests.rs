use proptest::prelude::*;

use super::*;

fn v8(b: &[u8]) -> Vec<u8> {
    let mut v = vec![u8::try_from(b.len()).unwrap()];
    v.extend_from_slice(b);
    v
}

fn v16(b: &[u8]) -> Vec<u8> {
    let mut v = u16::try_from(b.len()).unwrap().to_be_bytes().to_vec();
    v.extend_from_slice(b);
    v
}

fn ext(kind: u16, data: &[u8]) -> Vec<u8> {
    let mut v = kind.to_be_bytes().to_vec();
    v.extend(v16(data));
    v
}

fn sni(name: &[u8]) -> Vec<u8> {
    let mut entry = vec![0];
    entry.extend(v16(name));
    ext(0, &v16(&entry))
}

fn message(extensions: &[u8]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend(v8(&[9; 32]));
    body.extend(v16(&[0x13, 0x01]));
    body.extend(v8(&[0]));
    body.extend(v16(extensions));
    let mut m = vec![1, 0];
    m.extend(v16(&body));
    m
}

fn records(message: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for part in message.chunks(size) {
        out.extend([22, 3, 1]);
        out.extend(v16(part));
    }
    out
}

fn named(bytes: &[u8]) -> Option<String> {
    match parse(bytes) {
        Ok(Progress::Hello(h)) => h.server_name,
        other => panic!("not a hello: {other:?}"),
    }
}

#[test]
fn name_is_found_in_one_record() {
    let m = message(&[ext(10, &[0, 2, 0, 29]), sni(b"api.example.com")].concat());
    assert_eq!(
        named(&records(&m, 16384)).as_deref(),
        Some("api.example.com")
    );
}

#[test]
fn name_is_found_however_small_the_records_are() {
    let m = message(&sni(b"api.example.com"));
    for size in 1..m.len() {
        assert_eq!(
            named(&records(&m, size)).as_deref(),
            Some("api.example.com"),
            "size {size}"
        );
    }
}

#[test]
fn every_proper_prefix_asks_for_more() {
    let m = message(&sni(b"api.example.com"));
    for size in [1, 3, 40, 16384] {
        let bytes = records(&m, size);
        for cut in 0..bytes.len() {
            assert_eq!(
                parse(&bytes[..cut]),
                Ok(Progress::NeedMore),
                "size {size} cut {cut}"
            );
        }
    }
}

#[test]
fn what_follows_the_hello_does_not_matter() {
    let mut bytes = records(&message(&sni(b"a.example")), 100);
    bytes.extend([23, 3, 3, 0, 1, 0]);
    assert_eq!(named(&bytes).as_deref(), Some("a.example"));
}

#[test]
fn no_extensions_means_no_name() {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend(v8(&[]));
    body.extend(v16(&[0x13, 0x01]));
    body.extend(v8(&[0]));
    let mut m = vec![1, 0];
    m.extend(v16(&body));
    assert_eq!(named(&records(&m, 100)), None);
}

#[test]
fn encrypted_client_hello_is_seen() {
    let m = message(&[sni(b"outer.example"), ext(0xfe0d, &[0, 1, 2])].concat());
    let Ok(Progress::Hello(h)) = parse(&records(&m, 100)) else {
        panic!("not a hello");
    };
    assert!(h.ech);
}

#[test]
fn http_is_seen_in_alpn() {
    for (alpn, expected) in [(&b"h2"[..], true), (b"http/1.1", true), (b"imap", false)] {
        let m = message(&ext(16, &v16(&v8(alpn))));
        let Ok(Progress::Hello(h)) = parse(&records(&m, 100)) else {
            panic!("not a hello");
        };
        assert_eq!(h.offers_http, expected);
    }
}

#[test]
fn two_meanings_are_refused() {
    let mut two = vec![0];
    two.extend(v16(b"a.example"));
    two.push(0);
    two.extend(v16(b"b.example"));
    let cases = [
        (
            "same extension twice",
            [sni(b"a.example"), sni(b"b.example")].concat(),
        ),
        ("two names", ext(0, &v16(&two))),
        ("empty name", sni(b"")),
        ("not ASCII", sni("bücher.example".as_bytes())),
        ("NUL in the name", sni(b"a.example\0.evil")),
        (
            "unknown name type",
            ext(0, &v16(&[[1].as_slice(), &v16(b"a")].concat())),
        ),
    ];
    for (what, extensions) in cases {
        assert!(
            parse(&records(&message(&extensions), 500)).is_err(),
            "{what}"
        );
    }
}

#[test]
fn other_records_and_messages_are_refused() {
    assert_eq!(parse(&[23, 3, 1, 0, 1, 0]), Err(HelloError::NotHandshake));
    assert_eq!(parse(&[22, 2, 0]), Err(HelloError::NotHandshake));
    assert_eq!(parse(&[22, 3, 1, 0, 0]), Err(HelloError::RecordLength));
    assert_eq!(
        parse(&[22, 3, 1, 0xff, 0xff]),
        Err(HelloError::RecordLength)
    );
    assert_eq!(parse(&[22, 3, 1, 0, 1, 2]), Err(HelloError::NotClientHello));
    assert_eq!(
        parse(&[22, 3, 1, 0, 4, 1, 0xff, 0, 0]),
        Err(HelloError::TooLong)
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn arbitrary_hello_bodies_never_panic(
        body in proptest::collection::vec(any::<u8>(), 0..400),
        size in 1usize..200,
    ) {
        let mut m = vec![1, 0];
        m.extend(v16(&body));
        let _ = parse(&records(&m, size));
    }

    #[test]
    fn one_flipped_byte_never_changes_the_name_silently_to_nothing_valid(
        at in 0usize..100,
        to in any::<u8>(),
    ) {
        let mut bytes = records(&message(&sni(b"api.example.com")), 60);
        let at = at % bytes.len();
        bytes[at] = to;
        if let Ok(Progress::Hello(h)) = parse(&bytes)
            && let Some(name) = h.server_name
        {
            prop_assert!(name.is_ascii() && !name.is_empty());
        }
    }
}
