//! A proxy on loopback sockets: what a pod dials and where it dials from are arguments of
//! `serve_connection`, so everything but the kernel's data path is the real thing.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use agent_core::attachment::Mode;
use agent_core::identity::{ClientAddr, OrigDst};
use agent_core::node::NodeState;
use agent_node::audit::{AuditSink, AuditWriter};
use agent_node::config::{Config, FactsFrom};
use agent_node::context::{Context, WorkerCtx};
use agent_node::credential::CredentialStore;
use agent_node::dns::Bindings;
use agent_node::drain::Drain;
use agent_node::listener::Accepted;
use agent_node::metrics::Metrics;
use agent_node::node_nets::{NodeNetsCell, NodeNetsReader};
use agent_node::node_status::OwnSettings;
use agent_node::policy_store::PolicyStore;
use agent_node::workloads::{FactsFile, Follower, Workloads};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// The one pod that the node knows.
pub const POD: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 2);
/// What the pod dials unless a test says otherwise: nothing is there.
pub const DIALLED: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 9), 80);
pub const SECRET: &str = "canary-5f1c0ffee";
const PATIENCE: Duration = Duration::from_secs(10);

/// One node's proxy worker.
pub struct Node {
    pub worker: Rc<WorkerCtx>,
    pub follower: std::cell::RefCell<Follower>,
    nets: std::cell::RefCell<NodeNetsReader>,
    dir: tempfile::TempDir,
    _writer: AuditWriter,
}

/// A policy document with one policy and these rules.
pub fn policy(rules: &Value) -> Value {
    policy_in("enforce", rules)
}

pub fn policy_in(mode: &str, rules: &Value) -> Value {
    let mut rules = rules.clone();
    for rule in rules.as_array_mut().unwrap() {
        rule["policy"] = json!(0);
    }
    json!({
        "schemaVersion": 1,
        "policies": [{
            "namespace": "agents", "name": "p", "mode": mode,
            "subjects": {"allNamespaces": true},
        }],
        "rules": rules,
    })
}

/// Fixed upstreams: every name leads to its port on loopback.
pub fn upstreams(names: &[(&str, SocketAddr)]) -> Value {
    let entries = names.iter().map(|(name, address)| {
        let value = json!({"addresses": [address.ip().to_string()], "port": address.port()});
        ((*name).to_owned(), value)
    });
    json!({ "upstreams": entries.collect::<serde_json::Map<_, _>>() })
}

fn merge(into: &mut Value, from: &Value) {
    for (key, value) in from.as_object().unwrap() {
        match into.get_mut(key) {
            Some(Value::Object(_)) if value.is_object() => merge(&mut into[key], value),
            _ => into[key] = value.clone(),
        }
    }
}

impl Node {
    pub fn new(policy: &Value, config: &Value) -> Node {
        Node::build(policy, config, "")
    }

    /// A node in a namespace of its own, in which `foreign` is not taken for the node's address.
    pub fn with_foreign_address(policy: &Value, config: &Value, foreign: &str) -> Node {
        Node::build(policy, config, foreign)
    }

