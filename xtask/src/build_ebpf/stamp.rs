//! Whether a compiled object is of these sources, and what to type when it isn't. The build script that embeds it
//! compiles this file too.

/// Said when there is no object.
pub(crate) const ABSENT: &str =
    "the eBPF programs are not compiled yet; run: cargo xtask build-ebpf";
const STALE: &str =
    "the compiled eBPF programs are older than their sources; run: cargo xtask build-ebpf";

/// Compares the first line of a stamp file with the hash of the sources as they are.
///
/// # Errors
/// The sentence that says what to run.
pub(crate) fn check(stamp: &str, sources: &str) -> Result<(), &'static str> {
    match stamp.lines().next() {
        Some(made_of) if made_of == sources => Ok(()),
        None => Err(ABSENT),
        Some(_) => Err(STALE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_other_sources_is_refused_with_what_to_type() {
        assert_eq!(check("abc\nmore\n", "abc"), Ok(()));
        for (stamp, says) in [
            ("", "not compiled yet"),
            ("abd\n", "older"),
            ("ab", "older"),
        ] {
            let sentence = check(stamp, "abc").unwrap_err();
            assert!(sentence.contains(says), "{sentence}");
            assert!(
                sentence.ends_with("run: cargo xtask build-ebpf"),
                "{sentence}"
            );
        }
    }
}
