//! The controller, and ZeroProxy as the API server knows it, where there are no kubelets: pods whose status is written
//! here, and ConfigMaps that are projected here.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{ApiServer, Kubectl, eventually};
use crate::machine::program;
use crate::place::Place;
use crate::process::Process;

pub mod simulated;

/// The system namespace.
pub const SYSTEM: &str = "tke-agent-network-real";
/// The port of `adminListen`.
pub const ADMIN_PORT: u16 = 18081;
/// What the controller shows to proxies; no secret, as this is a test.
pub const RELOAD_TOKEN: &str = "reload-token-of-a-test";

const CRDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../chart/crds");

/// Installs the definitions, the system namespace and what a pod needs to be accepted.
///
/// # Errors
/// When the API server refuses.
pub fn prepare(server: &ApiServer) -> Result<()> {
    let kubectl = server.kubectl();
    kubectl
        .run(&["apply", "--server-side", "-f", CRDS])?
        .success()?;
    for plural in ["agentnetworkpolicies", "agentnetworkclasses"] {
        let name = format!("crd/{plural}.agent.tke.cloud.tencent.com");
        kubectl
            .run(&[
                "wait",
                "--for=condition=Established",
                "--timeout=30s",
                &name,
            ])?
            .success()?;
    }
    kubectl.run(&["create", "namespace", SYSTEM])?.success()?;
    // the controller manager's work
    kubectl
        .run(&["-n", SYSTEM, "create", "serviceaccount", "default"])?
        .success()?;
    fs::write(server.dir().join("reload-token"), RELOAD_TOKEN)?;
    Ok(())
}

/// A kubeconfig of a service account of the system namespace, which a file in `chart/files/` makes.
///
/// # Errors
/// When the account isn't there.
pub fn service_account(server: &ApiServer, name: &str) -> Result<PathBuf> {
    let line = ["-n", SYSTEM, "create", "token", name, "--duration=2h"];
    let token = server.kubectl().run(&line)?.success()?.stdout;
    let admin = fs::read_to_string(server.kubeconfig("admin"))?;
    let kept: Vec<&str> = admin.lines().filter(|l| !l.starts_with("users:")).collect();
    let users = format!("users: [{{name: u, user: {{token: {}}}}}]", token.trim());
    let file = server.dir().join(format!("{name}.kubeconfig"));
    fs::write(&file, format!("{}\n{users}\n", kept.join("\n")))?;
    Ok(file)
}

/// A running controller.
pub struct Controller {
    process: Process,
    port: u16,
    place: Place,
}

impl Controller {
    /// Starts one as the user of `kubeconfig`, with its health endpoints on `port`.
    ///
    /// # Errors
    /// When it isn't built or doesn't start.
    pub fn start(
        server: &ApiServer,
        kubeconfig: &Path,
        port: u16,
        flags: &[&str],
    ) -> Result<Controller> {
        let place = server.place();
        let program = program("agent-controller")?.to_string_lossy().into_owned();
        let kubeconfig = kubeconfig.to_string_lossy().into_owned();
        let token = server
            .dir()
            .join("reload-token")
            .to_string_lossy()
            .into_owned();
        let listen = format!("127.0.0.1:{port}");
        let name = format!("controller-{port}");
        let mut line = vec![&*program, "run", "--listen", &listen, "--identity", &name];
        line.extend(["--reload-token-file", &token]);
        line.extend(flags);
        let env = [
            ("KUBECONFIG", &*kubeconfig),
            (
                "AGENT_CONTROLLER_LOG",
                "debug,hyper=info,rustls=info,tower=info",
            ),
        ];
        let process = place.spawn(&name, &line, &env)?;
        Ok(Controller {
            process,
            port,
            place,
        })
    }

