//! Sums of the kernel's per-pod counters that only grow, also when a pod and its counters go.

use std::collections::BTreeMap;

use crate::metrics::Sample;

/// A counter for one reason, as the kernel has it: a pod's, or the node's for pods that are gone.
pub(super) struct Row {
    pub(super) reason: &'static str,
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

/// The sums by reason.
#[derive(Default)]
pub(super) struct Totals {
    sums: BTreeMap<&'static str, Sum>,
}

/// The kernel adds a pod's counters to the node's when the pod goes, so the sum over all rows never goes back; but the
/// rows are read one after the other, and a pod that goes meanwhile may be missed or counted twice. Only a sum that
/// stays below what it was tells that the counters were made anew.
#[derive(Clone, Copy, Default)]
struct Sum {
    /// Of counters that are no more.
    before: Pair,
    /// The most that the counters of now have shown.
    shown: Pair,
    fell: bool,
}

#[derive(Clone, Copy, Default)]
struct Pair {
    packets: u64,
    bytes: u64,
}

impl Pair {
    fn plus(self, other: Pair) -> Pair {
        Pair {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl Sum {
    fn show(&mut self, now: Pair) {
        let falls = now.packets < self.shown.packets;
        if falls && self.fell {
            self.before = self.before.plus(self.shown);
            self.shown = now;
        } else if !falls {
            self.shown = Pair {
                packets: now.packets,
                bytes: now.bytes.max(self.shown.bytes),
            };
        }
        self.fell = falls && !self.fell;
    }

    fn total(&self) -> Pair {
        self.before.plus(self.shown)
    }
}

impl Totals {
    /// Takes all rows as they are now.
    pub(super) fn take_in(&mut self, rows: impl IntoIterator<Item = Row>) {
        let mut now: BTreeMap<&'static str, Pair> = BTreeMap::new();
        for row in rows {
            let seen = Pair {
                packets: row.packets,
                bytes: row.bytes,
            };
            let sum = now.entry(row.reason).or_default();
            *sum = sum.plus(seen);
        }
        for reason in now.keys() {
            self.sums.entry(reason).or_default();
        }
        for (reason, sum) in &mut self.sums {
            sum.show(now.get(reason).copied().unwrap_or_default());
        }
    }

    pub(super) fn samples(&self) -> Vec<Sample> {
        let family = |name, help, value: fn(&Pair) -> u64| Sample {
            name,
            help,
            counter: true,
            values: self
                .sums
                .iter()
                .map(|(reason, sum)| (vec![("reason", (*reason).to_owned())], value(&sum.total())))
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

    fn row(packets: u64) -> Row {
        Row {
            reason: "udp",
            packets,
            bytes: packets * 100,
        }
    }

    #[test]
    fn a_pod_that_goes_is_counted_once_and_its_number_may_be_anothers() {
        let mut totals = Totals::default();
        let udp = |totals: &Totals| totals.sums["udp"].total().packets;
        // the node's own row and two pods
        totals.take_in([row(0), row(10), row(1)]);
        assert_eq!(udp(&totals), 11);
        totals.take_in([row(10), row(1), row(3)]);
        assert_eq!(udp(&totals), 14);
        // one went between the reading of its row and of the node's: too many for a moment
        totals.take_in([row(11), row(1), row(3)]);
        assert_eq!(udp(&totals), 15);
        totals.take_in([row(11), row(3)]);
        assert_eq!(udp(&totals), 15);
        totals.take_in([row(11), row(5)]);
        assert_eq!(udp(&totals), 16);
        assert_eq!(totals.samples()[1].values[0].1, 1600);
    }

    #[test]
    fn counters_that_were_made_anew_add_to_what_was() {
        let mut totals = Totals::default();
        let udp = |totals: &Totals| totals.sums["udp"].total().packets;
        totals.take_in([row(20)]);
        totals.take_in([]);
        assert_eq!(udp(&totals), 20);
        totals.take_in([row(2)]);
        assert_eq!(udp(&totals), 22);
        totals.take_in([row(5)]);
        assert_eq!(udp(&totals), 25);
    }
}
