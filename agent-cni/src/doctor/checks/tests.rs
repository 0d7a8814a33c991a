//! Each check by a table: a healthy node with one thing changed, the level and words of the finding that names it, and
//! nothing else changed.

use std::{collections::BTreeSet, net::Ipv4Addr};

use agent_core::{
    attachment::{Attachment, Mode, PodRef, SCHEMA_VERSION},
    mac::MacAddr,
    node::NodeState,
    node_settings::{Connectivity, NodeSettingsFile, TakenSettings},
};
use agent_datapath::{
    inspect::{Attached, OtherProgram, Place, ProgramName, Used},
    iptables::{Backend, Choice, Why},
    maps::PodEndpoint,
    routing::RuleBefore,
};

use super::*;
use crate::doctor::{
    check::Level,
    facts::{
        cni::{Binary, Cni, ConfFile, Content},
        datapath::DatapathFacts,
        leftovers::Leftovers,
        machine::Machine,
        network::Network,
        pods::{Namespace, Pod, Program},
        proxy::{Answer, Proxy},
        selective::Selective,
        services::Services,
        state::State,
    },
};
use crate::listeners::Listener;

mod cases;

use cases::CASES;

const VETH: &str = "agt0123456789ab";

fn attachment() -> Attachment {
    Attachment {
        schema_version: SCHEMA_VERSION,
        container_id: "c1".into(),
        ifname: "eth0".into(),
        netns: "/run/netns/c1".into(),
        pod: PodRef {
            namespace: "agents".into(),
            name: "coder".into(),
            uid: String::new(),
        },
        fake_ip: Ipv4Addr::new(169, 254, 9, 2),
        mac: MacAddr([0x0a, 0x58, 169, 254, 9, 2]),
        host_veth: VETH.into(),
        ifindex: 7,
        mode: Mode::Ebpf,
        created: "2026-11-30T10:00:00.000000Z".into(),
        boot_id: "b".into(),
    }
}

/// A node on which nothing is wrong.
fn healthy() -> Facts {
    let node = NodeState::new(
        "169.254.9.0/24".parse().unwrap(),
        vec!["10.96.0.0/12".parse().unwrap()],
        Mode::Ebpf,
        "/sys/fs/bpf/agent-network",
    )
    .unwrap();
    let conf = br#"{"cniVersion": "1.1.0", "name": "agents", "serviceCIDRs": ["10.96.0.0/12"]}"#;
    let ours = crate::netconf::parse(conf).unwrap();
    let answer = || {
        Ok(Answer {
            status: 200,
            body: "ok".into(),
        })
    };
    let attachment = attachment();
    let file = |name: &str, content| ConfFile {
        name: name.into(),
        content,
        version: None,
        capabilities: BTreeSet::new(),
    };
    Facts {
        machine: Machine {
            release: "6.18.0".into(),
            against_ebpf: vec![],
            against_compat: vec![],
            btf: Ok(true),
            bpffs: Ok(true),
            pin_dir: "/sys/fs/bpf/agent-network".into(),
            capabilities: Ok(u64::MAX >> 23),
            memlock_counted: Ok(false),
            memlock: Ok(65_536),
            now: 1_795_000_000 + 400 * 86_400,
            clock_kept: Ok(true),
            conntrack: Some((10, 1000)),
        },
        datapath: DatapathFacts {
            opened: Ok(()),
            this_build: Ok(true),
            dispatching: Ok(true),
            foreign_dispatchers: Ok(0),
            settings: Ok(crate::node::datapath_config(&node)),
            wanted: Ok(crate::node::datapath_config(&node)),
            endpoints: Ok(vec![(7, crate::node::endpoint(&attachment))]),
        },
        network: Network {
            bridge: Ok(3),
            bridge_filter: Ok(()),
            policy_route: Ok(()),
            drop_rules: Ok(()),
            pool_route: Ok(()),
            rules_before: Ok(vec![]),
            nftables: Ok(()),
            iptables_rules: Ok(()),
            iptables: Ok(choice(false)),
            sysctls: Ok(vec![]),
            ports: Ok(vec![VETH.into()]),
            in_use: Ok(vec![
                route("192.0.2.0/24"),
                route("169.254.0.0/16"),
                route("10.0.0.0/8"),
                route("10.96.0.1/32"),
            ]),
            on_bridge: Ok(vec![]),
            uplink_mtu: Ok(Some(1500)),
            port_mtu: Ok(Some(1500)),
        },
        selective: Some(Selective {
            workloads_file: "/w.json".into(),
            entries: Ok(3),
            primary: Ok("/etc/cni/net.d/10-primary.conflist".into()),
            missing: vec![],
            undeclared: vec![],
        }),
        leftovers: Leftovers {
            found: vec![],
            unseen: vec![],
        },
        pods: vec![Pod {
            attachment: attachment.clone(),
            namespace: Namespace::Alive,
            link: Ok(()),
            program: Program::Right,
            foreign: Ok(vec![]),
        }],
        cni: Cni {
            binary: "/opt/cni/bin/agent-cni".into(),
            installed: Ok(Binary::There {
                sha256: "ab".repeat(32),
                executable: true,
            }),
            own: Ok("ab".repeat(32)),
            confs: Ok(vec![
                file("00-agent-cni.conf", Content::Ours(Box::new(Ok(ours)))),
                file(
                    "10-primary.conflist",
                    Content::Others(
                        vec!["bridge".into()],
                        vec!["10.244.1.0/24".parse().unwrap()],
                    ),
                ),
            ]),
            conf_dir: "/etc/cni/net.d".into(),
            conf_is_dir: false,
        },
        proxy: Proxy {
            url: "http://127.0.0.1:18080/healthz".into(),
            health: answer(),
            ready: answer(),
        },
        listeners: Ok(vec![listener(
            "tcp",
            [127, 0, 0, 1],
            18080,
            Some("agent-node"),
        )]),
        services: Services {
            told: Some("iptables".into()),
            nftables: Ok(false),
            iptables_nft: Ok(true),
            ipvs: false,
            cilium_host_only: None,
        },
        programs: Ok(vec![ProgramName {
            id: 1,
            name: "pod_ingress".into(),
        }]),
        state: State {
            path: "/var/lib/tke-agent-network/agent-cni".into(),
            node: Ok(node),
            attachments: vec![attachment],
            of_another_boot: vec![],
            garbage: vec![],
            aside: vec![],
            busy: vec![],
            dead: vec![],
            unread: None,
            unfit: None,
            settings: Ok(None),
            version: Ok(Some(env!("CARGO_PKG_VERSION").into())),
        },
    }
}

