//! Names of hosts and the patterns that rules name them with. Owns the canonical form: A-labels, lower case, no trailing
//! dot. Two spellings of one name are one value here, so that no rule can be evaded by spelling.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A host's name in canonical form; never an IP literal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName(Box<str>);

/// Why a text is no host name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostNameError {
    /// Nothing is left of the text.
    #[error("the host name is empty")]
    Empty,
    /// RFC 1035: at most 253 characters, 63 a label.
    #[error("`{0}…` is longer than a host name can be (253 characters, 63 between dots)")]
    TooLong(String),
    /// An address is no name; rules name addresses by `cidr`.
    #[error("`{0}` is an IP address, not a host name; name addresses with `cidr`")]
    IpLiteral(String),
    /// A character or label that no host name has.
    #[error("`{0}` is no host name: {1}")]
    Malformed(String, &'static str),
}

const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

impl HostName {
    /// Reads a name without a port: any case, Unicode or A-labels, with or without one trailing dot.
    ///
    /// Underscores are let through, since service names (`_sip._tcp`) and real hosts have them.
    ///
    /// # Errors
    /// IP literals in every notation that a resolver accepts (`1.2.3.4`, `0x7f.1`, `2130706433`, `[::1]`), and what no
    /// host name can hold.
    pub fn parse(text: &str) -> Result<Self, HostNameError> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let canonical: Cow<'_, str> = if text.is_ascii() {
            if text.bytes().any(|b| b.is_ascii_uppercase()) {
                Cow::Owned(text.to_ascii_lowercase())
            } else {
                Cow::Borrowed(text)
            }
        } else {
            let ascii = idna::domain_to_ascii_cow(text.as_bytes(), idna::AsciiDenyList::EMPTY)
                .map_err(|_| HostNameError::Malformed(shorten(text), "it is not valid IDNA"))?;
            // A full stop of another script may have become a trailing dot.
            Cow::Owned(ascii.strip_suffix('.').unwrap_or(&ascii).to_owned())
        };
        validate(&canonical)?;
        Ok(Self(canonical.into()))
    }

    /// The canonical text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The proper suffixes with the number of their labels, longest first: for `a.b.c` they are `b.c` (2) and `c` (1).
    pub(crate) fn suffixes(&self) -> impl Iterator<Item = (&str, usize)> {
        let mut rest = &*self.0;
        let mut labels = label_count(rest);
        std::iter::from_fn(move || {
            let (_, suffix) = rest.split_once('.')?;
            rest = suffix;
            labels -= 1;
            Some((suffix, labels))
        })
    }
}

/// The number of labels of a name.
pub(crate) fn label_count(name: &str) -> usize {
    1 + name.bytes().filter(|b| *b == b'.').count()
}

fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}

fn validate(name: &str) -> Result<(), HostNameError> {
    if name.is_empty() {
        return Err(HostNameError::Empty);
    }
    if name.len() > MAX_NAME {
        return Err(HostNameError::TooLong(shorten(name)));
    }
    if name.starts_with('[') || name.contains(':') && name.parse::<std::net::Ipv6Addr>().is_ok() {
        return Err(HostNameError::IpLiteral(shorten(name)));
    }
    let mut last = "";
    for label in name.split('.') {
        if label.is_empty() {
            return Err(HostNameError::Malformed(
                shorten(name),
                "it has an empty label",
            ));
        }
        if label.len() > MAX_LABEL {
            return Err(HostNameError::TooLong(shorten(name)));
        }
        if !label
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        {
            return Err(HostNameError::Malformed(
                shorten(name),
                "only letters, digits, hyphens and underscores stand between dots",
            ));
        }
        last = label;
    }
    // WHATWG URL, "ends in a number": inet_aton reads such a text as an address.
    let hexadecimal = last
        .strip_prefix("0x")
        .is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
    if hexadecimal || last.bytes().all(|b| b.is_ascii_digit()) {
        return Err(HostNameError::IpLiteral(shorten(name)));
    }
    Ok(())
}

