//! The rules, as `iptables-save` writes them. Pure.
//!
//! Who drops what: the table `bridge agent_network` has a chain for each pod and lets only packets through that these
//! rules send somewhere; the table `ip agent_network` knows what may go through the node or to it. The chains of the
//! table `filter` say the same once more where users look for it, and stay when somebody removes our nftables.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::network::{MaskedMark, NodeNetwork, ProxyPorts};

/// The ipset of the Service CIDRs, where there are many.
pub const SERVICES_SET: &str = "agent-cni-services";
/// More Service CIDRs than this are looked up in a set at once instead of one after the other.
pub(super) const MANY: usize = 8;

/// Our chains, each with its table and with the chain that leads to it.
pub const CHAINS: [(&str, &str, &str); 4] = [
    ("mangle", "AGENT-CNI-MANGLE", "PREROUTING"),
    ("filter", "AGENT-CNI-INPUT", "INPUT"),
    ("filter", "AGENT-CNI-FORWARD", "FORWARD"),
    ("nat", "AGENT-CNI-PREROUTING", "PREROUTING"),
];

/// One of our chains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OurChain {
    pub(super) table: &'static str,
    pub(super) name: &'static str,
    /// The built-in chain whose first rule leads here.
    pub(super) parent: &'static str,
    /// That first rule, without `-A` and the parent's name.
    pub(super) jump: String,
    /// The chain's rules, without `-A` and its name.
    pub(super) rules: Vec<String>,
}

/// The chains of a node, in the order in which they are written. With `set`, the Service CIDRs are in [`SERVICES_SET`].
pub(super) fn rules(node: &NodeNetwork, set: bool) -> Vec<OurChain> {
    let gateway = node.bridge.address.addr();
    CHAINS
        .iter()
        .map(|&(table, name, parent)| OurChain {
            table,
            name,
            parent,
            jump: format!("-i {} -j {name}", node.bridge.name),
            rules: match name {
                "AGENT-CNI-MANGLE" => mark(&node.service_cidrs, node.service, set),
                "AGENT-CNI-INPUT" => input(gateway, node.service, node.ports),
                "AGENT-CNI-FORWARD" => forward(node.service),
                _ => redirect(node.service, node.ports),
            },
        })
        .collect()
}

/// What goes to kube-proxy. DNS never does: the cluster's DNS server has an address of a Service, too.
fn mark(services: &[Ipv4Net], mark: MaskedMark, set: bool) -> Vec<String> {
    let mut rules = vec![
        "-p udp -m udp --dport 53 -j RETURN".to_owned(),
        "-p tcp -m tcp --dport 53 -j RETURN".to_owned(),
    ];
    let MaskedMark { value, mask } = mark;
    if set {
        rules.push(format!(
            "-m set --match-set {SERVICES_SET} dst -j MARK --set-xmark {value:#x}/{mask:#x}"
        ));
    } else {
        rules.extend(
            services
                .iter()
                .map(|net| format!("-d {net} -j MARK --set-xmark {value:#x}/{mask:#x}")),
        );
    }
    rules
}

fn redirect(service: MaskedMark, ports: ProxyPorts) -> Vec<String> {
    vec![
        format!("{} -j RETURN", marked(service)),
        format!(
            "-p udp -m udp --dport 53 -j REDIRECT --to-ports {}",
            ports.dns
        ),
        format!(
            "-p tcp -m tcp --dport 53 -j REDIRECT --to-ports {}",
            ports.dns
        ),
        format!("-p tcp -j REDIRECT --to-ports {}", ports.proxy),
    ]
}

fn input(gateway: Ipv4Addr, service: MaskedMark, ports: ProxyPorts) -> Vec<String> {
    vec![
        // IPVS takes a service's packets out of this hook later on; what it leaves is dropped after it
        format!("{} -j RETURN", marked(service)),
        // an answer to the node that answers nothing: the kernel would take it for a connection's beginning
        format!(
            "-p tcp -m conntrack --ctstate NEW --ctorigdst {gateway} -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -j DROP"
        ),
        format!(
            "-d {gateway}/32 -p tcp -m tcp --dport {} -j RETURN",
            ports.proxy
        ),
        format!(
            "-d {gateway}/32 -p tcp -m tcp --dport {} -j RETURN",
            ports.dns
        ),
        format!(
            "-d {gateway}/32 -p udp -m udp --dport {} -j RETURN",
            ports.dns
        ),
        "-m conntrack --ctstate RELATED,ESTABLISHED -j RETURN".to_owned(),
        "-j DROP".to_owned(),
    ]
}

fn forward(service: MaskedMark) -> Vec<String> {
    vec![
        format!("{} -j RETURN", marked(service)),
        "-j DROP".to_owned(),
    ]
}

fn marked(MaskedMark { value, mask }: MaskedMark) -> String {
    format!("-m mark --mark {value:#x}/{mask:#x}")
}
