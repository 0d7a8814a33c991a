//! The node's own network: bridge, routes, rules, settings, and what the node uses besides.

use agent_core::{attachment::Mode, node::BRIDGE};
use agent_datapath::{
    bridge, bridge_filter,
    inspect::{self, OtherProgram, Ours, Used},
    iptables, link,
    network::{self, NodeNetwork},
    routing::RuleBefore,
    rtnl::Rtnl,
    sysctl,
};

use super::{seen, state::State};
use crate::{doctor::check::Seen, netconf::NetConf, state::StateDir};

/// See the module.
#[derive(Debug)]
pub(crate) struct Network {
    /// The bridge's ifindex when it is right.
    pub(crate) bridge: Seen<u32>,
    /// Whether the bridge's filter drops what has no mark.
    pub(crate) bridge_filter: Seen<()>,
    /// Whether marked packets are made local.
    pub(crate) policy_route: Seen<()>,
    /// Whether what may not be routed out is dropped.
    pub(crate) drop_rules: Seen<()>,
    /// Whether what is for a pod goes by the bridge, or nowhere; seen when the bridge is right, as it follows from it.
    pub(crate) pool_route: Seen<()>,
    /// Policy rules of others that take what ours are for.
    pub(crate) rules_before: Seen<Vec<RuleBefore>>,
    /// Whether our nftables table is as it should be.
    pub(crate) nftables: Seen<()>,
    /// Whether our iptables rules are as they should be; of use in mode iptables-compat only.
    pub(crate) iptables_rules: Seen<()>,
    /// Which iptables is this node's, and whether the other one is in use too.
    pub(crate) iptables: Seen<iptables::Choice>,
    /// Settings that are not as they should be.
    pub(crate) sysctls: Seen<Vec<String>>,
    /// The bridge's ports.
    pub(crate) ports: Seen<Vec<String>>,
    /// The networks of the node's addresses and routes, without the bridge's.
    pub(crate) in_use: Seen<Vec<Used>>,
    /// Programs of others at the bridge's ingress.
    pub(crate) on_bridge: Seen<Vec<OtherProgram>>,
    /// The MTU of the interface to the outside.
    pub(crate) uplink_mtu: Seen<Option<u32>>,
    /// Pods, and the MTU of their links.
    pub(crate) port_mtu: Seen<Option<u32>>,
}

impl Network {
    /// Reads it.
    pub(crate) async fn read(rtnl: &Seen<Rtnl>, state: &State, conf: &NetConf) -> Self {
        let rtnl = match rtnl {
            Ok(rtnl) => rtnl,
            Err(why) => return Self::unseen(why),
        };
        let in_use = seen(inspect::networks_in_use(rtnl, BRIDGE).await);
        let uplink_mtu = seen(link::uplink_mtu(rtnl).await);
        let ports = ports(rtnl).await;
        let on_bridge = on_bridge(rtnl).await;
        let iptables = seen(iptables::choice());
        let port_mtu = greatest_mtu(rtnl, &ports).await;
        let wanted = state.node.clone().and_then(|node| {
            crate::node::network(conf, &node, &StateDir::look(&state.path))
                .map_err(|error| error.to_string())
        });
        match wanted {
            Err(why) => Self {
                in_use,
                on_bridge,
                uplink_mtu,
                ports,
                port_mtu,
                iptables,
                ..Self::unseen(&why)
            },
            Ok(wanted) => {
                let bridge = seen(bridge::check(rtnl, &wanted.bridge).await);
                Self {
                    pool_route: match bridge {
                        Ok(index) => seen(wanted.pool_route().check(rtnl, index).await),
                        Err(_) => Ok(()),
                    },
                    bridge,
                    bridge_filter: seen(bridge_filter::check_by_name(rtnl, &wanted).await),
                    policy_route: seen(wanted.policy_route().check(rtnl).await),
                    drop_rules: seen(wanted.drop_rules().check(rtnl).await),
                    rules_before: seen(wanted.rules_before(rtnl).await),
                    nftables: seen(network::check_table(&wanted)),
                    iptables_rules: match wanted.mode {
                        Mode::Ebpf => Ok(()),
                        Mode::IptablesCompat => seen(iptables::check(&wanted)).map(|_| ()),
                    },
                    iptables,
                    sysctls: Ok(settings(&wanted)),
                    ports,
                    in_use,
                    on_bridge,
                    uplink_mtu,
                    port_mtu,
                }
            }
        }
    }

    fn unseen(why: &str) -> Self {
        Self {
            bridge: Err(why.to_owned()),
            bridge_filter: Err(why.to_owned()),
            policy_route: Err(why.to_owned()),
            drop_rules: Err(why.to_owned()),
            pool_route: Err(why.to_owned()),
            rules_before: Err(why.to_owned()),
            nftables: Err(why.to_owned()),
            iptables_rules: Err(why.to_owned()),
            iptables: Err(why.to_owned()),
            sysctls: Err(why.to_owned()),
            ports: Err(why.to_owned()),
            in_use: Err(why.to_owned()),
            on_bridge: Err(why.to_owned()),
            uplink_mtu: Err(why.to_owned()),
            port_mtu: Err(why.to_owned()),
        }
    }
}

/// Every setting that differs, not only the first.
fn settings(wanted: &NodeNetwork) -> Vec<String> {
    sysctl::node_settings(&wanted.bridge.name)
        .into_iter()
        .filter_map(|setting| seen(sysctl::check(&[setting])).err())
        .collect()
}

/// The bridge's ports; none when there is no bridge, which is the bridge's problem.
async fn ports(rtnl: &Rtnl) -> Seen<Vec<String>> {
    match seen(link::index_of(rtnl, BRIDGE).await)? {
        None => Ok(Vec::new()),
        Some(index) => seen(link::ports_of(rtnl, index).await),
    }
}

/// The bridge's filter is a filter in either mode; none where there is no bridge.
async fn on_bridge(rtnl: &Rtnl) -> Seen<Vec<OtherProgram>> {
    match seen(link::index_of(rtnl, BRIDGE).await)? {
        None => Ok(Vec::new()),
        Some(index) => seen(inspect::others_at_ingress(BRIDGE, index, Ours::Filter)),
    }
}

async fn greatest_mtu(rtnl: &Rtnl, ports: &Seen<Vec<String>>) -> Seen<Option<u32>> {
    let mut greatest = None;
    for port in ports.as_ref().map_err(Clone::clone)? {
        greatest = greatest.max(seen(link::mtu(rtnl, port).await)?);
    }
    Ok(greatest)
}
