//! Which addresses the DNS proxy gave to which pod for which name.
//!
//! A TLS connection says a name in clear text and goes to an address; only a pod that was given
//! that address for that name is believed (`sni_mismatch` otherwise). The table is shared by all
//! workers: a query and the connection that follows it may end on different ones. It is locked
//! once per answer and once per connection, in 64 parts by pod.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::workloads::Identified;

/// How long after its TTL an address is still believed. Clients keep addresses longer than they
/// should (connection pools, language runtimes); the proxy connects to its own resolution of the
/// name in any case, so believing too long costs nothing but a missed warning.
const GRACE: Duration = Duration::from_secs(3600);
/// Names that are kept per pod; beyond, those that end first are forgotten.
const NAMES_PER_POD: usize = 512;
/// Addresses that are kept per name and pod.
const ADDRESSES_PER_NAME: usize = 64;
/// Locks; a node has some 250 pods.
const SHARDS: usize = 64;

/// The table. Times are arguments, so that tests don't wait.
pub struct Bindings {
    shards: Box<[Mutex<HashMap<Ipv4Addr, PodBindings>>]>,
}

struct PodBindings {
    /// Cancelled when the pod is gone: what it was given means nothing to the next one at its address.
    gone: CancellationToken,
    names: HashMap<Box<str>, Vec<Given>>,
}

struct Given {
    address: Ipv4Addr,
    until: Instant,
}

impl Bindings {
    /// An empty table.
    pub fn new() -> Bindings {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Bindings { shards }
    }

    /// Notes that `pod` was given `addresses` for `name`, to be used for `ttl`.
    ///
    /// `name` is in lower case and without a final dot.
    pub fn record(&self, pod: &Identified, name: &str, addresses: &[Ipv4Addr], ttl: Duration) {
        let ip = pod.workload.fake_ip;
        self.record_at(ip, &pod.gone, name, addresses, ttl, Instant::now());
    }

    /// Whether the pod at `pod` was given `address` for `name`, not too long ago.
    pub fn knows(&self, pod: Ipv4Addr, name: &str, address: Ipv4Addr) -> bool {
        self.knows_at(pod, name, address, Instant::now())
    }

    fn record_at(
        &self,
        pod: Ipv4Addr,
        gone: &CancellationToken,
        name: &str,
        addresses: &[Ipv4Addr],
        ttl: Duration,
        now: Instant,
    ) {
        if addresses.is_empty() || gone.is_cancelled() {
            return;
        }
        let until = now + ttl + GRACE;
        let mut shard = self.shard(pod);
        if shard
            .get(&pod)
            .is_none_or(|known| known.gone.is_cancelled())
        {
            shard.retain(|_, known| !known.gone.is_cancelled());
        }
        let pod = shard.entry(pod).or_insert_with(|| PodBindings {
            gone: gone.clone(),
            names: HashMap::new(),
        });
        if !pod.names.contains_key(name) {
            pod.make_room(now);
        }
        let given = pod.names.entry(name.into()).or_default();
        given.retain(|one| now < one.until && !addresses.contains(&one.address));
        for &address in addresses.iter().take(ADDRESSES_PER_NAME) {
            given.push(Given { address, until });
        }
        let excess = given.len().saturating_sub(ADDRESSES_PER_NAME);
        given.drain(..excess);
    }

    fn knows_at(&self, pod: Ipv4Addr, name: &str, address: Ipv4Addr, now: Instant) -> bool {
        self.shard(pod)
            .get(&pod)
            .filter(|pod| !pod.gone.is_cancelled())
            .and_then(|pod| pod.names.get(name))
            .is_some_and(|given| {
                given
                    .iter()
                    .any(|one| one.address == address && now < one.until)
            })
    }

