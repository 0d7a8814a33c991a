//! The list of released addresses: one line `ADDRESS SECONDS` each, an address at most once, bounded.

use std::{fmt::Write, net::Ipv4Addr};

pub(super) const FILE_NAME: &str = "released";

/// More than the addresses of a /19; of a larger pool the oldest are forgotten, which only changes the order in which
/// they are used again.
const LIMIT: usize = 8192;

pub(super) fn parse(text: &str) -> Vec<(Ipv4Addr, u64)> {
    text.lines()
        .filter_map(|line| {
            let (address, seconds) = line.split_once(' ')?;
            Some((address.parse().ok()?, seconds.parse().ok()?))
        })
        .collect()
}

/// Puts an address at the end, as the one released last.
pub(super) fn add(list: &mut Vec<(Ipv4Addr, u64)>, address: Ipv4Addr, now: u64) {
    list.retain(|(known, _)| *known != address);
    list.push((address, now));
    if list.len() > LIMIT {
        list.drain(..list.len() - LIMIT);
    }
}

pub(super) fn format(list: &[(Ipv4Addr, u64)]) -> String {
    let mut text = String::with_capacity(list.len() * 28);
    for (address, seconds) in list {
        // writing to a String cannot fail
        let _ = writeln!(text, "{address} {seconds}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_the_list_once_with_its_last_release() {
        let (a, b) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
        let mut list = Vec::new();
        add(&mut list, a, 1);
        add(&mut list, b, 2);
        add(&mut list, a, 3);
        assert_eq!(list, [(b, 2), (a, 3)]);
        assert_eq!(parse(&format(&list)), list);
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        let list = parse("x\n192.0.2.1\n192.0.2.2 7\n192.0.2.3 -1\n\0\n");
        assert_eq!(list, [(Ipv4Addr::new(192, 0, 2, 2), 7)]);
    }

    #[test]
    fn the_list_is_bounded() {
        let mut list = Vec::new();
        for n in 0..u32::try_from(LIMIT).unwrap() + 10 {
            add(&mut list, Ipv4Addr::from(0x0a00_0000 + n), u64::from(n));
        }
        assert_eq!(list.len(), LIMIT);
        assert_eq!(list[0].1, 10);
    }
}
