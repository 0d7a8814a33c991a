//! Reading and writing the pinned maps.
//!
//! Owns the translation between the kernel's types ([`agent_ebpf_common::abi`]) and ours. Maps are opened from their
//! pins for each operation, so that a `Datapath` never writes to a map that was replaced.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use agent_ebpf_common::{
    Reason,
    abi::{Build, Config, Counter, CounterKey, Endpoint, Ipv4Bytes, NODE_IFINDEX},
    names,
};
use aya::{
    Pod,
    maps::{
        Array, HashMap, Map, MapData, MapError as AyaMapError, PerCpuHashMap, PerCpuValues,
        lpm_trie::{Key, LpmTrie},
    },
};
use ipnet::Ipv4Net;

use crate::pins::Pins;

/// A pinned map could not be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} map {map}")]
pub struct MapError {
    action: &'static str,
    map: &'static str,
    #[source]
    source: Box<AyaMapError>,
}

impl MapError {
    /// A fixed label for logs and metrics.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        "map"
    }
}

/// The source that a pod is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodEndpoint {
    /// The pod's Fake IP.
    pub fake_ip: Ipv4Addr,
    /// The MAC of the pod's interface.
    pub mac: [u8; 6],
}

impl From<PodEndpoint> for Endpoint {
    fn from(pod: PodEndpoint) -> Self {
        Self {
            fake_ip: pod.fake_ip.octets(),
            mac: pod.mac,
            flags: 0,
        }
    }
}

impl From<Endpoint> for PodEndpoint {
    fn from(entry: Endpoint) -> Self {
        Self {
            fake_ip: entry.fake_ip.into(),
            mac: entry.mac,
        }
    }
}

/// One row of the counters, summed over all CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterRow {
    /// The pod's host interface, or 0 for packets of no particular (or no longer existing) pod.
    pub ifindex: u32,
    /// Why the packets were passed or dropped.
    pub reason: Reason,
    /// Packets; a GSO packet counts once.
    pub packets: u64,
    /// Bytes with Ethernet header.
    pub bytes: u64,
}

