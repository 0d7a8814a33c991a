//! What the machine lacks, and what a doctor without rights cannot see.

use crate::case::{EBPF, case, under};
use crate::patient::Patient;

#[test]
fn what_the_machine_lacks() {
    let Some(patient) = Patient::new("doctor-machine") else {
        return;
    };
    patient.examine(&[
        // a seccomp profile that refuses programs; the remedy is to run without it
        under(
            "python3 TESTS/refuse_bpf.py 5",
            &[("kernel", "fail")],
            "program",
        )
        .only(EBPF),
        case(
            "mount -t tmpfs tmpfs /sys/kernel/btf",
            &[("btf", "warn")],
            "is missing",
            "umount /sys/kernel/btf",
        )
        .only(EBPF),
        case(
            "mount -t tmpfs tmpfs /sys/fs/bpf",
            &[
                ("bpffs", "fail"),
                ("kernel", "fail"),
                ("programs", "fail"),
                ("maps", "fail"),
                ("other-programs", "warn"),
                ("zeroproxy", "?"),
            ],
            "not on a bpf file system",
            "umount /sys/fs/bpf",
        )
        .only(EBPF),
        // a kernel that counts maps refuses one above the limit; here a filter refuses it
        under(
            "prlimit --memlock=65536:65536 python3 TESTS/refuse_bpf.py 0",
            &[("memlock", "fail"), ("kernel", "fail")],
            "65536 bytes",
        )
        .only(EBPF),
        case(
            "sed -i 's/\"created\": \"20/\"created\": \"21/' STATE/FILE",
            &[("clock", "fail")],
            "the clock was set back",
            "RECREATE",
        ),
        case(
            "echo 262000 > /run/count; echo 262144 > /run/max; cd /proc/sys/net/netfilter; \
             mount --bind /run/count nf_conntrack_count; mount --bind /run/max nf_conntrack_max",
            &[("conntrack", "fail")],
            "262000 of 262144",
            "echo 524288 > /run/max",
        ),
    ]);
}

#[test]
fn what_a_doctor_without_rights_cannot_see_is_never_fine() {
    let Some(patient) = Patient::new("doctor-rights") else {
        return;
    };
    let (code, findings, _) = patient.doctor("setpriv --bounding-set=-all --inh-caps=-all");
    assert_eq!(code, 1);
    let capabilities = &findings["capabilities"];
    assert_eq!(capabilities["level"], "fail", "{capabilities}");
    assert!(
        capabilities["found"]
            .as_str()
            .unwrap()
            .contains("CAP_SYS_ADMIN"),
        "{capabilities}"
    );
    for id in ["kernel", "namespaces", "socket-lb", "nftables"] {
        assert_ne!(findings[id]["level"], "ok", "{}", findings[id]);
    }
    // with them, by the documented flags
    let line = "BUILT --doctor --doctor-state-dir=STATE --doctor-host-cni-bin=/opt/cni/bin \
                --doctor-host-cni-conf=NETD --doctor-zeroproxy-url=http://127.0.0.1:18080/healthz";
    let done = patient.sh(line).success().unwrap();
    assert_eq!(
        done.stdout.lines().last(),
        Some("AGENT_CNI_DOCTOR_PASSED"),
        "{done}"
    );
    assert!(done.stdout.contains("\nok   programs "), "{done}");
}
