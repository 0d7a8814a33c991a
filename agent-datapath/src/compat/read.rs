//! Pods and counters out of the rules that the kernel has. Pure.

use std::collections::BTreeMap;

use agent_ebpf_common::{Reason, abi::NODE_IFINDEX, packet::ETHERNET_LEN};

use super::{
    HostPod,
    pod::{self, of_title},
};
use crate::{
    maps::CounterRow,
    nft::{encode, read::FoundRule},
};

/// Packets and bytes by reason.
#[derive(Debug, Default)]
pub(super) struct Sums(BTreeMap<Reason, (u64, u64)>);

impl Sums {
    /// Adds what these rules have counted.
    pub(super) fn add(&mut self, rules: &[FoundRule]) {
        for (reason, packets, bytes) in rules.iter().filter_map(counted) {
            let sum = self.0.entry(reason).or_default();
            sum.0 += packets;
            sum.1 += bytes;
        }
    }

    pub(super) fn of(&self, reason: Reason) -> (u64, u64) {
        self.0.get(&reason).copied().unwrap_or_default()
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.values().all(|(packets, _)| *packets == 0)
    }
}

/// What a rule of ours has counted, and for which reason; none for one that does not count.
fn counted(rule: &FoundRule) -> Option<(Reason, u64, u64)> {
    let (packets, bytes) = rule.counter?;
    let label = encode::purpose(&rule.userdata)?;
    let reason = Reason::ALL.iter().find(|reason| reason.as_str() == label)?;
    Some((*reason, packets, bytes))
}

/// The pods whose chains are among these rules.
pub(super) fn pods(rules: &[FoundRule]) -> Vec<HostPod> {
    rules
        .iter()
        .filter_map(|rule| {
            let (ifindex, endpoint) = of_title(encode::purpose(&rule.userdata)?)?;
            let ifname = pod::interface_of(&rule.chain)?.to_owned();
            Some(HostPod {
                ifname,
                ifindex,
                endpoint,
            })
        })
        .collect()
}

/// One row for each pod and reason; what belongs to no pod, or to none any more, is the node's.
pub(super) fn counters(rules: &[FoundRule]) -> Vec<CounterRow> {
    let mut owners: BTreeMap<String, u32> = BTreeMap::new();
    for pod in pods(rules) {
        for chain in pod::names(&pod.ifname) {
            owners.insert(chain, pod.ifindex);
        }
    }
    let mut sums: BTreeMap<(u32, Reason), (u64, u64)> = BTreeMap::new();
    for rule in rules {
        let Some((reason, packets, bytes)) = counted(rule) else {
            continue;
        };
        let owner = owners.get(&rule.chain).copied().unwrap_or(NODE_IFINDEX);
        let sum = sums.entry((owner, reason)).or_default();
        sum.0 += packets;
        sum.1 += bytes;
    }
    sums.into_iter()
        .filter(|(_, (packets, _))| *packets > 0)
        .map(|((ifindex, reason), (packets, bytes))| CounterRow {
            ifindex,
            reason,
            packets,
            // a chain of a bridge counts from the network header on
            bytes: bytes + packets * u64::from(ETHERNET_LEN),
        })
        .collect()
}
