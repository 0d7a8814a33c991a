//! A real containerd on a node, driven by crictl, and cnitool: the plugin as the software calls it that will call it.
//!
//! The programs are built from Go modules by `e2e/cluster/build-bins.sh` (once; minutes when its cache is cold).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::cgroup;
use crate::images::{CLIENT, Image, PAUSE};
use crate::place::{Finished, Place};
use crate::process::Process;
use crate::world::World;

/// A running containerd.
pub struct Containerd {
    place: Place,
    bins: PathBuf,
    dir: PathBuf,
    cgroup: String,
    process: Option<Process>,
}

/// A pod sandbox with one container.
pub struct Sandbox {
    /// The sandbox's ID.
    pub id: String,
    /// The container's ID.
    pub container: String,
}

/// The folder with containerd, crictl, cnitool and so on; builds them when they aren't there.
///
/// # Errors
/// When they can't be built.
pub fn programs() -> Result<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster/build-bins.sh");
    let out = Command::new(script)
        .stdin(Stdio::null())
        .output()
        .context("start build-bins.sh")?;
    if !out.status.success() {
        bail!(
            "build-bins.sh: {}",
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    let text = String::from_utf8(out.stdout)?;
    Ok(text
        .lines()
        .next()
        .context("build-bins.sh printed no folder")?
        .into())
}

impl Containerd {
    /// Starts it on a world's node, with the images that the tests use.
    ///
    /// # Errors
    /// When a program is missing, or it doesn't come up.
    pub fn start(world: &World) -> Result<Containerd> {
        let bins = programs()?;
        let dir = world.dir().join("containerd");
        fs::create_dir_all(&dir)?;
        let place = world.node();
        let prepare = format!(
            "set -e; mount --make-rshared /; mkdir -p /var/lib/containerd; mount -t tmpfs tmpfs /var/lib/containerd
            cp {}/loopback /opt/cni/bin/
            printf 'runtime-endpoint: unix:///run/containerd/containerd.sock\\nimage-endpoint: unix:///run/containerd/containerd.sock\\ntimeout: 30\\n' > /etc/crictl.yaml",
            bins.display()
        );
        place.sh(&prepare)?.success()?;
        let conf = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster/containerd.toml");
        let program = bins.join("containerd").to_string_lossy().into_owned();
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bins.display());
        let process = place.spawn(
            "containerd",
            &[&program, "--config", conf],
            &[("PATH", &path)],
        )?;
        let containerd = Containerd {
            place,
            bins,
            dir,
            cgroup: cgroup::path_of(world),
            process: Some(process),
        };
        containerd.wait_until_up()?;
        containerd.import(&PAUSE)?;
        containerd.import(&CLIENT)?;
        Ok(containerd)
    }

    /// The folder with all the cluster's programs.
    pub fn bins(&self) -> &Path {
        &self.bins
    }

    /// Runs crictl. It waits longer than the 2 s that it is used to: a machine may have more to do than this.
    ///
    /// # Errors
    /// Only when it can't be started.
    pub fn crictl(&self, arguments: &[&str]) -> Result<Finished> {
        self.tool("crictl", arguments, &[])
    }

    /// Runs cnitool with the node's configuration, for a pod `agents/tool`.
    ///
    /// # Errors
    /// Only when it can't be started.
    pub fn cnitool(&self, arguments: &[&str]) -> Result<Finished> {
        let env = [
            ("CNI_PATH", "/opt/cni/bin"),
            ("NETCONFPATH", "/etc/cni/net.d"),
            (
                "CNI_ARGS",
                "IgnoreUnknown=1;K8S_POD_NAMESPACE=agents;K8S_POD_NAME=tool;K8S_POD_UID=uid-tool",
            ),
        ];
        self.tool("cnitool", arguments, &env)
    }

    /// Whether the runtime says that its network is ready, and why not.
    ///
    /// # Errors
    /// When crictl fails.
    pub fn network_ready(&self) -> Result<(bool, String)> {
        let info = self.crictl(&["info"])?.success()?;
        let info: Value = serde_json::from_str(&info.stdout)?;
        let conditions = info["status"]["conditions"].as_array();
        let ready = conditions
            .into_iter()
            .flatten()
            .find(|c| c["type"] == "NetworkReady")
            .context("containerd says nothing of its network")?;
        Ok((ready["status"] == true, ready["message"].to_string()))
    }

    /// Runs a sandbox with one container that sleeps.
    ///
    /// # Errors
    /// When containerd refuses one of the steps.
    pub fn run_pod(&self, namespace: &str, name: &str) -> Result<Sandbox> {
        self.run_pod_with_port(namespace, name, None)
    }

    /// The same, with a TCP port of the node that leads to the pod's port 8080.
    ///
    /// # Errors
    /// When containerd refuses one of the steps.
    pub fn run_pod_with_port(
        &self,
        namespace: &str,
        name: &str,
        host_port: Option<u16>,
    ) -> Result<Sandbox> {
        let ports = host_port
            .map(|port| json!([{"protocol": 0, "container_port": 8080, "host_port": port}]));
        let sandbox = json!({
            "metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{name}"), "attempt": 0},
            "log_directory": "/var/log/pods",
            "port_mappings": ports.unwrap_or_else(|| json!([])),
            "dns_config": {"servers": [crate::addresses::CLUSTER_DNS]},
            "linux": {"cgroup_parent": self.cgroup},
        });
        let container = json!({
            "metadata": {"name": "main"}, "image": {"image": CLIENT.reference}, "command": ["/bin/sleep", "3600"],
            "log_path": format!("{name}.log"), "linux": {},
        });
        let (pod_file, container_file) = (
            self.file(&format!("{name}-pod.json"), &sandbox)?,
            self.file(&format!("{name}.json"), &container)?,
        );
        let text =
            |done: Finished| -> Result<String> { Ok(done.success()?.stdout.trim().to_owned()) };
        let id = text(self.crictl(&["runp", &pod_file])?)?;
        let container = text(self.crictl(&["create", &id, &container_file, &pod_file])?)?;
        text(self.crictl(&["start", &container])?)?;
        Ok(Sandbox { id, container })
    }

    /// Runs a command in a sandbox's container.
    ///
    /// # Errors
    /// Only when crictl can't be started.
    pub fn exec(&self, sandbox: &Sandbox, command: &[&str]) -> Result<Finished> {
        let mut line = vec!["exec", &*sandbox.container];
        line.extend(command);
        self.crictl(&line)
    }

    fn wait_until_up(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.tool("ctr", &["version"], &[])?.ok() {
            if Instant::now() > deadline {
                let log = self
                    .process
                    .as_ref()
                    .map(Process::log_text)
                    .unwrap_or_default();
                bail!("containerd doesn't come up: {log}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Makes an image and gives it to containerd.
    ///
    /// # Errors
    /// When a program is missing, or containerd refuses the archive.
    pub fn import(&self, image: &Image) -> Result<()> {
        let archive = image.archive(&self.place, &self.bins, &self.dir)?;
        let archive = archive.to_string_lossy();
        self.tool("ctr", &["-n", "k8s.io", "images", "import", &archive], &[])?
            .success()?;
        Ok(())
    }

    fn tool(&self, name: &str, arguments: &[&str], env: &[(&str, &str)]) -> Result<Finished> {
        let program = self.bins.join(name).to_string_lossy().into_owned();
        let mut line = vec![&*program];
        line.extend(arguments);
        self.place.run_with(&line, env, b"", 60)
    }

    fn file(&self, name: &str, content: &Value) -> Result<String> {
        let path = self.dir.join(name);
        fs::write(&path, content.to_string())?;
        Ok(path.to_string_lossy().into_owned())
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            let _ = process.stop(Signal::SIGTERM, Duration::from_secs(5));
        }
        // shims and containers outlive containerd; the world ends them and removes their groups
    }
}
