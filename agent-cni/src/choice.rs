//! The choice of the node's Fake IP CIDR and what goes with it. Pure: routes and live addresses are arguments.

use std::net::Ipv4Addr;

use agent_core::{
    attachment::Mode,
    node::{NodeState, NodeStateError, derive_fake_cidr},
};
use ipnet::Ipv4Net;

use crate::netconf::NetConf;

/// The link-local range as a whole, which many distributions route on the uplink (zeroconf). A route that general is no
/// use of a /24 of it.
const LINK_LOCAL: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16);

/// No choice can be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChoiceError {
    /// The configured range is used on this node.
    #[error(
        "fakeIPCIDR {cidr} overlaps {used}, which this node routes already; choose a range that nothing uses"
    )]
    InUse {
        /// The configured range.
        cidr: Ipv4Net,
        /// What it overlaps.
        used: Ipv4Net,
    },
    /// Pods live on another range.
    #[error(
        "fakeIPCIDR changed from {from} to {to} while {pods} pod{} live on {from}; drain the node first", if *.pods == 1 { "" } else { "s" }
    )]
    PodsOnOldRange {
        /// The range in use.
        from: Ipv4Net,
        /// The configured range.
        to: Ipv4Net,
        /// How many pods would lose their gateway.
        pods: usize,
    },
    /// Every /24 of 169.254.0.0/16 is taken.
    #[error(
        "no /24 of 169.254.0.0/16 is free on this node; set fakeIPCIDR to a range that nothing uses"
    )]
    NoneFree,
    /// The parts contradict each other.
    #[error("the node's choices do not fit together")]
    Inconsistent(#[from] NodeStateError),
}

/// Settles the node's choices: the configured range, else the stored one, else one derived from the node's name that
/// overlaps none of `in_use`. What is not a range follows the configuration.
///
/// # Errors
/// The configured range is in use or would cut live pods off, or none is free.
pub(crate) fn choose(
    conf: &NetConf,
    mode: Mode,
    node_name: &str,
    stored: Option<&NodeState>,
    in_use: &[Ipv4Net],
    live: &[Ipv4Addr],
) -> Result<NodeState, ChoiceError> {
    let in_use: Vec<Ipv4Net> = in_use
        .iter()
        .copied()
        .filter(|net| *net != LINK_LOCAL && net.prefix_len() > 0)
        .collect();
    let kept = stored.map(|state| state.fake_ip_cidr);
    let cidr = match (conf.fake_ip_cidr, kept) {
        (Some(wanted), Some(kept)) if wanted == kept => kept,
        (None, Some(kept)) => kept,
        (Some(wanted), kept) => {
            if let Some(used) = in_use.iter().find(|used| overlap(**used, wanted)) {
                return Err(ChoiceError::InUse {
                    cidr: wanted,
                    used: *used,
                });
            }
            let outside = live
                .iter()
                .filter(|address| !wanted.contains(*address))
                .count();
            if let Some(from) = kept.filter(|_| outside > 0) {
                return Err(ChoiceError::PodsOnOldRange {
                    from,
                    to: wanted,
                    pods: outside,
                });
            }
            wanted
        }
        (None, None) => {
            let taken: Vec<Ipv4Net> = in_use.iter().chain(&conf.service_cidrs).copied().collect();
            derive_fake_cidr(node_name, &taken).ok_or(ChoiceError::NoneFree)?
        }
    };
    let pin_dir = conf.pin_dir_on_host();
    let pin_dir = pin_dir.to_string_lossy();
    Ok(NodeState::new(
        cidr,
        conf.service_cidrs.clone(),
        mode,
        &pin_dir,
    )?)
}

fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(extra: &str) -> NetConf {
        let text = format!(r#"{{"cniVersion": "1.1.0", "name": "agents"{extra}}}"#);
        crate::netconf::parse(text.as_bytes()).unwrap()
    }

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn configured_beats_stored_beats_derived() {
        let none = conf("");
        let derived = choose(&none, Mode::Ebpf, "worker-1", None, &[], &[]).unwrap();
        assert_eq!(
            Some(derived.fake_ip_cidr),
            derive_fake_cidr("worker-1", &[])
        );
        let stored = choose(&none, Mode::Ebpf, "renamed", Some(&derived), &[], &[]).unwrap();
        assert_eq!(stored.fake_ip_cidr, derived.fake_ip_cidr);
        let configured = conf(r#", "fakeIPCIDR": "10.200.0.0/16""#);
        let chosen = choose(
            &configured,
            Mode::Ebpf,
            "worker-1",
            Some(&derived),
            &[],
            &[],
        )
        .unwrap();
        assert_eq!(chosen.fake_ip_cidr, net("10.200.0.0/16"));
    }

    #[test]
    fn a_range_that_the_node_routes_is_refused_or_passed_over() {
        let configured = conf(r#", "fakeIPCIDR": "10.200.0.0/16""#);
        let error = choose(
            &configured,
            Mode::Ebpf,
            "w",
            None,
            &[net("10.0.0.0/8")],
            &[],
        )
        .unwrap_err();
        assert!(matches!(error, ChoiceError::InUse { .. }), "{error}");
        let first = choose(&conf(""), Mode::Ebpf, "w", None, &[], &[])
            .unwrap()
            .fake_ip_cidr;
        let other = choose(&conf(""), Mode::Ebpf, "w", None, &[first], &[])
            .unwrap()
            .fake_ip_cidr;
        assert_ne!(first, other);
    }

    #[test]
    fn a_zeroconf_route_and_a_default_route_use_no_range() {
        let routes = [net("169.254.0.0/16"), net("0.0.0.0/0")];
        assert!(choose(&conf(""), Mode::Ebpf, "w", None, &routes, &[]).is_ok());
    }

    #[test]
    fn live_pods_keep_their_range() {
        let old = choose(&conf(""), Mode::Ebpf, "w", None, &[], &[]).unwrap();
        let new = conf(r#", "fakeIPCIDR": "10.200.0.0/16""#);
        let live = [old.fake_ip_cidr.hosts().nth(5).unwrap()];
        let error = choose(&new, Mode::Ebpf, "w", Some(&old), &[], &live).unwrap_err();
        assert!(
            error.to_string().contains("drain the node first"),
            "{error}"
        );
        assert!(choose(&new, Mode::Ebpf, "w", Some(&old), &[], &[]).is_ok());
    }

    #[test]
    fn service_cidrs_follow_the_configuration() {
        let old = choose(&conf(""), Mode::Ebpf, "w", None, &[], &[]).unwrap();
        let conf = conf(r#", "serviceCIDRs": ["10.96.0.0/12"]"#);
        let new = choose(&conf, Mode::Ebpf, "w", Some(&old), &[], &[]).unwrap();
        assert_eq!(new.service_cidrs, [net("10.96.0.0/12")]);
        assert_eq!(new.fake_ip_cidr, old.fake_ip_cidr);
    }
}
