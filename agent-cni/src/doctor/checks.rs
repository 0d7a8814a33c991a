//! The checks: what is so, judged. Each is a pure function from facts to one finding.

use super::{check::Finding, facts::Facts};

mod cni;
mod datapath;
mod machine;
mod network;
mod node;
mod pods;
#[cfg(test)]
mod tests;

/// Every check, in the order in which they are told: what others build on comes first.
const ALL: [fn(&Facts) -> Finding; 34] = [
    machine::kernel,
    machine::btf,
    machine::bpffs,
    machine::memlock,
    machine::capabilities,
    machine::clock,
    machine::conntrack,
    cni::binary,
    cni::conf,
    cni::first,
    cni::versions,
    cni::selective,
    pods::state,
    network::bridge,
    network::bridge_filter,
    network::policy_route,
    network::pool_route,
    network::nftables,
    network::iptables_rules,
    network::iptables,
    network::sysctls,
    network::cidrs,
    network::mtu,
    datapath::programs,
    datapath::maps,
    datapath::other_programs,
    datapath::socket_lb,
    pods::namespaces,
    pods::pods,
    node::class,
    node::leftovers,
    node::ports,
    node::kube_proxy,
    node::zeroproxy,
];

/// Judges everything.
pub(crate) fn run(facts: &Facts) -> Vec<Finding> {
    ALL.iter().map(|check| check(facts)).collect()
}

/// What sets the node up again.
const SETUP: &str = "run `agent-cni setup`, or let the agent-cni-installer do it";
/// What makes a pod's part anew, where no installer runs.
const RECREATE: &str = "recreate the pod (the agent-cni-installer mends it by itself)";