/// Opens a pinned map as a map of its type.
pub(crate) fn open<M>(pins: &Pins, name: &'static str) -> Result<M, MapError>
where
    M: TryFrom<Map, Error = AyaMapError>,
{
    MapData::from_pin(pins.map(name))
        .and_then(Map::from_map_data)
        .and_then(M::try_from)
        .map_err(failed("open", name))
}

/// For `map_err`: names the step and the map.
pub(crate) fn failed(
    action: &'static str,
    map: &'static str,
) -> impl Fn(AyaMapError) -> MapError + Copy {
    move |source| MapError {
        action,
        map,
        source: Box::new(source),
    }
}

fn present<V>(result: Result<V, AyaMapError>) -> Result<Option<V>, AyaMapError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(AyaMapError::KeyNotFound | AyaMapError::ElementNotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a key; fine when it is not there.
fn remove<K: Pod, V: Pod>(
    map: &mut HashMap<MapData, K, V>,
    name: &'static str,
    key: &K,
) -> Result<(), MapError> {
    present(tolerate_missing(map.remove(key)))
        .map(|_| ())
        .map_err(failed("write", name))
}

/// A removal that found nothing comes back from aya as the system call's ENOENT.
fn tolerate_missing(result: Result<(), AyaMapError>) -> Result<(), AyaMapError> {
    match result {
        Err(AyaMapError::SyscallError(error))
            if error.io_error.raw_os_error() == Some(libc::ENOENT) =>
        {
            Ok(())
        }
        other => other,
    }
}

// ---- endpoints ----

type Endpoints = HashMap<MapData, u32, Endpoint>;

pub(crate) fn endpoint(pins: &Pins, ifindex: u32) -> Result<Option<PodEndpoint>, MapError> {
    let map: Endpoints = open(pins, names::ENDPOINTS)?;
    let entry = present(map.get(&ifindex, 0)).map_err(failed("read", names::ENDPOINTS))?;
    Ok(entry.map(PodEndpoint::from))
}

pub(crate) fn endpoints(pins: &Pins) -> Result<Vec<(u32, PodEndpoint)>, MapError> {
    let map: Endpoints = open(pins, names::ENDPOINTS)?;
    let rows: Result<BTreeMap<_, _>, _> = map
        .iter()
        .map(|row| row.map(|(ifindex, entry)| (ifindex, entry.into())))
        .collect();
    Ok(rows
        .map_err(failed("read", names::ENDPOINTS))?
        .into_iter()
        .collect())
}

pub(crate) fn put_endpoint(pins: &Pins, ifindex: u32, pod: PodEndpoint) -> Result<(), MapError> {
    let mut map: Endpoints = open(pins, names::ENDPOINTS)?;
    map.insert(ifindex, Endpoint::from(pod), 0)
        .map_err(failed("write", names::ENDPOINTS))
}

pub(crate) fn remove_endpoint(pins: &Pins, ifindex: u32) -> Result<(), MapError> {
    let mut map: Endpoints = open(pins, names::ENDPOINTS)?;
    remove(&mut map, names::ENDPOINTS, &ifindex)?;
    let mut budgets: HashMap<MapData, u32, agent_ebpf_common::abi::EventBudget> =
        open(pins, names::EVENT_BUDGET)?;
    remove(&mut budgets, names::EVENT_BUDGET, &ifindex)
}

// ---- settings ----

/// The one entry of an array.
pub(crate) fn read_one<V: Pod>(pins: &Pins, name: &'static str) -> Result<V, MapError> {
    let map: Array<MapData, V> = open(pins, name)?;
    map.get(&0, 0).map_err(failed("read", name))
}

/// Writes the one entry of an array, unless it is the same already.
pub(crate) fn write_one<V: Pod + PartialEq>(
    pins: &Pins,
    name: &'static str,
    value: V,
) -> Result<(), MapError> {
    let mut map: Array<MapData, V> = open(pins, name)?;
    if map.get(&0, 0).map_err(failed("read", name))? == value {
        return Ok(());
    }
    map.set(0, value, 0).map_err(failed("write", name))
}

/// Writes the node's settings. The kernel may see half of an update for an instant.
pub(crate) fn write_config(pins: &Pins, config: Config) -> Result<(), MapError> {
    write_one(pins, names::CONFIG, config)
}

pub(crate) fn build(pins: &Pins) -> Result<Build, MapError> {
    read_one(pins, names::BUILD)
}

/// Makes the prefixes of a CIDR map exactly `wanted`: what is missing comes first, what is too much goes after, and
/// the map is never empty in between.
pub(crate) fn write_cidrs(
    pins: &Pins,
    name: &'static str,
    wanted: &[Ipv4Net],
) -> Result<(), MapError> {
    const PRESENT: u32 = 1;
    let mut map: LpmTrie<MapData, Ipv4Bytes, u32> = open(pins, name)?;
    let found = map
        .keys()
        .map(|key| key.map(|key| (key.prefix_len(), key.data())))
        .collect::<Result<BTreeSet<_>, _>>()
        .map_err(failed("read", name))?;
    let wanted: BTreeSet<_> = wanted
        .iter()
        .map(|net| (u32::from(net.prefix_len()), net.network().octets()))
        .collect();
    for &(len, address) in wanted.difference(&found) {
        map.insert(&Key::new(len, address), PRESENT, 0)
            .map_err(failed("write", name))?;
    }
    for &(len, address) in found.difference(&wanted) {
        tolerate_missing(map.remove(&Key::new(len, address))).map_err(failed("write", name))?;
    }
    Ok(())
}

// ---- counters ----

type Counters = PerCpuHashMap<MapData, CounterKey, Counter>;

pub(crate) fn counters(pins: &Pins) -> Result<Vec<CounterRow>, MapError> {
    let map: Counters = open(pins, names::COUNTERS)?;
    let mut rows = BTreeMap::new();
    for key in map.keys() {
        let key = key.map_err(failed("read", names::COUNTERS))?;
        // removed since the key was listed, or of a newer program's reason: not ours to report
        let Some(values) = present(map.get(&key, 0)).map_err(failed("read", names::COUNTERS))?
        else {
            continue;
        };
        let Some(reason) = Reason::from_u32(key.reason) else {
            continue;
        };
        let (packets, bytes) = sum(&values);
        rows.insert(
            (key.ifindex, reason),
            CounterRow {
                ifindex: key.ifindex,
                reason,
                packets,
                bytes,
            },
        );
    }
    Ok(rows.into_values().collect())
}

fn sum(values: &PerCpuValues<Counter>) -> (u64, u64) {
    values.iter().fold((0, 0), |(packets, bytes), c| {
        (packets + c.packets, bytes + c.bytes)
    })
}

/// Removes a pod's counters, and adds them to the node's own, so that sums over all rows never go back.
///
/// The caller holds the pins' lock: two folds at once would lose one of the sums.
pub(crate) fn fold_counters(pins: &Pins, ifindex: u32) -> Result<(), MapError> {
    let mut map: Counters = open(pins, names::COUNTERS)?;
    for &reason in Reason::ALL {
        let key = CounterKey {
            ifindex,
            reason: reason as u32,
        };
        let read = failed("read", names::COUNTERS);
        let write = failed("write", names::COUNTERS);
        let Some(values) = present(map.get(&key, 0)).map_err(read)? else {
            continue;
        };
        let total_key = CounterKey {
            ifindex: NODE_IFINDEX,
            ..key
        };
        let total = match present(map.get(&total_key, 0)).map_err(read)? {
            Some(total) => total
                .iter()
                .zip(values.iter())
                .map(|(a, b)| add(a, b))
                .collect(),
            None => values.iter().copied().collect::<Vec<_>>(),
        };
        let total =
            PerCpuValues::try_from(total).map_err(|error| write(AyaMapError::IoError(error)))?;
        map.insert(total_key, total, 0).map_err(write)?;
        tolerate_missing(map.remove(&key)).map_err(write)?;
    }
    Ok(())
}

fn add(a: &Counter, b: &Counter) -> Counter {
    Counter {
        packets: a.packets + b.packets,
        bytes: a.bytes + b.bytes,
    }
}
