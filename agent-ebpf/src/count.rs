//! Counting.

use agent_ebpf_common::{
    Reason,
    abi::{Counter, CounterKey, NODE_IFINDEX},
    packet::Packet,
};

use crate::maps::COUNTERS;

/// Counts one packet of `ifindex`; under the node's own key when there is no room for one more.
#[inline(always)]
pub(crate) fn packet<P: Packet>(ifindex: u32, reason: Reason, packet: &P) {
    let bytes = u64::from(packet.length());
    let key = CounterKey {
        ifindex,
        reason: reason as u32,
    };
    if add(&key, bytes) {
        return;
    }
    let first = Counter { packets: 1, bytes };
    if COUNTERS.insert(key, first, 0).is_err() {
        add(
            &CounterKey {
                ifindex: NODE_IFINDEX,
                ..key
            },
            bytes,
        );
    }
}

/// Adds to this CPU's counter; false when there is none for the key.
#[inline(always)]
fn add(key: &CounterKey, bytes: u64) -> bool {
    let Some(counter) = COUNTERS.get_ptr_mut(key) else {
        return false;
    };
    // SAFETY: the value belongs to this CPU, and a TC program is not interrupted by itself.
    let counter = unsafe { &mut *counter };
    counter.packets += 1;
    counter.bytes += bytes;
    true
}
