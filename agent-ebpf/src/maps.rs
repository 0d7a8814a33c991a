//! The maps, and the look-ups that the programs make.

use agent_ebpf_common::{
    abi::{
        Build, Config, Counter, CounterKey, DispatchState, EVENTS_BYTES, Endpoint, EventBudget,
        Ipv4Bytes, MAX_CIDRS, MAX_COUNTERS, MAX_ENDPOINTS, MAX_SOCKETS,
    },
    classify::Cidrs,
};
use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    macros::map,
    maps::{
        Array, HashMap, LruHashMap, PerCpuHashMap, RingBuf, SockMap,
        lpm_trie::{Key, LpmTrie},
    },
};

#[map]
static CONFIG: Array<Config> = Array::pinned(1, 0);
#[map]
static ENDPOINTS: HashMap<u32, Endpoint> = HashMap::pinned(MAX_ENDPOINTS, 0);
#[map]
static SERVICE_CIDRS: LpmTrie<Ipv4Bytes, u32> = LpmTrie::pinned(MAX_CIDRS, BPF_F_NO_PREALLOC);
#[map]
static FAKE_CIDRS: LpmTrie<Ipv4Bytes, u32> = LpmTrie::pinned(MAX_CIDRS, BPF_F_NO_PREALLOC);
/// Allocated as needed: room for every pod and reason on every CPU would be tens of megabytes.
#[map]
pub(crate) static COUNTERS: PerCpuHashMap<CounterKey, Counter> =
    PerCpuHashMap::pinned(MAX_COUNTERS, BPF_F_NO_PREALLOC);
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::pinned(EVENTS_BYTES, 0);
#[map]
pub(crate) static EVENT_BUDGET: LruHashMap<u32, EventBudget> = LruHashMap::pinned(MAX_ENDPOINTS, 0);
#[map]
pub(crate) static SOCKETS: SockMap = SockMap::pinned(MAX_SOCKETS, 0);
#[map]
static DISPATCH: Array<DispatchState> = Array::pinned(1, 0);
/// Written and read by the loader only.
#[map]
static BUILD: Array<Build> = Array::pinned(1, 0);

/// The node's settings; all zeros until the loader wrote them.
#[inline(always)]
pub(crate) fn config() -> Option<&'static Config> {
    CONFIG.get(0)
}

/// The pod behind an interface.
#[inline(always)]
pub(crate) fn endpoint(ifindex: u32) -> Option<&'static Endpoint> {
    // SAFETY: entries are written whole by userspace and only read here; the map is preallocated, so a removed
    // entry's memory stays an `Endpoint`, and a reader that meets its reuse sees another pod's addresses, which
    // the packet's source does not match.
    unsafe { ENDPOINTS.get(ifindex) }
}

/// How many workers have listeners.
#[inline(always)]
pub(crate) fn workers() -> u32 {
    DISPATCH.get(0).map_or(0, |state| state.workers)
}

/// Whether the address is in a Fake IP CIDR.
#[inline(always)]
pub(crate) fn is_fake(address: Ipv4Bytes) -> bool {
    FAKE_CIDRS.get(Key::new(32, address)).is_some()
}

/// The prefixes of the two CIDR maps.
pub(crate) struct Prefixes;

impl Cidrs for Prefixes {
    #[inline(always)]
    fn is_fake(&self, address: Ipv4Bytes) -> bool {
        is_fake(address)
    }

    #[inline(always)]
    fn is_service(&self, address: Ipv4Bytes) -> bool {
        SERVICE_CIDRS.get(Key::new(32, address)).is_some()
    }
}
