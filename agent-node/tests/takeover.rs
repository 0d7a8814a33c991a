//! The real binary on the real dispatch program, in a network namespace of its own: it waits for
//! the pins, serves through them, and hands over to another process without a refused connection.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot set itself up has failed"
)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use agent_core::attachment::{Attachment, Mode, PodRef, SCHEMA_VERSION};
use agent_core::mac::MacAddr;
use agent_core::node::NodeState;
use agent_datapath::load::{Datapath, DatapathConfig, Marks};
use agent_datapath::pins::Pins;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

const CIDR: &str = "169.254.9.0/24";
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 1);
const POD: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 2);
/// An address that no route but ours leads to (RFC 5737).
const FAR: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 9), 80);
const ADMIN: &str = "127.0.0.1:18080";

struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    /// Moves this thread and its children into namespaces of their own, in which every address is
    /// local, and writes the files of a node with one pod.
    fn new() -> Node {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .expect("these tests make namespaces: run them as root (CAP_SYS_ADMIN)");
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        ip(&["link", "set", "lo", "up"]);
        for address in [GATEWAY, POD] {
            ip(&["addr", "add", &format!("{address}/32"), "dev", "lo"]);
        }
        ip(&["route", "add", "local", "default", "dev", "lo"]);
        let node = Node {
            dir: tempfile::tempdir().unwrap(),
        };
        for folder in ["state", "bpf", "credentials"] {
            std::fs::create_dir(node.path(folder)).unwrap();
        }
        let bpf = node.path("bpf");
        mount(Some("bpf"), &bpf, Some("bpf"), MsFlags::empty(), none).unwrap();
        node.write_files();
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write_files(&self) {
        let pins = self.path("bpf/agent-network");
        let state = NodeState::new(
            CIDR.parse().unwrap(),
            vec![],
            Mode::Ebpf,
            &pins.to_string_lossy(),
        );
        std::fs::write(self.path("state/node.json"), state.unwrap().to_json()).unwrap();
        let pod = attachment();
        std::fs::write(self.path("state").join(pod.file_name()), pod.to_json()).unwrap();
        let policy = json!({"schemaVersion": 1, "policies": [], "rules": []});
        std::fs::write(self.path("policy.json"), policy.to_string()).unwrap();
        let workloads = json!({"demo/*": {"serviceAccount": "agent"}});
        std::fs::write(self.path("workloads.json"), workloads.to_string()).unwrap();
        let config = json!({
            "stateDir": self.path("state"),
            "pinDir": pins,
            "policyFile": self.path("policy.json"),
            "workloadsFile": self.path("workloads.json"),
            "credentialsDir": self.path("credentials"),
            "dns": {"upstreams": ["127.0.0.1:1"]},
            "audit": {"stdout": false, "file": self.path("audit.log")},
            "limits": {"connectionsPerPod": 32},
            "workers": 2,
            "drainSeconds": 5,
        });
        std::fs::write(self.path("config.json"), config.to_string()).unwrap();
    }

    /// What agent-cni's first ADD does about the programs.
    fn load_data_path(&self) {
        let base = self.path("bpf/agent-network");
        let config = DatapathConfig {
            gateway: GATEWAY,
            gateway_mac: [2, 0xa9, 169, 254, 9, 1],
            fake_cidrs: vec![CIDR.parse().unwrap()],
            service_cidrs: vec![],
            marks: Marks {
                proxy: agent_core::node::PROXY_MARK,
                proxy_mask: agent_core::node::PROXY_MARK_MASK,
                service: agent_core::node::SERVICE_MARK,
                service_mask: agent_core::node::SERVICE_MARK_MASK,
            },
            fail_open: false,
            events_per_second: 10,
        };
        Datapath::ensure(&Pins::new(&base), &config).unwrap();
    }

    fn start_proxy(&self, log: &str) -> Proxy {
        let child = Command::new(env!("CARGO_BIN_EXE_agent-node"))
            .arg("zeroproxy")
            .arg("--config")
            .arg(self.path("config.json"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(self.path(log)).unwrap())
            .spawn()
            .unwrap();
        Proxy(child, self.path(log))
    }
}

struct Proxy(Child, PathBuf);

impl Proxy {
    fn logs(&self, text: &str) -> bool {
        std::fs::read_to_string(&self.1).unwrap().contains(text)
    }

    fn terminate(mut self) {
        let pid = i32::try_from(self.0.id()).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
        let status = self.0.wait().unwrap();
        assert_eq!(
            status.code(),
            Some(0),
            "{}",
            std::fs::read_to_string(&self.1).unwrap()
        );
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn attachment() -> Attachment {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    Attachment {
        schema_version: SCHEMA_VERSION,
        container_id: "c1".into(),
        ifname: "eth0".into(),
        netns: "/var/run/netns/none".into(),
        pod: PodRef {
            namespace: "demo".into(),
            name: "a".into(),
            uid: "u1".into(),
        },
        fake_ip: POD,
        mac: MacAddr([2, 0, 0, 0, 0, 2]),
        host_veth: "agve1".into(),
        ifindex: 77,
        mode: Mode::Ebpf,
        created: "2026-11-30T10:34:56.000000Z".into(),
        boot_id: boot_id.trim().into(),
    }
}

fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().unwrap();
    assert!(status.success(), "ip {arguments:?}");
}

fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn admin(path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(ADMIN).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

fn ready() -> bool {
    admin("/readyz").is_some_and(|text| text.starts_with("HTTP/1.1 200"))
}

/// One request of the pod's on a connection of its own: the response's first line.
fn request(path: &str) -> std::io::Result<String> {
    let mut stream = connect(FAR)?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: far.example\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn connect(to: SocketAddrV4) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&SockAddr::from(SocketAddrV4::new(POD, 0)))?;
    socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    socket.connect(&SockAddr::from(to))?;
    Ok(socket.into())
}

#[test]
fn it_waits_for_the_pins_and_then_serves_through_them() {
    let node = Node::new();
    let proxy = node.start_proxy("log");
    until("it is up", || admin("/healthz").is_some());
    assert!(!ready());
    node.load_data_path();
    until("it is ready", ready);
    assert!(proxy.logs("listeners are registered"));
    assert!(request("/").unwrap().starts_with("HTTP/1.1 403"));
    let dns = connect(SocketAddrV4::new(*FAR.ip(), 53)).unwrap();
    assert_eq!(dns.peer_addr().unwrap(), SocketAddr::from((*FAR.ip(), 53)));

    let audit = node.path("audit.log");
    let line = r#""namespace":"demo","name":"a""#;
    until("the decision is audited", || {
        std::fs::read_to_string(&audit).is_ok_and(|text| text.contains(line))
    });
    let metrics = admin("/metrics").unwrap();
    assert!(
        metrics.contains("agent_network_connections_total{class=\"proxy_tcp\"} 1"),
        "{metrics}"
    );
    assert!(metrics.contains("agent_network_ready 1"), "{metrics}");

    // Other maps, as after a data path that was torn down and made anew.
    drop(dns);
    std::fs::remove_dir_all(node.path("bpf/agent-network")).unwrap();
    until("it says that the data path is away", || !ready());
    node.load_data_path();
    until("it is registered again", ready);
    assert!(request("/").unwrap().starts_with("HTTP/1.1 403"));
    proxy.terminate();
}

#[test]
fn a_pod_has_its_share_of_connections_and_no_more() {
    let node = Node::new();
    node.load_data_path();
    let proxy = node.start_proxy("log");
    until("it is ready", ready);
    let held: Vec<TcpStream> = (0..32).map(|_| connect(FAR).unwrap()).collect();
    until("all are accepted", || {
        admin("/metrics")
            .unwrap()
            .contains("connections_open{class=\"proxy_tcp\"} 32")
    });
    let error = request("/").unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        ),
        "{error}"
    );
    until("it is audited", || {
        std::fs::read_to_string(node.path("audit.log"))
            .is_ok_and(|text| text.contains("LIMIT_EXCEEDED"))
    });
    drop(held);
    until("the places are given back", || request("/").is_ok());
    proxy.terminate();
}

