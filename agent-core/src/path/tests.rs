use super::*;
use proptest::prelude::*;

#[test]
fn paths_have_one_canonical_form() {
    for (raw, canonical) in [
        ("/", "/"),
        ("*", "*"),
        ("/a/b", "/a/b"),
        ("/a/b/", "/a/b/"),
        ("/public/../secret", "/secret"),
        ("/public/%2e%2e/secret", "/secret"),
        ("/public/.%2E/secret", "/secret"),
        ("/public;x/../secret", "/secret"),
        ("/a//b///c", "/a/b/c"),
        ("//evil.example/x", "/evil.example/x"),
        ("/a/./b/.", "/a/b/"),
        ("/a/b/..", "/a/"),
        ("/%41%7e%2d", "/A~-"),
        ("/@scope%2fpkg", "/@scope%2Fpkg"),
        ("/@scope%2Fpkg", "/@scope%2Fpkg"),
        ("/.well-known/x", "/.well-known/x"),
        ("/...", "/..."),
        ("/..a", "/..a"),
        ("/ü", "/%C3%BC"),
        ("/a\"<b>", "/a%22%3Cb%3E"),
        ("/a%2bb+c", "/a%2Bb+c"),
        ("/a;v=1/b", "/a;v=1/b"),
        ("/%252e%252e/x", "/%252e%252e/x"),
        ("/a/..//", "/"),
    ] {
        assert_eq!(canonicalise(raw).as_deref(), Ok(canonical), "{raw}");
    }
}

#[test]
fn what_two_servers_could_read_in_two_ways_is_refused() {
    use PathError::*;
    for (raw, error) in [
        ("", NotAbsolute),
        ("a", NotAbsolute),
        ("**", NotAbsolute),
        ("/..", AboveRoot),
        ("/a/../..", AboveRoot),
        ("/%2e%2e", AboveRoot),
        ("/a%", HalfEscape),
        ("/a%2", HalfEscape),
        ("/a%zz", HalfEscape),
        ("/a%+1", HalfEscape),
        ("/a%00", ForbiddenCharacter),
        ("/a\\..\\b", ForbiddenCharacter),
        ("/a b", ForbiddenCharacter),
        ("/a\tb", ForbiddenCharacter),
        ("/public/..;/secret", HiddenDotSegment),
        ("/public/..;x=1/secret", HiddenDotSegment),
        ("/public/.;x/secret", HiddenDotSegment),
        ("/public/..%2fsecret", HiddenDotSegment),
        ("/public/x%2F..%2Fsecret", HiddenDotSegment),
        ("/public/x%2F..", HiddenDotSegment),
        ("/public/..%5csecret", HiddenDotSegment),
        ("/public/%2e%2e%2fsecret", HiddenDotSegment),
        ("/public/x%2F%2e%2e", HiddenDotSegment),
        ("/public/x%5C..;y", HiddenDotSegment),
    ] {
        assert_eq!(canonicalise(raw), Err(error), "{raw}");
        assert!(!is_canonical(raw), "{raw}");
    }
}

#[test]
fn escapes_that_mean_the_same_compare_equal_and_separators_do_not() {
    for (canonical, form) in [
        ("/a", "/a"),
        ("/a%2Bb", "/a+b"),
        ("/%40scope%2Fpkg", "/@scope%2Fpkg"),
        ("/a%3Bb%25%3F", "/a%3Bb%25%3F"),
        ("/%21%2F%27", "/!%2F'"),
    ] {
        assert_eq!(comparable(canonical), form);
    }
}

#[test]
fn parameters_are_cut_off_segment_by_segment() {
    assert_eq!(without_parameters("/a/b"), None);
    assert_eq!(without_parameters("/a;x=1/b;y").as_deref(), Some("/a/b"));
}

fn pathlike() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("/".to_owned()),
        Just(".".to_owned()),
        Just("..".to_owned()),
        Just(";".to_owned()),
        Just("%2e".to_owned()),
        Just("%2F".to_owned()),
        Just("%5c".to_owned()),
        Just("%".to_owned()),
        Just("\\".to_owned()),
        "[a-zA-Z0-9%;.ü ]{0,3}",
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| format!("/{}", pieces.concat()))
}

proptest! {
    #[test]
    fn canonical_is_canonical(raw in pathlike()) {
        if let Ok(canonical) = canonicalise(&raw) {
            prop_assert!(is_canonical(&canonical), "{} -> {}", raw, canonical);
            prop_assert_eq!(canonicalise(&canonical).unwrap(), canonical.clone());
            prop_assert!(canonical.starts_with('/'));
            for segment in canonical.split('/').skip(1) {
                prop_assert!(segment != "." && segment != "..");
            }
            prop_assert!(!canonical.contains("//"));
            if let Some(cut) = without_parameters(&canonical) {
                prop_assert!(!cut.split('/').any(|s| s == "." || s == ".."));
            }
        } else {
            prop_assert!(!is_canonical(&raw), "{}", raw);
        }
    }

    #[test]
    fn the_quick_check_agrees_with_the_long_way(raw in pathlike()) {
        if is_canonical(&raw) {
            // Made non-canonical by a harmless detour, the long way must give the same text back.
            let detour = format!("/./{}", &raw[1..]);
            let long_way = canonicalise(&detour);
            prop_assert_eq!(long_way.as_deref(), Ok(raw.as_str()));
        }
    }

    #[test]
    fn canonicalising_never_panics(raw in any::<String>()) {
        let _ = canonicalise(&raw);
        let _ = comparable(&raw);
        let _ = without_parameters(&raw);
    }
}