fn listener(protocol: &'static str, address: [u8; 4], port: u16, owner: Option<&str>) -> Listener {
    Listener {
        protocol,
        address: address.into(),
        port,
        inode: 1,
        owner: owner.map(str::to_owned),
    }
}

fn choice(both_in_use: bool) -> Choice {
    Choice {
        backend: Backend::Nft,
        why: Why::KubeProxy,
        both_in_use,
    }
}

fn confs(facts: &mut Facts) -> &mut Vec<ConfFile> {
    facts.cni.confs.as_mut().unwrap()
}

fn cidr(facts: &mut Facts, text: &str) {
    facts.state.node.as_mut().unwrap().fake_ip_cidr = text.parse().unwrap();
}

fn route(text: &str) -> Used {
    Used {
        net: text.parse().unwrap(),
        place: Place::Route {
            route: format!("{text} dev eth1 table 9"),
        },
    }
}

fn used(facts: &mut Facts, used: Used) {
    facts.network.in_use.as_mut().unwrap().push(used);
}

fn other(before: bool) -> OtherProgram {
    OtherProgram {
        program: ProgramName {
            id: 5,
            name: "theirs".into(),
        },
        before,
        place: Attached::Tcx,
    }
}

fn before(flow: &'static str, certain: bool) -> RuleBefore {
    RuleBefore {
        flow,
        ours: 102,
        rule: "pref 90 to 169.254.9.0/24 lookup 77".into(),
        certain,
    }
}

