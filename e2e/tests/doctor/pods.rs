//! Pods and programs.

use crate::case::{COMPAT, EBPF, case};
use crate::patient::Patient;

#[test]
fn what_is_wrong_with_pods_and_programs() {
    let Some(patient) = Patient::new("doctor-pods") else {
        return;
    };
    patient.examine(&[
        case("rm PINS/links/VETH", &[("programs", "fail")], "not attached", "RECREATE").only(EBPF),
        case("rm PINS/links/netns:dispatch", &[("programs", "fail"), ("zeroproxy", "?")], "dispatch", "SETUP").only(EBPF),
        case("bpftool map delete pinned PINS/ENDPOINTS key KEY", &[("maps", "fail")], "no entry", "RECREATE").only(EBPF),
        case(
            "bpftool map delete pinned PINS/SERVICE_CIDRS key 16 0 0 0 10 96 0 0",
            &[("maps", "fail")],
            "Service CIDRs",
            "SETUP",
        ).only(EBPF),
        case(
            "bpftool map update pinned PINS/ENDPOINTS key 77 1 0 0 value 169 254 1 1 2 0 0 0 0 1 0 0",
            &[("maps", "fail")],
            "interface 333",
            "REMEDY",
        ).only(EBPF),
        case(
            "tc qdisc add dev VETH clsact; tc filter add dev VETH ingress prio 7 bpf da pinned PINS/programs/pod_ingress",
            &[("other-programs", "warn")],
            "is on",
            "tc qdisc del dev VETH clsact",
        ).only(EBPF),
        case(
            "nft delete table bridge agent_network",
            &[("programs", "fail"), ("maps", "fail"), ("zeroproxy", "?")],
            "agent_network",
            "SETUP",
        )
        .only(COMPAT),
        case("ip netns del NETNS", &[("namespaces", "fail")], "no network namespace", "RECREATE"),
        case("ip link set VETH down", &[("pods", "fail")], "is down", "RECREATE"),
        case("bridge link set dev VETH isolated off", &[("pods", "fail")], "Isolated", "RECREATE"),
        case("ip netns exec NETNS ip route del default", &[("pods", "fail")], "default route", "RECREATE"),
        case(
            "ip link add agtffffffffffff type veth peer name strayed; ip link set agtffffffffffff master agentcni0",
            &[("pods", "fail")],
            "no state file",
            "ip link del agtffffffffffff",
        ),
    ]);
}