#[test]
fn no_connection_is_refused_while_another_process_takes_over() {
    let node = Node::new();
    node.load_data_path();
    let first = node.start_proxy("first");
    until("it is ready", ready);
    let stop = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let load: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| hammer(&stop, &answered)))
            .collect();
        let more = |n: usize| {
            let before = answered.load(Ordering::Acquire);
            until("requests go on", || {
                answered.load(Ordering::Acquire) >= before + n
            });
        };
        more(100);
        let second = node.start_proxy("second");
        until("the second is registered", || {
            second.logs("listeners are registered")
        });
        first.terminate();
        more(100);
        // And without a successor: new handshakes wait for the next process.
        second.terminate();
        let third = node.start_proxy("third");
        more(100);
        stop.store(true, Ordering::Release);
        for thread in load {
            thread.join().unwrap();
        }
        third.terminate();
    });
}

fn hammer(stop: &AtomicBool, answered: &AtomicUsize) {
    while !stop.load(Ordering::Acquire) {
        match request("/") {
            Ok(line) => assert!(line.starts_with("HTTP/1.1 403"), "{line:?}"),
            Err(error) => panic!("a connection was lost: {error}"),
        }
        answered.fetch_add(1, Ordering::AcqRel);
    }
}

#[test]
fn running_out_of_descriptors_pauses_accepting_and_nothing_else() {
    let node = Node::new();
    node.load_data_path();
    let config = std::fs::read_to_string(node.path("config.json")).unwrap();
    let config = config.replace("\"connectionsPerPod\":32", "\"connectionsPerPod\":4096");
    std::fs::write(node.path("config.json"), config).unwrap();
    let proxy = Proxy(
        limited(&node.path("config.json"), &node.path("log")),
        node.path("log"),
    );
    until("it is ready", ready);
    let mut first = connect(FAR).unwrap();
    let held: Vec<TcpStream> = (0..200).map(|_| connect(FAR).unwrap()).collect();
    until("descriptors have run out", || {
        proxy.logs("connections can't be accepted")
    });
    write!(
        first,
        "GET / HTTP/1.1\r\nHost: far.example\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    first.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 403"), "{text}");
    drop(held);
    until("it accepts again", || request("/").is_ok());
    let metrics = admin("/metrics").unwrap();
    assert!(
        !metrics.contains("accept_errors_total{reason=\"emfile\"} 0"),
        "{metrics}"
    );
    proxy.terminate();
}

/// The proxy with room for 120 descriptors.
fn limited(config: &Path, log: &Path) -> Child {
    Command::new("sh")
        .arg("-c")
        .arg("ulimit -n 120; exec \"$0\" zeroproxy --config \"$1\"")
        .arg(env!("CARGO_BIN_EXE_agent-node"))
        .arg(config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(log).unwrap())
        .spawn()
        .unwrap()
}
