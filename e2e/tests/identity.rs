//! Who a pod is, from a real API server: service accounts, labels of pods and of namespaces, while they change, while the
//! API server is away, and after the pod is gone.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::addresses::address_of;
use e2e::cluster::{ApiServer, eventually};
use e2e::machine::can_run;
use e2e::patience::patience;
use e2e::{Node, Pod, PodSpec};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

mod support;
use support::status;

/// The interface by which the node reaches the API server.
const UPLINK: &str = "cluster0";
/// The node's name in the API.
const NODE: &str = "n1";
const DOCS: &str = "http://docs.example.com/";
const ECHO: &str = "http://echo.example.com/";
const GIT: &str = "http://git.example.com/";
/// What its server says to a request for `/`.
const GIT_FOUND_NOTHING: u16 = 404;

/// Rules by the pod's labels, by its namespace's, and by its service account's namespace alone.
fn policy() -> Value {
    let policy = |name: &str, subjects: Value| json!({"namespace": "agents", "name": name, "priority": 0, "mode": "enforce", "subjects": subjects});
    let allow = |policy: u32, host: &str| json!({"policy": policy, "name": "r", "kind": "allow", "direction": "egress", "host": host});
    json!({
        "schemaVersion": 1,
        "policies": [
            policy("by-pod", json!({"allNamespaces": true, "podSelector": {"matchLabels": {"app": "coder"}}})),
            policy("by-namespace", json!({
                "podSelector": {},
                "namespaceSelector": {"matchLabels": {"team": "a"}},
            })),
            policy("by-absence", json!({
                "podSelector": {},
                "namespaceSelector": {"matchExpressions": [{"key": "quarantine", "operator": "DoesNotExist"}]},
            })),
        ],
        "rules": [allow(0, "docs.example.com"), allow(1, "echo.example.com"), allow(2, "git.example.com")],
    })
}

struct Site {
    server: ApiServer,
    node: Node,
}

impl Site {
    fn start() -> Site {
        let server = ApiServer::start().unwrap();
        let mut node = Node::start("identity").unwrap();
        let kubeconfig = server.join(node.world(), UPLINK).unwrap();
        let config = node.config().as_object_mut().unwrap();
        config.remove("workloadsFile");
        config.insert(
            "cluster".into(),
            json!({
                "nodeName": NODE,
                "kubeconfig": kubeconfig,
                "snapshotFile": format!("{}/pods.json", e2e::node::FILES),
            }),
        );
        node.write_policy(&policy()).unwrap();
        node.place()
            .run(&[e2e::cni::PLUGIN, "setup"])
            .unwrap()
            .success()
            .unwrap();
        let site = Site { server, node };
        site.kubectl("create namespace agents");
        site.kubectl("label namespace agents team=a");
        site.kubectl("-n agents create serviceaccount coder");
        site
    }

    #[track_caller]
    fn kubectl(&self, line: &str) -> String {
        let arguments: Vec<&str> = line.split(' ').collect();
        let done = self.server.kubectl().run(&arguments).unwrap();
        done.success().unwrap().stdout
    }

    /// A pod as the API server has it, without a kubelet.
    fn declare(&self, name: &str, app: &str, node: &str) -> PodSpec {
        let manifest = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "agents", "name": name, "labels": {"app": app}},
            "spec": {
                "nodeName": node, "serviceAccountName": "coder", "automountServiceAccountToken": false,
                "containers": [{"name": "c", "image": "none"}],
            },
        });
        self.server.kubectl().apply(&manifest.to_string()).unwrap();
        let uid = self.kubectl(&format!(
            "-n agents get pod {name} -o jsonpath={{.metadata.uid}}"
        ));
        PodSpec {
            uid: Some(uid),
            ..PodSpec::named(name)
        }
    }

    fn delete(&self, name: &str) {
        self.kubectl(&format!(
            "-n agents delete pod {name} --force --grace-period=0"
        ));
    }
}

/// The status of an answer to a new connection, with an address from elsewhere: who has no identity has no DNS either.
fn get(pod: &Pod, url: &str) -> Result<u16> {
    let host = url.trim_start_matches("http://").trim_end_matches('/');
    let address = address_of(host).context("no such name")?;
    let resolve = format!("{host}:80:{address}");
    let done = pod.curl(&["--resolve", &resolve, url])?.success()?;
    Ok(status(&done))
}

