//! Which listener a connection from a pod belongs to.

use crate::abi::{Ipv4Bytes, MAX_WORKERS};

/// What a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SocketClass {
    /// TCP to anything but port 53.
    ProxyTcp = 0,
    /// TCP to port 53.
    DnsTcp = 1,
    /// UDP to port 53.
    DnsUdp = 2,
}

const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
const DNS_PORT: u32 = 53;

impl SocketClass {
    /// Every class.
    pub const ALL: [Self; 3] = [Self::ProxyTcp, Self::DnsTcp, Self::DnsUdp];

    /// The class that serves `protocol` (an IP protocol number) on `local_port` (host byte order), if any.
    #[must_use]
    #[inline(always)]
    pub const fn of(protocol: u32, local_port: u32) -> Option<Self> {
        match (protocol, local_port) {
            (IPPROTO_TCP, DNS_PORT) => Some(Self::DnsTcp),
            (IPPROTO_TCP, _) => Some(Self::ProxyTcp),
            (IPPROTO_UDP, DNS_PORT) => Some(Self::DnsUdp),
            _ => None,
        }
    }

    /// The slot of `worker`'s listener in the socket map, if there can be one.
    #[must_use]
    #[inline(always)]
    pub const fn slot(self, worker: u32) -> Option<u32> {
        if worker < MAX_WORKERS {
            Some(self as u32 * MAX_WORKERS + worker)
        } else {
            None
        }
    }
}

/// The worker that serves the connection from `remote`, out of `workers`.
///
/// Ephemeral ports of one pod are mostly even numbers and few pods have many connections, so address and port
/// are mixed: a plain remainder would leave half of the workers idle.
#[must_use]
#[inline(always)]
pub const fn worker_of(remote_ip: Ipv4Bytes, remote_port: u16, workers: u32) -> u32 {
    let workers = if workers > MAX_WORKERS {
        MAX_WORKERS
    } else {
        workers
    };
    if workers <= 1 {
        return 0;
    }
    // multiplicative hashing with 2^32 divided by the golden ratio; the upper half is the well-mixed one
    let seed = u32::from_be_bytes(remote_ip).rotate_left(16) ^ remote_port as u32;
    (seed.wrapping_mul(0x9e37_79b1) >> 16) % workers
}

#[cfg(test)]
mod tests {
    use super::{SocketClass, worker_of};
    use crate::abi::{MAX_SOCKETS, MAX_WORKERS};

    #[test]
    fn port_53_goes_to_dns_and_other_tcp_to_the_proxy() {
        assert_eq!(SocketClass::of(6, 53), Some(SocketClass::DnsTcp));
        assert_eq!(SocketClass::of(17, 53), Some(SocketClass::DnsUdp));
        assert_eq!(SocketClass::of(6, 443), Some(SocketClass::ProxyTcp));
        assert_eq!(SocketClass::of(17, 443), None);
        assert_eq!(SocketClass::of(132, 53), None);
    }

    #[test]
    fn slots_are_distinct_and_fit_the_map() {
        let mut seen = [false; MAX_SOCKETS as usize];
        for class in SocketClass::ALL {
            for worker in 0..MAX_WORKERS {
                let slot = class.slot(worker).unwrap() as usize;
                assert!(!seen[slot]);
                seen[slot] = true;
            }
            assert_eq!(class.slot(MAX_WORKERS), None);
        }
    }

    #[test]
    fn even_ports_of_one_pod_spread_over_all_workers() {
        for workers in [2, 3, 4, 8, 16] {
            let mut load = [0u32; MAX_WORKERS as usize];
            for port in (32_768..60_999).step_by(2) {
                load[worker_of([169, 254, 100, 2], port, workers) as usize] += 1;
            }
            let mean = 28_231 / 2 / workers;
            for &n in &load[..workers as usize] {
                assert!(
                    n > mean * 8 / 10 && n < mean * 12 / 10,
                    "{workers} workers: {load:?}"
                );
            }
        }
    }

    #[test]
    fn worker_is_always_one_of_those_registered() {
        for workers in [0, 1, 5, 16, 17, u32::MAX] {
            for port in [0, 1, 40_000, u16::MAX] {
                assert!(worker_of([10, 0, 0, 1], port, workers) < workers.clamp(1, MAX_WORKERS));
            }
        }
    }
}
