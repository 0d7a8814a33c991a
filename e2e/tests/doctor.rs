//! `agent-cni doctor` on a living node: each thing is broken by itself, the doctor names it and nothing else, and after
//! what it said was done it is content again.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use e2e::cni::{PLUGIN, STATE_DIR};
use e2e::machine::program;
use e2e::place::Finished;
use e2e::{Node, PodSpec};
use serde_json::Value;

mod support;
use support::node;

/// One thing that can be wrong with a node.
struct Case {
    /// A shell line that breaks it.
    spoil: &'static str,
    /// What the doctor is called by, to take something from it alone.
    under: &'static str,
    /// The checks that name it, and how bad each is; `?` for one that may name it, because the proxy notices it in its own
    /// time. The first is the one that is meant; others look through it.
    names: &'static [(&'static str, &'static str)],
    /// A word of the first one's finding.
    says: &'static str,
    /// A shell line that does what the remedy says.
    mend: &'static str,
    /// The mode that has the thing; empty for both.
    only: &'static str,
}

impl Case {
    const fn only(self, mode: &'static str) -> Self {
        Self { only: mode, ..self }
    }
}

const EBPF: &str = "ebpf";
const COMPAT: &str = "iptables-compat";

/// The mode that the suite runs in.
fn mode() -> &'static str {
    match std::env::var("AGENT_NETWORK_TEST_MODE").as_deref() {
        Ok(COMPAT) => COMPAT,
        _ => EBPF,
    }
}

const fn case(
    spoil: &'static str,
    names: &'static [(&'static str, &'static str)],
    says: &'static str,
    mend: &'static str,
) -> Case {
    Case {
        spoil,
        under: "",
        names,
        says,
        mend,
        only: "",
    }
}

const fn under(
    under: &'static str,
    names: &'static [(&'static str, &'static str)],
    says: &'static str,
) -> Case {
    Case {
        spoil: "true",
        under,
        names,
        says,
        mend: "true",
        only: "",
    }
}

/// A node with its proxy, and a pod that may be taken apart.
struct Patient {
    node: Node,
    victim: PodSpec,
}

impl Patient {
    fn new(name: &str) -> Option<Self> {
        let mut node = node(name)?;
        let victim = PodSpec::named("victim");
        node.introduce(&victim).unwrap();
        node.world().namespace(&victim.netns_name()).unwrap();
        node.plugin.add(&victim).unwrap();
        Some(Self { node, victim })
    }