    fn build(policy: &Value, config: &Value, foreign: &str) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(path("state")).unwrap();
        std::fs::create_dir_all(path("credentials/repo")).unwrap();
        std::fs::write(path("credentials/repo/token"), format!("{SECRET}\n")).unwrap();
        std::fs::write(path("policy.json"), policy.to_string()).unwrap();
        let facts = json!({"agents/planner-0": {"serviceAccount": "planner", "labels": {}}});
        std::fs::write(path("workloads.json"), facts.to_string()).unwrap();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let attachment = json!({
            "schemaVersion": 1, "containerId": "c1", "ifname": "eth0", "netns": "/run/netns/c1",
            "pod": {"namespace": "agents", "name": "planner-0", "uid": "u1"},
            "fakeIp": POD.to_string(), "mac": "02:00:00:00:00:02", "hostVeth": "agv1",
            "ifindex": 7, "mode": "ebpf", "created": "2026-11-30T10:00:00Z", "bootId": boot.trim(),
        });
        std::fs::write(path("state/c1_eth0.json"), attachment.to_string()).unwrap();
        let mut file = json!({
            "stateDir": path("state"), "policyFile": path("policy.json"),
            "workloadsFile": path("workloads.json"), "credentialsDir": path("credentials"),
            "audit": {"stdout": false, "file": path("audit.log")},
            "dns": {"upstreams": ["127.0.0.1:9"]},
            "fakeCidrs": ["169.254.9.0/24"],
            "recheckSeconds": 0.1,
            "identityWaitMs": 50,
            "limits": {"firstByteTimeoutMs": 200},
            "workers": 1,
        });
        merge(&mut file, config);
        let config = Config::parse(file.to_string().as_bytes()).unwrap();
        let (audit, writer) = AuditSink::start(&config.audit, 1).unwrap();
        let ip = |verb: &str| {
            let args = ["address", verb, foreign, "dev", "lo"];
            assert!(
                std::process::Command::new("ip")
                    .args(args)
                    .status()
                    .unwrap()
                    .success()
            );
        };
        if !foreign.is_empty() {
            ip("del");
        }
        let (nets, reader) = NodeNetsCell::new(&config.state_dir, &config.fake_cidrs);
        if !foreign.is_empty() {
            ip("add");
        }
        let workloads = Workloads::new(config.identity_wait);
        let FactsFrom::File(file) = &config.facts else {
            panic!("no workloads file")
        };
        let facts = Box::new(FactsFile::new(file));
        let follower = Follower::start(&workloads, &config.state_dir, facts);
        let context = Arc::new(Context {
            policy: PolicyStore::follow(&config.policy_file, OwnSettings::of(&config)).unwrap(),
            workloads,
            cluster: None,
            credentials: CredentialStore::start(&config.credentials_dir).unwrap(),
            audit,
            metrics: Metrics::new(1),
            bindings: Bindings::new(),
            nets,
            drain: Drain::new(),
            config,
        });
        assert!(
            context.workloads.known(POD).is_some(),
            "the pod is not known"
        );
        assert!(
            context.policy.status().problem.is_none(),
            "{:?}",
            context.policy.status()
        );
        Node {
            worker: WorkerCtx::new(context, 0),
            follower: std::cell::RefCell::new(follower),
            nets: std::cell::RefCell::new(reader),
            dir,
            _writer: writer,
        }
    }

    /// The pod's end of a connection that it made to `dst`.
    pub async fn dial(&self, dst: SocketAddrV4) -> TcpStream {
        self.dial_from(POD, dst).await
    }

    /// As `agent-cni` does when the node goes into this mode.
    pub fn set_mode(&self, mode: Mode) {
        let cidr = "169.254.9.0/24".parse().unwrap();
        let state = NodeState::new(cidr, vec![], mode, "/sys/fs/bpf/agent-network").unwrap();
        let text = serde_json::to_vec(&state).unwrap();
        std::fs::write(self.path("state/node.json"), text).unwrap();
        self.nets.borrow_mut().refresh(&self.worker.shared.nets);
    }

    pub async fn dial_from(&self, pod: Ipv4Addr, dst: SocketAddrV4) -> TcpStream {
        self.dial_by(Mode::Ebpf, pod, dst).await
    }

    /// A connection that this mode brings.
    pub async fn dial_by(&self, mode: Mode, pod: Ipv4Addr, dst: SocketAddrV4) -> TcpStream {
        let (outside, inside) = pair().await;
        let peer = ClientAddr(SocketAddrV4::new(pod, 40000));
        tokio::task::spawn_local(agent_node::proxy::serve_connection(
            self.worker.clone(),
            Accepted {
                stream: inside,
                peer,
                dst: OrigDst(dst),
                stay: self.worker.shared.nets.stay(mode),
            },
        ));
        outside
    }

    /// Sends `bytes` on a new connection and reads one response.
    pub async fn ask(&self, bytes: &str) -> Reply {
        let mut pod = self.dial(DIALLED).await;
        pod.write_all(bytes.as_bytes()).await.unwrap();
        Reply::read(&mut pod).await
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub async fn set_policy(&self, policy: &Value) {
        std::fs::write(self.path("policy.json"), policy.to_string()).unwrap();
        self.worker.shared.policy.check_now().await;
    }

    /// The audit lines once there are `n`.
    pub async fn audit(&self, n: usize) -> Vec<Value> {
        let mut lines = Vec::new();
        for _ in 0..200 {
            let text = std::fs::read_to_string(self.path("audit.log")).unwrap_or_default();
            lines = text
                .lines()
                .map(|l| serde_json::from_str(l).unwrap())
                .collect();
            if lines.len() >= n {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(lines.len() >= n, "{} of {n} lines: {lines:#?}", lines.len());
        lines
    }
}

pub async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (b, _) = listener.accept().await.unwrap();
    a.set_nodelay(true).unwrap();
    b.set_nodelay(true).unwrap();
    (a, b)
}

/// Runs a test on a worker's kind of runtime, with a limit in time.
pub async fn local(test: impl Future<Output = ()>) {
    let set = tokio::task::LocalSet::new();
    timeout(Duration::from_secs(40), set.run_until(test))
        .await
        .expect("the test hangs");
}

/// An upstream whose every connection is served by `serve`.
pub async fn upstream<F, S>(serve: S) -> SocketAddr
where
    S: Fn(TcpStream) -> F + 'static,
    F: Future<Output = ()> + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            tokio::task::spawn_local(serve(stream));
        }
    });
    address
}

