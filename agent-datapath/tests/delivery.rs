//! Real packets of a pod, from its interface to the listeners that are registered for it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use agent_datapath::{
    debug_log::DebugLogReader,
    events::DropEvents,
    load::{Datapath, DatapathConfig, DebugLog},
    maps::PodEndpoint,
    pins::Pins,
    sockets::{Dispatch, SocketClass},
};
use agent_ebpf_common::Reason;
use nix::{
    sched::{CloneFlags, setns, unshare},
    sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, setsockopt, socket,
        sockopt::IpTransparent,
    },
};
use support::{PinDir, in_new_netns, index_of, patience, run_ip, settings};

const POD: &str = "169.254.100.2";
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 100, 1);
const WORLD: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 9), 80);
const POD_MAC: &str = "02:00:00:00:00:02";
const BRIDGE_MAC: &str = "02:00:00:00:00:01";
/// Long enough for a busy machine, short enough to wait for what must not come.
fn short() -> Duration {
    patience(Duration::from_millis(700))
}

/// A node of one pod. The calling thread is in the node's network namespace.
struct Node {
    pins: Pins,
    datapath: Datapath,
    pod: std::fs::File,
    ifindex: u32,
}

impl Node {
    fn new(pins: Pins, config: &DatapathConfig) -> Self {
        run_ip("link add agentcni0 type bridge");
        run_ip(&format!("link set agentcni0 address {BRIDGE_MAC} up"));
        run_ip(&format!("addr add {GATEWAY}/24 dev agentcni0"));
        let (pod, thread_id) = new_netns();
        run_ip(&format!(
            "link add pod0 type veth peer name eth0 address {POD_MAC} netns {thread_id}"
        ));
        run_ip("link set pod0 master agentcni0");
        run_ip("link set pod0 type bridge_slave isolated on");
        let ifindex = index_of("pod0");
        let datapath = Datapath::ensure(&pins, config).unwrap();
        let endpoint = PodEndpoint {
            fake_ip: POD.parse().unwrap(),
            mac: [2, 0, 0, 0, 0, 2],
        };
        datapath.attach_pod("pod0", ifindex, &endpoint).unwrap();
        run_ip("link set pod0 up");
        run_ip("rule add pref 100 iif agentcni0 fwmark 0x0a000000/0x0f000000 lookup 18080");
        run_ip("route add local 0.0.0.0/0 dev lo table 18080");
        let node = Self {
            pins,
            datapath,
            pod,
            ifindex,
        };
        node.in_pod(|| {
            run_ip("link set lo up");
            run_ip("link set eth0 up");
            run_ip(&format!("addr add {POD}/32 dev eth0"));
            run_ip(&format!("route add {GATEWAY} dev eth0 scope link"));
            run_ip(&format!("route add default via {GATEWAY}"));
        });
        node
    }

    /// Runs something in the pod's network namespace.
    fn in_pod<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let run = || {
                setns(&self.pod, CloneFlags::CLONE_NEWNET).expect("enter the pod");
                what()
            };
            scope.spawn(run).join().expect("in the pod")
        })
    }

    fn count(&self, reason: Reason) -> u64 {
        let rows = self.datapath.counters().unwrap();
        rows.iter()
            .filter(|row| row.reason == reason)
            .map(|row| row.packets)
            .sum()
    }
}

/// A network namespace, and a thread that is in it for as long as a link is moved there.
fn new_netns() -> (std::fs::File, i32) {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("make a network namespace");
        let file = std::fs::File::open("/proc/thread-self/ns/net").expect("open it");
        send.send((file, nix::unistd::gettid().as_raw()))
            .expect("hand it over");
        thread::sleep(patience(Duration::from_secs(5)));
    });
    receive.recv().expect("network namespace")
}

fn transparent(kind: SockType) -> std::os::fd::OwnedFd {
    let fd = socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&fd, IpTransparent, &true).unwrap();
    bind(
        std::os::fd::AsRawFd::as_raw_fd(&fd),
        &SockaddrIn::new(127, 0, 0, 1, 0),
    )
    .unwrap();
    fd
}

fn tcp_listener() -> TcpListener {
    let fd = transparent(SockType::Stream);
    listen(&fd, Backlog::new(128).unwrap()).unwrap();
    let listener = TcpListener::from(fd);
    listener.set_nonblocking(true).unwrap();
    listener
}

fn udp_socket() -> UdpSocket {
    let socket = UdpSocket::from(transparent(SockType::Datagram));
    socket
        .set_read_timeout(Some(patience(Duration::from_secs(5))))
        .unwrap();
    socket
}

/// Accepts one connection, and says what address was dialled.
fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    let deadline = Instant::now() + patience(Duration::from_secs(5));
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let dialled = stream.local_addr().unwrap();
                return (stream, dialled);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("accept: {error}"),
        }
    }
}

fn connect(to: SocketAddrV4) -> std::io::Result<TcpStream> {
    TcpStream::connect_timeout(&to.into(), short())
}

