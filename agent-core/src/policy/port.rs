//! Ports as rules write them: one port or a range. Owns the text form and the split of a range into aligned blocks.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Serialize};

/// One port (`443`) or a range (`"8000-8999"`), both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortSpec {
    first: u16,
    last: u16,
}

/// A text or number that names no ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no port; write a number from 1 to 65535 or a range such as \"8000-8999\"")]
pub struct PortError(String);

impl PortSpec {
    /// The ports from `first` to `last`; `None` when there are none or port 0 is among them.
    pub fn new(first: u16, last: u16) -> Option<Self> {
        (first != 0 && first <= last).then_some(Self { first, last })
    }

    /// True when the port is among them.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// The ports.
    pub fn range(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }

    /// The least list of aligned power-of-two blocks that make up the range: at most 30.
    pub(crate) fn blocks(self) -> impl Iterator<Item = PortBlock> {
        let (mut next, last) = (u32::from(self.first), u32::from(self.last));
        std::iter::from_fn(move || {
            if next > last {
                return None;
            }
            let aligned = if next == 0 {
                16
            } else {
                next.trailing_zeros().min(16)
            };
            let mut bits = aligned;
            while next + (1 << bits) - 1 > last {
                bits -= 1;
            }
            let block = PortBlock {
                len: 16 - bits,
                prefix: next >> bits,
            };
            next += 1 << bits;
            Some(block)
        })
    }
}

/// The ports that share their first `len` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PortBlock {
    /// Number of leading bits, 0 to 16.
    pub(crate) len: u32,
    /// Those bits.
    pub(crate) prefix: u32,
}

impl PortBlock {
    /// Every port.
    pub(crate) const ALL: Self = Self { len: 0, prefix: 0 };

    /// The block of `len` bits that the port lies in.
    pub(crate) fn around(port: u16, len: u32) -> Self {
        Self {
            len,
            prefix: u32::from(port) >> (16 - len),
        }
    }

    /// A number that no other block has.
    pub(crate) fn key(self) -> u32 {
        self.len << 16 | self.prefix
    }
}

impl From<u16> for PortSpec {
    /// Port 0, which nobody can dial, becomes port 1; rules are read by `FromStr`, which refuses it.
    fn from(port: u16) -> Self {
        Self {
            first: port.max(1),
            last: port.max(1),
        }
    }
}

impl FromStr for PortSpec {
    type Err = PortError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || PortError(text.chars().take(32).collect());
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            if plain {
                digits.parse::<u16>().map_err(|_| refuse())
            } else {
                Err(refuse())
            }
        };
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(text)?, number(text)?),
        };
        Self::new(first, last).ok_or_else(refuse)
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl Serialize for PortSpec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.first == self.last {
            serializer.serialize_u16(self.first)
        } else {
            serializer.collect_str(self)
        }
    }
}

impl<'de> Deserialize<'de> for PortSpec {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PortVisitor;
        impl Visitor<'_> for PortVisitor {
            type Value = PortSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port from 1 to 65535 or a range such as \"8000-8999\"")
            }

            fn visit_u64<E: de::Error>(self, port: u64) -> Result<PortSpec, E> {
                u16::try_from(port)
                    .ok()
                    .and_then(|port| PortSpec::new(port, port))
                    .ok_or_else(|| E::custom(PortError(port.to_string())))
            }

            fn visit_i64<E: de::Error>(self, port: i64) -> Result<PortSpec, E> {
                Err(E::custom(PortError(port.to_string())))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PortSpec, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(PortVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_port_and_ranges_go_both_ways() {
        for (json, ports) in [("443", 443..=443), ("\"8000-8999\"", 8000..=8999)] {
            let spec: PortSpec = serde_json::from_str(json).unwrap();
            assert_eq!(spec.range(), ports);
            assert_eq!(serde_json::to_string(&spec).unwrap(), json);
        }
        assert_eq!("80".parse::<PortSpec>().unwrap().range(), 80..=80);
    }

    #[test]
    fn what_names_no_ports_is_refused_with_both_forms() {
        for json in [
            "0",
            "65536",
            "-1",
            "\"\"",
            "\"9-8\"",
            "\"a\"",
            "\"1-2-3\"",
            "\"+1\"",
            "\" 1\"",
            "\"0-9\"",
        ] {
            let error = serde_json::from_str::<PortSpec>(json)
                .unwrap_err()
                .to_string();
            assert!(error.contains("8000-8999"), "{json}: {error}");
        }
    }

    proptest! {
        #[test]
        fn blocks_cover_the_range_and_nothing_else(a in 1u16.., b in 1u16.., probe in any::<u16>()) {
            let spec = PortSpec::new(a.min(b), a.max(b)).unwrap();
            let blocks: Vec<_> = spec.blocks().collect();
            prop_assert!(blocks.len() <= 30);
            for port in [probe, a, b, a.saturating_sub(1), b.saturating_add(1)] {
                let hits = blocks.iter().filter(|block| PortBlock::around(port, block.len) == **block).count();
                prop_assert_eq!(hits, usize::from(spec.contains(port)));
            }
        }
    }
}
