//! A real Kubernetes on this machine: a control plane and nodes (containerd, kubelet, kube-proxy), each a world of its
//! own, and CoreDNS as a pod. The nodes have a primary CNI (the bridge plugin), as a user's cluster has before this
//! project comes to it; [`agent`] takes a node over.
//!
//! The control plane's world has a bridge that joins the nodes, and is their router and their internet. Everything
//! vanishes as worlds do, however this process ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use crate::addresses::{CLUSTER_DNS, SERVICE_CIDR};
use crate::containerd;
use crate::place::Place;
use crate::process::Process;
use crate::world::World;

pub mod agent;
pub mod control;
mod control_plane;
mod kubectl;
mod member;
pub mod rights;

pub use kubectl::{Kubectl, eventually};
pub use member::{Member, ProxyMode};

use control_plane::ControlPlane;

/// The control plane's address, and the nodes' router.
pub const ROUTER: &str = "10.231.0.1";
/// The address of a node that joins an API server without a cluster.
pub const NODE: &str = "10.231.0.11";
/// The Pod CIDR of the primary CNI.
pub const POD_CIDR: &str = "10.244.0.0/16";
/// Names that only the cluster's DNS server knows, all of them at [`ROUTER`].
pub const OUTSIDE: [&str; 2] = ["docs.example.com", "evil.example.com"];
/// Where something listens at [`ROUTER`].
pub const OUTSIDE_PORT: u16 = 8080;

/// A running cluster of two nodes, `n1` and `n2`.
pub struct Cluster {
    /// The node that is there to be taken over.
    pub n1: Member,
    /// The node that stays as it is. CoreDNS runs here.
    pub n2: Member,
    kubectl: Kubectl,
    _internet: Process,
    _control_plane: ControlPlane,
    world: World,
}

impl Cluster {
    /// Brings it up: both nodes Ready, the cluster's DNS answering.
    ///
    /// # Errors
    /// When a program can't be built or doesn't come up.
    pub fn start() -> Result<Cluster> {
        let bins = containerd::programs()?;
        let world = World::create("control-plane")?;
        switch(&world.node())?;
        let nodes = [Member::plan(1), Member::plan(2)];
        let pki = make_pki(&world, &nodes.each_ref().map(member::Plan::serving))?;
        let (control_plane, n1, n2) = std::thread::scope(|s| {
            let others = nodes.map(|plan| {
                let (world, pki) = (&world, &pki);
                s.spawn(move || plan.prepare(world, pki))
            });
            let control_plane = ControlPlane::start(&world, &bins, &pki);
            let [n1, n2] = others.map(|t| {
                t.join()
                    .map_err(|_| anyhow!("a thread that prepares a node panicked"))?
            });
            anyhow::Ok((control_plane?, n1?, n2?))
        })?;
        let program = bins.join("probe");
        let listen = format!("{ROUTER}:{OUTSIDE_PORT}");
        let probe = program.to_string_lossy();
        let internet = world
            .node()
            .spawn("internet", &[&probe, "serve", &listen], &[])?;
        let mut cluster = Cluster {
            n1,
            n2,
            kubectl: Kubectl::new(world.node(), &bins, &pki, world.dir()),
            _internet: internet,
            _control_plane: control_plane,
            world,
        };
        cluster.n1.start_kubelet(ProxyMode::Iptables)?;
        cluster.n2.start_kubelet(ProxyMode::Iptables)?;
        cluster.wait_for_nodes()?;
        cluster.start_dns()?;
        Ok(cluster)
    }

    /// Where the control plane runs: the nodes' router and their internet.
    pub fn place(&self) -> Place {
        self.world.node()
    }

    /// `kubectl`, with every right.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// A folder for files, at the same path on all nodes.
    pub fn dir(&self) -> &Path {
        self.world.dir()
    }

    /// Waits until both nodes are Ready.
    ///
    /// # Errors
    /// When one isn't in a minute and a half.
    pub fn wait_for_nodes(&self) -> Result<()> {
        eventually("both nodes are Ready", Duration::from_secs(90), || {
            let nodes = self.kubectl.json(&["get", "nodes"])?;
            let ready = nodes["items"].as_array().into_iter().flatten();
            let ready = ready.filter(|n| is_true(n, "Ready")).count();
            anyhow::ensure!(ready == 2, "{ready} are Ready");
            Ok(())
        })
    }

