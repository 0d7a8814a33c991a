//! What others put before ours: it is theirs, so it is told and left, or ours goes before it again; nothing gets out.

use crate::{
    host::{COMPAT, Host},
    repair::Kept,
    witness::Witness,
};

/// Somebody's program comes first and ends the hook for every packet. On a pod's link ours is put before it again; on the bridge
/// it is told. Nothing gets out meanwhile, in the latter case for as long as it is there.
#[test]
fn a_program_of_others_before_ours_that_lets_everything_by() {
    let kept = Kept::on(Host::with_uplink().in_mode("ebpf"));
    let has_tcx = "[ $(printf '6.6\n%s\n' $(uname -r) | sort -V | head -1) = 6.6 ]";
    if !kept.host.node.succeeds(has_tcx) {
        // kernels before 6.6 have no such hook
        return;
    }
    let mut witness = Witness::start(&kept.host, "c1");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/tcx_first.py");
    let on = |device: &str| format!("python3 {script} {device}");
    let programs = |device: &str| -> Vec<String> {
        let shown = kept.host.node.sh(&format!(
            "bpftool net show dev {device} | grep tcx/ingress || true"
        ));
        let names = shown.lines().filter_map(|line| line.split(' ').nth(2));
        names.map(str::to_owned).collect()
    };
    kept.breaks("pod", &on(&kept.veth), &mut witness);
    assert_eq!(programs(&kept.veth), ["pod_ingress", "theirs"]);
    // and a pod that comes to a link that is somebody's already is no other case: ours goes first
    kept.breaks("pod", &on(&kept.veth), &mut witness);
    assert_eq!(programs(&kept.veth), ["pod_ingress", "theirs", "theirs"]);

    kept.host.node.sh(&on("agentcni0"));
    kept.host.until("it is noted", || {
        let notes = kept.host.status()["notes"].to_string();
        notes.contains("(theirs) is on agentcni0 before the bridge's filter")
            && notes.contains("bpftool net detach tcx_ingress dev agentcni0")
    });
    assert!(kept.installer.log().contains("before the bridge's filter"));
    witness.assert_controlled("the bridge's filter is passed by");
    kept.host
        .node
        .sh("bpftool net detach tcx_ingress dev agentcni0");
    kept.host.until("it is forgotten", || {
        !kept.host.status()["notes"].to_string().contains("theirs")
    });
}

#[test]
fn a_rule_of_others_before_ours_is_noted_and_left_to_them() {
    for mode in ["ebpf", COMPAT] {
        let kept = Kept::on(Host::with_uplink().in_mode(mode));
        let mut witness = Witness::start(&kept.host, "c1");
        let rule = "pref 90 to 169.254.9.0/24 lookup 77";
        kept.host.node.sh(&format!(
            "ip route add default via 192.0.2.1 table 77; ip rule add {rule}"
        ));
        kept.host.until("it is noted", || {
            let notes = kept.host.status()["notes"].to_string();
            notes.contains("takes what is for pods")
                && notes.contains(&format!("take it away: ip rule del {rule}"))
        });
        kept.host.until("it is in the log", || {
            kept.installer.log().contains("a policy rule of others")
        });
        kept.host
            .node
            .sh("ip rule show pref 90 | grep -q 'lookup 77'");
        witness.assert_controlled(mode);
        kept.host.node.sh(&format!("ip rule del {rule}"));
        kept.host.until("it is forgotten", || {
            !kept.host.status()["notes"]
                .to_string()
                .contains("lookup 77")
        });
    }
}