#[test]
fn what_others_have_before_ours_is_told_with_the_command_that_takes_it_away() {
    let remedy = |change: &dyn Fn(&mut Facts), id: &str| {
        let mut facts = healthy();
        change(&mut facts);
        let finding = run(&facts).into_iter().find(|one| one.id == id).unwrap();
        finding.remedy
    };
    let rule = |f: &mut Facts| f.network.rules_before = Ok(vec![before("what is for pods", true)]);
    assert!(
        remedy(&rule, "pool-route").contains("(ip rule del pref 90 to 169.254.9.0/24 lookup 77)")
    );
    for (place, command) in [
        (Attached::TcxLink(8), "(bpftool link detach id 8)"),
        (
            Attached::Tcx,
            "(bpftool net detach tcx_ingress dev agentcni0)",
        ),
        (
            Attached::Filter("protocol all pref 7 handle 0x1".into()),
            "(tc filter del dev agentcni0 ingress protocol all pref 7 handle 0x1 bpf)",
        ),
    ] {
        let program = |f: &mut Facts| {
            let place = place.clone();
            f.network.on_bridge = Ok(vec![OtherProgram {
                place,
                ..other(true)
            }]);
        };
        let said = remedy(&program, "other-programs");
        assert!(said.contains(command), "{said}");
    }
}

#[test]
fn what_is_in_the_way_of_the_ranges_is_taken_away_where_it_is() {
    for (one, removal) in [
        (
            route("169.254.9.128/25"),
            "(ip route del 169.254.9.128/25 dev eth1 table 9)",
        ),
        (
            Used {
                net: "169.254.9.0/24".parse().unwrap(),
                place: Place::Address {
                    address: "169.254.9.250/24".into(),
                    device: "eth1".into(),
                },
            },
            "(ip addr del 169.254.9.250/24 dev eth1)",
        ),
    ] {
        let mut facts = healthy();
        used(&mut facts, one);
        let findings = run(&facts);
        let named = findings.iter().find(|one| one.id == "cidrs").unwrap();
        assert!(named.remedy.contains(removal), "{named:?}");
    }
}

#[test]
fn every_setting_that_differs_is_named_and_what_is_left_to_the_node_does_not() {
    let conf = |text: &str| crate::netconf::parse(text.as_bytes()).unwrap();
    let found = |conf| {
        let mut facts = healthy();
        confs(&mut facts)[0].content = Content::Ours(Box::new(Ok(conf)));
        let findings = run(&facts);
        findings
            .into_iter()
            .find(|one| one.id == "cni-conf")
            .unwrap()
    };
    for fine in [
        r#"{"cniVersion": "1.1.0", "serviceCIDRs": ["10.96.0.0/12"], "mode": "auto"}"#,
        r#"{"cniVersion": "1.1.0", "serviceCIDRs": ["10.96.0.0/12"], "mode": "ebpf", "fakeIPCIDR": "169.254.9.0/24"}"#,
    ] {
        assert_eq!(found(conf(fine)).level, Level::Ok, "{fine}");
    }
    let named = found(conf(
        r#"{"cniVersion": "1.1.0", "mode": "iptables-compat", "fakeIPCIDR": "169.254.8.0/24", "pinDir": "/sys/fs/bpf/x"}"#,
    ));
    assert_eq!(named.level, Level::Warn);
    for one in [
        "fakeIPCIDR 169.254.8.0/24, the node runs with 169.254.9.0/24",
        "serviceCIDRs none, the node runs with 10.96.0.0/12",
        "mode iptables-compat, the node runs with ebpf",
        "pinDir /sys/fs/bpf/x, the node runs with /sys/fs/bpf/agent-network",
    ] {
        assert!(named.found.contains(one), "{named:?}");
    }
}

#[test]
fn programs_of_others_are_looked_at_in_both_modes_and_told_by_where_they_are() {
    for mode in [Mode::Ebpf, Mode::IptablesCompat] {
        for (before, says) in [(true, "before what is ours"), (false, "behind ours")] {
            for on_bridge in [true, false] {
                let mut facts = healthy();
                facts.state.node.as_mut().unwrap().mode = mode;
                match on_bridge {
                    true => facts.network.on_bridge = Ok(vec![other(before)]),
                    false => facts.pods[0].foreign = Ok(vec![other(before)]),
                }
                let device = if on_bridge { "agentcni0" } else { VETH };
                let findings = run(&facts);
                let named = findings
                    .iter()
                    .find(|one| one.id == "other-programs")
                    .unwrap();
                let opens = on_bridge && before;
                let level = if opens { Level::Fail } else { Level::Warn };
                assert_eq!(named.level, level);
                let what = format!("program 5 (theirs) is on {device} too, {says}");
                assert!(named.found.contains(&what), "{named:?}");
                assert!(named.remedy.contains("bpftool prog show id 5"), "{named:?}");
            }
        }
    }
}

