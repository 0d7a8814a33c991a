//! The CNI plugin, called as a runtime calls it: one at a time, hundreds at once, twice, too late, and with nonsense.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeSet;
use std::fs;

use e2e::cni::{CONF, Plugin, STATE_DIR, addressed, default_conf, error_of};
use e2e::machine::can_run;
use e2e::{Node, PodSpec};
use serde_json::{Value, json};

mod support;
use support::{node, node_and_pod, status};

/// A node without its proxy: what the plugin does must not depend on it.
fn bare_node(name: &str) -> Option<Node> {
    can_run().unwrap().then(|| Node::start(name).unwrap())
}

fn states(node: &Node) -> Vec<String> {
    let entries = fs::read_dir(node.world().inside(STATE_DIR)).unwrap();
    let names = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|n| n.starts_with("sandbox-")).collect()
}

#[test]
fn add_check_and_del_follow_the_specification() {
    let Some(node) = bare_node("plugin") else {
        return;
    };
    let spec = PodSpec::named("one");
    node.world().namespace(&spec.netns_name()).unwrap();
    let version = node
        .plugin
        .call("VERSION", &spec)
        .unwrap()
        .success()
        .unwrap();
    let version: Value = serde_json::from_str(&version.stdout).unwrap();
    for wanted in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        assert!(
            version["supportedVersions"]
                .as_array()
                .unwrap()
                .contains(&json!(wanted)),
            "{version}"
        );
    }
    let done = node.plugin.call("ADD", &spec).unwrap().success().unwrap();
    let result: Value = serde_json::from_str(&done.stdout).unwrap();
    let got = addressed(&done).unwrap();
    assert_eq!(result["cniVersion"], "1.1.0");
    assert!(
        result["ips"][0]["address"]
            .as_str()
            .unwrap()
            .ends_with("/32"),
        "{result}"
    );
    let sandbox = result["interfaces"]
        .as_array()
        .unwrap()
        .iter()
        .find(|i| i["name"] == "eth0")
        .unwrap();
    assert_eq!(sandbox["sandbox"], spec.netns_path());
    assert!(
        result["routes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|r| r["dst"] == "0.0.0.0/0"),
        "{result}"
    );
    assert_eq!(states(&node).len(), 1);

    let pod = node.world().namespace(&spec.netns_name()).unwrap();
    let shown = pod
        .sh("ip -4 addr show eth0; ip route; ip neigh; ip -6 addr show eth0; ip link show lo")
        .unwrap()
        .stdout;
    assert!(shown.contains(&format!("{}/32", got.ip)), "{shown}");
    assert!(
        shown.contains(&format!("default via {}", got.gateway)),
        "{shown}"
    );
    assert!(
        shown.contains("PERMANENT") && !shown.contains("inet6") && shown.contains("LOOPBACK,UP"),
        "{shown}"
    );

    node.plugin
        .check(&spec, &result)
        .unwrap()
        .success()
        .unwrap();
    pod.sh("ip addr del $(ip -4 -o addr show eth0 | awk '{print $4}') dev eth0")
        .unwrap()
        .success()
        .unwrap();
    let (code, text) = error_of(&node.plugin.check(&spec, &result).unwrap()).unwrap();
    assert!(
        code >= 100 && text.contains(&got.ip.to_string()),
        "{code} {text}"
    );

    for _ in 0..2 {
        node.plugin.del(&spec).unwrap();
    }
    assert!(states(&node).is_empty());
    assert!(
        !pod.run(&["ip", "link", "show", "eth0"]).unwrap().ok(),
        "the link is still there"
    );
    let ports = node
        .place()
        .sh("ip -o link show master agentcni0")
        .unwrap()
        .stdout;
    assert!(ports.is_empty(), "{ports}");
}

#[test]
fn del_succeeds_whatever_is_gone_already() {
    let Some(node) = bare_node("plugin") else {
        return;
    };
    node.plugin.del(&PodSpec::named("never-added")).unwrap();
    // the namespace
    let spec = PodSpec::named("gone");
    node.world().namespace(&spec.netns_name()).unwrap();
    node.plugin.add(&spec).unwrap();
    node.place()
        .run(&["ip", "netns", "del", &spec.netns_name()])
        .unwrap()
        .success()
        .unwrap();
    node.plugin.del(&spec).unwrap();
    // the bridge, the state folder, and the pins
    node.world().namespace(&spec.netns_name()).unwrap();
    node.plugin.add(&spec).unwrap();
    node.place()
        .sh(&format!(
            "ip link del agentcni0; rm -rf {STATE_DIR} /sys/fs/bpf/agent-network"
        ))
        .unwrap();
    node.plugin.del(&spec).unwrap();
    // and everything comes back with the next ADD
    node.plugin.add(&spec).unwrap();
    node.plugin.del(&spec).unwrap();
}

