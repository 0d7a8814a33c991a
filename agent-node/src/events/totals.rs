//! Sums of the kernel's per-pod counters that only grow, also when a pod and its counters go.

use std::collections::{BTreeMap, HashMap};

use crate::metrics::Sample;

/// One pod's counter for one reason, as the kernel has it.
pub(super) struct Row {
    pub(super) ifindex: u32,
    pub(super) reason: &'static str,
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

/// What was read last, and the sums by reason.
#[derive(Default)]
pub(super) struct Totals {
    last: HashMap<(u32, &'static str), Pair>,
    sums: BTreeMap<&'static str, Pair>,
}

#[derive(Clone, Copy, Default)]
struct Pair {
    packets: u64,
    bytes: u64,
}

impl Totals {
    /// Adds what has come since the last time.
    pub(super) fn take_in(&mut self, rows: impl IntoIterator<Item = Row>) {
        let mut now = HashMap::new();
        for row in rows {
            let key = (row.ifindex, row.reason);
            let seen = Pair {
                packets: row.packets,
                bytes: row.bytes,
            };
            let before = self.last.get(&key).copied().unwrap_or_default();
            // Fewer than before: a new pod has the interface's number.
            let before = if before.packets > seen.packets {
                Pair::default()
            } else {
                before
            };
            let sum = self.sums.entry(key.1).or_default();
            sum.packets += seen.packets - before.packets;
            sum.bytes += seen.bytes.saturating_sub(before.bytes);
            now.insert(key, seen);
        }
        self.last = now;
    }

    pub(super) fn samples(&self) -> Vec<Sample> {
        let family = |name, help, value: fn(&Pair) -> u64| Sample {
            name,
            help,
            counter: true,
            values: self
                .sums
                .iter()
                .map(|(reason, pair)| (vec![("reason", (*reason).to_owned())], value(pair)))
                .collect(),
        };
        vec![
            family(
                "kernel_packets",
                "Packets of pods by what the kernel program did with them",
                |pair| pair.packets,
            ),
            family(
                "kernel_bytes",
                "Bytes of pods' packets by what the kernel program did with them",
                |pair| pair.bytes,
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ifindex: u32, packets: u64) -> Row {
        Row {
            ifindex,
            reason: "udp",
            packets,
            bytes: packets * 100,
        }
    }

    #[test]
    fn sums_only_grow_when_pods_and_their_counters_go_and_come() {
        let mut totals = Totals::default();
        let udp = |totals: &Totals| totals.sums["udp"].packets;
        totals.take_in([row(5, 10), row(6, 1)]);
        assert_eq!(udp(&totals), 11);
        totals.take_in([row(5, 12)]);
        assert_eq!(udp(&totals), 13);
        totals.take_in([row(5, 3)]);
        assert_eq!(udp(&totals), 16);
        assert_eq!(totals.samples()[1].values[0].1, 1600);
    }
}
