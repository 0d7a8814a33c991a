//! Which address a new pod gets. Owns the choice, not the state it is made from.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// How long an address rests after `DEL` unless the operator says otherwise, in seconds: longer than the caches (ARP,
/// DNS bindings, identity) that could still tie it to the pod that had it.
pub const DEFAULT_COOLDOWN_SECS: u64 = 60;

/// No address can be given out now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no free address in {cidr}: {in_use} in use, {resting} resting after a deletion{}", remedy(*.retry_in_secs))]
pub struct PoolExhausted {
    /// The pool.
    pub cidr: Ipv4Net,
    /// Addresses that pods have.
    pub in_use: usize,
    /// Addresses that rest.
    pub resting: usize,
    /// Seconds until the first resting address may be given out.
    pub retry_in_secs: Option<u64>,
}

fn remedy(retry_in_secs: Option<u64>) -> String {
    match retry_in_secs {
        Some(secs) => format!("; the next is free in {secs} s"),
        None => {
            "; delete pods on this node, or set agentCNI.fakeIPCIDR to a larger range".to_owned()
        }
    }
}

/// Picks the address that has not been used for the longest time.
///
/// Addresses that were never used come first, lowest first; then released ones whose cool-down has passed, the longest
/// released first. The range's first address (network), the gateway and the last (broadcast) are never given out.
/// `released` may hold an address several times; the latest counts. A release time in the future by more than the
/// cool-down means that the clock was set back: such an address is the last resort, but not lost.
///
/// Costs O(n log n) in the number of addresses used and released, whatever the size of the pool.
///
/// # Errors
/// Every address is in use or resting.
pub fn allocate(
    cidr: Ipv4Net,
    gateway: Ipv4Addr,
    used: &[Ipv4Addr],
    released: &[(Ipv4Addr, u64)],
    now_secs: u64,
    cooldown_secs: u64,
) -> Result<Ipv4Addr, PoolExhausted> {
    let (first, last) = bounds(cidr);
    let gateway = u32::from(gateway);
    let in_pool = |address: u32| first <= address && address <= last && address != gateway;

    let mut used: Vec<u32> = used
        .iter()
        .map(|ip| u32::from(*ip))
        .filter(|ip| in_pool(*ip))
        .collect();
    used.sort_unstable();
    used.dedup();

    let mut resting: Vec<(u32, u64)> = released
        .iter()
        .map(|(ip, at)| (u32::from(*ip), *at))
        .filter(|(ip, _)| in_pool(*ip) && used.binary_search(ip).is_err())
        .collect();
    resting.sort_unstable();
    // Of several releases of one address the latest, which sorts last, is kept.
    resting.reverse();
    resting.dedup_by_key(|(ip, _)| *ip);
    resting.reverse();

    if let Some(address) = lowest_untouched(first, last, gateway, &used, &resting) {
        return Ok(Ipv4Addr::from(address));
    }
    let oldest = resting
        .iter()
        .filter_map(|(ip, at)| Some((availability(*at, now_secs, cooldown_secs).ok()?, *at, *ip)))
        .min();
    match oldest {
        Some((_, _, address)) => Ok(Ipv4Addr::from(address)),
        None => Err(PoolExhausted {
            cidr,
            in_use: used.len(),
            resting: resting.len(),
            retry_in_secs: resting
                .iter()
                .filter_map(|(_, at)| availability(*at, now_secs, cooldown_secs).err())
                .min(),
        }),
    }
}

/// How many addresses of the pool pods can have.
pub fn capacity(cidr: Ipv4Net) -> u32 {
    let (first, last) = bounds(cidr);
    // The gateway is one of the addresses between the bounds.
    last.saturating_sub(first)
}

/// First and last address that could be given out (the gateway among them); first > last when there is none.
fn bounds(cidr: Ipv4Net) -> (u32, u32) {
    let (network, broadcast) = (u32::from(cidr.network()), u32::from(cidr.broadcast()));
    (network.saturating_add(1), broadcast.saturating_sub(1))
}

/// The lowest address that is neither used nor released, by walking the two sorted lists.
fn lowest_untouched(
    first: u32,
    last: u32,
    gateway: u32,
    used: &[u32],
    resting: &[(u32, u64)],
) -> Option<u32> {
    let (mut used, mut resting) = (used.iter().peekable(), resting.iter().peekable());
    let mut candidate = first;
    while candidate <= last {
        let taken = used.next_if_eq(&&candidate).is_some()
            || resting.next_if(|(ip, _)| *ip == candidate).is_some()
            || candidate == gateway;
        if !taken {
            return Some(candidate);
        }
        candidate = candidate.checked_add(1)?;
    }
    None
}

/// `Ok(rank)` when the address may be given out (lower ranks first), `Err(seconds to wait)` otherwise.
fn availability(released_at: u64, now: u64, cooldown: u64) -> Result<u8, u64> {
    let free_at = released_at.saturating_add(cooldown);
    if free_at <= now {
        Ok(0)
    } else if released_at > now.saturating_add(cooldown) {
        Ok(1)
    } else {
        Err(free_at - now)
    }
}

#[cfg(test)]
mod tests;
