//! The throw-away node: namespaces of one thread, in which things are tried.
//!
//! Owns that nothing outlives the attempt. Namespaces, links, rules, mounts, maps and programs have no name outside and
//! no owner but the thread, so the kernel removes them when it ends, also when the process is killed.

use std::{
    fs,
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream},
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use agent_core::{
    attachment::Mode,
    node::{BRIDGE, Marks, ROUTE_TABLE, RULE_PREFERENCE},
};
use ipnet::Ipv4Net;
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};

use super::{Failure, sentence};
use crate::{
    bridge::{self, Bridge},
    error::NetError,
    link::{self, PodLink, PodSide},
    load::DatapathConfig,
    maps::PodEndpoint,
    netns::Netns,
    network::{self, MaskedMark, NodeNetwork, ProxyPorts},
    rtnl::Rtnl,
};

/// Present wherever sysfs is mounted, and nothing below it is needed here: a file system of our own covers it.
const SCRATCH: &str = "/sys/fs";
/// Where iptables keeps its lock; a private one, so that the node's is neither taken nor made.
const RUN: &str = "/run";

/// Documentation addresses (RFC 5737): the stage has no way to where they might be used.
pub(super) const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const POD: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const POD_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const POOL: Ipv4Net = Ipv4Net::new_assert(GATEWAY, 24);
const SERVICES: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(198, 51, 100, 0), 24);
/// An address that is nobody's.
pub(super) const WORLD: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 9), 80);
/// Long enough for an emulated machine; what works takes milliseconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
pub(super) const HOST_VETH: &str = "probe0";
const MTU: u32 = 1500;

/// The stage, from inside.
pub(super) struct Stage {
    /// The pod's network namespace; the node's is the calling thread's.
    pub(super) pod: Netns,
    runtime: tokio::runtime::Runtime,
}

/// The stage could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}")]
pub(super) struct StageError {
    action: &'static str,
    #[source]
    source: io::Error,
}

fn failed<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> StageError {
    move |error| StageError {
        action,
        source: error.into(),
    }
}

/// Runs `work` on a thread that is in namespaces of its own and ends with them.
pub(super) fn on_a_throw_away_node<T: Send>(
    work: impl FnOnce(&Stage) -> T + Send,
) -> Result<T, StageError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("probe".into())
            .spawn_scoped(scope, || Stage::new().map(|stage| work(&stage)))
            .map_err(failed("start a thread"))?;
        thread.join().unwrap_or_else(|_| {
            Err(failed("try things")(io::Error::other(
                "the thread panicked",
            )))
        })
    })
}

impl Stage {
    fn new() -> Result<Self, StageError> {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
            .map_err(failed("make network and mount namespaces"))?;
        let none = None::<&str>;
        // nothing that is mounted here is seen outside
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
            .map_err(failed("keep mounts private"))?;
        mount_at("tmpfs", Path::new(SCRATCH)).map_err(failed("mount a scratch folder"))?;
        if Path::new(RUN).exists() {
            mount_at("tmpfs", Path::new(RUN)).map_err(failed("mount a scratch folder"))?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed("start an event loop"))?;
        let pod = new_netns()?;
        Ok(Self { pod, runtime })
    }