#[test]
fn tcp_to_an_unrouted_address_reaches_the_listener_with_that_address() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let node = Node::new(dir.pins(), &settings());
        let listener = tcp_listener();
        let mut dispatch = Dispatch::open(&node.pins).unwrap();
        dispatch
            .register(SocketClass::ProxyTcp, 0, listener.as_fd())
            .unwrap();
        dispatch.set_workers(1).unwrap();
        let mut client = node.in_pod(|| connect(WORLD)).unwrap();
        let (mut server, dialled) = accept(&listener);
        assert_eq!(dialled, SocketAddr::from(WORLD));
        assert_eq!(
            server.peer_addr().unwrap().ip(),
            POD.parse::<Ipv4Addr>().unwrap()
        );
        client.write_all(b"ping").unwrap();
        let mut buffer = [0; 4];
        server.read_exact(&mut buffer).unwrap();
        server.write_all(&buffer).unwrap();
        client.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"ping");
        assert!(node.count(Reason::Proxied) >= 3);
    });
}

#[test]
fn dns_over_udp_and_tcp_has_listeners_of_its_own() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let node = Node::new(dir.pins(), &settings());
        let (proxy, dns_tcp, dns_udp) = (tcp_listener(), tcp_listener(), udp_socket());
        let mut dispatch = Dispatch::open(&node.pins).unwrap();
        dispatch
            .register(SocketClass::ProxyTcp, 0, proxy.as_fd())
            .unwrap();
        dispatch
            .register(SocketClass::DnsTcp, 0, dns_tcp.as_fd())
            .unwrap();
        dispatch
            .register(SocketClass::DnsUdp, 0, dns_udp.as_fd())
            .unwrap();
        dispatch.set_workers(1).unwrap();
        // to the cluster's DNS in the Service CIDR, to the world, and to the gateway
        for server in ["10.96.0.10", "8.8.8.8", "169.254.100.1"] {
            let address: SocketAddrV4 = format!("{server}:53").parse().unwrap();
            let _client = node.in_pod(|| connect(address)).unwrap();
            assert_eq!(accept(&dns_tcp).1, SocketAddr::from(address));
            node.in_pod(|| {
                UdpSocket::bind("0.0.0.0:0")
                    .unwrap()
                    .send_to(b"query", address)
                    .unwrap();
            });
            let mut buffer = [0; 16];
            let (len, from) = dns_udp.recv_from(&mut buffer).unwrap();
            assert_eq!(
                (&buffer[..len], from.ip().to_string().as_str()),
                (&b"query"[..], POD)
            );
        }
        assert_eq!(proxy.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

/// Also the node's own server on all addresses must not get what is meant for the proxy. The kernel can't answer for
/// an address that is not the node's, so such a connection is dropped, and one to the gateway refused.
#[test]
fn without_a_listener_nothing_connects_and_a_closed_listener_leaves_the_map() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let node = Node::new(dir.pins(), &settings());
        let own = TcpListener::bind("0.0.0.0:80").unwrap();
        own.set_nonblocking(true).unwrap();
        let gateway = SocketAddrV4::new(GATEWAY, 80);
        let failure = |to| node.in_pod(|| connect(to)).unwrap_err().kind();
        assert_eq!(failure(gateway), ErrorKind::ConnectionRefused);
        assert_eq!(failure(WORLD), ErrorKind::TimedOut);
        let listener = tcp_listener();
        let mut dispatch = Dispatch::open(&node.pins).unwrap();
        dispatch
            .register(SocketClass::ProxyTcp, 0, listener.as_fd())
            .unwrap();
        dispatch.set_workers(1).unwrap();
        node.in_pod(|| (connect(WORLD).unwrap(), connect(gateway).unwrap()));
        drop(listener);
        assert_eq!(failure(gateway), ErrorKind::ConnectionRefused);
        assert_eq!(failure(WORLD), ErrorKind::TimedOut);
        assert_eq!(own.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn fail_open_passes_connections_to_the_nodes_own_server() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let node = Node::new(
            dir.pins(),
            &DatapathConfig {
                fail_open: true,
                ..settings()
            },
        );
        let own = TcpListener::bind("0.0.0.0:80").unwrap();
        own.set_nonblocking(true).unwrap();
        let _client = node
            .in_pod(|| connect(SocketAddrV4::new(GATEWAY, 80)))
            .unwrap();
        accept(&own);
    });
}

#[test]
fn a_new_listener_takes_over_without_a_refused_connection() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let node = Node::new(dir.pins(), &settings());
        let mut dispatch = Dispatch::open(&node.pins).unwrap();
        let mut current = tcp_listener();
        dispatch
            .register(SocketClass::ProxyTcp, 0, current.as_fd())
            .unwrap();
        dispatch.set_workers(1).unwrap();
        for _ in 0..20 {
            let before = node.in_pod(|| connect(WORLD)).unwrap();
            let next = tcp_listener();
            dispatch
                .register(SocketClass::ProxyTcp, 0, next.as_fd())
                .unwrap();
            accept(&current);
            let old = std::mem::replace(&mut current, next);
            drop((old, before));
            let _after = node.in_pod(|| connect(WORLD)).unwrap();
            accept(&current);
        }
    });
}

