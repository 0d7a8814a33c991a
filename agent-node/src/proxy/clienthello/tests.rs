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
fn name_is_found_in_up_to_sixteen_records_and_more_are_refused() {
    let m = message(&sni(b"api.example.com"));
    for size in 1..m.len() {
        let found = parse(&records(&m, size));
        if m.len().div_ceil(size) > MAX_RECORDS {
            assert_eq!(found, Err(HelloError::TooManyRecords), "size {size}");
        } else {
            let Ok(Progress::Hello(hello)) = found else {
                panic!("size {size}: {found:?}");
            };
            assert_eq!(hello.server_name.as_deref(), Some("api.example.com"));
        }
    }
}

/// How often [`parse`] is asked when bytes come one by one.
fn parses(bytes: &[u8]) -> (usize, Result<Progress, HelloError>) {
    let (mut n, mut wanted) = (0, 0);
    for end in 0..=bytes.len() {
        if end < wanted {
            continue;
        }
        n += 1;
        match parse(&bytes[..end]) {
            Ok(Progress::NeedMore { total }) => {
                assert!(total > end);
                wanted = total;
            }
            other => return (n, other),
        }
    }
    (n, Ok(Progress::NeedMore { total: wanted }))
}

#[test]
fn bytes_that_come_one_by_one_are_read_a_few_times_only() {
    let large = message(&[ext(10, &[0; 30_000]), sni(b"api.example.com")].concat());
    for size in [16384, large.len().div_ceil(MAX_RECORDS)] {
        let (n, found) = parses(&records(&large, size));
        assert!(matches!(found, Ok(Progress::Hello(_))), "{found:?}");
        assert!(n <= 1 + MAX_RECORDS * (RECORD_HEADER + 1), "{n}");
    }
    let (n, found) = parses(&records(&large, 1));
    assert_eq!(found, Err(HelloError::TooManyRecords));
    assert!(n <= 1 + MAX_RECORDS * (RECORD_HEADER + 1), "{n}");
}

#[test]
fn every_proper_prefix_asks_for_more() {
    let m = message(&sni(b"api.example.com"));
    for size in [m.len().div_ceil(MAX_RECORDS), 40, 16384] {
        let bytes = records(&m, size);
        for cut in 0..bytes.len() {
            let Ok(Progress::NeedMore { total }) = parse(&bytes[..cut]) else {
                panic!("size {size} cut {cut}");
            };
            assert!(cut < total && total <= bytes.len(), "size {size} cut {cut}");
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
    fn the_name_is_found_wherever_records_are_cut(
        cuts in proptest::collection::btree_set(1usize..80, 0..MAX_RECORDS),
    ) {
        let m = message(&sni(b"api.example.com"));
        let mut bytes = Vec::new();
        let mut from = 0;
        for to in cuts.into_iter().filter(|cut| *cut < m.len()).chain([m.len()]) {
            bytes.extend(records(&m[from..to], to - from));
            from = to;
        }
        let (_, found) = parses(&bytes);
        let Ok(Progress::Hello(hello)) = found else {
            panic!("{found:?}");
        };
        prop_assert_eq!(hello.server_name.as_deref(), Some("api.example.com"));
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
