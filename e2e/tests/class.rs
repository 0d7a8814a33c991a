//! A node that follows a class: what `failMode` and `defaultConnectivity` do to a real pod with a real upstream, and that
//! nothing of it stays when the class says otherwise.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::time::{Duration, Instant};

use e2e::addresses::{METADATA, NODE, SERVICE_CIDR};
use e2e::cni::{self, Plugin};
use e2e::machine::{can_run, program};
use e2e::node::FILES;
use e2e::patience::patience;
use e2e::place::Finished;
use e2e::policy::Policy;
use e2e::process::Process;
use e2e::{Node, Pod, PodSpec};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

mod support;
use support::status;

/// What the policy denies.
const EVIL: &[&str] = &[
    "-m",
    "3",
    "--resolve",
    "evil.example.com:80:203.0.113.16",
    "http://evil.example.com/",
];

struct Scene {
    node: Node,
    pod: Pod,
    installer: Process,
}

impl Scene {
    /// A node that an installer takes over by `nodes.json`, with a proxy and a pod.
    fn new(name: &str, class: &Value) -> Option<Scene> {
        if !can_run().unwrap() {
            return None;
        }
        let mut node = Node::start(name).unwrap();
        fs::remove_file(node.world().inside(cni::CONF)).unwrap();
        say(&node, class);
        let program = program("agent-cni").unwrap().display().to_string();
        let settings = format!("--node-settings={FILES}/nodes/nodes.json");
        let mut installer = node
            .place()
            .spawn(
                "installer",
                &[&program, "install", &settings, "--node-name=n1"],
                &[],
            )
            .unwrap();
        installer
            .wait_for_output("kind=\"conf\"", Duration::from_secs(30))
            .unwrap();
        let conf = fs::read(node.world().inside(cni::CONF)).unwrap();
        node.plugin = Plugin::new(node.place(), serde_json::from_slice(&conf).unwrap());
        node.start_proxy().unwrap();
        let pod = node.add_pod(&PodSpec::named("client")).unwrap();
        Some(Scene {
            node,
            pod,
            installer,
        })
    }

