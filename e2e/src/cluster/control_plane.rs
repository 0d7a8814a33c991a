//! etcd, the API server, the controller manager and the scheduler.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use super::{ROUTER, SERVICE_CIDR, eventually};
use crate::place::Place;
use crate::process::Process;
use crate::world::World;

/// The running control plane. Ends with its processes, which end with it.
pub(super) struct ControlPlane {
    /// In the order in which they are to be stopped: those that need the API server, itself, etcd.
    processes: Vec<Process>,
}

/// Where the API server of [`ControlPlane::start_api_server`] writes what it was asked.
pub(super) fn audit_log(pki: &Path) -> PathBuf {
    pki.join("audit.log")
}

impl ControlPlane {
    /// Starts everything; returns when the API server is ready.
    pub(super) fn start(world: &World, bins: &Path, pki: &Path) -> Result<ControlPlane> {
        let place = world.node();
        let start = |name: &str, flags: &[String]| spawn(&place, bins, name, flags);
        let mut processes = Self::api_server(world, bins, &api_server(pki), pki)?;
        let manager = start("kube-controller-manager", &controller_manager(pki))?;
        let scheduler = start("kube-scheduler", &client(pki, "scheduler"))?;
        processes.splice(0..0, [scheduler, manager]);
        Ok(ControlPlane { processes })
    }

    /// Starts only etcd and the API server, which writes down what it is asked.
    pub(super) fn start_api_server(world: &World, bins: &Path, pki: &Path) -> Result<ControlPlane> {
        Ok(ControlPlane {
            processes: Self::api_server(world, bins, &audited(pki)?, pki)?,
        })
    }

    /// Kills the API server of [`ControlPlane::start_api_server`] (a graceful end waits a minute for watches) and starts
    /// it again after `pause`.
    pub(super) fn restart_api_server(
        &mut self,
        place: &Place,
        bins: &Path,
        pki: &Path,
        pause: Duration,
    ) -> Result<()> {
        let old = self.processes.remove(0);
        old.stop(Signal::SIGKILL, Duration::from_secs(10))?;
        std::thread::sleep(pause);
        self.processes
            .insert(0, start_ready(place, bins, &audited(pki)?, pki)?);
        Ok(())
    }

    /// etcd and the API server, in the order in which they are to be stopped; returns when it is ready.
    fn api_server(
        world: &World,
        bins: &Path,
        flags: &[String],
        pki: &Path,
    ) -> Result<Vec<Process>> {
        let place = world.node();
        let etcd = spawn(&place, bins, "etcd", &etcd())?;
        Ok(vec![start_ready(&place, bins, flags, pki)?, etcd])
    }
}

/// A running API server that is ready.
fn start_ready(place: &Place, bins: &Path, flags: &[String], pki: &Path) -> Result<Process> {
    let mut api = spawn(place, bins, "kube-apiserver", flags)?;
    eventually("the API server is ready", Duration::from_secs(90), || {
        anyhow::ensure!(api.is_running(), "it ended");
        ready(place, pki)
    })
    .with_context(|| last_lines(&api))?;
    Ok(api)
}

fn spawn(place: &Place, bins: &Path, name: &str, flags: &[String]) -> Result<Process> {
    let program = bins.join(name).to_string_lossy().into_owned();
    let mut line = vec![program.as_str()];
    line.extend(flags.iter().map(String::as_str));
    place.spawn(name, &line, &[])
}

fn ready(place: &Place, pki: &Path) -> Result<()> {
    let file = |name: &str| pki.join(name).to_string_lossy().into_owned();
    let url = format!("https://{ROUTER}:6443/readyz");
    let (ca, crt, key) = (file("ca.crt"), file("admin.crt"), file("admin.key"));
    place
        .run(&[
            "curl", "-sS", "-f", "-m", "2", "--cacert", &ca, "--cert", &crt, "--key", &key, &url,
        ])?
        .success()?;
    Ok(())
}

fn last_lines(process: &Process) -> String {
    let log = process.log_text();
    let lines: Vec<&str> = log.lines().rev().take(15).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

/// etcd for one, in memory: the cluster isn't to outlive it.
fn etcd() -> Vec<String> {
    let (clients, peers) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
    vec![
        "--data-dir=/run/etcd".into(),
        "--unsafe-no-fsync".into(),
        format!("--listen-client-urls={clients}"),
        format!("--advertise-client-urls={clients}"),
        format!("--listen-peer-urls={peers}"),
        format!("--initial-advertise-peer-urls={peers}"),
        format!("--initial-cluster=default={peers}"),
    ]
}

fn api_server(pki: &Path) -> Vec<String> {
    let pki = pki.display();
    vec![
        "--etcd-servers=http://127.0.0.1:2379".into(),
        format!("--bind-address={ROUTER}"),
        format!("--advertise-address={ROUTER}"),
        "--secure-port=6443".into(),
        format!("--service-cluster-ip-range={SERVICE_CIDR}"),
        "--authorization-mode=Node,RBAC".into(),
        "--allow-privileged=true".into(),
        "--profiling=false".into(),
        format!("--tls-cert-file={pki}/apiserver.crt"),
        format!("--tls-private-key-file={pki}/apiserver.key"),
        format!("--client-ca-file={pki}/ca.crt"),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={pki}/service-accounts.pub"),
        format!("--service-account-signing-key-file={pki}/service-accounts.key"),
        format!("--kubelet-client-certificate={pki}/apiserver-kubelet.crt"),
        format!("--kubelet-client-key={pki}/apiserver-kubelet.key"),
        "--kubelet-preferred-address-types=InternalIP".into(),
        format!("--requestheader-client-ca-file={pki}/front-proxy-ca.crt"),
        "--requestheader-allowed-names=front-proxy-client".into(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
        "--requestheader-group-headers=X-Remote-Group".into(),
        "--requestheader-username-headers=X-Remote-User".into(),
        format!("--proxy-client-cert-file={pki}/front-proxy.crt"),
        format!("--proxy-client-key-file={pki}/front-proxy.key"),
    ]
}

/// The API server's flags, with an audit log, and with watches that expire soon.
fn audited(pki: &Path) -> Result<Vec<String>> {
    let policy = pki.join("audit-policy.yaml");
    let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n";
    std::fs::write(&policy, text)?;
    let mut flags = api_server(pki);
    flags.extend([
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", audit_log(pki).display()),
        "--shutdown-delay-duration=0s".into(),
    ]);
    Ok(flags)
}

fn controller_manager(pki: &Path) -> Vec<String> {
    let mut flags = client(pki, "controller-manager");
    let pki = pki.display();
    flags.extend([
        "--use-service-account-credentials=true".into(),
        format!("--root-ca-file={pki}/ca.crt"),
        format!("--service-account-private-key-file={pki}/service-accounts.key"),
        format!("--cluster-signing-cert-file={pki}/ca.crt"),
        format!("--cluster-signing-key-file={pki}/ca.key"),
    ]);
    flags
}

fn client(pki: &Path, name: &str) -> Vec<String> {
    let kubeconfig = pki.join(format!("{name}.kubeconfig"));
    let kubeconfig = kubeconfig.display();
    vec![
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        "--bind-address=127.0.0.1".into(),
        "--leader-elect=false".into(),
    ]
}