    /// Waits until it knows the cluster.
    ///
    /// # Errors
    /// When it isn't ready in time; the message has its log.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        eventually("the controller is ready", Duration::from_secs(30), || {
            anyhow::ensure!(self.process.is_running(), "it ended");
            self.get("/readyz").map(|_| ())
        })
        .with_context(|| self.process.log_text())
    }

    /// What an endpoint answers.
    ///
    /// # Errors
    /// When the status is 400 or more, or nothing answers.
    pub fn get(&self, path: &str) -> Result<String> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let line = ["curl", "-sS", "--fail-with-body", "--max-time", "5", &url];
        Ok(self.place.run(&line)?.success()?.stdout)
    }

    /// The sum of a metric's samples with all of `labels` (as written, such as `object="status"`).
    ///
    /// # Errors
    /// When the endpoint doesn't answer.
    pub fn metric(&self, name: &str, labels: &[&str]) -> Result<f64> {
        let text = self.get("/metrics")?;
        let samples = text.lines().filter(|line| {
            line.strip_prefix("agent_network_controller_")
                .and_then(|line| line.strip_prefix(name))
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label))
        });
        let values = samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.sum())
    }

    /// All that it wrote to the API server.
    ///
    /// # Errors
    /// As [`Controller::metric`].
    pub fn writes(&self) -> Result<f64> {
        let of = |object: &str| self.metric("api_writes_total", &[&format!("object=\"{object}\"")]);
        Ok(of("configmap")? + of("status")? + of("event")?)
    }

    /// Its log.
    pub fn log(&self) -> String {
        self.process.log_text()
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When it is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Stops it, and returns its exit code.
    ///
    /// # Errors
    /// When it doesn't end.
    pub fn stop(self, signal: Signal) -> Result<i32> {
        self.process.stop(signal, Duration::from_secs(20))
    }
}

/// Projects our ConfigMaps into folders as kubelets do, from a watch.
pub struct Projection {
    shared: Arc<Projected>,
    thread: Option<JoinHandle<()>>,
}

/// What the folders have to hold, and which they are.
#[derive(Default)]
struct Projected {
    folders: Mutex<Vec<PathBuf>>,
    version: Mutex<String>,
    delay_ms: AtomicU64,
    stop: AtomicBool,
}