#[test]
fn what_controls_pods_is_called_by_the_modes_own_words() {
    let mut facts = healthy();
    let says = |facts: &Facts| {
        run(facts)
            .into_iter()
            .find(|one| one.id == "programs")
            .unwrap()
    };
    assert_eq!(says(&facts).found, "dispatching, and first on 1 pod");
    facts.state.node.as_mut().unwrap().mode = Mode::IptablesCompat;
    assert_eq!(
        says(&facts).found,
        "table bridge agent_network, with the chains of 1 pod"
    );
    facts.pods[0].program = Program::Unseen("EPERM".into());
    assert!(says(&facts).found.contains("cannot look at its chains"));
}

#[test]
fn a_healthy_node_passes_every_check_and_each_has_its_own_name() {
    let findings = run(&healthy());
    for finding in &findings {
        assert_eq!(finding.level, Level::Ok, "{finding:?}");
        assert!(!finding.found.is_empty(), "{finding:?}");
    }
    let names: std::collections::BTreeSet<_> = findings.iter().map(|one| one.id).collect();
    assert_eq!(names.len(), findings.len());
}

#[test]
fn every_check_is_in_the_documentation() {
    let text = include_str!("../../../../docs/doctor.md");
    for finding in run(&healthy()) {
        let row = format!("| `{}` |", finding.id);
        assert!(text.contains(&row), "docs/doctor.md has no row {row}");
    }
}

#[test]
fn each_change_is_named_by_its_check_and_by_no_other() {
    for (number, (change, id, level, word)) in CASES.iter().enumerate() {
        let mut facts = healthy();
        change(&mut facts);
        let findings = run(&facts);
        let named = findings.iter().find(|one| one.id == *id).unwrap();
        assert_eq!(named.level, *level, "case {number}: {named:?}");
        assert!(named.found.contains(word), "case {number}: {named:?}");
        let others: Vec<_> = findings
            .iter()
            .filter(|one| one.id != *id && one.level > Level::Ok)
            .collect();
        assert!(others.is_empty(), "case {number}: {others:?}");
    }
}

#[test]
fn every_failure_says_what_mends_it() {
    for (number, (change, id, level, _)) in CASES.iter().enumerate() {
        let mut facts = healthy();
        change(&mut facts);
        let finding = run(&facts).into_iter().find(|one| one.id == *id).unwrap();
        if *level == Level::Fail {
            assert!(!finding.remedy.is_empty(), "case {number}: {finding:?}");
        }
    }
}

#[test]
fn what_cannot_be_looked_at_is_never_fine() {
    let why = || "EPERM".to_owned();
    let mut facts = healthy();
    facts.machine.btf = Err(why());
    facts.machine.bpffs = Err(why());
    facts.machine.capabilities = Err(why());
    facts.machine.memlock_counted = Err(why());
    facts.machine.clock_kept = Err(why());
    facts.cni.installed = Err(why());
    facts.cni.own = Err(why());
    facts.cni.confs = Err(why());
    facts.network = Network {
        bridge: Err(why()),
        bridge_filter: Err(why()),
        policy_route: Err(why()),
        drop_rules: Err(why()),
        pool_route: Err(why()),
        rules_before: Err(why()),
        nftables: Err(why()),
        iptables_rules: Err(why()),
        iptables: Err(why()),
        sysctls: Err(why()),
        ports: Err(why()),
        in_use: Err(why()),
        on_bridge: Err(why()),
        uplink_mtu: Err(why()),
        port_mtu: Err(why()),
    };
    facts.datapath = DatapathFacts {
        opened: Err(why()),
        this_build: Err(why()),
        dispatching: Err(why()),
        foreign_dispatchers: Err(why()),
        settings: Err(why()),
        wanted: Err(why()),
        endpoints: Err(why()),
    };
    facts.pods[0].namespace = Namespace::Unseen(why());
    facts.pods[0].program = Program::Unseen(why());
    facts.pods[0].foreign = Err(why());
    facts.proxy.health = Err(why());
    facts.proxy.ready = Err(why());
    facts.listeners = Err(why());
    facts.services.told = None;
    facts.services.nftables = Err(why());
    facts.services.iptables_nft = Err(why());
    facts.programs = Err(why());
    facts.leftovers.unseen = vec![why()];
    let selective = facts.selective.as_mut().unwrap();
    selective.entries = Err(why());
    selective.primary = Err(why());
    facts.state.unread = Some(why());
    facts.state.settings = Err(why());
    facts.state.node = Err(why());
    for finding in run(&facts) {
        // the kernel check's own tries say what they could not do, and the connection table's numbers are public
        if !["kernel", "conntrack", "iptables-rules"].contains(&finding.id) {
            assert!(finding.level > Level::Ok, "{finding:?}");
            assert!(finding.found.contains("EPERM"), "{finding:?}");
        }
    }
}