/// An upstream that answers every request with the bytes of its head, and keeps the connection.
pub async fn echo() -> SocketAddr {
    upstream(|mut stream| async move {
        let mut held = Vec::new();
        while let Some(head) = read_head(&mut stream, &mut held).await {
            let body = read_body(&mut stream, &mut held, &head).await;
            let text = format!("{head}{}", String::from_utf8_lossy(&body));
            let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
            if stream.write_all((reply + &text).as_bytes()).await.is_err() {
                return;
            }
        }
    })
    .await
}

/// Reads a request head with its empty line.
pub async fn read_head(stream: &mut TcpStream, held: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(at) = held.windows(4).position(|w| w == b"\r\n\r\n") {
            let head = held.drain(..at + 4).collect();
            return Some(String::from_utf8(head).unwrap());
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return None,
            Ok(n) => held.extend_from_slice(&piece[..n]),
        }
    }
}

pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

async fn fill(stream: &mut TcpStream, held: &mut Vec<u8>, n: usize) {
    while held.len() < n {
        let mut piece = [0; 16384];
        let got = stream.read(&mut piece).await.unwrap();
        assert!(
            got > 0,
            "ended early, with {:?}",
            String::from_utf8_lossy(held)
        );
        held.extend_from_slice(&piece[..got]);
    }
}

pub async fn read_body(stream: &mut TcpStream, held: &mut Vec<u8>, head: &str) -> Vec<u8> {
    if header(head, "transfer-encoding").is_some() {
        let mut body = Vec::new();
        loop {
            let end = loop {
                if let Some(at) = held.windows(2).position(|w| w == b"\r\n") {
                    break at;
                }
                let n = held.len() + 1;
                fill(stream, held, n).await;
            };
            let line: Vec<u8> = held.drain(..end + 2).collect();
            let size =
                usize::from_str_radix(std::str::from_utf8(&line[..end]).unwrap(), 16).unwrap();
            if size == 0 {
                // Trailers, then an empty line.
                loop {
                    if let Some(at) = held.windows(2).position(|w| w == b"\r\n") {
                        let line: Vec<u8> = held.drain(..at + 2).collect();
                        if line.len() == 2 {
                            return body;
                        }
                        body.extend_from_slice(b"|trailer ");
                        body.extend_from_slice(&line[..at]);
                    } else {
                        let n = held.len() + 1;
                        fill(stream, held, n).await;
                    }
                }
            }
            fill(stream, held, size + 2).await;
            body.extend(held.drain(..size));
            held.drain(..2);
        }
    }
    let n = header(head, "content-length").map_or(0, |v| v.parse().unwrap());
    fill(stream, held, n).await;
    held.drain(..n).collect()
}

/// A response as the pod gets it.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub async fn read(stream: &mut TcpStream) -> Reply {
        Reply::read_held(stream, &mut Vec::new()).await
    }

    pub async fn read_held(stream: &mut TcpStream, held: &mut Vec<u8>) -> Reply {
        timeout(PATIENCE, async {
            let head = read_head(stream, held).await.expect("no response");
            let body = read_body(stream, held, &head).await;
            Reply {
                status: head.split(' ').nth(1).unwrap().parse().unwrap(),
                body: String::from_utf8(body).unwrap(),
                head,
            }
        })
        .await
        .expect("no response in time")
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// Reads to the end; an error is how a reset shows.
pub async fn read_to_end(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut all))
        .await
        .expect("the stream does not end")?;
    Ok(all)
}
