//! A class from `kubectl apply` to a node that follows it, and back to its status: a real API server, the controller, the
//! installer, the proxy and pods.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::addresses::SERVICE_CIDR;
use e2e::cluster::control::{
    ADMIN_PORT, Controller, Projection, RELOAD_TOKEN, announce_on, prepare,
};
use e2e::cluster::{ApiServer, NODE, eventually};
use e2e::cni::{self, Plugin};
use e2e::containerd;
use e2e::machine::{can_run, program};
use e2e::node::FILES;
use e2e::patience::patience;
use e2e::process::Process;
use e2e::steps::Steps;
use e2e::{Node, Pod, PodSpec};
use ipnet::Ipv4Net;
use serde_json::{Value, json};

const UPLINK: &str = "cluster0";
/// The primary network of the node.
const PRIMARY: &str = "10.244.9.0/24";
/// The two pools of this test.
const POOLS: [&str; 2] = ["10.250.0.0/16", "10.251.0.0/16"];

struct Site {
    server: ApiServer,
    node: Node,
    installer: Process,
    _projection: Projection,
    _controller: Controller,
    pods: Vec<Pod>,
}

impl Site {
    /// The control plane, and a node whose installer has no class yet.
    fn start() -> Result<Site> {
        let server = ApiServer::start()?;
        prepare(&server)?;
        let projection = Projection::start(&server)?;
        let mut controller = Controller::start(
            &server,
            &server.kubeconfig("admin"),
            18080,
            &["--service-cidrs", SERVICE_CIDR],
        )?;
        controller.wait_until_ready()?;
        let object = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n1", "labels": {"agent-network": "true"}},
        });
        server.kubectl().apply(&object.to_string())?;

        let mut node = Node::start("class-applied")?;
        fs::remove_file(node.world().inside(cni::CONF))?;
        primary(&node)?;
        let kubeconfig = server.join(node.world(), UPLINK)?;
        fs::create_dir_all(node.file("projected"))?;
        projection.add(&node.file("projected"));
        node.write("reload-token", RELOAD_TOKEN.as_bytes())?;
        let config = node.config().as_object_mut().context("no object")?;
        config.remove("workloadsFile");
        let ours = json!({
            "policyFile": format!("{FILES}/projected/policy.json"),
            "adminListen": format!("{NODE}:{ADMIN_PORT}"),
            "cluster": {
                "nodeName": "n1", "kubeconfig": kubeconfig,
                "snapshotFile": format!("{FILES}/pods.json"),
            },
        });
        config.extend(ours.as_object().context("no object")?.clone());
        node.spawn_proxy_and_wait("/healthz")?;
        let agent_cni = program("agent-cni")?.display().to_string();
        let line = [
            &*agent_cni,
            "install",
            &format!("--node-settings={FILES}/projected/nodes.json"),
            "--node-name=n1",
            &format!("--workloads-file={FILES}/pods.json"),
        ];
        let installer = node.place().spawn("installer", &line, &[])?;
        let kubectl = server.kubectl();
        kubectl.run(&["create", "namespace", "agents"])?.success()?;
        kubectl
            .run(&["-n", "agents", "create", "serviceaccount", "default"])?
            .success()?;
        announce_on(&server, "n1", NODE)?;
        Ok(Site {
            server,
            node,
            installer,
            _projection: projection,
            _controller: controller,
            pods: Vec::new(),
        })
    }

    fn apply(&self, spec: &Value) -> Result<()> {
        let mut spec = spec.clone();
        spec["nodeSelector"] = json!({"matchLabels": {"agent-network": "true"}});
        spec["nodePrefixLength"] = json!(24);
        let mode = std::env::var("AGENT_NETWORK_TEST_MODE").unwrap_or_default();
        let mode = if mode.is_empty() { "auto" } else { &mode };
        spec["cni"]["mode"] = json!(mode);
        let object = json!({
            "apiVersion": "agent.tke.cloud.tencent.com/v1alpha1", "kind": "AgentNetworkClass",
            "metadata": {"name": "default"}, "spec": spec,
        });
        self.server.kubectl().apply(&object.to_string())
    }

    /// Waits until the class's status is so.
    fn status(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<()> {
        eventually(what, patience(Duration::from_secs(45)), || {
            let class = self.server.kubectl().json(&["get", "anc", "default"])?;
            let current = class["status"]["observedGeneration"] == class["metadata"]["generation"];
            ensure!(current && holds(&class["status"]), "{:#}", class["status"]);
            Ok(())
        })
        .with_context(|| self.installer.log_text())
    }

    /// The configuration that kubelet's runtime would read.
    fn conf(&self) -> Result<Value> {
        let bytes = fs::read(self.node.world().inside(cni::CONF))?;
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// The range in which the node gives addresses.
    fn range(&self) -> Result<Ipv4Net> {
        let path = format!("{}/node.json", cni::STATE_DIR);
        let node: Value = serde_json::from_slice(&fs::read(self.node.world().inside(&path))?)?;
        let range = node["fakeIpCidr"].as_str().context("no fakeIpCidr")?;
        Ok(range.parse()?)
    }

    /// A pod as the API server has it, without a kubelet.
    fn declare(&self, name: &str, app: &str) -> Result<PodSpec> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "agents", "name": name, "labels": {"app": app}},
            "spec": {
                "nodeName": "n1", "automountServiceAccountToken": false,
                "containers": [{"name": "c", "image": "none"}],
            },
        });
        let kubectl = self.server.kubectl();
        kubectl.apply(&pod.to_string())?;
        let pod = kubectl.json(&["-n", "agents", "get", "pod", name])?;
        let uid = pod["metadata"]["uid"].as_str().context("no UID")?;
        // a kubelet asks the runtime after the watch has told of the pod, and again when ADD fails
        eventually("the proxy has heard of it", Duration::from_secs(10), || {
            ensure!(fs::read_to_string(self.node.file("pods.json"))?.contains(uid));
            Ok(())
        })?;
        Ok(PodSpec {
            uid: Some(uid.to_owned()),
            ..PodSpec::named(name)
        })
    }
}

