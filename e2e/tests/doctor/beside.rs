//! What else the node runs.

use crate::case::{EBPF, case};
use crate::patient::Patient;

#[test]
fn what_is_wrong_beside_us() {
    let Some(patient) = Patient::new("doctor-beside") else {
        return;
    };
    patient.examine(&[
        case(
            "setsid python3 TESTS/socket_lb.py > /run/lb 2>&1 & echo $! > /run/lb.pid; until grep -q loaded /run/lb; do sleep 0.05; done",
            &[("socket-lb", "warn")],
            "cannot be told",
            "mkdir -p /run/cilium/state; echo '{\"BPFSocketLBHostnsOnly\": true}' > /run/cilium/state/agent-runtime-config.json",
        ),
        case(
            "echo '{\"BPFSocketLBHostnsOnly\": false}' > /run/cilium/state/agent-runtime-config.json",
            &[("socket-lb", "fail")],
            "in pods too",
            "echo '{\"BPFSocketLBHostnsOnly\": true}' > /run/cilium/state/agent-runtime-config.json; kill $(cat /run/lb.pid)",
        ),
        case(
            // as root with SO_REUSEPORT anybody can take part of the proxy's queries
            "setsid python3 -c 'import socket,time; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); \
             s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); s.bind((\"0.0.0.0\", 18053)); \
             open(\"/run/up\",\"w\"); time.sleep(3600)' > /dev/null 2>&1 & \
             echo $! > /run/port.pid; until test -e /run/up; do sleep 0.05; done",
            &[("ports", "fail")],
            "python3 listens on udp 0.0.0.0:18053",
            "kill $(cat /run/port.pid); sleep 0.2",
        ),
        case(
            "iptables-save -t nat > /run/nat; grep -v KUBE /run/nat | iptables-restore",
            &[("kube-proxy", "warn")],
            "nobody on this node",
            "iptables-restore < /run/nat",
        ),
        case(
            "iptables-legacy -A INPUT -p tcp --dport 9 -j ACCEPT",
            &[("iptables", "warn")],
            "iptables-legacy",
            "iptables-legacy -D INPUT -p tcp --dport 9 -j ACCEPT",
        ),
        case(
            "mkdir -p /sys/fs/bpf/agent-network/v0/links",
            &[("leftovers", "warn")],
            "v0, of another version",
            "REMEDY",
        ),
        case(
            "iptables -t nat -N AGENT-CNI-PREROUTING",
            &[("leftovers", "warn")],
            "AGENT-CNI-PREROUTING",
            "REMEDY",
        ).only(EBPF),
        case(
            "touch NETD/00-agent-cni.conf.staged",
            &[("leftovers", "warn")],
            "staged",
            "REMEDY",
        ),
        case(
            "nft add table ip kube-proxy",
            &[("kube-proxy", "warn")],
            "more than one mode",
            "nft delete table ip kube-proxy",
        ),
        case(
            "mv FILES/policy.json /run/away; kill -KILL $(pidof agent-node); sleep 0.2",
            &[("zeroproxy", "fail")],
            "refused",
            "ZEROPROXY; until curl -sf http://127.0.0.1:18080/healthz > /dev/null; do sleep 0.1; done; \
             mv /run/away FILES/policy.json",
        ),
        case(
            "mv FILES/policy.json /run/away; kill -KILL $(pidof agent-node); sleep 0.2; \
             ZEROPROXY; until curl -sf http://127.0.0.1:18080/healthz > /dev/null; do sleep 0.1; done",
            &[("zeroproxy", "fail")],
            "is not ready: policy (",
            "mv /run/away FILES/policy.json",
        ),
    ]);
}