    /// Runs asynchronous work in the node's namespace.
    pub(super) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// An empty folder of this name, on a file system of our own.
    pub(super) fn folder(&self, name: &str) -> io::Result<std::path::PathBuf> {
        let path = Path::new(SCRATCH).join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// A new bpf file system.
    pub(super) fn bpffs(&self) -> io::Result<std::path::PathBuf> {
        let path = self.folder("bpf")?;
        mount_at("bpf", &path)?;
        Ok(path)
    }

    /// What the node's network must be.
    pub(super) fn network(&self, mode: Mode) -> Result<NodeNetwork, io::Error> {
        let marks = Marks::default();
        Ok(NodeNetwork {
            mode,
            leaving_other: false,
            bridge: Bridge {
                name: BRIDGE.into(),
                mac: GATEWAY_MAC,
                address: POOL,
            },
            proxy: MaskedMark {
                value: marks.proxy,
                mask: marks.proxy_mask,
            },
            service: MaskedMark {
                value: marks.service,
                mask: marks.service_mask,
            },
            service_cidrs: settings().service_cidrs,
            ports: ProxyPorts::default(),
            route_table: ROUTE_TABLE,
            rule_pref: RULE_PREFERENCE,
            without_proxy: crate::network::WithoutProxy::Dropped,
            sensitive: Vec::new(),
            sysctl_record: self.folder("record")?.join("sysctl.json"),
        })
    }

    /// Sets the node's network up, with a pod's link that is closed.
    pub(super) fn links(&self, mode: Mode) -> Result<Links, Failure> {
        let network = self.network(mode)?;
        self.block_on(async {
            let bridge = network::try_node(&network).await?;
            let rtnl = Rtnl::connect()?;
            let port = self.pod_link(&rtnl).await?;
            Ok(Links { bridge, port })
        })
    }

    /// Configures the pod and opens its link, as an ADD does after the pod is controlled.
    pub(super) fn open(&self, links: Links) -> Result<(), Failure> {
        self.block_on(async {
            let rtnl = Rtnl::connect()?;
            Ok(self.open_pod(&rtnl, links.bridge, links.port).await?)
        })
    }

    /// Connects from the pod, and returns what the listener gets.
    pub(super) fn connect(
        &self,
        listener: &TcpListener,
        to: SocketAddrV4,
    ) -> Result<TcpStream, Failure> {
        let client = self
            .pod
            .run(|| TcpStream::connect_timeout(&to.into(), PATIENCE))?;
        let _client = client.map_err(|error| {
            sentence(format!(
                "a connection from the pod to {to} does not arrive: {error}"
            ))
        })?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match listener.accept() {
                Ok((accepted, _)) => return Ok(accepted),
                Err(error)
                    if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline =>
                {
                    thread::sleep(Duration::from_millis(2));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn pod_link(&self, rtnl: &Rtnl) -> Result<u32, NetError> {
        let pair = PodLink {
            host_name: HOST_VETH,
            pod_name: "eth0",
            pod_mac: POD_MAC,
            mtu: MTU,
            netns: &self.pod,
        };
        link::create_pod_link(rtnl, &pair).await
    }

    async fn open_pod(&self, rtnl: &Rtnl, bridge: u32, port: u32) -> Result<(), NetError> {
        bridge::add_port(rtnl, bridge, port, HOST_VETH).await?;
        bridge::announce(rtnl, bridge, port, POD, POD_MAC).await?;
        let side = PodSide {
            ifname: "eth0".into(),
            mac: POD_MAC,
            address: POD,
            gateway: GATEWAY,
            gateway_mac: GATEWAY_MAC,
            mtu: MTU,
        };
        self.pod
            .run_async(|| async move { link::configure_pod_side(&side).await })?;
        link::set_up(rtnl, port, HOST_VETH).await
    }
}

/// The indexes of the bridge and of the node's end of the pod's link.
#[derive(Clone, Copy)]
pub(super) struct Links {
    bridge: u32,
    pub(super) port: u32,
}

/// What the data path is told.
pub(super) fn settings() -> DatapathConfig {
    DatapathConfig {
        gateway: GATEWAY,
        gateway_mac: GATEWAY_MAC,
        fake_cidrs: vec![POOL.trunc()],
        service_cidrs: vec![SERVICES],
        marks: Marks::default(),
        fail_open: false,
        events_per_second: 100,
    }
}

/// What the pod is held to.
pub(super) fn endpoint() -> PodEndpoint {
    PodEndpoint {
        fake_ip: POD,
        mac: POD_MAC,
    }
}

fn mount_at(kind: &str, path: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    Ok(mount(Some(kind), path, Some(kind), flags, None::<&str>)?)
}

/// A network namespace that lives as long as what is returned.
fn new_netns() -> Result<Netns, StageError> {
    let (send, receive) = mpsc::channel();
    thread::Builder::new()
        .name("probe-pod".into())
        .spawn(move || {
            let made = unshare(CloneFlags::CLONE_NEWNET)
                .map_err(failed("make the pod's network namespace"))
                .and_then(|()| {
                    Netns::open(Path::new("/proc/thread-self/ns/net")).map_err(|error| {
                        failed("open the pod's network namespace")(io::Error::other(error))
                    })
                });
            // nobody to tell means nobody waits
            let _ = send.send(made);
        })
        .map_err(failed("start a thread"))?;
    receive
        .recv()
        .map_err(|error| failed("make the pod's network namespace")(io::Error::other(error)))?
}
