//! Which lengths in a packet's headers go together. Pure.
//!
//! nftables can't add, so the sums are written out as ranges. A key is the first byte of the IPv4 header (version and
//! header length), a zero, and the datagram's length; for TCP the byte with the TCP header's length comes before it,
//! in four bytes of its own. `agent_ebpf_common::packet` says the same with arithmetic.
//!
//! nft shows the keys of four bytes as addresses: 69.0.0.40 is a header of five words (0x45) and 40 bytes in all.

use super::table::range;
use crate::nft::value::Element;

const UDP_HEADER: u16 = 8;
const SCTP_HEADER: u16 = 12;
/// Lengths of a header, in words of four bytes.
const HEADER_WORDS: std::ops::RangeInclusive<u8> = 5..=15;

/// By TCP header and IPv4 header, the lengths that hold both. No length at all is that of a packet too long for the
/// field ("BIG TCP"), which the kernel's own parser lets through only when it is one.
pub(super) fn tcp() -> Vec<Element> {
    let mut elements = Vec::new();
    for tcp in HEADER_WORDS {
        for ip in HEADER_WORDS {
            let key = |length: u16| {
                let [high, low] = length.to_be_bytes();
                [tcp << 4, 0, 0, 0, 0x40 | ip, 0, high, low]
            };
            let whole = u16::from(ip) * 4 + u16::from(tcp) * 4;
            elements.extend(range(&key(0), &key(0)));
            elements.extend(range(&key(whole), &key(u16::MAX)));
        }
    }
    elements
}

/// By IPv4 header, the lengths that hold it and a UDP header.
pub(super) fn udp() -> Vec<Element> {
    with_room_for(UDP_HEADER)
}

/// By IPv4 header, the lengths that hold it and an SCTP header.
pub(super) fn sctp() -> Vec<Element> {
    with_room_for(SCTP_HEADER)
}

fn with_room_for(header: u16) -> Vec<Element> {
    HEADER_WORDS
        .flat_map(|ip| {
            let key = |length: u16| {
                let [high, low] = length.to_be_bytes();
                [0x40 | ip, 0, high, low]
            };
            range(&key(u16::from(ip) * 4 + header), &key(u16::MAX))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_in_order_and_do_not_touch() {
        for elements in [tcp(), udp(), sctp()] {
            for pair in elements.windows(2) {
                assert!(pair[0].key < pair[1].key, "{pair:?}");
                assert_ne!(pair[0].end, pair[1].end, "{pair:?}");
            }
        }
    }

    #[test]
    fn a_length_is_in_range_from_the_sum_of_both_headers_on() {
        let elements = tcp();
        let holds = |key: [u8; 8]| {
            let below = elements
                .iter()
                .rfind(|element| element.key.as_slice() <= &key[..]);
            below.is_some_and(|element| !element.end)
        };
        assert!(holds([0x50, 0, 0, 0, 0x45, 0, 0, 40]));
        assert!(!holds([0x50, 0, 0, 0, 0x45, 0, 0, 39]));
        assert!(!holds([0x40, 0, 0, 0, 0x45, 0, 0, 40]));
        assert!(!holds([0xf0, 0, 0, 0, 0x45, 0, 0, 79]));
        assert!(holds([0xf0, 0, 0, 0, 0x4f, 0, 0, 120]));
        assert!(!holds([0xf0, 0, 0, 0, 0x4f, 0, 0, 119]));
        assert!(holds([0x50, 0, 0, 0, 0x45, 0, 0xff, 0xff]));
    }
}