#[test]
fn two_hundred_adds_at_once_get_two_hundred_addresses_that_work() {
    let Some(mut node) = node("plugin-200") else {
        return;
    };
    let specs: Vec<PodSpec> = (0..200).map(|i| PodSpec::named(&format!("p{i}"))).collect();
    for spec in &specs {
        node.introduce(spec).unwrap();
        node.world().namespace(&spec.netns_name()).unwrap();
    }
    let node = &node;
    let all: Vec<_> = std::thread::scope(|s| {
        let adds: Vec<_> = specs
            .iter()
            .map(|spec| s.spawn(move || node.plugin.add(spec)))
            .collect();
        adds.into_iter()
            .map(|a| a.join().unwrap().unwrap())
            .collect()
    });
    let distinct: BTreeSet<_> = all.iter().map(|a| a.ip).collect();
    assert_eq!(distinct.len(), 200);
    assert!(all.iter().all(|a| a.gateway == all[0].gateway) && !distinct.contains(&all[0].gateway));
    assert_eq!(states(node).len(), 200);
    // each of them gets an answer, with its own name on the audit line
    for (i, spec) in specs.iter().enumerate() {
        let pod = node.world().namespace(&spec.netns_name()).unwrap();
        let url = format!("http://docs.example.com/pod-{i}");
        let line = [
            "curl",
            "-sS",
            "-i",
            "-m",
            "10",
            "--resolve",
            "docs.example.com:80:203.0.113.10",
            &url,
        ];
        let done = pod.run(&line).unwrap();
        assert_eq!(status(&done), 200, "{}: {done}", spec.name);
    }
    for (spec, got) in specs.iter().zip(&all) {
        let own = node
            .audit_line(&spec.name, |l| l["pod"]["name"] == *spec.name)
            .unwrap();
        assert_eq!(own["pod"]["fake_ip"], got.ip.to_string());
    }
    std::thread::scope(|s| {
        let dels: Vec<_> = specs
            .iter()
            .map(|spec| s.spawn(move || node.plugin.del(spec)))
            .collect();
        dels.into_iter().for_each(|d| d.join().unwrap().unwrap());
    });
    assert!(states(node).is_empty());
    assert!(
        node.place()
            .sh("ip -o link show master agentcni0")
            .unwrap()
            .stdout
            .is_empty()
    );
}

#[test]
fn the_address_after_the_last_is_a_clear_error() {
    let Some(node) = bare_node("plugin-full") else {
        return;
    };
    let mut conf = default_conf();
    conf["fakeIPCIDR"] = json!("169.254.100.0/24");
    let plugin = Plugin::new(node.place(), conf);
    let specs: Vec<PodSpec> = (0..254).map(|i| PodSpec::named(&format!("p{i}"))).collect();
    for spec in &specs {
        node.world().namespace(&spec.netns_name()).unwrap();
    }
    // .0, .255 and the gateway are no pod's: 253 are
    let mut addresses = BTreeSet::new();
    for chunk in specs[..253].chunks(8) {
        let plugin = &plugin;
        std::thread::scope(|s| {
            let adds: Vec<_> = chunk
                .iter()
                .map(|spec| s.spawn(move || plugin.add(spec)))
                .collect();
            for add in adds {
                let ip = add.join().unwrap().unwrap().ip;
                assert!(addresses.insert(ip), "two pods have {ip}");
            }
        });
    }
    let (code, text) = error_of(&plugin.call("ADD", &specs[253]).unwrap()).unwrap();
    assert!(code >= 100, "{code} {text}");
    assert!(
        text.contains("169.254.100.0/24"),
        "the error doesn't say which pool: {text}"
    );
    assert_eq!(states(&node).len(), 253);
    let pod = node.world().namespace(&specs[253].netns_name()).unwrap();
    assert!(
        !pod.run(&["ip", "link", "show", "eth0"]).unwrap().ok(),
        "the failed ADD left a link"
    );
    assert_eq!(
        node.place()
            .sh("ip -o link show master agentcni0 | wc -l")
            .unwrap()
            .stdout
            .trim(),
        "253"
    );
}