    fn shard(&self, pod: Ipv4Addr) -> MutexGuard<'_, HashMap<Ipv4Addr, PodBindings>> {
        // The low bits are what differs between the pods of a node.
        let index = pod.to_bits() as usize % self.shards.len();
        // A thread that panicked while it held the lock left whole entries behind: each change
        // is one insertion or removal.
        self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Bindings {
    fn default() -> Bindings {
        Bindings::new()
    }
}

impl PodBindings {
    /// Makes room for one more name.
    fn make_room(&mut self, now: Instant) {
        if self.names.len() < NAMES_PER_POD {
            return;
        }
        let last_until = |given: &[Given]| given.iter().map(|one| one.until).max();
        self.names
            .retain(|_, given| last_until(given).is_some_and(|until| now < until));
        if self.names.len() < NAMES_PER_POD {
            return;
        }
        // An eighth at once, so that a flood of names pays for the search once in 64 names.
        let mut ends: Vec<Instant> = self
            .names
            .values()
            .filter_map(|given| last_until(given))
            .collect();
        let (_, limit, _) = ends.select_nth_unstable(NAMES_PER_POD / 8 - 1);
        let limit = *limit;
        self.names
            .retain(|_, given| last_until(given).is_some_and(|until| limit < until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 2);
    const OTHER: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 3);
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
    const TTL: Duration = Duration::from_secs(60);

    /// A table with one name recorded for [`POD`] at the returned time, and the pod's token.
    fn recorded() -> (Bindings, CancellationToken, Instant) {
        let bindings = Bindings::new();
        let (here, now) = (CancellationToken::new(), Instant::now());
        bindings.record_at(POD, &here, "api.example.com", &[ADDRESS], TTL, now);
        (bindings, here, now)
    }

    #[test]
    fn a_pod_is_believed_about_what_it_was_given_and_nothing_else() {
        let (bindings, ..) = recorded();
        assert!(bindings.knows(POD, "api.example.com", ADDRESS));
        assert!(!bindings.knows(OTHER, "api.example.com", ADDRESS));
        assert!(!bindings.knows(POD, "www.example.com", ADDRESS));
        assert!(!bindings.knows(POD, "api.example.com", Ipv4Addr::new(192, 0, 2, 8)));
    }

    #[test]
    fn addresses_of_earlier_answers_stay_known_for_ttl_and_grace() {
        let (bindings, here, start) = recorded();
        let next = Ipv4Addr::new(192, 0, 2, 8);
        bindings.record_at(POD, &here, "api.example.com", &[next], TTL, start + TTL);
        assert!(bindings.knows_at(POD, "api.example.com", ADDRESS, start + TTL));
        assert!(!bindings.knows_at(POD, "api.example.com", ADDRESS, start + TTL + GRACE));
        assert!(bindings.knows_at(POD, "api.example.com", next, start + TTL + GRACE));
    }

    #[test]
    fn a_gone_pod_leaves_nothing_to_the_next_one_at_its_address() {
        let (bindings, here, now) = recorded();
        here.cancel();
        assert!(!bindings.knows(POD, "api.example.com", ADDRESS));
        let next = CancellationToken::new();
        bindings.record_at(POD, &next, "other.example.com", &[ADDRESS], TTL, now);
        assert!(bindings.knows(POD, "other.example.com", ADDRESS));
        assert!(!bindings.knows(POD, "api.example.com", ADDRESS));
    }

    #[test]
    fn an_answer_that_comes_after_its_pod_is_gone_is_not_recorded() {
        let (bindings, here, now) = recorded();
        let next = CancellationToken::new();
        bindings.record_at(POD, &next, "late.example.com", &[ADDRESS], TTL, now);
        here.cancel();
        bindings.record_at(POD, &here, "late.example.com", &[ADDRESS], TTL, now);
        assert!(!bindings.knows(POD, "late.example.com", ADDRESS));
    }

    #[test]
    fn a_pod_that_asks_for_endless_names_fills_only_its_own_share() {
        let (bindings, here, start) = recorded();
        let flooder = CancellationToken::new();
        for number in 0..2 * NAMES_PER_POD as u64 {
            let now = start + Duration::from_millis(number);
            let name = format!("n{number}.example");
            bindings.record_at(OTHER, &flooder, &name, &[ADDRESS], TTL, now);
        }
        let kept = bindings.shard(OTHER)[&OTHER].names.len();
        assert!(
            (NAMES_PER_POD / 2..=NAMES_PER_POD).contains(&kept),
            "{kept}"
        );
        assert!(bindings.knows(POD, "api.example.com", ADDRESS));
        let newest = format!("n{}.example", 2 * NAMES_PER_POD - 1);
        assert!(bindings.knows(OTHER, &newest, ADDRESS));
        assert!(!bindings.knows(OTHER, "n0.example", ADDRESS));
        drop(here);
    }

    #[test]
    fn an_answer_of_a_thousand_addresses_keeps_a_bounded_number() {
        let (bindings, here, now) = recorded();
        let many: Vec<Ipv4Addr> = (0..1000)
            .map(|n| Ipv4Addr::from_bits(0xc000_0200 + n))
            .collect();
        bindings.record_at(POD, &here, "many.example", &many, TTL, now);
        assert_eq!(
            bindings.shard(POD)[&POD].names["many.example"].len(),
            ADDRESSES_PER_NAME
        );
    }
}
