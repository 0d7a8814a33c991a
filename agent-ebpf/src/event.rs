//! Telling userspace about dropped packets, at a limited rate.

use agent_ebpf_common::{
    Reason,
    abi::{Config, DropEvent, EventBudget},
    packet::{Headers, Packet},
};
use aya_ebpf::{helpers::bpf_ktime_get_boot_ns, programs::TcContext};
use aya_log_ebpf::debug;

use crate::{
    maps::{EVENT_BUDGET, EVENTS},
    skb::Skb,
};

const SECOND_NS: u64 = 1_000_000_000;

/// Sends an event for a dropped packet, unless the pod has used up this second's.
#[inline(always)]
pub(crate) fn dropped(
    ctx: &TcContext,
    ifindex: u32,
    reason: Reason,
    h: &Headers,
    skb: &Skb<'_>,
    config: Option<&Config>,
) {
    debug!(
        ctx,
        "drop if={} reason={} {:i}:{} -> {:i}:{} proto={}",
        ifindex,
        reason as u32,
        u32::from_be_bytes(h.src),
        h.sport,
        u32::from_be_bytes(h.dst),
        h.dport,
        h.protocol
    );
    let limit = config.map_or(0, |c| c.events_per_second);
    if limit == 0 {
        return;
    }
    // SAFETY: the helper takes nothing and only reads the clock.
    let time_ns = unsafe { bpf_ktime_get_boot_ns() };
    let Some(suppressed) = spend(ifindex, time_ns, limit) else {
        return;
    };
    // A full ring loses the event; the counters have the packet all the same.
    let Some(mut entry) = EVENTS.reserve::<DropEvent>(0) else {
        return;
    };
    entry.write(DropEvent {
        time_ns,
        ifindex,
        reason: reason as u32,
        src: h.src,
        dst: h.dst,
        sport: h.sport,
        dport: h.dport,
        len: skb.length(),
        suppressed,
        ethertype: h.ethertype,
        protocol: h.protocol,
        reserved: 0,
    });
    entry.submit(0);
}

/// Takes one event out of the pod's budget; the number withheld since the last one, or nothing when it is used up.
///
/// CPUs that drop packets of one pod at the same instant may each take the last one: the limit protects the
/// reader, it need not be exact.
#[inline(always)]
fn spend(ifindex: u32, now_ns: u64, limit: u32) -> Option<u32> {
    let Some(budget) = EVENT_BUDGET.get_ptr_mut(ifindex) else {
        let first = EventBudget {
            window_ns: now_ns,
            sent: 1,
            suppressed: 0,
        };
        let _ = EVENT_BUDGET.insert(ifindex, first, 0);
        return Some(0);
    };
    // SAFETY: the entry stays an `EventBudget` while the program runs; races only blur the limit.
    let budget = unsafe { &mut *budget };
    if now_ns - budget.window_ns >= SECOND_NS {
        budget.window_ns = now_ns;
        budget.sent = 0;
    }
    if budget.sent >= limit {
        budget.suppressed += 1;
        return None;
    }
    budget.sent += 1;
    let suppressed = budget.suppressed;
    budget.suppressed = 0;
    Some(suppressed)
}
