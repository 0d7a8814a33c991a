//! State, configuration, plugin.

use crate::case::case;
use crate::patient::Patient;

#[test]
fn what_is_wrong_with_the_files() {
    let Some(patient) = Patient::new("doctor-files") else {
        return;
    };
    patient.examine(&[
        case(
            "chmod -x PLUGIN",
            &[("cni-binary", "fail")],
            "cannot be executed",
            "chmod 755 PLUGIN",
        ),
        case("mv PLUGIN /run/away", &[("cni-binary", "fail")], "is missing", "mv /run/away PLUGIN"),
        case(
            "printf x >> PLUGIN",
            &[("versions", "fail")],
            "another build",
            "cp BUILT /run/new; mv /run/new PLUGIN",
        ),
        case(
            "cp NETD/00-agent-cni.conf /run/conf; sed -i 's/{/{\"mtu\": 1,/' NETD/00-agent-cni.conf",
            &[("cni-conf", "fail")],
            "mtu 1 must be between",
            "cp /run/conf NETD/00-agent-cni.conf",
        ),
        case(
            "rm NETD/00-agent-cni.conf",
            &[("cni-conf", "fail"), ("cni-first", "fail")],
            "not controlled",
            "cp /run/conf NETD/00-agent-cni.conf",
        ),
        case(
            "sed -i 's/10.96.0.0/10.97.0.0/' NETD/00-agent-cni.conf",
            &[("cni-conf", "warn")],
            "says serviceCIDRs 10.97.0.0/16, the node runs with 10.96.0.0/16",
            "SETUP",
        ),
        case(
            "cp /run/conf NETD/00-agent-cni.conf",
            &[("cni-conf", "warn")],
            "says serviceCIDRs 10.96.0.0/16",
            "SETUP",
        ),
        case(
            "echo '{\"cniVersion\": \"1.0.0\", \"name\": \"p\", \"plugins\": [{\"type\": \"bridge\"}]}' > NETD/00-a.conflist",
            &[("cni-first", "fail")],
            "00-a.conflist (bridge) is read first",
            "mv NETD/00-a.conflist NETD/10-a.conflist",
        ),
        case(
            "sed -i 's/{/{\"workloadSelector\": {\"matchLabels\": {\"agent\": \"yes\"}}, \"workloadsFile\": \"\\/run\\/w.json\",/' NETD/00-agent-cni.conf; \
             mv NETD/10-a.conflist /run/10-a.conflist; echo '{}' > /run/w.json; touch /opt/cni/bin/bridge",
            &[("selective", "fail")],
            "there is no primary network",
            "mv /run/10-a.conflist NETD/10-a.conflist",
        ),
        case("rm /opt/cni/bin/bridge", &[("selective", "fail")], "plugin bridge", "touch /opt/cni/bin/bridge"),
        case("echo x > /run/w.json", &[("selective", "warn")], "no pod's labels", "echo '{}' > /run/w.json"),
        case("echo '{' > NETD/00-a.conf", &[("cni-first", "fail")], "is broken", "rm NETD/00-a.conf"),
        case("echo '{' > NETD/99-z.conf", &[("cni-first", "warn")], "nothing reads it", "rm NETD/99-z.conf"),
        case("echo x > STATE/x_eth0.json", &[("state", "fail")], "no attachment", "rm STATE/x_eth0.json"),
        case("echo > STATE/y.corrupt-1", &[("state", "warn")], "set aside", "rm STATE/y.corrupt-1"),
        case(
            "echo '{}' > STATE/pending/dead_eth0",
            &[("state", "warn")],
            "died halfway",
            "RECREATE",
        ),
        case(
            "sed -i 's/\"bootId\": \"/\"bootId\": \"x/' STATE/FILE",
            &[("state", "warn"), ("maps", "fail"), ("pods", "fail")],
            "earlier boot",
            "RECREATE",
        ),
    ]);
}