#[test]
fn nonsense_on_stdin_is_an_error_of_the_specification_and_changes_nothing() {
    let Some((node, pod)) = node_and_pod("plugin") else {
        return;
    };
    let id = pod.spec.container_id();
    let env = |command: &'static str| {
        vec![
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "x1"),
            ("CNI_NETNS", "/run/netns/none"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
            (
                "CNI_ARGS",
                "K8S_POD_NAMESPACE=agents;K8S_POD_NAME=x;K8S_POD_UID=u",
            ),
        ]
    };
    let conf = default_conf().to_string();
    let (mut unknown, mut future, mut badcidr) = (default_conf(), default_conf(), default_conf());
    unknown["serviceCidrs"] = json!(["10.0.0.0/8"]);
    future["cniVersion"] = json!("9.9.9");
    badcidr["fakeIPCIDR"] = json!("no-cidr");
    let huge = vec![b'['; 5_000_000];
    let cases: [(&str, &[u8]); 8] = [
        ("nothing", b""),
        ("no json", b"{]"),
        ("no object", b"[1,2]"),
        ("not utf-8", b"{\"name\":\"\xff\xfe\"}"),
        ("misspelt key", unknown.to_string().leak().as_bytes()),
        (
            "a version of the future",
            future.to_string().leak().as_bytes(),
        ),
        ("a bad CIDR", badcidr.to_string().leak().as_bytes()),
        ("five million brackets", &huge),
    ];
    for (what, stdin) in cases {
        let (code, text) = error_of(&node.plugin.raw(&env("ADD"), stdin).unwrap())
            .unwrap_or_else(|e| panic!("{what}: {e:#}"));
        assert!(code > 0 && !text.trim().is_empty(), "{what}: {code} {text}");
    }
    let mut without = env("ADD");
    without.retain(|(k, _)| *k != "CNI_CONTAINERID");
    let (code, text) = error_of(&node.plugin.raw(&without, conf.as_bytes()).unwrap()).unwrap();
    assert_eq!(code, 4, "CNI_CONTAINERID is missing: {text}");
    assert!(text.contains("CNI_CONTAINERID"), "{text}");
    let (code, _) = error_of(&node.plugin.raw(&env("DANCE"), conf.as_bytes()).unwrap()).unwrap();
    assert!(code > 0);
    let (_, text) = error_of(&node.plugin.raw(&env("ADD"), conf.as_bytes()).unwrap()).unwrap();
    assert!(text.contains("/run/netns/none"), "{text}");
    let mut evil = env("ADD");
    evil[1] = ("CNI_CONTAINERID", "../../../etc/x");
    let (code, _) = error_of(&node.plugin.raw(&evil, conf.as_bytes()).unwrap()).unwrap();
    assert!(code > 0);
    assert_eq!(states(&node), [format!("{id}_eth0.json")]);
    assert_eq!(
        status(&pod.curl(&["http://docs.example.com/"]).unwrap()),
        200
    );
}

#[test]
fn garbage_among_the_state_files_is_set_aside_and_stops_nobody() {
    let Some((mut node, pod)) = node_and_pod("plugin") else {
        return;
    };
    let dir = node.world().inside(STATE_DIR);
    fs::write(
        dir.join("garbage_eth0.json"),
        b"{\"schemaVersion\": 1, \"fakeIp\": ",
    )
    .unwrap();
    fs::write(dir.join("sandbox-empty_eth0.json"), b"").unwrap();
    fs::write(dir.join("169.254.1.7"), b"a foreign file").unwrap();
    let other = node.add_pod(&PodSpec::named("other")).unwrap();
    for p in [&pod, &other] {
        assert_eq!(status(&p.curl(&["http://docs.example.com/"]).unwrap()), 200);
    }
    // a state file cut short under a running pod: that pod is unknown and denied, the other isn't disturbed
    let file = dir.join(format!("{}_eth0.json", pod.spec.container_id()));
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    let done = pod.curl(&["-m", "5", "http://docs.example.com/"]).unwrap();
    assert!(!done.stdout.contains("hello from docs"), "{done}");
    assert_eq!(
        status(&other.curl(&["http://docs.example.com/"]).unwrap()),
        200
    );
}

#[test]
fn the_same_add_again_gives_the_same_address() {
    let Some(node) = bare_node("plugin") else {
        return;
    };
    let spec = PodSpec::named("again");
    node.world().namespace(&spec.netns_name()).unwrap();
    let first = node.plugin.add(&spec).unwrap();
    let second = node.plugin.call("ADD", &spec).unwrap();
    assert_eq!(addressed(&second).unwrap(), first);
    assert_eq!(states(&node).len(), 1);
    node.plugin.del(&spec).unwrap();
    // an address isn't given to the next pod at once
    let next = PodSpec::named("next");
    node.world().namespace(&next.netns_name()).unwrap();
    assert_ne!(node.plugin.add(&next).unwrap().ip, first.ip);
}

#[test]
fn status_and_gc_work_with_the_conf_on_the_node() {
    let Some(node) = bare_node("plugin") else {
        return;
    };
    let spec = PodSpec::named("kept");
    let gone = PodSpec::named("gone");
    for s in [&spec, &gone] {
        node.world().namespace(&s.netns_name()).unwrap();
        node.plugin.add(s).unwrap();
    }
    assert!(node.world().inside(CONF).exists());
    node.plugin
        .call("STATUS", &spec)
        .unwrap()
        .success()
        .unwrap();
    let mut conf = node.plugin.conf().clone();
    conf["cni.dev/valid-attachments"] =
        json!([{"containerID": spec.container_id(), "ifname": "eth0"}]);
    node.plugin
        .call_with("GC", &spec, &conf)
        .unwrap()
        .success()
        .unwrap();
    assert_eq!(
        states(&node),
        [format!("{}_eth0.json", spec.container_id())]
    );
}
