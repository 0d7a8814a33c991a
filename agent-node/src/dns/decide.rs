//! Whether a pod's question is forwarded, and which addresses it may be told. Pure: facts in,
//! verdict out.

use std::net::IpAddr;

use agent_core::policy::{HostName, NodeNets, PolicySet};

use super::names::NameKind;

/// What becomes of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameVerdict {
    /// It is forwarded, and why.
    Forward(Because),
    /// It is answered here; nobody else hears of it.
    Deny,
}

/// Why a question is forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Because {
    /// Some rule of the pod's could let the name through.
    Policy,
    /// The cluster's own DNS serves names of this shape.
    Cluster,
    /// `dns.enforce` is off: names are not held back, and addresses still are.
    NotEnforced,
}

impl Because {
    /// The word used in audit lines.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Because::Policy => "policy",
            Because::Cluster => "cluster name",
            Because::NotEnforced => "dns.enforce is off",
        }
    }
}

/// Decides about a name. `may_resolve`: whether some rule of the pod's could let this host through.
pub(crate) fn decide(
    kind: &NameKind,
    enforce: bool,
    may_resolve: impl Fn(&HostName) -> bool,
) -> NameVerdict {
    match kind {
        NameKind::Cluster => NameVerdict::Forward(Because::Cluster),
        NameKind::Host(hosts) if hosts.iter().any(may_resolve) => {
            NameVerdict::Forward(Because::Policy)
        }
        NameKind::Host(_) | NameKind::Other if !enforce => {
            NameVerdict::Forward(Because::NotEnforced)
        }
        NameKind::Host(_) | NameKind::Other => NameVerdict::Deny,
    }
}

/// Whether an address may not be told to a pod: sensitive, a pod's, the node's own, or no other
/// host's. The proxy would not connect there either.
pub(crate) fn is_denied_address(set: &PolicySet, nets: &NodeNets, address: IpAddr) -> bool {
    let address = address.to_canonical();
    set.check_sensitive(address).is_err()
        || nets.is_fake(address)
        || nets.is_node(address)
        || is_no_other_host(address)
}

/// Loopback, unspecified and link-local addresses mean another place to each host, and what is
/// multicast is no place.
fn is_no_other_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            v4.is_loopback() || v4.octets()[0] == 0 || v4.is_multicast() || v4.is_broadcast()
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_multicast()
                || v6.is_unicast_link_local()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> NameKind {
        NameKind::Host(vec![HostName::parse(text).unwrap()])
    }

    #[test]
    fn a_name_is_forwarded_for_a_rule_the_cluster_or_no_enforcement_and_else_denied() {
        let allowed = |name: &HostName| name.as_str() == "allowed.example";
        for (kind, enforce, verdict) in [
            (
                host("allowed.example"),
                true,
                NameVerdict::Forward(Because::Policy),
            ),
            (
                host("allowed.example"),
                false,
                NameVerdict::Forward(Because::Policy),
            ),
            (host("other.example"), true, NameVerdict::Deny),
            (
                host("other.example"),
                false,
                NameVerdict::Forward(Because::NotEnforced),
            ),
            (
                NameKind::Cluster,
                true,
                NameVerdict::Forward(Because::Cluster),
            ),
            (NameKind::Other, true, NameVerdict::Deny),
            (
                NameKind::Other,
                false,
                NameVerdict::Forward(Because::NotEnforced),
            ),
        ] {
            assert_eq!(
                decide(&kind, enforce, allowed),
                verdict,
                "{kind:?} {enforce}"
            );
        }
    }

    #[test]
    fn sensitive_fake_node_and_loopback_addresses_are_denied_in_every_form() {
        let set = PolicySet::empty();
        let nets = NodeNets::new(
            ["169.254.9.0/24".parse().unwrap()],
            ["192.0.2.10".parse().unwrap()],
        );
        for (text, denied) in [
            ("169.254.169.254", true),
            ("::ffff:169.254.169.254", true),
            ("100.64.1.1", true),
            ("169.254.9.7", true),
            ("::ffff:169.254.9.7", true),
            ("192.0.2.10", true),
            ("127.0.0.1", true),
            ("::1", true),
            ("0.0.0.0", true),
            ("fe80::1", true),
            ("224.0.0.251", true),
            ("192.0.2.11", false),
            ("10.96.0.1", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(
                is_denied_address(&set, &nets, text.parse().unwrap()),
                denied,
                "{text}"
            );
        }
    }
}