#[test]
fn connections_spread_over_all_workers() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let node = Node::new(dir.pins(), &settings());
        let listeners: Vec<_> = (0..4).map(|_| tcp_listener()).collect();
        let mut dispatch = Dispatch::open(&node.pins).unwrap();
        for (worker, listener) in listeners.iter().enumerate() {
            dispatch
                .register(SocketClass::ProxyTcp, worker as u16, listener.as_fd())
                .unwrap();
        }
        dispatch.set_workers(4).unwrap();
        assert!(dispatch.set_workers(0).is_err() && dispatch.set_workers(17).is_err());
        let _clients: Vec<_> = node.in_pod(|| (0..100).map(|_| connect(WORLD).unwrap()).collect());
        for listener in &listeners {
            let mut accepted = 0;
            while listener.accept().is_ok() {
                accepted += 1;
            }
            assert!((8..60).contains(&accepted), "{accepted} of 100");
        }
    });
}

#[test]
fn drops_are_told_at_a_limited_rate() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let node = Node::new(
            dir.pins(),
            &DatapathConfig {
                events_per_second: 5,
                ..settings()
            },
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut events = DropEvents::open(&node.pins).unwrap();
            // the pod's own IPv6 chatter comes first, and may have used up this second
            tokio::time::sleep(Duration::from_millis(1_100)).await;
            node.in_pod(|| {
                let socket = UdpSocket::bind("0.0.0.0:40123").unwrap();
                for _ in 0..50 {
                    socket.send_to(b"quic", "203.0.113.9:443").unwrap();
                }
            });
            let mut quic = 0;
            loop {
                let Ok(event) = tokio::time::timeout(short(), events.next()).await else {
                    break;
                };
                let event = event.unwrap();
                if event.reason != Reason::Udp {
                    continue;
                }
                assert_eq!(
                    (event.ifindex, event.proto, event.len),
                    (node.ifindex, 17, 46)
                );
                assert_eq!((event.sport, event.dport), (40_123, 443));
                assert_eq!(event.src.unwrap().to_string(), POD);
                assert_eq!(event.dst.unwrap().to_string(), "203.0.113.9");
                assert!(event.time.elapsed().unwrap() < patience(Duration::from_secs(5)));
                quic += 1;
            }
            assert!((1..=10).contains(&quic), "{quic} events");
            assert_eq!(node.count(Reason::Udp), 50, "all are counted");
        });
    });
}

#[test]
fn debug_log_tells_of_drops_when_it_is_switched_on() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let node = Node::new(dir.pins(), &settings());
        let quic = || {
            node.in_pod(|| {
                UdpSocket::bind("0.0.0.0:40123")
                    .unwrap()
                    .send_to(b"quic", "203.0.113.9:443")
            })
            .unwrap();
        };
        quic(); // not logged
        Datapath::ensure_with(&node.pins, &settings(), DebugLog::Drops).unwrap();
        let written = Written::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .with_writer(written.clone())
            .finish();
        let _default = tracing::subscriber::set_default(subscriber);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut log = DebugLogReader::open(&node.pins).unwrap();
            quic();
            let line = "169.254.100.2:40123 -> 203.0.113.9:443 proto=17";
            while written.text().matches(line).count() != 1 {
                tokio::time::timeout(short(), log.forward())
                    .await
                    .expect(line)
                    .unwrap();
            }
        });
    });
}

/// Keeps what a subscriber writes.
#[derive(Clone, Default)]
struct Written(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl Written {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for Written {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[test]
fn frames_with_a_vlan_tag_are_dropped() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let node = Node::new(dir.pins(), &settings());
        node.in_pod(|| {
            let mut frame = agent_ebpf_common::testing::tcp([203, 0, 113, 9], 80, 2);
            frame.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
            send_raw("eth0", &frame);
        });
        let deadline = Instant::now() + patience(Duration::from_secs(5));
        while node.count(Reason::Vlan) != 1 {
            assert!(Instant::now() < deadline, "{:?}", node.datapath.counters());
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(node.count(Reason::Proxied), 0);
    });
}

/// Sends a frame as it is.
fn send_raw(interface: &str, frame: &[u8]) {
    use nix::libc;
    let fd = socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: 0,
        sll_ifindex: index_of(interface) as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [2, 0, 0, 0, 0, 1, 0, 0],
    };
    // SAFETY: buffer and address are whole and outlive the call.
    #[expect(unsafe_code, reason = "nix makes no address for a packet socket")]
    let sent = unsafe {
        libc::sendto(
            std::os::fd::AsRawFd::as_raw_fd(&fd),
            frame.as_ptr().cast(),
            frame.len(),
            0,
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as u32,
        )
    };
    assert_eq!(
        sent,
        frame.len() as isize,
        "{}",
        std::io::Error::last_os_error()
    );
}