impl FromStr for HostName {
    type Err = HostNameError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for HostName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for HostName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Serialize for HostName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for HostName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// What a rule's `host` names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// One name.
    Exact(HostName),
    /// `*.suffix`: every name with one or more labels before the suffix, not the suffix itself.
    Suffix(HostName),
    /// `*`: every name.
    Any,
}

impl HostPattern {
    /// True when the pattern covers the name.
    pub fn matches(&self, name: &HostName) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => exact == name,
            Self::Suffix(suffix) => name
                .0
                .strip_suffix(&*suffix.0)
                .and_then(|rest| rest.strip_suffix('.'))
                .is_some_and(|rest| !rest.is_empty()),
        }
    }
}

impl FromStr for HostPattern {
    type Err = HostNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "*" {
            return Ok(Self::Any);
        }
        match text.strip_prefix("*.") {
            Some(suffix) => HostName::parse(suffix).map(Self::Suffix),
            None if text.contains('*') => Err(HostNameError::Malformed(
                shorten(text),
                "a star stands alone (`*`) or for whole labels at the front (`*.example.com`)",
            )),
            None => HostName::parse(text).map(Self::Exact),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => name.fmt(f),
            Self::Suffix(name) => write!(f, "*.{name}"),
            Self::Any => f.write_str("*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spellings_of_one_name_are_one_value() {
        for (text, canonical) in [
            ("example.com", "example.com"),
            ("EXAMPLE.Com.", "example.com"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("BÜCHER.example", "xn--bcher-kva.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("ｅｘａｍｐｌｅ。com", "example.com"),
            ("_sip._tcp.example.com", "_sip._tcp.example.com"),
            ("localhost", "localhost"),
            ("a-.example", "a-.example"),
        ] {
            assert_eq!(HostName::parse(text).unwrap().as_str(), canonical, "{text}");
        }
    }

    #[test]
    fn addresses_in_every_notation_are_no_names() {
        for text in [
            "1.2.3.4",
            "1.2.3.4.",
            "127.1",
            "2130706433",
            "0x7f.1",
            "0x7f000001",
            "0x",
            "017700000001",
            "[::1]",
            "::1",
            "fe80::1",
            "example.1",
            "１.２.３.４",
        ] {
            assert!(
                matches!(HostName::parse(text), Err(HostNameError::IpLiteral(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn what_no_host_name_holds_is_refused() {
        for text in [
            "",
            ".",
            "a..b",
            ".a",
            "a b",
            "a/b",
            "a@b",
            "a:80",
            "a%2eb",
            "a\u{0}b",
            "*.a",
            "a..",
            "xn--\u{fc}.de",
        ] {
            assert!(HostName::parse(text).is_err(), "{text:?}");
        }
        assert!(HostName::parse(&"a".repeat(64)).is_err());
        assert!(HostName::parse(&["a"; 127].join(".")).is_ok());
        assert!(HostName::parse(&["a"; 128].join(".")).is_err());
    }

    #[test]
    fn patterns_cover_whole_labels_only() {
        for (pattern, name, covered) in [
            ("*", "a", true),
            ("example.com", "example.com", true),
            ("example.com", "a.example.com", false),
            ("*.example.com", "example.com", false),
            ("*.example.com", "a.example.com", true),
            ("*.example.com", "a.b.example.com", true),
            ("*.example.com", "badexample.com", false),
            ("*.EXAMPLE.com.", "a.example.com", true),
        ] {
            let pattern: HostPattern = pattern.parse().unwrap();
            assert_eq!(
                pattern.matches(&HostName::parse(name).unwrap()),
                covered,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn stars_elsewhere_are_refused_with_the_two_forms() {
        for bad in ["a.*", "*a.com", "a.*.com", "**", "*.*.com"] {
            assert!(bad.parse::<HostPattern>().is_err(), "{bad}");
        }
        let error = "a.*.com".parse::<HostPattern>().unwrap_err().to_string();
        assert!(error.contains("*.example.com"), "{error}");
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_is_idempotent(text in ".{0,80}") {
            if let Ok(name) = HostName::parse(&text) {
                prop_assert_eq!(HostName::parse(name.as_str()).unwrap(), name);
            }
        }
    }
}