    /// Asks until an answer is as it must be, within the time that a class takes to have effect.
    #[track_caller]
    fn until(&self, what: &str, arguments: &[&str], holds: impl Fn(&Finished) -> bool) {
        let deadline = Instant::now() + patience(Duration::from_secs(15));
        loop {
            let done = self.pod.curl(arguments).unwrap();
            if holds(&done) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{what}: {done}\n{}",
                self.installer.log_text()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn status(&self) -> Value {
        let path = format!("{}/install.json", cni::STATE_DIR);
        let bytes = fs::read(self.node.world().inside(&path)).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    #[track_caller]
    fn until_status(&self, what: &str, holds: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + patience(Duration::from_secs(15));
        while !holds(&self.status()) {
            assert!(Instant::now() < deadline, "{what}: {:#}", self.status());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Writes `nodes.json` with these fields of the class.
fn say(node: &Node, class: &Value) {
    let mode = std::env::var("AGENT_NETWORK_TEST_MODE").unwrap_or_default();
    let mode = if mode.is_empty() { "auto" } else { &mode };
    let mut settings = json!({"serviceCIDRs": [SERVICE_CIDR], "proxyPort": 18080, "dnsPort": 18053, "failMode": "Closed",
        "defaultConnectivity": "Zero", "mode": mode});
    for (key, value) in class.as_object().unwrap() {
        settings[key] = value.clone();
    }
    let file = json!({"schemaVersion": 1, "classes": {"c": settings},
        "nodes": {"n1": {"class": "c", "fakeIPCIDR": "169.254.44.0/24"}}});
    node.write("nodes/nodes.json", file.to_string().as_bytes())
        .unwrap();
}

fn is_denied(done: &Finished) -> bool {
    done.ok() && status(done) == 403
}

fn is_there(done: &Finished) -> bool {
    done.ok() && status(done) == 200
}

#[test]
fn with_fail_mode_open_pods_go_out_while_the_proxy_is_away_and_only_then() {
    let open = json!({"failMode": "Open", "sensitiveCIDRs": ["203.0.113.10/32"]});
    let Some(mut scene) = Scene::new("failopen", &open) else {
        return;
    };
    // with the proxy nothing is open, also for a connection that is made anew each time
    for _ in 0..20 {
        let done = scene.pod.curl(EVIL).unwrap();
        assert!(is_denied(&done), "{done}");
    }
    scene.until_status("nobody goes out", |status| {
        status["failOpen"]["now"] == false
    });
    // the installer may have been there before the proxy
    let before = scene.status()["failOpen"]["times"].as_u64().unwrap();
    for (signal, times) in [(Signal::SIGKILL, before + 1), (Signal::SIGTERM, before + 2)] {
        scene.node.stop_proxy(signal).unwrap();
        scene.until("without the proxy it goes out", EVIL, is_there);
        scene.until_status("it is told and counted", |status| {
            status["failOpen"] == json!({"wanted": true, "now": true, "times": times})
        });
        let dig = "dig +short +tries=2 +time=2 @198.51.100.53 evil.example.com";
        let done = scene.pod.sh(dig).unwrap();
        assert_eq!(done.stdout.trim(), "203.0.113.16", "{done}");
        // what is always closed
        let metadata = format!("http://{METADATA}/");
        let sensitive = "http://203.0.113.10/";
        let itself = format!("http://{NODE}:18080/");
        for closed in [metadata.as_str(), sensitive, &itself] {
            let done = scene.pod.curl(&["-m", "2", closed]).unwrap();
            assert!(!done.ok(), "{closed}: {done}");
        }
        scene.node.start_proxy().unwrap();
        scene.until("with the proxy it is closed again", EVIL, is_denied);
        scene.until_status("that is told too", |status| {
            status["failOpen"]["now"] == false && status["ready"] == true
        });
    }
    let log = scene.installer.log_text();
    assert!(
        log.contains("reach the network without any policy"),
        "{log}"
    );
    let metrics = scene.node.metrics().unwrap();
    for line in [
        format!("agent_network_fail_opens_total {}", before + 2),
        "agent_network_fail_mode_open 1".to_owned(),
    ] {
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    // and when the class takes it back, it is dropped
    say(&scene.node, &json!({}));
    scene.until_status("the class is followed", |status| {
        status["failOpen"]["wanted"] == false && status["ready"] == true
    });
    scene.node.stop_proxy(Signal::SIGKILL).unwrap();
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(500));
        let done = scene
            .pod
            .curl(&["-m", "1", "http://203.0.113.16/"])
            .unwrap();
        assert!(!done.ok(), "{done}");
    }
}

#[test]
fn passthrough_passes_pods_without_a_policy_on_and_says_so() {
    let Some(scene) = Scene::new("passthrough", &json!({})) else {
        return;
    };
    let mut others = Policy::new().document();
    others["policies"][0]["subjects"] = json!({"namespaces": ["elsewhere"]});
    scene.node.write_policy(&others).unwrap();
    let docs = ["-m", "3", "http://docs.example.com/"];
    scene.until("no policy, nothing", &docs, |done| !is_there(done));
    say(&scene.node, &json!({"defaultConnectivity": "Passthrough"}));
    scene.until("it is passed on", &docs, is_there);
    let line = scene
        .node
        .audit_line("that a policy would have denied it", |line| {
            line["decision"] == "would_deny" && line["direction"] == "egress"
        })
        .unwrap();
    assert!(line.to_string().contains("docs.example.com"), "{line}");
    let metrics = scene.node.metrics().unwrap();
    let open = "agent_network_default_connectivity_passthrough 1";
    assert!(metrics.contains(open), "{metrics}");
    let metadata = format!("http://{METADATA}/");
    let done = scene.pod.curl(&["-m", "2", &metadata]).unwrap();
    assert!(!is_there(&done), "{done}");
    // garbage is nobody's word
    scene.node.write("nodes/nodes.json", b"{").unwrap();
    scene.until("closed by garbage", &docs, |done| !is_there(done));
    say(&scene.node, &json!({"defaultConnectivity": "Passthrough"}));
    scene.until("passed on again", &docs, is_there);
    say(&scene.node, &json!({}));
    scene.until("closed by the class", &docs, |done| !is_there(done));
}
