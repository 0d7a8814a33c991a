//! A node of one worker in a network namespace of its own: the parts that the binary builds, on
//! sockets that hear every address on port 53 in place of the kernel's dispatch program.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_core::attachment::{Attachment, Mode, PodRef};
use agent_core::identity::{ClientAddr, OrigDst};
use agent_core::node::NodeState;
use agent_node::audit::AuditSink;
use agent_node::config::{Config, FactsFrom};
use agent_node::context::{Context, WorkerCtx};
use agent_node::credential::CredentialStore;
use agent_node::dns;
use agent_node::drain::Drain;
use agent_node::listener::{Accepted, UdpDns};
use agent_node::metrics::{Counter, Metrics};
use agent_node::node_nets::NodeNetsCell;
use agent_node::node_status::OwnSettings;
use agent_node::policy_store::PolicyStore;
use agent_node::workloads::{FactsFile, Follower, Workloads};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 1);
/// The pod `agents/planner`.
pub(crate) const POD: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 2);
/// The pod `agents/other`.
pub(crate) const OTHER: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 3);
/// Nobody's address in the range.
pub(crate) const STRANGER: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 77);

pub(crate) struct Node {
    pub(crate) context: Arc<Context>,
    dir: TempDir,
}

/// Moves the calling thread, and every thread that it starts from here on, into a new network
/// namespace with loopback up. The namespace goes when they end.
pub(crate) fn own_namespace() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
        .expect("these tests make network namespaces: run them as root (CAP_SYS_ADMIN)");
    run("ip", &["link", "set", "lo", "up"]);
}

/// Runs a program to its end; what it printed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {text}{errors}"
    );
    text
}

/// A policy document for all pods, with an allow rule for each host.
pub(crate) fn allowing(hosts: &[&str]) -> Value {
    let rules: Vec<Value> = hosts
        .iter()
        .enumerate()
        .map(|(n, host)| json!({"policy": 0, "name": format!("r{n}"), "kind": "allow", "host": host}))
        .collect();
    json!({
        "schemaVersion": 1,
        "policies": [{"namespace": "agents", "name": "p", "subjects": {"allNamespaces": true}}],
        "rules": rules,
    })
}

impl Node {
    /// A node in a namespace where every address is local, with `dns` of the configuration.
    pub(crate) fn start(policy: &Value, upstreams: &[SocketAddr], dns: Value) -> Node {
        for pod in [GATEWAY, POD, OTHER, STRANGER] {
            run("ip", &["addr", "add", &format!("{pod}/32"), "dev", "lo"]);
        }
        run("ip", &["route", "add", "local", "default", "dev", "lo"]);
        Node::start_here(policy, upstreams, dns)
    }

    /// A node in a namespace whose links are the test's business.
    pub(crate) fn start_here(policy: &Value, upstreams: &[SocketAddr], mut dns: Value) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("state")).unwrap();
        fs::create_dir(path("credentials")).unwrap();
        let cidr = "169.254.9.0/24".parse().unwrap();
        let state = NodeState::new(cidr, Vec::new(), Mode::Ebpf, "/sys/fs/bpf/none").unwrap();
        fs::write(path("state/node.json"), state.to_json()).unwrap();
        attach(&path("state"), POD, "planner");
        attach(&path("state"), OTHER, "other");
        fs::write(
            path("workloads.json"),
            r#"{"agents/*": {"serviceAccount": "agent"}}"#,
        )
        .unwrap();
        fs::write(path("policy.json"), policy.to_string()).unwrap();
        dns["upstreams"] = upstreams.iter().map(ToString::to_string).collect();
        let config = json!({
            "stateDir": path("state"),
            "pinDir": "/sys/fs/bpf/none",
            "policyFile": path("policy.json"),
            "workloadsFile": path("workloads.json"),
            "credentialsDir": path("credentials"),
            "dns": dns,
            "audit": {"stdout": false, "file": path("audit.log")},
            "identityWaitMs": 100,
            "workers": 1,
        });
        let config = Config::parse(config.to_string().as_bytes()).unwrap();
        Node {
            context: serve(config),
            dir,
        }
    }

    /// Replaces the policy and waits until it is active.
    pub(crate) fn change_policy(&self, policy: &Value) {
        let before = self.context.policy.generation();
        fs::write(self.dir.path().join("policy.json"), policy.to_string()).unwrap();
        until("the new policy is active", || {
            self.context.policy.generation() != before
        });
    }

    /// Deletes the pod at `ip`, as agent-cni's DEL does.
    pub(crate) fn delete(&self, name: &str) {
        fs::remove_file(
            self.dir
                .path()
                .join("state")
                .join(format!("{name}_eth0.json")),
        )
        .unwrap();
    }

    /// The first audit line that `fits`.
    pub(crate) fn audited(&self, fits: impl Fn(&Value) -> bool) -> Value {
        let mut found = None;
        until("the audit line is written", || {
            found = self.audit_lines().into_iter().find(&fits);
            found.is_some()
        });
        found.unwrap()
    }

    /// All audit lines so far.
    pub(crate) fn audit_lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.dir.path().join("audit.log")).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.context.metrics.total(counter)
    }
}