impl Projection {
    /// Begins to follow `server`'s ConfigMaps.
    ///
    /// # Errors
    /// When `kubectl` can't be started.
    pub fn start(server: &ApiServer) -> Result<Projection> {
        let shared = Arc::new(Projected::default());
        let (thread_shared, kubectl) = (shared.clone(), server.kubectl().clone());
        let thread = std::thread::spawn(move || {
            let mut runs = 0;
            while !thread_shared.stop.load(Ordering::Relaxed) {
                runs += 1;
                // it ends with the API server, and is tried again
                let _ = follow(&kubectl, runs, &thread_shared);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Ok(Projection {
            shared,
            thread: Some(thread),
        })
    }

    /// Another folder that is a node's projected volume.
    pub fn add(&self, folder: &Path) {
        lock(&self.shared.folders).push(folder.to_owned());
    }

    /// How long a change takes from the API server to the folders.
    pub fn delay(&self, delay: Duration) {
        let ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.shared.delay_ms.store(ms, Ordering::Relaxed);
    }

    /// The version of the document that is projected.
    pub fn version(&self) -> String {
        lock(&self.shared.version).clone()
    }

    /// The same, for simulated proxies.
    pub(crate) fn version_now(&self) -> impl Fn() -> String + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || lock(&shared.version).clone()
    }
}

impl Drop for Projection {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic in it was printed.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One `kubectl get --watch`, to its end.
fn follow(kubectl: &Kubectl, run: u32, shared: &Projected) -> Result<()> {
    let mut watch = kubectl.spawn(
        &format!("projection-{run}"),
        &[
            "-n",
            SYSTEM,
            "get",
            "configmaps",
            "--watch",
            "--output-watch-events",
            "-o",
            "json",
            "-l",
            "app.kubernetes.io/managed-by=agent-network-controller",
        ],
    )?;
    let mut maps: BTreeMap<String, String> = BTreeMap::new();
    let mut read = 0;
    let mut due: Option<Instant> = None;
    let mut folders = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        let text = fs::read(watch.log_path())?;
        let mut events = serde_json::Deserializer::from_slice(&text[read..]).into_iter::<Value>();
        let mut changed = false;
        while let Some(Ok(event)) = events.next() {
            let name = event["object"]["metadata"]["name"]
                .as_str()
                .unwrap_or_default();
            let key = match name {
                "agent-network-nodes" => "nodes.json",
                policy if policy.starts_with("agent-network-policy") => "policy.json",
                _ => continue,
            };
            changed = true;
            match event["object"]["data"][key].as_str() {
                Some(text) if event["type"] != "DELETED" => {
                    maps.insert(name.to_owned(), text.to_owned());
                }
                _ => {
                    maps.remove(name);
                }
            }
        }
        read += events.byte_offset();
        if changed {
            let delay = Duration::from_millis(shared.delay_ms.load(Ordering::Relaxed));
            due = Some(due.unwrap_or_else(|| Instant::now() + delay));
        }
        let known = lock(&shared.folders).len();
        let another = std::mem::replace(&mut folders, known) != known;
        if due.is_some_and(|due| Instant::now() >= due) || (another && !maps.is_empty()) {
            due = None;
            project(&maps, shared)?;
        }
        if !changed && due.is_none() && !watch.is_running() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(15));
    }
    watch.stop(Signal::SIGKILL, Duration::from_secs(5))?;
    Ok(())
}

/// Swaps every folder's `..data`, as kubelet does.
fn project(maps: &BTreeMap<String, String>, shared: &Projected) -> Result<()> {
    static TIME: AtomicU64 = AtomicU64::new(0);
    let time = format!("..{}", TIME.fetch_add(1, Ordering::Relaxed));
    for folder in lock(&shared.folders).iter() {
        let volume = folder.join(&time);
        fs::create_dir_all(&volume)?;
        for (map, text) in maps {
            let name = format!("{}.json", map.trim_start_matches("agent-network-"));
            fs::write(volume.join(&name), text)?;
            let link = folder.join(&name);
            if !link.is_symlink() {
                symlink(Path::new("..data").join(&name), link)?;
            }
        }
        let old = fs::read_link(folder.join("..data"));
        let staged = folder.join("..data_tmp");
        symlink(&time, &staged)?;
        fs::rename(&staged, folder.join("..data"))?;
        if let Ok(old) = old {
            fs::remove_dir_all(folder.join(old))?;
        }
    }
    let first = maps
        .get("agent-network-policy")
        .map_or("{}", String::as_str);
    let document: Value = serde_json::from_str(first)?;
    *lock(&shared.version) = document["version"].as_str().unwrap_or_default().to_owned();
    Ok(())
}

/// A real ZeroProxy on an address of its own; pods' traffic doesn't reach it.
pub struct RealProxy {
    /// The process.
    pub process: Process,
    address: String,
    folder: PathBuf,
    place: Place,
}

impl RealProxy {
    /// Starts number `n` (1 to 50), whose policy is projected by `projection`.
    ///
    /// # Errors
    /// When it isn't built or doesn't start.
    pub fn start(server: &ApiServer, projection: &Projection, n: u16) -> Result<RealProxy> {
        let place = server.place();
        let address = address(n);
        add_addresses(&place, std::slice::from_ref(&address))?;
        let folder = server.dir().join(format!("proxy-{n}"));
        fs::create_dir_all(folder.join("policy"))?;
        fs::create_dir_all(folder.join("credentials/zeroproxy-credentials"))?;
        fs::create_dir_all(folder.join("state"))?;
        fs::write(folder.join("workloads.json"), "{}")?;
        projection.add(&folder.join("policy"));
        let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let config = json!({
            "policyFile": file("policy/policy.json"), "workloadsFile": file("workloads.json"),
            "credentialsDir": file("credentials"), "stateDir": file("state"),
            "pinDir": "/sys/fs/bpf/agent-network-none",
            "listen": format!("127.0.0.1:{}", 20000 + n), "dns": {"listen": format!("127.0.0.1:{}", 21000 + n), "upstreams": ["127.0.0.1"]},
            "adminListen": format!("{address}:{ADMIN_PORT}"),
            "reloadTokenFile": server.dir().join("reload-token"), "workers": 1, "drainSeconds": 1,
        });
        fs::write(folder.join("zeroproxy.json"), config.to_string())?;
        let process = spawn(&place, &folder, n)?;
        Ok(RealProxy {
            process,
            address,
            folder,
            place,
        })
    }

    /// The file of a credential that it reads.
    pub fn credential(&self, key: &str) -> PathBuf {
        self.folder
            .join("credentials/zeroproxy-credentials")
            .join(key)
    }

    /// The version that it enforces, as it says itself.
    ///
    /// # Errors
    /// When it doesn't answer.
    pub fn version(&self) -> Result<String> {
        let url = format!("http://{}:{ADMIN_PORT}/policy/version", self.address);
        let answer = self
            .place
            .run(&["curl", "-sS", "-f", "-m", "5", &url])?
            .success()?;
        let body: Value = serde_json::from_str(&answer.stdout)?;
        Ok(body["version"].as_str().unwrap_or_default().to_owned())
    }