/// The cluster's own network, for pods that are not ours.
fn primary(node: &Node) -> Result<()> {
    let programs = containerd::programs()?;
    for plugin in ["bridge", "host-local"] {
        let to = node.world().inside(&format!("/opt/cni/bin/{plugin}"));
        fs::copy(programs.join(plugin), to)?;
    }
    let conf = json!({
        "cniVersion": "1.0.0", "name": "primary",
        "plugins": [{
            "type": "bridge", "bridge": "cni0", "isGateway": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": PRIMARY}]]},
        }],
    });
    let to = node.world().inside("/etc/cni/net.d/10-primary.conflist");
    fs::write(to, conf.to_string())?;
    Ok(())
}

fn is_in(pool: &str, address: Ipv4Addr) -> bool {
    pool.parse::<Ipv4Net>()
        .is_ok_and(|pool| pool.contains(&address))
}

fn class(pool: &str) -> Value {
    json!({
        "fakeIPCIDR": pool,
        "workloadSelector": {"matchLabels": {"app": "agent"}},
    })
}

#[test]
fn controller_brings_a_class_to_a_node_and_says_what_the_node_made_of_it() {
    if !can_run().unwrap() {
        return;
    }
    let mut steps = Steps::new();
    let mut site = Site::start().unwrap();
    steps.step("without a class the node is not taken over", || {
        eventually("the installer says so", Duration::from_secs(20), || {
            let log = site.installer.log_text();
            ensure!(log.contains("isn't taken over before"), "{log}");
            Ok(())
        })?;
        ensure!(site.conf().is_err());
        Ok(())
    });
    steps.step(
        "kubectl apply takes it over, and the status counts it",
        || taken_over(&site),
    );
    steps.step(
        "pods are ours by the labels that the API server has",
        || selected(&mut site),
    );
    steps.step("what a class opens is told", || open(&site));
    steps.step(
        "another pool waits for the node's annotation, then for its pods",
        || another_pool(&mut site),
    );
    steps.step("a class that can't be followed changes nothing", || {
        invalid(&site)
    });
    steps.finish().unwrap();
}

fn taken_over(site: &Site) -> Result<()> {
    site.apply(&class(POOLS[0]))?;
    site.status("the node says that it follows", |status| {
        let says = status["conditions"].to_string();
        status["phase"] == "Active"
            && status["nodes"]["total"] == 1
            && says.contains("1 of 1 say that they follow")
    })?;
    let range = site.range()?;
    ensure!(
        range.prefix_len() == 24 && is_in(POOLS[0], range.addr()),
        "{range}"
    );
    let conf = site.conf()?;
    ensure!(conf["serviceCIDRs"] == json!([SERVICE_CIDR]), "{conf}");
    ensure!(conf["workloadSelector"] == json!({"matchLabels": {"app": "agent"}}));
    Ok(())
}

