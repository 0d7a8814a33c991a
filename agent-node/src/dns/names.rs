//! Which kind of name a question is about: one that the cluster's DNS serves, one that policy has
//! to know, or neither.
//!
//! A query is a way out of the node: whatever stands in the name reaches the upstream and, for a
//! name that it isn't authoritative for, the name's owner. So cluster names are forwarded only in
//! the shapes that the Kubernetes DNS specification gives to Services, their endpoints and pods;
//! such a name ends at the cluster's own DNS server. `a.b.c.ns.svc.cluster.local`, which a search
//! list makes of an outside name, is answered here.
//!
//! Doesn't decide about outside names; see [`super::decide`].

use agent_core::policy::HostName;

use super::wire::{self, rtype};

/// The parts of the cluster that DNS names stand under.
#[derive(Debug, Clone)]
pub(crate) struct ClusterDomain {
    /// Labels in lower case, outermost last: `cluster`, `local`.
    labels: Vec<Box<[u8]>>,
}

/// A question's name, by who has to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NameKind {
    /// A Service, an endpoint or a pod of this cluster.
    Cluster,
    /// A host name; the hosts that a rule may name, the likeliest first.
    Host(Vec<HostName>),
    /// No host's name: underscores elsewhere than in a service prefix, bytes outside ASCII, the root.
    Other,
}

impl ClusterDomain {
    /// Reads a domain as it is written in a configuration file (`cluster.local`).
    pub(crate) fn new(domain: &str) -> ClusterDomain {
        let labels = domain
            .split('.')
            .filter(|label| !label.is_empty())
            .map(|label| label.to_ascii_lowercase().into_bytes().into())
            .collect();
        ClusterDomain { labels }
    }

    /// Whether `labels` (innermost first, in lower case) are of a shape that the cluster's DNS serves.
    fn serves(&self, labels: &[&[u8]], qtype: u16) -> bool {
        let Some(inside) = labels.len().checked_sub(self.labels.len() + 1) else {
            return false;
        };
        let (names, suffix) = labels.split_at(inside);
        let Some((kind, domain)) = suffix.split_first() else {
            return false;
        };
        if self.labels.is_empty()
            || !domain
                .iter()
                .copied()
                .eq(self.labels.iter().map(|label| &**label))
        {
            return false;
        }
        match (*kind, names) {
            // service.namespace
            (b"svc", [service, namespace]) => is_dns_label(service) && is_dns_label(namespace),
            // endpoint.service.namespace: a StatefulSet's pod or a dashed address
            (b"svc", [endpoint, service, namespace]) => {
                is_dns_label(endpoint) && is_dns_label(service) && is_dns_label(namespace)
            }
            // _port._protocol.service.namespace
            (b"svc", [port, protocol, service, namespace]) => {
                matches!(qtype, rtype::SRV | rtype::SVCB | rtype::HTTPS | rtype::ANY)
                    && is_service_label(port)
                    && matches!(*protocol, b"_tcp" | b"_udp" | b"_sctp")
                    && is_dns_label(service)
                    && is_dns_label(namespace)
            }
            (b"pod", [address, namespace]) => is_dashed_address(address) && is_dns_label(namespace),
            _ => false,
        }
    }
}

/// Sorts the name of a question (wire form, lower case).
pub(crate) fn classify(name: &[u8], qtype: u16, cluster: &ClusterDomain) -> NameKind {
    let labels: Vec<&[u8]> = wire::labels(name).collect();
    if cluster.serves(&labels, qtype) {
        return NameKind::Cluster;
    }
    let mut hosts = Vec::new();
    hosts.extend(host_name(&labels));
    let prefix = service_prefix(&labels, qtype);
    if prefix > 0 {
        hosts.extend(labels.get(prefix..).and_then(host_name));
    }
    if hosts.is_empty() {
        NameKind::Other
    } else {
        NameKind::Host(hosts)
    }
}

/// The host name of these labels, when they make one.
fn host_name(labels: &[&[u8]]) -> Option<HostName> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if labels.is_empty() || !labels.iter().all(|label| label.iter().all(plain)) {
        return None;
    }
    let parts: Vec<&str> = labels
        .iter()
        .filter_map(|label| std::str::from_utf8(label).ok())
        .collect();
    HostName::parse(&parts.join(".")).ok()
}

