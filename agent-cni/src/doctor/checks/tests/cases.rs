//! One thing changed on a healthy node, and the check that must name it.

use std::net::Ipv4Addr;

use agent_datapath::{footprint::UnfitStateDir, inspect::ProgramName, maps::PodEndpoint};

use super::{before, choice, cidr, confs, listener, other, route, used};
use crate::doctor::{
    check::Level,
    facts::{
        Facts,
        cni::{Binary, ConfFile, Content},
        pods::{Namespace, Program},
        proxy::Answer,
    },
};

/// What is changed, the check that must name it, how bad it is, and a word of the finding.
pub(super) type Case = (fn(&mut Facts), &'static str, Level, &'static str);

pub(super) const CASES: &[Case] = &[
    (
        |f| {
            f.machine
                .against_ebpf
                .push(("tcx: refused".into(), "do".into()));
        },
        "kernel",
        Level::Fail,
        "tcx: refused",
    ),
    (
        |f| f.machine.btf = Ok(false),
        "btf",
        Level::Warn,
        "is missing",
    ),
    (
        |f| f.machine.bpffs = Ok(false),
        "bpffs",
        Level::Fail,
        "not on a bpf file system",
    ),
    (
        |f| {
            f.machine.memlock_counted = Ok(true);
            f.machine.capabilities = Ok((1 << 12) | (1 << 21));
        },
        "memlock",
        Level::Fail,
        "65536 bytes",
    ),
    (
        |f| f.machine.capabilities = Ok(1 << 12),
        "capabilities",
        Level::Fail,
        "CAP_SYS_ADMIN",
    ),
    (
        |f| f.machine.now = 1_000_000_000,
        "clock",
        Level::Fail,
        "years behind",
    ),
    (
        |f| f.state.attachments[0].created = "2031-01-01T00:00:00.000000Z".into(),
        "clock",
        Level::Fail,
        "set back",
    ),
    (
        |f| f.machine.clock_kept = Ok(false),
        "clock",
        Level::Warn,
        "unsynchronised",
    ),
    (
        |f| f.machine.clock_kept = Err("EPERM".into()),
        "clock",
        Level::Warn,
        "EPERM",
    ),
    (
        |f| f.machine.conntrack = Some((850, 1000)),
        "conntrack",
        Level::Warn,
        "little room",
    ),
    (
        |f| f.machine.conntrack = Some((990, 1000)),
        "conntrack",
        Level::Fail,
        "are dropped",
    ),
    (
        |f| f.cni.installed = Ok(Binary::Missing),
        "cni-binary",
        Level::Fail,
        "is missing",
    ),
    (
        |f| {
            f.cni.installed = Ok(Binary::There {
                sha256: "ab".repeat(32),
                executable: false,
            });
        },
        "cni-binary",
        Level::Fail,
        "cannot be executed",
    ),
    (
        |f| confs(f)[0].content = Content::Ours(Box::new(Err("mtu".into()))),
        "cni-conf",
        Level::Fail,
        "cannot be used: mtu",
    ),
    (
        |f| {
            let wide = br#"{"cniVersion": "1.1.0", "serviceCIDRs": ["10.0.0.0/8"]}"#;
            confs(f)[0].content = Content::Ours(Box::new(Ok(crate::netconf::parse(wide).unwrap())));
        },
        "cni-conf",
        Level::Warn,
        "says serviceCIDRs 10.0.0.0/8",
    ),
    (
        |f| f.cni.conf_is_dir = true,
        "cni-conf",
        Level::Fail,
        "/etc/cni/net.d/00-agent-cni.conf is a directory",
    ),
    (
        |f| confs(f).swap(0, 1),
        "cni-first",
        Level::Fail,
        "10-primary.conflist (bridge) is read first",
    ),
    (
        |f| {
            confs(f).insert(
                0,
                ConfFile {
                    name: "00-a.conf".into(),
                    content: Content::Broken("{".into()),
                    version: None,
                    capabilities: Default::default(),
                },
            );
        },
        "cni-first",
        Level::Fail,
        "starts no pod",
    ),
    (
        |f| confs(f)[1].content = Content::Broken("{".into()),
        "cni-first",
        Level::Warn,
        "nothing reads it",
    ),
    (
        |f| {
            f.cni.installed = Ok(Binary::There {
                sha256: "cd".repeat(32),
                executable: true,
            });
        },
        "versions",
        Level::Fail,
        "another build",
    ),
    (
        |f| f.state.version = Ok(Some("0.2.5".into())),
        "versions",
        Level::Fail,
        "0.2.5",
    ),
    (
        |f| confs(f)[0].version = Some("0.2.5".into()),
        "versions",
        Level::Fail,
        "written by version 0.2.5",
    ),
    (
        |f| f.datapath.this_build = Ok(false),
        "versions",
        Level::Fail,
        "programs",
    ),
    (
        |f| f.state.garbage.push(("x.json".into(), "empty".into())),
        "state",
        Level::Fail,
        "x.json",
    ),
    (
        |f| {
            f.state.unfit = Some(UnfitStateDir::Link {
                path: "/var/lib/x".into(),
                target: "/disk/x".into(),
            });
        },
        "state",
        Level::Fail,
        "a symbolic link to /disk/x",
    ),
    (
        |f| f.state.aside.push("x.corrupt-1".into()),
        "state",
        Level::Warn,
        "set aside",
    ),
    (
        |f| f.state.dead.push("c9_eth0".into()),
        "state",
        Level::Warn,
        "died halfway",
    ),
    (
        |f| f.state.of_another_boot.push("x.json".into()),
        "state",
        Level::Warn,
        "earlier boot",
    ),
    (
        |f| f.network.bridge = Err("there is no interface agentcni0".into()),
        "bridge",
        Level::Fail,
        "no interface",
    ),
    (
        |f| {
            f.network.bridge_filter =
                Err("the filter at the ingress of agentcni0 is missing".into());
        },
        "bridge-filter",
        Level::Fail,
        "ingress of agentcni0 is missing",
    ),
    (
        |f| f.network.policy_route = Err("missing".into()),
        "policy-route",
        Level::Fail,
        "missing",
    ),
    (
        |f| f.network.drop_rules = Err("a policy rule that drops is missing".into()),
        "policy-route",
        Level::Fail,
        "drops is missing",
    ),
    (
        |f| f.network.rules_before = Ok(vec![before("what is for pods", true)]),
        "pool-route",
        Level::Fail,
        "before ours (102) and takes what is for pods",
    ),
    (
        |f| f.network.rules_before = Ok(vec![before("what is for pods", false)]),
        "pool-route",
        Level::Warn,
        "may take",
    ),
    (
        |f| f.network.rules_before = Ok(vec![before("what pods send to the proxy", true)]),
        "policy-route",
        Level::Fail,
        "takes what pods send to the proxy",
    ),
    (
        |f| f.network.pool_route = Err("the pods' route in table 254 is missing".into()),
        "pool-route",
        Level::Fail,
        "table 254 is missing",
    ),
    (
        |f| f.network.nftables = Err("missing".into()),
        "nftables",
        Level::Fail,
        "missing",
    ),
    (
        |f| f.selective.as_mut().unwrap().entries = Err("no such file".into()),
        "selective",
        Level::Warn,
        "every pod gets agent-cni's",
    ),
    (
        |f| f.selective.as_mut().unwrap().primary = Err("none".into()),
        "selective",
        Level::Fail,
        "cannot start: none",
    ),
    (
        |f| f.selective.as_mut().unwrap().missing.push("ptp".into()),
        "selective",
        Level::Fail,
        "plugin ptp",
    ),
    (
        |f| {
            f.selective
                .as_mut()
                .unwrap()
                .undeclared
                .push("portMappings".into());
        },
        "selective",
        Level::Warn,
        "want portMappings, which our configuration does not declare",
    ),
    (
        |f| f.network.iptables = Ok(choice(true)),
        "iptables",
        Level::Warn,
        "iptables-legacy",
    ),
    (
        |f| f.network.iptables = Err("none".into()),
        "iptables",
        Level::Warn,
        "none",
    ),
    (
        |f| {
            f.leftovers
                .found
                .push(("/sys/fs/bpf/x/v0".into(), "rm".into()));
        },
        "leftovers",
        Level::Warn,
        "v0 is left over",
    ),
    (
        |f| f.leftovers.unseen.push("EPERM".into()),
        "leftovers",
        Level::Warn,
        "EPERM",
    ),
    (
        |f| f.network.sysctls = Ok(vec!["rp_filter is 1".into()]),
        "sysctls",
        Level::Fail,
        "rp_filter is 1",
    ),
    (
        |f| cidr(f, "169.254.169.0/24"),
        "cidrs",
        Level::Fail,
        "metadata",
    ),
    (
        |f| cidr(f, "100.64.9.0/24"),
        "cidrs",
        Level::Warn,
        "always denied",
    ),
    (
        |f| used(f, route("169.254.9.128/25")),
        "cidrs",
        Level::Fail,
        "169.254.9.128/25",
    ),
    (
        |f| used(f, route("10.96.7.0/24")),
        "cidrs",
        Level::Fail,
        "in the Service CIDR",
    ),
    (
        |f| confs(f)[1].content = Content::Others(vec![], vec!["10.100.0.0/16".parse().unwrap()]),
        "cidrs",
        Level::Fail,
        "past the proxy",
    ),
    (
        |f| f.network.uplink_mtu = Ok(Some(1400)),
        "mtu",
        Level::Warn,
        "1400",
    ),
    (
        |f| f.datapath.dispatching = Ok(false),
        "programs",
        Level::Fail,
        "dispatch",
    ),
    (
        |f| f.pods[0].program = Program::Wrong("not attached".into()),
        "programs",
        Level::Fail,
        "agents/coder",
    ),
    (
        |f| f.pods[0].program = Program::Unseen("EPERM".into()),
        "programs",
        Level::Fail,
        "EPERM",
    ),
    (
        |f| f.datapath.settings.as_mut().unwrap().service_cidrs.clear(),
        "maps",
        Level::Fail,
        "Service CIDRs",
    ),
    (
        |f| f.datapath.settings.as_mut().unwrap().marks.service = 1,
        "maps",
        Level::Fail,
        "marks",
    ),
    (
        |f| f.datapath.endpoints = Ok(vec![]),
        "maps",
        Level::Fail,
        "no entry",
    ),
    (
        |f| f.datapath.endpoints.as_mut().unwrap()[0].1.fake_ip = Ipv4Addr::new(169, 254, 9, 3),
        "maps",
        Level::Fail,
        "held to 169.254.9.3",
    ),
    (
        |f| {
            let stray = PodEndpoint {
                fake_ip: Ipv4Addr::new(169, 254, 9, 9),
                mac: [2; 6],
            };
            f.datapath.endpoints.as_mut().unwrap().push((9, stray));
        },
        "maps",
        Level::Fail,
        "interface 9",
    ),
    (
        |f| f.pods[0].foreign = Ok(vec![other(false)]),
        "other-programs",
        Level::Warn,
        "theirs",
    ),
    (
        |f| f.network.on_bridge = Ok(vec![other(true)]),
        "other-programs",
        Level::Fail,
        "on agentcni0 too, before",
    ),
    (
        |f| f.datapath.foreign_dispatchers = Ok(1),
        "other-programs",
        Level::Warn,
        "socket look-ups",
    ),
    (
        |f| {
            f.programs = Ok(vec![ProgramName {
                id: 5,
                name: "cil_sock4_conne".into(),
            }]);
        },
        "socket-lb",
        Level::Warn,
        "cannot be told",
    ),
    (
        |f| {
            f.programs = Ok(vec![ProgramName {
                id: 5,
                name: "cil_sock4_conne".into(),
            }]);
            f.services.cilium_host_only = Some(false);
        },
        "socket-lb",
        Level::Fail,
        "in pods too",
    ),
    (
        |f| f.pods[0].namespace = Namespace::Gone("nothing".into()),
        "namespaces",
        Level::Fail,
        "nothing",
    ),
    (
        |f| f.pods[0].namespace = Namespace::Unseen("EPERM".into()),
        "namespaces",
        Level::Fail,
        "EPERM",
    ),
    (
        |f| f.pods[0].link = Err("it is down".into()),
        "pods",
        Level::Fail,
        "it is down",
    ),
    (
        |f| {
            f.network
                .ports
                .as_mut()
                .unwrap()
                .push("agtffffffffffff".into());
        },
        "pods",
        Level::Fail,
        "no state file",
    ),
    (
        |f| f.network.ports.as_mut().unwrap().push("eth7".into()),
        "pods",
        Level::Fail,
        "not agent-cni's",
    ),
    (
        |f| {
            f.listeners
                .as_mut()
                .unwrap()
                .push(listener("tcp", [0, 0, 0, 0], 18080, Some("nginx")));
        },
        "ports",
        Level::Fail,
        "nginx listens on tcp 0.0.0.0:18080",
    ),
    (
        |f| {
            f.listeners.as_mut().unwrap().push(listener(
                "udp",
                [169, 254, 9, 1],
                18053,
                Some("dnsmasq"),
            ));
        },
        "ports",
        Level::Fail,
        "dnsmasq",
    ),
    (
        |f| {
            f.services.told = None;
            f.services.iptables_nft = Ok(false);
        },
        "kube-proxy",
        Level::Warn,
        "nobody",
    ),
    (
        |f| f.services.nftables = Ok(true),
        "kube-proxy",
        Level::Warn,
        "more than one mode",
    ),
    (
        |f| f.proxy.health = Err("refused".into()),
        "zeroproxy",
        Level::Fail,
        "refused",
    ),
    (
        |f| {
            f.proxy.ready = Ok(Answer {
                status: 503,
                body: r#"{"ready":false,"checks":[{"name":"policy","ok":false,"detail":"no document"},{"name":"x","ok":true}]}"#.into(),
            });
        },
        "zeroproxy",
        Level::Fail,
        "policy (no document)",
    ),
];