    fn start_dns(&self) -> Result<()> {
        let hosts = OUTSIDE.map(|name| format!("{ROUTER} {name}"));
        let manifest = include_str!("../cluster/coredns.yaml")
            .replace("@HOSTS@", &hosts.join("\n            "))
            .replace("@NODE@", self.n2.name());
        self.kubectl.apply(&manifest)?;
        self.kubectl.wait(
            "kube-system",
            "condition=Available",
            &["deployment/coredns"],
        )
    }
}

/// An API server and its etcd alone, without nodes: ready in seconds.
pub struct ApiServer {
    kubectl: Kubectl,
    control_plane: ControlPlane,
    world: World,
    bins: PathBuf,
    pki: PathBuf,
}

impl ApiServer {
    /// Starts both.
    ///
    /// # Errors
    /// When a program can't be built or doesn't come up.
    pub fn start() -> Result<ApiServer> {
        let bins = containerd::programs()?;
        let world = World::create("api-server")?;
        switch(&world.node())?;
        let pki = make_pki(&world, &[])?;
        let control_plane = ControlPlane::start_api_server(&world, &bins, &pki)?;
        Ok(ApiServer {
            kubectl: Kubectl::new(world.node(), &bins, &pki, world.dir()),
            control_plane,
            world,
            bins,
            pki,
        })
    }

    /// Stops the API server and starts it again after `pause`; etcd stays.
    ///
    /// # Errors
    /// When it doesn't come up again.
    pub fn restart(&mut self, pause: Duration) -> Result<()> {
        let place = self.world.node();
        self.control_plane
            .restart_api_server(&place, &self.bins, &self.pki, pause)
    }

    /// Where it runs.
    pub fn place(&self) -> Place {
        self.world.node()
    }

    /// The kubeconfig of one of the users of `pki.sh`.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.pki.join(format!("{user}.kubeconfig"))
    }

    /// What every request was, one JSON object a line (`audit.k8s.io/v1`, level Metadata).
    pub fn audit_log(&self) -> PathBuf {
        control_plane::audit_log(&self.pki)
    }

    /// `kubectl`, with every right.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// A folder for files, the same path inside and outside.
    pub fn dir(&self) -> &Path {
        self.world.dir()
    }

    /// Joins a node of another world to the API server by an interface `name` there, and answers the kubeconfig with
    /// which its programs reach it.
    ///
    /// # Errors
    /// When the interface's name is taken.
    pub fn join(&self, node: &World, name: &str) -> Result<PathBuf> {
        node.link(name, &self.world, "node")?;
        let script = format!("ip addr add {NODE}/24 dev {name} && ip link set {name} up");
        node.node().sh(&script)?.success()?;
        self.world
            .node()
            .sh("ip link set node master br0 up")?
            .success()?;
        Ok(self.kubectl.kubeconfig().to_owned())
    }
}

/// Whether an object's condition is `True`.
pub fn is_true(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|c| c["type"] == condition && c["status"] == "True")
}

/// The bridge that joins the nodes.
fn switch(place: &Place) -> Result<()> {
    let script = format!(
        "set -e; sysctl -qw net.ipv4.ip_forward=1
        ip link add br0 type bridge; ip addr add {ROUTER}/24 dev br0; ip link set br0 up
        echo 0 > /proc/sys/net/bridge/bridge-nf-call-iptables"
    );
    place.sh(&script)?.success()?;
    Ok(())
}

fn make_pki(world: &World, nodes: &[String]) -> Result<PathBuf> {
    let pki = world.dir().join("pki");
    fs::create_dir_all(&pki)?;
    let dir = pki.to_string_lossy().into_owned();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster/pki.sh");
    let mut line = vec![script, &dir, ROUTER];
    line.extend(nodes.iter().map(String::as_str));
    world
        .node()
        .run(&line)?
        .success()
        .context("make the cluster's certificates")?;
    Ok(pki)
}