/// How many labels in front say a service instead of a host: `_https._tcp.example.com` is asked
/// about `example.com`, for the types that are asked that way (RFC 2782, RFC 6698, RFC 9460, RFC 7553).
fn service_prefix(labels: &[&[u8]], qtype: u16) -> usize {
    let by_service = matches!(
        qtype,
        rtype::SRV | rtype::TLSA | rtype::SVCB | rtype::HTTPS | rtype::URI
    );
    if !by_service {
        return 0;
    }
    labels
        .iter()
        .take(2)
        .take_while(|label| is_service_label(label))
        .count()
}

/// `_` and a service name of RFC 6335 §5.1 (at most 15 bytes) or a port number.
fn is_service_label(label: &[u8]) -> bool {
    matches!(label.split_first(), Some((b'_', rest)) if (1..=15).contains(&rest.len()) && is_dns_label(rest))
}

/// Letters, digits and inner hyphens: what Kubernetes lets a Service or namespace be called.
fn is_dns_label(label: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    !label.is_empty()
        && label.iter().all(plain)
        && label.first() != Some(&b'-')
        && label.last() != Some(&b'-')
}

/// `10-244-1-7` or an IPv6 address with hyphens for colons.
fn is_dashed_address(label: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(label) else {
        return false;
    };
    text.replace('-', ".").parse::<std::net::Ipv4Addr>().is_ok()
        || text.replace('-', ":").parse::<std::net::Ipv6Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire_name(text: &str) -> Vec<u8> {
        let mut name = Vec::new();
        for label in text.split('.').filter(|label| !label.is_empty()) {
            name.push(label.len() as u8);
            name.extend_from_slice(label.as_bytes());
        }
        name.push(0);
        name
    }

    fn kind(text: &str, qtype: u16) -> NameKind {
        classify(
            &wire_name(text),
            qtype,
            &ClusterDomain::new("cluster.local."),
        )
    }

    #[test]
    fn only_the_shapes_of_the_kubernetes_dns_specification_are_cluster_names() {
        for (name, qtype, expected) in [
            ("kubernetes.default.svc.cluster.local", rtype::A, true),
            ("web-0.nginx.default.svc.cluster.local", rtype::A, true),
            (
                "10-0-0-7.nginx.default.svc.cluster.local",
                rtype::AAAA,
                true,
            ),
            (
                "_https._tcp.kubernetes.default.svc.cluster.local",
                rtype::SRV,
                true,
            ),
            ("10-244-1-7.default.pod.cluster.local", rtype::A, true),
            ("github.com.default.svc.cluster.local", rtype::A, true),
            ("api.github.com.default.svc.cluster.local", rtype::A, false),
            (
                "_https._tcp.kubernetes.default.svc.cluster.local",
                rtype::TXT,
                false,
            ),
            ("secret.default.pod.cluster.local", rtype::A, false),
            ("default.svc.cluster.local", rtype::A, false),
            ("svc.cluster.local", rtype::A, false),
            ("cluster.local", rtype::A, false),
            ("github.com.cluster.local", rtype::A, false),
            ("a_b.default.svc.cluster.local", rtype::A, false),
            (
                "kubernetes.default.svc.cluster.local.evil.example",
                rtype::A,
                false,
            ),
            ("kubernetes.default.svc", rtype::A, false),
        ] {
            assert_eq!(kind(name, qtype) == NameKind::Cluster, expected, "{name}");
        }
    }

    #[test]
    fn a_service_prefix_asks_about_the_host_behind_it() {
        let NameKind::Host(hosts) = kind("_8443._https.example.com", rtype::HTTPS) else {
            panic!("no host");
        };
        assert_eq!(hosts.last().unwrap().as_str(), "example.com");
        let deep = kind("_a._b._c.example.com", rtype::SRV);
        if let NameKind::Host(hosts) = deep {
            assert!(hosts.iter().all(|host| host.as_str() != "example.com"));
        }
    }

    #[test]
    fn a_name_that_no_host_can_have_is_other() {
        for name in [
            &b"\x00"[..],
            b"\x04a.b\x00\x07example\x00",
            b"\x01*\x07example\x00",
            b"\x02\xc3\xa4\x00",
        ] {
            assert_eq!(
                classify(name, rtype::A, &ClusterDomain::new("cluster.local")),
                NameKind::Other,
                "{name:?}"
            );
        }
    }

    #[test]
    fn an_empty_cluster_domain_serves_nothing() {
        let none = ClusterDomain::new("");
        assert_ne!(
            classify(&wire_name("kubernetes.default.svc"), rtype::A, &none),
            NameKind::Cluster
        );
    }
}
