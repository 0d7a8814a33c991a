//! The shapes of the maps: what a pinned map must be to be adopted.

use agent_ebpf_common::{abi, names};
use aya::maps::{MapInfo, MapType};

/// One map as the programs declare it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapShape {
    pub(crate) name: &'static str,
    kind: MapType,
    key: u32,
    value: u32,
    entries: u32,
}

const fn shape<K, V>(name: &'static str, kind: MapType, entries: u32) -> MapShape {
    MapShape {
        name,
        kind,
        key: size_of::<K>() as u32,
        value: size_of::<V>() as u32,
        entries,
    }
}

/// A prefix length and an address.
type LpmKey = (u32, abi::Ipv4Bytes);

/// Every pinned map.
pub(crate) const MAPS: [MapShape; 10] = [
    shape::<u32, abi::Config>(names::CONFIG, MapType::Array, 1),
    shape::<u32, abi::Endpoint>(names::ENDPOINTS, MapType::Hash, abi::MAX_ENDPOINTS),
    shape::<LpmKey, u32>(names::SERVICE_CIDRS, MapType::LpmTrie, abi::MAX_CIDRS),
    shape::<LpmKey, u32>(names::FAKE_CIDRS, MapType::LpmTrie, abi::MAX_CIDRS),
    shape::<abi::CounterKey, abi::Counter>(names::COUNTERS, MapType::PerCpuHash, abi::MAX_COUNTERS),
    shape::<(), ()>(names::EVENTS, MapType::RingBuf, abi::EVENTS_BYTES),
    shape::<u32, abi::EventBudget>(names::EVENT_BUDGET, MapType::LruHash, abi::MAX_ENDPOINTS),
    shape::<u32, u32>(names::SOCKETS, MapType::SockMap, abi::MAX_SOCKETS),
    shape::<u32, abi::DispatchState>(names::DISPATCH_STATE, MapType::Array, 1),
    shape::<u32, abi::Build>(names::BUILD, MapType::Array, 1),
];

impl MapShape {
    /// What is different about a map, if anything.
    pub(crate) fn difference(&self, found: &MapInfo) -> Option<String> {
        let kind = found.map_type().ok();
        if kind != Some(self.kind) {
            return Some(format!("is of type {kind:?}, not {:?}", self.kind));
        }
        let fields = [
            ("keys of", "bytes", found.key_size(), self.key),
            ("values of", "bytes", found.value_size(), self.value),
            ("room for", "entries", found.max_entries(), self.entries),
        ];
        fields
            .iter()
            .find(|(_, _, is, should)| is != should)
            .map(|(what, unit, is, should)| format!("has {what} {is} {unit}, not {should}"))
    }
}
