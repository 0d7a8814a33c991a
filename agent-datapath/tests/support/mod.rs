//! What the kernel tests share: a network namespace and a pin directory of one's own.
#![allow(dead_code, reason = "each test program uses some of it")]

pub(crate) mod refuse;

use std::{
    env,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use agent_core::{attachment::Mode, node::Marks};
use agent_datapath::{
    attach::AttachKind,
    bridge::Bridge,
    load::{Datapath, DatapathConfig},
    maps::PodEndpoint,
    network::{MaskedMark, NodeNetwork, ProxyPorts},
    pins::Pins,
};
use agent_ebpf_common::testing;
use aya::util::KernelVersion;
use nix::{
    sched::{CloneFlags, unshare},
    sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrLike, sendto, socket,
    },
};

/// Runs a test in a network namespace of its own, on a thread that ends with it.
///
/// Where that can't be, the test fails in CI and says so elsewhere.
pub(crate) fn in_new_netns(test: impl FnOnce() + Send + 'static) {
    if !nix::unistd::Uid::effective().is_root() {
        let sentence =
            "eBPF tests need root, a bpf file system at /sys/fs/bpf and network namespaces";
        assert!(env::var_os("CI").is_none(), "{sentence}");
        eprintln!("not run: {sentence}");
        return;
    }
    let run = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("make a network namespace");
        run_ip("link set lo up");
        test();
    };
    if let Err(panic) = thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` in the calling thread's network namespace.
pub(crate) fn run_ip(arguments: &str) {
    run("ip", arguments);
}

/// Runs a command in the calling thread's network namespace.
pub(crate) fn run(program: &str, arguments: &str) {
    let status = Command::new(program)
        .args(arguments.split_whitespace())
        .status();
    assert!(status.expect(program).success(), "{program} {arguments}");
}

/// A pin directory that goes with the test.
pub(crate) struct PinDir(PathBuf);

impl PinDir {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        Self(PathBuf::from(format!(
            "/sys/fs/bpf/agent-network-test-{process}-{id}"
        )))
    }

    pub(crate) fn base(&self) -> &Path {
        &self.0
    }

    pub(crate) fn pins(&self) -> Pins {
        Pins::new(&self.0)
    }
}

impl Drop for PinDir {
    fn drop(&mut self) {
        Datapath::remove(&self.pins()).expect("remove the pins");
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// How long to wait on this machine: an emulated one is so many times slower (`cargo xtask kernel-matrix`).
pub(crate) fn patience(limit: Duration) -> Duration {
    let factor = env::var("AGENT_NETWORK_TEST_SLOWDOWN").ok();
    limit * factor.and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// The settings that [`testing`]'s packets are made for.
pub(crate) fn settings() -> DatapathConfig {
    DatapathConfig {
        gateway: Ipv4Addr::from(testing::GATEWAY_IP),
        gateway_mac: testing::GATEWAY_MAC,
        fake_cidrs: vec!["169.254.100.0/24".parse().unwrap()],
        service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
        marks: Marks {
            proxy: testing::PROXY.0,
            proxy_mask: testing::PROXY.1,
            service: testing::SERVICE.0,
            service_mask: testing::SERVICE.1,
        },
        fail_open: false,
        events_per_second: 100,
    }
}

/// The pod of [`testing`]'s packets.
pub(crate) fn pod() -> PodEndpoint {
    PodEndpoint {
        fake_ip: Ipv4Addr::from(testing::POD_IP),
        mac: testing::POD_MAC,
    }
}

/// The index of an interface of the calling thread's network namespace.
pub(crate) fn index_of(name: &str) -> u32 {
    nix::net::if_::if_nametoindex(name).expect(name)
}

/// Makes a veth pair whose ends stay in this namespace, and returns the index of the first.
pub(crate) fn veth(name: &str) -> u32 {
    run_ip(&format!("link add {name} type veth peer name {name}p"));
    run_ip(&format!("link set {name} up"));
    index_of(name)
}

/// How the kernel lets the classifier be attached.
pub(crate) fn expected_kind() -> AttachKind {
    if KernelVersion::current().expect("kernel version") >= KernelVersion::new(6, 6, 0) {
        AttachKind::Tcx
    } else {
        AttachKind::Clsact
    }
}

/// A socket that sends whole frames.
pub(crate) fn packet_socket() -> std::os::fd::OwnedFd {
    socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap()
}

/// Sends a frame out of an interface of the calling thread's network namespace.
#[expect(
    unsafe_code,
    reason = "nix has no constructor for a packet socket's address"
)]
pub(crate) fn send(socket: &std::os::fd::OwnedFd, ifname: &str, frame: &[u8]) {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: 0,
        sll_ifindex: index_of(ifname) as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0; 8],
    };
    // SAFETY: the pointer is to a whole `sockaddr_ll` that says so by its family, and the length is its own.
    let address = unsafe {
        LinkAddr::from_raw(
            (&raw const address).cast(),
            Some(size_of::<libc::sockaddr_ll>() as u32),
        )
    };
    let sent = sendto(
        std::os::fd::AsRawFd::as_raw_fd(socket),
        frame,
        &address.unwrap(),
        MsgFlags::empty(),
    );
    assert_eq!(sent.unwrap(), frame.len());
}

/// The network of a node with the documented marks, tables and ports, whose old kernel settings are kept in `record`.
pub(crate) fn node_network(mode: Mode, record: PathBuf) -> NodeNetwork {
    NodeNetwork {
        mode,
        leaving_other: false,
        service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
        ports: ProxyPorts::default(),
        bridge: Bridge {
            name: "agentcni0".into(),
            mac: [2, 0xa9, 169, 254, 9, 1],
            address: "169.254.9.1/24".parse().unwrap(),
        },
        proxy: MaskedMark {
            value: 0x0a00_0000,
            mask: 0x0f00_0000,
        },
        service: MaskedMark {
            value: 0x77,
            mask: 0xff,
        },
        route_table: 18080,
        rule_pref: 100,
        without_proxy: agent_datapath::network::WithoutProxy::Dropped,
        sensitive: Vec::new(),
        sysctl_record: record,
    }
}
