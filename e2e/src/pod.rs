//! A pod as its containers see it: a network namespace that the CNI plugin set up, and mount, pid and uts namespaces
//! with a `resolv.conf` like kubelet's. What is in it has every capability on its own network, and nothing of the
//! node's files: no credentials, no state, no bpffs.

use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::addresses::CLUSTER_DNS;
use crate::place::{Finished, Place};
use crate::process::Process;
use crate::procfs;
use crate::world::World;

/// Who a pod is.
#[derive(Clone, Debug)]
pub struct PodSpec {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its service account.
    pub service_account: String,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// Its UID, when the API server has given it one.
    pub uid: Option<String>,
}

impl PodSpec {
    /// A pod of namespace `agents` whose service account has its name.
    pub fn named(name: &str) -> PodSpec {
        PodSpec {
            namespace: "agents".to_owned(),
            name: name.to_owned(),
            service_account: name.to_owned(),
            labels: vec![("app".to_owned(), name.to_owned())],
            uid: None,
        }
    }

    /// Its UID, or one made of its name.
    pub fn uid(&self) -> String {
        let of_the_name = || format!("uid-{}-{}", self.namespace, self.name);
        self.uid.clone().unwrap_or_else(of_the_name)
    }

    /// The ID of its sandbox, made of its name.
    pub fn container_id(&self) -> String {
        format!("sandbox-{}-{}", self.namespace, self.name)
    }

    /// The network namespace's name in `/run/netns`.
    pub fn netns_name(&self) -> String {
        format!("cni-{}-{}", self.namespace, self.name)
    }

    /// The network namespace's path on the node.
    pub fn netns_path(&self) -> String {
        format!("/run/netns/{}", self.netns_name())
    }
}

/// A running pod.
pub struct Pod {
    /// Who it is.
    pub spec: PodSpec,
    /// The address that the plugin gave it.
    pub ip: Ipv4Addr,
    /// The gateway that the plugin gave it.
    pub gateway: Ipv4Addr,
    network: Place,
    place: Place,
    pause: Process,
}

/// The pod's PID 1.
const PAUSE: &str = r#"
set -e
mount --bind "$1" /etc/resolv.conf
for d in /run /var/lib /sys/fs/bpf /opt /etc/cni; do mount -t tmpfs -o mode=0755 tmpfs $d; done
mount -t tmpfs tmpfs /tmp
hostname "$2"
echo paused
while :; do sleep 3600 & wait $! || true; done
"#;

impl Pod {
    /// Starts the pod's processes in the namespace that ADD has set up.
    ///
    /// # Errors
    /// When its namespaces can't be made.
    pub(crate) fn start(
        world: &World,
        spec: &PodSpec,
        ip: Ipv4Addr,
        gateway: Ipv4Addr,
    ) -> Result<Pod> {
        let network = world.namespace(&spec.netns_name())?;
        let resolv = world.dir().join(format!("resolv-{}", spec.name));
        fs::write(
            &resolv,
            format!(
                "nameserver {CLUSTER_DNS}\nsearch {}.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n",
                spec.namespace
            ),
        )?;
        let resolv = resolv.to_string_lossy();
        let line = [
            "unshare",
            "--mount",
            "--pid",
            "--uts",
            "--fork",
            "--kill-child=KILL",
            "--mount-proc",
            "--propagation",
            "private",
            "--",
            "bash",
            "-c",
            PAUSE,
            "pause",
            &resolv,
            &spec.name,
        ];
        let mut pause = network.spawn(&format!("pod-{}", spec.name), &line, &[])?;
        pause.wait_for_output("paused", Duration::from_secs(10))?;
        let pid = procfs::only_child(pause.pid()).context("find the pod's PID 1")?;
        let place = Place::of_process(pid, world.logs());
        Ok(Pod {
            spec: spec.clone(),
            ip,
            gateway,
            network,
            place,
            pause,
        })
    }

    /// Where its processes run.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Its network with the node's files: where captures and servers of the tests run.
    pub fn network(&self) -> &Place {
        &self.network
    }

    /// Runs a shell script in the pod.
    ///
    /// # Errors
    /// Only when the shell can't be started.
    pub fn sh(&self, script: &str) -> Result<Finished> {
        self.place.sh(script)
    }

    /// Runs curl in the pod: quiet, with the answer's head on standard output before the body.
    ///
    /// # Errors
    /// Only when curl can't be started.
    pub fn curl(&self, arguments: &[&str]) -> Result<Finished> {
        let limit = (15 * crate::patience::slowdown()).to_string();
        let mut line = vec!["curl", "-sS", "-i", "--max-time", &limit];
        line.extend(arguments);
        self.place.run(&line)
    }

    /// Lets its processes outlive this value.
    pub(crate) fn detach(self) {
        self.pause.detach();
    }
}