/// Waits up to five seconds for something.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "not within 5 s: {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn attach(state: &Path, fake_ip: Ipv4Addr, name: &str) {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let attachment = Attachment {
        schema_version: 1,
        container_id: name.into(),
        ifname: "eth0".into(),
        netns: "/run/netns/none".into(),
        pod: PodRef {
            namespace: "agents".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
        },
        fake_ip,
        mac: "02:00:00:00:00:02".parse().unwrap(),
        host_veth: "vethx".into(),
        ifindex: 7,
        mode: Mode::Ebpf,
        created: "2026-11-30T00:00:00Z".into(),
        boot_id: boot_id.trim().into(),
    };
    fs::write(state.join(attachment.file_name()), attachment.to_json()).unwrap();
}

/// Builds the context and serves it on a thread of its own, as a worker does.
fn serve(config: Config) -> Arc<Context> {
    let (audit, writer) = AuditSink::start(&config.audit, config.workers).unwrap();
    // The writer's thread lives as long as the test's process.
    std::mem::forget(writer);
    let (nets, _) = NodeNetsCell::new(&config.state_dir, &config.fake_cidrs);
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
        metrics: Metrics::new(config.workers),
        bindings: dns::Bindings::new(),
        nets,
        drain: Drain::new(),
        config,
    });
    let (udp, tcp) = (listener(Type::DGRAM), listener(Type::STREAM));
    let shared = context.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let worker = WorkerCtx::new(shared, 0);
            tokio::task::spawn_local(follower.run());
            let socket = UdpDns {
                socket: udp.into(),
                arrival: agent_node::listener::Arrival::Dispatched,
            };
            tokio::task::spawn_local(dns::serve_udp(worker.clone(), socket));
            let listener = tokio::net::TcpListener::from_std(tcp.into()).unwrap();
            loop {
                let (stream, SocketAddr::V4(peer)) = listener.accept().await.unwrap() else {
                    continue;
                };
                let SocketAddr::V4(dst) = stream.local_addr().unwrap() else {
                    continue;
                };
                let accepted = Accepted {
                    stream,
                    peer: ClientAddr(peer),
                    dst: OrigDst(dst),
                    stay: CancellationToken::new(),
                };
                let served = dns::serve_tcp(worker.clone(), accepted);
                tokio::task::spawn_local(served);
            }
        });
    });
    context
}

/// A transparent socket on port 53 of every address.
fn listener(kind: Type) -> Socket {
    let socket = Socket::new(Domain::IPV4, kind, None).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_ip_transparent_v4(true).unwrap();
    socket
        .bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 53)).into())
        .unwrap();
    if kind == Type::STREAM {
        socket.listen(128).unwrap();
    } else {
        let option = nix::sys::socket::sockopt::Ipv4OrigDstAddr;
        nix::sys::socket::setsockopt(&socket.as_fd(), option, &true).unwrap();
    }
    socket
}

/// Where a program of the node's system is; the pod's namespace sees the same files.
pub(crate) fn which(program: &str) -> PathBuf {
    ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        .iter()
        .map(|folder| Path::new(folder).join(program))
        .find(|path| path.exists())
        .unwrap_or_else(|| {
            panic!(
                "{program} is needed for this test; apt-get install -y bind9-dnsutils dnsmasq-base"
            )
        })
}