#[test]
fn verbs_at_work_are_no_problem() {
    let mut facts = healthy();
    facts.state.busy = vec!["c2_eth0".into()];
    let ports = facts.network.ports.as_mut().unwrap();
    ports.push("agtffffffffffff".into());
    let new = PodEndpoint {
        fake_ip: Ipv4Addr::new(169, 254, 9, 3),
        mac: [2; 6],
    };
    facts.datapath.endpoints.as_mut().unwrap().push((9, new));
    assert!(run(&facts).iter().all(|one| one.level == Level::Ok));
}

#[test]
fn a_compat_node_needs_no_programs() {
    let mut facts = healthy();
    facts.state.node.as_mut().unwrap().mode = Mode::IptablesCompat;
    facts.machine.against_ebpf = vec![("programs: EINVAL".into(), String::new())];
    facts.machine.bpffs = Ok(false);
    facts.network.policy_route = Err("missing".into());
    let findings = run(&facts);
    for id in ["iptables-rules", "iptables"] {
        let mut broken = healthy();
        broken.state.node.as_mut().unwrap().mode = Mode::IptablesCompat;
        broken.network.iptables = Err("not installed".into());
        broken.network.iptables_rules = Err("a chain is missing".into());
        let finding = run(&broken).into_iter().find(|one| one.id == id).unwrap();
        assert_eq!(finding.level, Level::Fail, "{finding:?}");
    }
    for id in ["kernel", "bpffs", "memlock", "policy-route"] {
        let finding = findings.iter().find(|one| one.id == id).unwrap();
        assert_eq!(finding.level, Level::Ok, "{finding:?}");
    }
    let kernel = &findings[0];
    assert!(kernel.found.contains("programs: EINVAL"), "{kernel:?}");
}

#[test]
fn ports_on_other_addresses_are_nobodys_business() {
    let mut facts = healthy();
    let listeners = facts.listeners.as_mut().unwrap();
    listeners.push(listener("tcp", [10, 0, 0, 5], 18080, Some("nginx")));
    listeners.push(listener("udp", [0, 0, 0, 0], 18080, Some("nginx")));
    assert!(run(&facts).iter().all(|one| one.level == Level::Ok));
}

#[test]
fn what_the_class_opens_and_what_waits_is_told() {
    const FILE: &str = r#"{"schemaVersion":1,"classes":{"lax":{"proxyPort":18080,"dnsPort":18053,"failMode":"Closed","defaultConnectivity":"Zero","mode":"auto"}},"nodes":{"n1":{"class":"lax","fakeIPCIDR":"169.254.3.0/24"}}}"#;
    let file = NodeSettingsFile::parse(FILE.as_bytes()).unwrap();
    let mut taken = TakenSettings::of(&file, "n1").unwrap();
    let mut facts = healthy();
    let mut said = |taken: &TakenSettings| {
        facts.state.settings = Ok(Some(taken.clone()));
        let finding = node::class(&facts);
        (finding.level, finding.found)
    };
    assert_eq!(said(&taken), (Level::Ok, "as class lax says".into()));
    taken.settings.default_connectivity = Connectivity::Passthrough;
    taken.staged_behind = Some("169.254.9.0/24".parse().unwrap());
    taken.kept_because = Some("nodes.json is garbage".into());
    let (level, found) = said(&taken);
    assert_eq!(level, Level::Warn);
    for part in ["Passthrough", "169.254.9.0/24", "nodes.json is garbage"] {
        assert!(found.contains(part), "{found}");
    }
    facts.state.settings = Err("garbage".into());
    assert_eq!(node::class(&facts).level, Level::Fail);
}
