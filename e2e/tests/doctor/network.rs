//! The node's own network.

use crate::case::{COMPAT, EBPF, case};
use crate::patient::Patient;

#[test]
fn what_is_wrong_with_the_nodes_network() {
    let Some(patient) = Patient::new("doctor-network") else {
        return;
    };
    patient.examine(&[
        case(
            "ip link set agentcni0 down",
            &[("bridge", "fail")],
            "down",
            "SETUP",
        ),
        case(
            "ip addr flush dev agentcni0",
            &[("bridge", "fail")],
            "address of agentcni0",
            "SETUP",
        ),
        case(
            "tc qdisc del dev agentcni0 clsact",
            &[("bridge-filter", "fail")],
            "ingress of agentcni0 is missing",
            "SETUP",
        ),
        case(
            "tc filter replace dev agentcni0 ingress protocol all pref 1 handle 0xa6e0002 bpf da bytecode '1,6 0 0 0'",
            &[("bridge-filter", "fail")],
            "is another",
            "SETUP",
        ),
        case(
            "ip rule del pref 100",
            &[("policy-route", "fail")],
            "policy rule",
            "SETUP",
        )
        .only(EBPF),
        case(
            "ip route flush table 18080",
            &[("policy-route", "fail")],
            "table 18080",
            "SETUP",
        )
        .only(EBPF),
        case(
            "ip rule del pref 101 to 10.96.0.0/16",
            &[("policy-route", "fail")],
            "that drops is missing",
            "SETUP",
        ),
        case(
            "ip rule del pref 102",
            &[("pool-route", "fail")],
            "table 18081",
            "SETUP",
        ),
        case(
            "ip route del $(ip -4 route show dev agentcni0 proto kernel | cut -d' ' -f1) dev agentcni0",
            &[("pool-route", "fail")],
            "table 254",
            "SETUP",
        ),
        case(
            "nft delete table ip agent_network",
            &[("nftables", "fail")],
            "missing",
            "SETUP",
        ),
        case(
            "nft flush chain ip agent_network forward",
            &[("nftables", "fail")],
            "chain forward",
            "SETUP",
        ),
        case(
            "echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter",
            &[("sysctls", "fail")],
            "rp_filter",
            "SETUP",
        ),
        case(
            "echo 0 > /proc/sys/net/ipv4/ip_forward",
            &[("sysctls", "fail")],
            "ip_forward",
            "SETUP",
        ),
        case(
            "iptables -t nat -F AGENT-CNI-PREROUTING",
            &[("iptables-rules", "fail")],
            "AGENT-CNI-PREROUTING",
            "SETUP",
        )
        .only(COMPAT),
        case(
            "iptables -t nat -D PREROUTING -i agentcni0 -j AGENT-CNI-PREROUTING",
            &[("iptables-rules", "fail")],
            "PREROUTING",
            "SETUP",
        )
        .only(COMPAT),
        case(
            "ip rule add pref 100 iif agentcni0 fwmark 0xa000000/0xf000000 lookup 18080",
            &[("leftovers", "warn")],
            "is left over",
            "REMEDY",
        )
        .only(COMPAT),
        case(
            "ip route add HALF dev eth0",
            &[("cidrs", "fail")],
            "the Fake IP CIDR",
            "ip route del HALF",
        ),
        case(
            "ip route add 10.96.7.0/24 dev eth0",
            &[("cidrs", "fail")],
            "in the Service CIDR",
            "ip route del 10.96.7.0/24",
        ),
        case(
            "ip link set eth0 mtu 1400",
            &[("mtu", "warn")],
            "the uplink's 1400",
            "ip link set eth0 mtu 1500",
        ),
    ]);
}