fn selected(site: &mut Site) -> Result<()> {
    site.node.plugin = Plugin::new(site.node.place(), site.conf()?);
    let ours = site.declare("ours", "agent")?;
    let pod = site.node.add_pod(&ours)?;
    let range = site.range()?;
    ensure!(range.contains(&pod.ip), "{} in {range}", pod.ip);
    site.pods.push(pod);
    let other = site.declare("other", "web")?;
    site.node.world().namespace(&other.netns_name())?;
    let got = site.node.plugin.add(&other)?;
    ensure!(is_in(PRIMARY, got.ip), "{}", got.ip);
    site.node.plugin.del(&other)
}

fn open(site: &Site) -> Result<()> {
    let mut lax = class(POOLS[0]);
    lax["proxy"] = json!({"failMode": "Open"});
    lax["cni"] = json!({"defaultConnectivity": "Passthrough"});
    site.apply(&lax)?;
    site.status("it follows, and what is open is said", |status| {
        let says = status["message"].to_string();
        status["conditions"]
            .to_string()
            .contains("1 of 1 say that they follow")
            && says.contains("failMode is Open")
            && says.contains("defaultConnectivity is Passthrough")
    })?;
    let settings = fs::read_to_string(
        site.node
            .world()
            .inside(&format!("{}/settings", cni::STATE_DIR)),
    )?;
    ensure!(
        settings.contains("\"Open\"") && settings.contains("\"Passthrough\""),
        "{settings}"
    );
    let metrics = site.node.metrics()?;
    for line in [
        "agent_network_fail_mode_open 1",
        "agent_network_default_connectivity_passthrough 1",
    ] {
        ensure!(metrics.contains(line), "{line}");
    }
    let events = site.server.kubectl().run(&[
        "-n",
        "default",
        "get",
        "events",
        "-o",
        "jsonpath={.items[*].message}",
    ])?;
    let events = events.success()?.stdout;
    ensure!(events.contains("failMode is Open"), "{events}");
    site.apply(&class(POOLS[0]))?;
    site.status("closed again", |status| {
        status["phase"] == "Active"
            && status["message"].is_null()
            && status["conditions"]
                .to_string()
                .contains("1 of 1 say that they follow")
    })?;
    let metrics = site.node.metrics()?;
    ensure!(metrics.contains("agent_network_default_connectivity_passthrough 0"));
    Ok(())
}

fn another_pool(site: &mut Site) -> Result<()> {
    let before = site.range()?;
    site.apply(&class(POOLS[1]))?;
    site.status("the node keeps its part", |status| {
        let says = status["message"].to_string();
        status["phase"] == "Degraded" && says.contains("n1") && says.contains("annotate node")
    })?;
    ensure!(site.range()? == before);
    let renumber = format!("agent.tke.cloud.tencent.com/renumber={}", POOLS[1]);
    let kubectl = site.server.kubectl().clone();
    kubectl
        .run(&["annotate", "node", "n1", &renumber])?
        .success()?;
    site.status("the node has a pod of the old range", |status| {
        let says = status["message"].to_string();
        status["phase"] == "Degraded" && says.contains("until no pod has an address of it")
    })?;
    ensure!(site.range()? == before);
    let late = site.declare("late", "agent")?;
    let late = site.node.add_pod(&late)?;
    ensure!(before.contains(&late.ip), "{}", late.ip);
    site.pods.push(late);
    for pod in std::mem::take(&mut site.pods) {
        let name = pod.spec.name.clone();
        site.node.remove_pod(pod)?;
        kubectl
            .run(&[
                "-n",
                "agents",
                "delete",
                "pod",
                &name,
                "--force",
                "--grace-period=0",
            ])?
            .success()?;
    }
    site.status("the node has moved", |status| {
        status["phase"] == "Active"
            && status["conditions"]
                .to_string()
                .contains("1 of 1 say that they follow")
    })?;
    let range = site.range()?;
    ensure!(is_in(POOLS[1], range.addr()), "{range}");
    site.node.plugin = Plugin::new(site.node.place(), site.conf()?);
    let moved = site.declare("moved", "agent")?;
    let moved = site.node.add_pod(&moved)?;
    ensure!(range.contains(&moved.ip), "{}", moved.ip);
    site.pods.push(moved);
    Ok(())
}

fn invalid(site: &Site) -> Result<()> {
    let (range, conf) = (site.range()?, site.conf()?);
    // a pool that lies in the Services' range
    site.apply(&class("10.96.0.0/16"))?;
    site.status("it is said", |status| {
        status["phase"] == "Invalid"
            && status["message"]
                .to_string()
                .contains("its nodes keep the settings that they have")
    })?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(site.range()? == range && site.conf()? == conf);
    ensure!(!site.installer.log_text().contains("panicked"));
    Ok(())
}