/// Waits until requests to `url` are answered with `wanted`.
#[track_caller]
fn becomes(pod: &Pod, url: &str, wanted: u16) {
    becomes_in(pod, url, wanted, Duration::from_secs(5));
}

/// As [`becomes`], for what has to be tried again by somebody first.
#[track_caller]
fn becomes_in(pod: &Pod, url: &str, wanted: u16, within: Duration) {
    let begun = Instant::now();
    let asked = eventually(&format!("{url}: {wanted}"), patience(within), || {
        let got = get(pod, url)?;
        ensure!(got == wanted, "{got}");
        Ok(())
    });
    asked.unwrap();
    println!("{url} answers {wanted} after {:?}", begun.elapsed());
}

#[test]
fn rules_follow_what_the_api_server_says_about_pods_and_namespaces() {
    if !can_run().unwrap() {
        return;
    }
    let mut site = Site::start();
    let spec = site.declare("coder-0", "coder", NODE);
    site.node.start_proxy().unwrap();
    let pod = site.node.add_pod(&spec).unwrap();
    becomes(&pod, DOCS, 200);
    becomes(&pod, ECHO, 200);
    becomes(&pod, GIT, GIT_FOUND_NOTHING);
    let line = site
        .node
        .audit_line("whose service account it is", |line| {
            line["pod"]["service_account"] == "coder"
        })
        .unwrap();
    assert_eq!(line["pod"]["name"], "coder-0");

    // the labels of the pod
    site.kubectl("-n agents label pod coder-0 app=other --overwrite");
    becomes(&pod, DOCS, 403);
    becomes(&pod, ECHO, 200);
    site.kubectl("-n agents label pod coder-0 app=coder --overwrite");
    becomes(&pod, DOCS, 200);

    // the labels of its namespace
    site.kubectl("label namespace agents team=b --overwrite");
    becomes(&pod, ECHO, 403);
    becomes(&pod, DOCS, 200);
    site.kubectl("label namespace agents team=a quarantine=yes --overwrite");
    becomes(&pod, GIT, 403);
    becomes(&pod, ECHO, 200);
    site.kubectl("label namespace agents quarantine-");
    becomes(&pod, GIT, GIT_FOUND_NOTHING);

    // a pod that nobody has declared, one of another node, and one that is another's namesake
    let stranger = site.node.add_pod(&PodSpec::named("stranger")).unwrap();
    becomes(&stranger, GIT, 403);
    let elsewhere = site.declare("elsewhere", "coder", "n2");
    let elsewhere = site.node.add_pod(&elsewhere).unwrap();
    becomes(&elsewhere, GIT, 403);
    site.delete("coder-0");
    becomes(&pod, DOCS, 403);
    let namesake = site.declare("coder-0", "coder", NODE);
    assert_ne!(namesake.uid, spec.uid);
    becomes(&pod, DOCS, 403);
    site.node.remove_pod(pod).unwrap();
    let namesake = site.node.add_pod(&namesake).unwrap();
    becomes(&namesake, DOCS, 200);

    let metrics = site.node.metrics().unwrap();
    for line in [
        "agent_network_workloads_listed 1",
        "agent_network_workloads_watch_up 1",
        "agent_network_workloads_known_pods 1",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
}

#[test]
fn connections_of_a_pod_that_is_gone_are_closed() {
    if !can_run().unwrap() {
        return;
    }
    let mut site = Site::start();
    let spec = site.declare("coder-0", "coder", NODE);
    site.node.start_proxy().unwrap();
    let pod = site.node.add_pod(&spec).unwrap();
    becomes(&pod, DOCS, 200);
    let hold = r#"
import socket, sys
s = socket.create_connection(('203.0.113.10', 80), 5)
s.sendall(b'GET / HTTP/1.1\r\nHost: docs.example.com\r\n\r\n')
assert b' 200 ' in s.recv(65536)
print('open', flush=True)
s.settimeout(20)
try:
    while s.recv(65536): pass
    print('closed', flush=True)
except ConnectionResetError:
    print('closed', flush=True)
"#;
    let mut held = pod
        .place()
        .spawn("held", &["/usr/bin/python3", "-c", hold], &[])
        .unwrap();
    held.wait_for_output("open", Duration::from_secs(10))
        .unwrap();
    site.delete("coder-0");
    held.wait_for_output("closed", Duration::from_secs(5))
        .unwrap();
    becomes(&pod, DOCS, 403);
}

#[test]
fn decisions_go_on_while_the_api_server_is_away_also_after_a_restart() {
    if !can_run().unwrap() {
        return;
    }
    let mut site = Site::start();
    let spec = site.declare("coder-0", "coder", NODE);
    site.node.start_proxy().unwrap();
    let pod = site.node.add_pod(&spec).unwrap();
    becomes(&pod, DOCS, 200);
    let snapshot = site.node.file("pods.json");
    eventually(
        "a snapshot is there",
        patience(Duration::from_secs(5)),
        || {
            let text = std::fs::read_to_string(&snapshot)?;
            ensure!(text.contains("coder-0"), "{text}");
            Ok(())
        },
    )
    .unwrap();

    let link = |state: &str| {
        let line = ["ip", "link", "set", UPLINK, state];
        site.node.place().run(&line).unwrap().success().unwrap();
    };
    link("down");
    site.kubectl("-n agents label pod coder-0 app=other --overwrite");
    becomes(&pod, DOCS, 200);
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        site.node.stop_proxy(signal).unwrap();
        site.node.start_proxy().unwrap();
        becomes(&pod, DOCS, 200);
        becomes(&pod, ECHO, 200);
        let ready = site.node.get("/readyz").unwrap();
        assert!(ready.ok(), "{ready}");
        assert!(
            ready.stdout.contains("1 pods, as the snapshot says"),
            "{ready}"
        );
        let metrics = site.node.metrics().unwrap();
        assert!(metrics.contains("agent_network_workloads_listed 0"));
    }

    // a snapshot that nobody can read: denied, and not ready
    site.node.stop_proxy(Signal::SIGTERM).unwrap();
    let kept = std::fs::read(&snapshot).unwrap();
    std::fs::write(&snapshot, "{").unwrap();
    let proxy = site.node.spawn_proxy().unwrap();
    eventually(
        "the proxy answers",
        patience(Duration::from_secs(10)),
        || {
            let ready = site.node.get("/readyz")?;
            ensure!(ready.stdout.contains("all of them are denied"), "{ready}");
            ensure!(!ready.ok(), "{ready}");
            Ok(())
        },
    )
    .unwrap();
    becomes(&pod, DOCS, 403);
    proxy
        .stop(Signal::SIGTERM, Duration::from_secs(20))
        .unwrap();
    std::fs::write(&snapshot, kept).unwrap();
    site.node.start_proxy().unwrap();
    becomes(&pod, DOCS, 200);

    // it is back, and says what has changed meanwhile
    let line = ["ip", "link", "set", UPLINK, "up"];
    site.node.place().run(&line).unwrap().success().unwrap();
    becomes_in(&pod, DOCS, 403, Duration::from_secs(20));
    becomes(&pod, ECHO, 200);
    // pods and namespaces are watched apart: one may be there before the other
    eventually(
        "pods are the API server's again",
        patience(Duration::from_secs(20)),
        || {
            let ready = site.node.get("/readyz")?;
            let says = "1 pods, as the API server said";
            ensure!(ready.stdout.contains(says), "{ready}");
            Ok(())
        },
    )
    .unwrap();
}

#[test]
fn a_proxy_that_starts_before_the_api_server_is_heard_denies_until_it_is() -> Result<()> {
    if !can_run()? {
        return Ok(());
    }
    let mut site = Site::start();
    let spec = site.declare("coder-0", "coder", NODE);
    let link = |site: &Site, state: &str| {
        site.node
            .place()
            .run(&["ip", "link", "set", UPLINK, state])?
            .success()
    };
    link(&site, "down")?;
    let _proxy = site.node.spawn_proxy()?;
    let pod = site.node.add_pod(&spec)?;
    becomes(&pod, DOCS, 403);
    link(&site, "up")?;
    becomes_in(&pod, DOCS, 200, Duration::from_secs(20));
    Ok(())
}
