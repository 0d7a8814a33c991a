//! Ethernet addresses as text and bytes. Owns no policy about who has which address.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An Ethernet address in transmission order; written `02:00:00:00:00:01`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddr(pub [u8; 6]);

/// A text that is no Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no Ethernet address; write six hexadecimal bytes, such as 02:00:00:00:00:01")]
pub struct MacAddrError(String);

impl MacAddr {
    /// The bytes in transmission order.
    pub fn octets(self) -> [u8; 6] {
        self.0
    }

    /// True for the address of no single interface: multicast, broadcast or all zeros.
    pub fn is_unusable_as_source(self) -> bool {
        self.0[0] & 1 == 1 || self.0 == [0; 6]
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for MacAddr {
    type Err = MacAddrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || MacAddrError(text.chars().take(64).collect());
        let mut bytes = [0u8; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(refuse)?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(refuse());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| refuse())?;
        }
        if parts.next().is_some() {
            return Err(refuse());
        }
        Ok(Self(bytes))
    }
}

impl From<[u8; 6]> for MacAddr {
    fn from(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }
}

impl Serialize for MacAddr {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MacAddr {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_goes_both_ways() {
        let mac = MacAddr([2, 0xab, 0, 1, 0xff, 9]);
        assert_eq!(mac.to_string(), "02:ab:00:01:ff:09");
        assert_eq!("02:AB:00:01:ff:09".parse(), Ok(mac));
    }

    #[test]
    fn what_is_no_address_is_refused_with_a_sentence() {
        for bad in [
            "",
            "02:00",
            "02:00:00:00:00:00:01",
            "0:0:0:0:0:0",
            "02:00:00:00:00:0g",
            "+2:00:00:00:00:01",
        ] {
            let error = bad.parse::<MacAddr>().unwrap_err().to_string();
            assert!(error.contains("six hexadecimal bytes"), "{error}");
        }
    }

    #[test]
    fn multicast_broadcast_and_zero_are_no_source() {
        for bad in [[1, 0, 0x5e, 0, 0, 1], [0xff; 6], [0; 6]] {
            assert!(MacAddr(bad).is_unusable_as_source());
        }
        assert!(!MacAddr([2, 0, 0, 0, 0, 1]).is_unusable_as_source());
    }
}
