//! The addresses and names of the little internet around a test node. All addresses are documentation ranges
//! (RFC 5737), apart from the metadata service's and the cluster's; none leaves the world's namespaces.

use std::net::Ipv4Addr;

/// The node on its uplink.
pub const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
/// The node's router: the outside.
pub const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The DNS server that ZeroProxy asks.
pub const DNS_SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 53);
/// Where kube-proxy's rules send the Service's traffic.
pub const SERVICE_BACKEND: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 80);
/// The Service that a pod reaches past the proxy.
pub const SERVICE_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 80);
/// The cluster's DNS Service; pods have it in their resolv.conf, and no packet ever reaches it.
pub const CLUSTER_DNS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// A Service address that kube-proxy doesn't know.
pub const UNSERVED_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 9, 9);
/// The cluster's Service CIDR.
pub const SERVICE_CIDR: &str = "10.96.0.0/16";
/// The cloud's metadata service.
pub const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// A raw TCP server that speaks first.
pub const BANNER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 30);
/// Every address of this range is served by whoever listens on the outside's wildcard address.
pub const ANYCAST_CIDR: &str = "198.51.100.128/25";

/// A name of the outside's DNS and its address.
pub const NAMES: &[(&str, Ipv4Addr)] = &[
    ("docs.example.com", Ipv4Addr::new(203, 0, 113, 10)),
    ("api.example.com", Ipv4Addr::new(203, 0, 113, 11)),
    ("git.example.com", Ipv4Addr::new(203, 0, 113, 12)),
    ("git.internal.example.com", Ipv4Addr::new(203, 0, 113, 13)),
    (
        "vector-db.internal.example.com",
        Ipv4Addr::new(203, 0, 113, 14),
    ),
    (
        "prod-db.internal.example.com",
        Ipv4Addr::new(203, 0, 113, 15),
    ),
    ("evil.example.com", Ipv4Addr::new(203, 0, 113, 16)),
    (
        "agent-server.internal.example.com",
        Ipv4Addr::new(203, 0, 113, 17),
    ),
    ("echo.example.com", Ipv4Addr::new(203, 0, 113, 18)),
    ("secure.example.com", Ipv4Addr::new(203, 0, 113, 20)),
    ("other-secure.example.com", Ipv4Addr::new(203, 0, 113, 21)),
    ("banner.example.com", BANNER),
    ("bulk.example.com", Ipv4Addr::new(203, 0, 113, 40)),
    ("rebind.example.com", METADATA),
    ("web.default.svc.cluster.local", SERVICE_IP),
];

/// A name with 42 addresses: its answer doesn't fit into 512 bytes.
pub const MANY: &str = "many.example.com";
/// How many addresses [`MANY`] has.
pub const MANY_COUNT: u8 = 42;

/// The address of a name of the outside.
pub fn address_of(name: &str) -> Option<Ipv4Addr> {
    NAMES.iter().find(|(n, _)| *n == name).map(|(_, a)| *a)
}
