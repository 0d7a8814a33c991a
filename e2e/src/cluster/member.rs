//! One node of the cluster: its world, its link to the others, containerd, kubelet, kube-proxy, and the primary CNI.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use super::{CLUSTER_DNS, ROUTER};
use crate::cgroup;
use crate::containerd::Containerd;
use crate::images::COREDNS;
use crate::place::Place;
use crate::process::Process;
use crate::world::World;

/// Settings that kubelet writes and that no namespace separates: it gets plain files in their place.
const GLOBAL_SETTINGS: &[(&str, &str)] = &[
    ("vm/overcommit_memory", "1"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// How kube-proxy serves Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    /// By iptables.
    Iptables,
    /// By nftables.
    Nftables,
}

impl std::fmt::Display for ProxyMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ProxyMode::Iptables => "iptables",
            ProxyMode::Nftables => "nftables",
        })
    }
}

/// A node that runs.
pub struct Member {
    plan: Plan,
    proxy_mode: ProxyMode,
    kube_proxy: Option<Process>,
    kubelet: Option<Process>,
    containerd: Containerd,
    pki: PathBuf,
    world: World,
}

/// A node's number, which its name and addresses follow from.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    number: u8,
    name: String,
}

impl Plan {
    /// Name and address, as the certificates want them.
    pub(super) fn serving(&self) -> String {
        format!("{}={}", self.name, self.address())
    }

    fn address(&self) -> String {
        format!("10.231.0.1{}", self.number)
    }

    fn pods(number: u8) -> String {
        format!("10.244.{number}.0/24")
    }

    /// Everything but kubelet and kube-proxy, which want the API server.
    pub(super) fn prepare(self, control_plane: &World, pki: &Path) -> Result<Member> {
        let world = World::create(&self.name)?;
        self.link(control_plane, &world)?;
        stand_in_for_global_settings(&world)?;
        let containerd = Containerd::start(&world)?;
        containerd.import(&COREDNS)?;
        cgroup::make(&world)?;
        install_primary(&world, containerd.bins(), &Plan::pods(self.number))?;
        Ok(Member {
            plan: self,
            proxy_mode: ProxyMode::Iptables,
            kube_proxy: None,
            kubelet: None,
            containerd,
            pki: pki.to_owned(),
            world,
        })
    }

    /// The uplink, and the way to the other node's pods.
    fn link(&self, control_plane: &World, world: &World) -> Result<()> {
        let port = format!("to-{}", self.name);
        control_plane.link(&port, world, "eth0")?;
        let other = 3 - self.number;
        world
            .node()
            .sh(&format!(
                "set -e; sysctl -qw net.ipv4.ip_forward=1
                ip addr add {}/24 dev eth0; ip link set eth0 up; ip route add default via {ROUTER}
                ip route add {} via 10.231.0.1{other}
                echo 'nameserver {CLUSTER_DNS}' > /etc/resolv.conf",
                self.address(),
                Plan::pods(other),
            ))?
            .success()?;
        control_plane
            .node()
            .sh(&format!(
                "set -e; ip link set {port} master br0 up; ip route add {} via {}",
                Plan::pods(self.number),
                self.address()
            ))?
            .success()?;
        Ok(())
    }
}

impl Member {
    pub(super) fn plan(number: u8) -> Plan {
        Plan {
            number,
            name: format!("n{number}"),
        }
    }

    /// Its name in the cluster.
    pub fn name(&self) -> &str {
        &self.plan.name
    }

    /// Its address.
    pub fn address(&self) -> String {
        self.plan.address()
    }

    /// Its own place.
    pub fn place(&self) -> Place {
        self.world.node()
    }

    /// The world it is in.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Its container runtime.
    pub fn containerd(&self) -> &Containerd {
        &self.containerd
    }

    /// How kube-proxy serves Services now.
    pub fn proxy_mode(&self) -> ProxyMode {
        self.proxy_mode
    }

    /// Starts kubelet and kube-proxy.
    pub(super) fn start_kubelet(&mut self, mode: ProxyMode) -> Result<()> {
        let config = self.config("kubelet.yaml", include_str!("../../cluster/kubelet.yaml"))?;
        let kubeconfig = self.pki.join(format!("{}.kubeconfig", self.plan.name));
        let flags = [
            format!("--config={config}"),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--hostname-override={}", self.plan.name),
            format!("--node-ip={}", self.address()),
            "--root-dir=/var/lib/kubelet".to_owned(),
            "--cert-dir=/var/lib/kubelet/pki".to_owned(),
            "--v=2".to_owned(),
        ];
        self.kubelet = Some(self.start("kubelet", "kubelet", &flags)?);
        self.start_kube_proxy(mode)
    }

    /// Starts kube-proxy anew in another mode, the old one's rules removed as its documentation says.
    ///
    /// # Errors
    /// When it doesn't end or start.
    pub fn switch_kube_proxy(&mut self, mode: ProxyMode) -> Result<()> {
        if let Some(old) = self.kube_proxy.take() {
            old.stop(Signal::SIGTERM, Duration::from_secs(10))?;
        }
        let program = self.program("kube-proxy");
        self.place().run(&[&program, "--cleanup"])?.success()?;
        self.start_kube_proxy(mode)
    }

    fn start_kube_proxy(&mut self, mode: ProxyMode) -> Result<()> {
        self.proxy_mode = mode;
        let mode = mode.to_string();
        let text = include_str!("../../cluster/kube-proxy.yaml").replace("@MODE@", &mode);
        let config = self.config("kube-proxy.yaml", &text)?;
        let flags = [format!("--config={config}"), "--v=2".to_owned()];
        let name = format!("kube-proxy-{mode}");
        self.kube_proxy = Some(self.start(&name, "kube-proxy", &flags)?);
        Ok(())
    }

    fn start(&self, name: &str, program: &str, flags: &[String]) -> Result<Process> {
        let program = self.program(program);
        let mut line = vec![program.as_str()];
        line.extend(flags.iter().map(String::as_str));
        self.place().spawn(name, &line, &[])
    }

    fn program(&self, name: &str) -> String {
        let program = self.containerd.bins().join(name);
        program.to_string_lossy().into_owned()
    }

    fn config(&self, name: &str, template: &str) -> Result<String> {
        let text = template
            .replace("@PKI@", &self.pki.to_string_lossy())
            .replace("@NODE@", &self.plan.name)
            .replace("@CGROUP@", &cgroup::path_of(&self.world));
        let path = self.world.dir().join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path.to_string_lossy().into_owned())
    }
}

fn install_primary(world: &World, bins: &Path, pods: &str) -> Result<()> {
    for plugin in ["bridge", "host-local", "portmap"] {
        let to = world.inside(&format!("/opt/cni/bin/{plugin}"));
        fs::copy(bins.join(plugin), &to).with_context(|| format!("install {plugin}"))?;
    }
    let list = include_str!("../../cluster/primary.conflist").replace("@PODS@", pods);
    let to = world.inside("/etc/cni/net.d/10-primary.conflist");
    fs::write(&to, list).context("install the primary CNI's configuration")
}

fn stand_in_for_global_settings(world: &World) -> Result<()> {
    let script: Vec<String> = GLOBAL_SETTINGS
        .iter()
        .map(|(name, value)| {
            let file = format!("/run/settings/{}", name.replace('/', "-"));
            format!("echo {value} > {file}; mount --bind {file} /proc/sys/{name}")
        })
        .collect();
    let script = format!("set -e; mkdir -p /run/settings\n{}", script.join("\n"));
    world.node().sh(&script)?.success()?;
    Ok(())
}