    /// Runs the doctor; answers its exit code, its findings by check, and its last line.
    fn doctor(&self, under: &str) -> (i32, BTreeMap<String, Value>, String) {
        let agent_cni = program("agent-cni").unwrap();
        let line = format!(
            "{} {} doctor --output json",
            self.fill(under),
            agent_cni.display()
        );
        let done = self.node.place().sh(&line).unwrap();
        let report: Value =
            serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("no report: {done}"));
        let findings = report["checks"].as_array().unwrap().iter();
        let findings = findings
            .map(|one| (one["id"].as_str().unwrap().to_owned(), one.clone()))
            .collect();
        let last = done.stderr.lines().last().unwrap_or_default().to_owned();
        assert_eq!(report["result"], last.as_str(), "{done}");
        (done.code, findings, last)
    }

    /// The victim's link and index, paths and programs, for the scripts.
    fn fill(&self, script: &str) -> String {
        let state = self.node.world().inside(STATE_DIR);
        let read = |name: &str| -> Value {
            std::fs::read(state.join(name))
                .ok()
                .and_then(|bytes| serde_json::from_slice(&bytes).ok())
                .unwrap_or_default()
        };
        let victim = read(&format!("{}_eth0.json", self.victim.container_id()));
        let pool = "169.254.0.0/24".to_owned();
        let pool = read("node.json")["fakeIpCidr"]
            .as_str()
            .map_or(pool, str::to_owned);
        let index = victim["ifindex"].as_u64().unwrap_or_default() as u32;
        let [a, b, c, d] = index.to_ne_bytes();
        script
            .replace(
                "ZEROPROXY",
                "(setsid AGENT_NODE zeroproxy --config FILES/zeroproxy.json > /run/zeroproxy.log 2>&1 &)",
            )
            .replace("FILES", e2e::node::FILES)
            .replace("VETH", victim["hostVeth"].as_str().unwrap_or("none"))
            .replace("KEY", &format!("{a} {b} {c} {d}"))
            .replace("HALF", &pool.replace(".0/24", ".128/25"))
            .replace("GATEWAY", &pool.replace(".0/24", ".1"))
            .replace("STATE", STATE_DIR)
            .replace("PINS", "/sys/fs/bpf/agent-network/v1")
            .replace("NETD", "/etc/cni/net.d")
            .replace("BUILT", program("agent-cni").unwrap().to_str().unwrap())
            .replace(
                "AGENT_NODE",
                program("agent-node").unwrap().to_str().unwrap(),
            )
            .replace("PLUGIN", PLUGIN)
            .replace("TESTS", concat!(env!("CARGO_MANIFEST_DIR"), "/tests"))
            .replace("FILE", &format!("{}_eth0.json", self.victim.container_id()))
            .replace("SETUP", &format!("{PLUGIN} setup"))
            .replace("NETNS", &self.victim.netns_name())
    }

    fn sh(&self, script: &str) -> Finished {
        self.node.place().sh(&self.fill(script)).unwrap()
    }

    /// What a runtime does to a pod that is deleted and made again.
    fn recreate(&self) {
        self.node.plugin.del(&self.victim).unwrap();
        self.sh("ip netns del NETNS");
        self.node
            .world()
            .namespace(&self.victim.netns_name())
            .unwrap();
        self.node.plugin.add(&self.victim).unwrap();
    }

    /// Breaks each, sees it named, mends it, sees it gone. Tells all that did not go so.
    fn examine(&self, cases: &[Case]) {
        let (code, healthy, last) = self.doctor("");
        let level = |findings: &BTreeMap<String, Value>, id: &str| {
            findings[id]["level"].as_str().unwrap().to_owned()
        };
        let complaints: Vec<_> = healthy
            .values()
            .filter(|one| one["level"] == "fail")
            .collect();
        assert_eq!(
            (code, last.as_str()),
            (0, "AGENT_CNI_DOCTOR_PASSED"),
            "{complaints:#?}"
        );
        let mut wrong = Vec::new();
        let runs = |case: &&Case| case.only.is_empty() || case.only == mode();
        for case in cases.iter().filter(runs) {
            let title = format!("{} {}", case.spoil, case.under);
            self.sh(case.spoil).success().unwrap();
            let (code, sick, last) = self.doctor(case.under);
            // programs are the whole machine's: another test's one is seen here too
            let shared = |id: &str| id == "socket-lb" && case.names[0].0 != id;
            let may = |id: &str| case.names.contains(&(id, "?")) || shared(id);
            let named: BTreeMap<&str, String> = sick
                .keys()
                .map(|id| (id.as_str(), level(&sick, id)))
                .filter(|(id, found)| *found != level(&healthy, id) && !may(id))
                .collect();
            let wanted: BTreeMap<&str, String> = case
                .names
                .iter()
                .filter(|(id, _)| !may(id))
                .map(|(id, level)| (*id, (*level).to_owned()))
                .collect();
            let told = &sick[case.names[0].0];
            if named != wanted {
                let all: Vec<_> = named.keys().map(|id| &sick[*id]).collect();
                wrong.push(format!(
                    "{title}: named {named:?}, wanted {wanted:?}: {all:#?}"
                ));
            }
            if !told["found"].as_str().unwrap().contains(case.says) {
                wrong.push(format!("{title}: {told}"));
            }
            let fails = sick.values().filter(|one| one["level"] == "fail").count();
            let verdict = match fails {
                0 => "AGENT_CNI_DOCTOR_PASSED".to_owned(),
                fails => format!("AGENT_CNI_DOCTOR_FAILED: {fails}"),
            };
            assert_eq!((code, last), (i32::from(fails > 0), verdict), "{title}");
            for mend in case.mend.split(" THEN ") {
                match mend {
                    "RECREATE" => self.recreate(),
                    // the remedy is a command: it is run to the letter
                    "REMEDY" => {
                        let remedy = told["remedy"].as_str().unwrap();
                        self.node.place().sh(remedy).unwrap().success().unwrap();
                    }
                    mend => {
                        self.sh(mend).success().unwrap();
                    }
                }
            }
            // the proxy looks again a few times a minute
            let until = Instant::now() + Duration::from_secs(20);
            loop {
                let (_, mended, _) = self.doctor("");
                let left: Vec<_> = mended
                    .keys()
                    .filter(|id| level(&mended, id) != level(&healthy, id) && !shared(id))
                    .map(|id| mended[id].to_string())
                    .collect();
                if left.is_empty() {
                    break;
                }
                if Instant::now() > until {
                    wrong.push(format!("{title}: after the mend {left:#?}"));
                    break;
                }
                std::thread::sleep(Duration::from_millis(300));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    }
}

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