    /// What `/reload` answers to a token: the HTTP status.
    ///
    /// # Errors
    /// When it doesn't answer.
    pub fn reload_status(&self, token: &str) -> Result<String> {
        let url = format!("http://{}:{ADMIN_PORT}/reload", self.address);
        let header = format!("Authorization: Bearer {token}");
        let line = [
            "curl",
            "-sS",
            "-m",
            "5",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
        ];
        let line = [
            &line[..],
            &[
                "-X",
                "POST",
                "-H",
                &header,
                "-d",
                "{\"version\":\"x\"}",
                &url,
            ],
        ]
        .concat();
        Ok(self.place.run(&line)?.success()?.stdout)
    }
}

fn spawn(place: &Place, folder: &Path, n: u16) -> Result<Process> {
    let program = program("agent-node")?.to_string_lossy().into_owned();
    let config = folder.join("zeroproxy.json").to_string_lossy().into_owned();
    let line = [&*program, "zeroproxy", "--config", &config];
    place.spawn(
        &format!("zeroproxy-{n}"),
        &line,
        &[("AGENT_NODE_LOG", "info")],
    )
}

/// The address of proxy `n`.
pub fn address(n: u16) -> String {
    format!("10.231.{}.{}", 1 + n / 200, 1 + n % 200)
}

/// Gives the control plane's world further addresses.
pub(crate) fn add_addresses(place: &Place, addresses: &[String]) -> Result<()> {
    let lines: Vec<String> = addresses
        .iter()
        .map(|address| format!("addr replace {address}/32 dev br0\n"))
        .collect();
    let script = lines.concat();
    place
        .run_with(&["ip", "-batch", "-"], &[], script.as_bytes(), 30)?
        .success()?;
    Ok(())
}

/// Tells the API server of the pods of proxies: each on a node of its own, ready.
///
/// # Errors
/// When it refuses.
pub fn announce(server: &ApiServer, proxies: impl IntoIterator<Item = u16>) -> Result<()> {
    let proxies: Vec<u16> = proxies.into_iter().collect();
    let items: Vec<Value> = proxies
        .iter()
        .map(|n| pod(&pod_name(*n), &format!("node-{n}")))
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    server.kubectl().apply(&list.to_string())?;
    set_ready(server, proxies, true)
}

/// Tells the API server of the pod of one more proxy: on `node`, with this address, ready.
///
/// # Errors
/// When it refuses.
pub fn announce_on(server: &ApiServer, node: &str, address: &str) -> Result<()> {
    let name = format!("zeroproxy-on-{node}");
    server.kubectl().apply(&pod(&name, node).to_string())?;
    say_ready(server, [(name, address.to_owned())], true)
}

/// Says of pods that they are ready, or not.
///
/// # Errors
/// When the API server refuses.
pub fn set_ready(
    server: &ApiServer,
    proxies: impl IntoIterator<Item = u16>,
    ready: bool,
) -> Result<()> {
    let pods = proxies.into_iter().map(|n| (pod_name(n), address(n)));
    say_ready(server, pods, ready)
}

fn say_ready(
    server: &ApiServer,
    pods: impl IntoIterator<Item = (String, String)>,
    ready: bool,
) -> Result<()> {
    let base = format!(
        "https://{}:6443/api/v1/namespaces/{SYSTEM}/pods",
        super::ROUTER
    );
    let pki = server.kubeconfig("admin");
    let pki = pki.parent().context("no folder")?.display();
    let certificates =
        format!("cacert = {pki}/ca.crt\ncert = {pki}/admin.crt\nkey = {pki}/admin.key\n");
    let calls: Vec<String> = pods
        .into_iter()
        .map(|(name, address)| {
            let status = json!({"status": {
                "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            }});
            let data = status.to_string().replace('"', "\\\"");
            format!(
                "url = {base}/{name}/status\n{certificates}request = PATCH\nheader = \"Content-Type: application/merge-patch+json\"\n\
                 data = \"{data}\"\noutput = /dev/null\nfail\nsilent\nshow-error\n"
            )
        })
        .collect();
    let config = calls.join("next\n");
    let line = ["curl", "--config", "-"];
    server
        .place()
        .run_with(&line, &[], config.as_bytes(), 60)?
        .success()?;
    Ok(())
}

fn pod_name(n: u16) -> String {
    format!("zeroproxy-{n}")
}

fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": SYSTEM,
            "labels": {"app.kubernetes.io/component": "zeroproxy"},
        },
        "spec": {
            "nodeName": node, "automountServiceAccountToken": false,
            "containers": [{"name": "zeroproxy", "image": "none.example.com/none:1"}],
        },
    })
}
