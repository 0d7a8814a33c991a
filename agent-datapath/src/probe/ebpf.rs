//! The eBPF mode, tried: the real object, the real hooks, a real connection.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
};

use agent_core::attachment::Mode;
use agent_ebpf_common::Reason;
use nix::sys::{
    socket::{
        AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, setsockopt, socket,
        sockopt::IpTransparent,
    },
    statvfs::{FsFlags, statvfs},
};

use super::{
    Failure, FeatureName, Tried, sentence,
    stage::{HOST_VETH, PATIENCE, Stage, WORLD, endpoint, settings},
};
use crate::{
    attach::AttachKind,
    events::DropEvents,
    load::{Datapath, LoadError, pinned::require_bpffs},
    pins::Pins,
    sockets::{Dispatch, SocketClass},
};

/// What is tried here.
pub(super) const FEATURES: [FeatureName; 7] = [
    FeatureName::NodeNetwork,
    FeatureName::Programs,
    FeatureName::Dispatch,
    FeatureName::Classifier,
    FeatureName::Sockets,
    FeatureName::Delivery,
    FeatureName::Events,
];

/// What came out of it.
#[derive(Default)]
pub(super) struct Attempt {
    pub(super) tried: Vec<Tried>,
    pub(super) kind: Option<AttachKind>,
}

/// Looks at the place where the node's pins are or would be; a private file system can stand for everything but this.
pub(super) fn pins_place(base: &Path) -> Result<String, Failure> {
    let pins = Pins::new(base);
    require_bpffs(pins.dir())?;
    let existing = base.ancestors().find(|dir| dir.exists()).unwrap_or(base);
    let flags = statvfs(existing).map_err(io::Error::from)?.flags();
    if flags.contains(FsFlags::ST_RDONLY) {
        return Err(io::Error::from_raw_os_error(libc::EROFS).into());
    }
    Ok(existing.display().to_string())
}

/// Tries everything that doesn't build on something that failed.
pub(super) fn attempt(stage: &Stage) -> Attempt {
    let mut done = Attempt::default();
    let links = stage.links(Mode::Ebpf);
    done.tried.push(Tried::from(
        FeatureName::NodeNetwork,
        &links,
        "bridge, veth, sysctls, policy route, nftables table",
    ));
    let pins = match stage.bpffs() {
        Ok(folder) => Pins::new(&folder),
        Err(error) => {
            done.tried
                .push(Tried::failed(FeatureName::Programs, &error));
            return done;
        }
    };
    let datapath = match Datapath::ensure(&pins, &settings()) {
        Ok(datapath) => datapath,
        Err(error) => {
            done.tried.extend(loading_failed(&error));
            return done;
        }
    };
    done.tried.push(Tried::ok(
        FeatureName::Programs,
        "both programs and all maps load",
    ));
    done.tried
        .push(Tried::ok(FeatureName::Dispatch, "SK_LOOKUP"));
    let Ok(links) = links else {
        return done;
    };
    let attached = datapath
        .attach_pod(HOST_VETH, links.port, &endpoint())
        .map_err(Failure::from);
    done.kind = attached.as_ref().ok().copied();
    let how = match done.kind {
        Some(AttachKind::Tcx) => "TCX",
        Some(AttachKind::Clsact) | None => "clsact filter",
    };
    done.tried
        .push(Tried::from(FeatureName::Classifier, &attached, how));
    let listeners = Listeners::register(&pins);
    done.tried.push(Tried::from(
        FeatureName::Sockets,
        &listeners,
        "TCP and UDP sockets in the socket map",
    ));
    let (Ok(_), Ok(listeners)) = (attached, listeners) else {
        return done;
    };
    let delivered = stage
        .open(links)
        .and_then(|()| deliver(stage, &listeners.proxy));
    done.tried.push(Tried::from(
        FeatureName::Delivery,
        &delivered,
        format!("a connection to {WORLD} arrives as one"),
    ));
    if delivered.is_ok() {
        let told = stage.block_on(drop_event(stage, &pins));
        done.tried.push(Tried::from(
            FeatureName::Events,
            &told,
            "a dropped packet is told",
        ));
    }
    done
}

fn deliver(stage: &Stage, listener: &TcpListener) -> Result<(), Failure> {
    let dialled = stage.connect(listener, WORLD)?.local_addr()?;
    if dialled == SocketAddr::from(WORLD) {
        return Ok(());
    }
    Err(sentence(format!(
        "a connection to {WORLD} arrives as one to {dialled}"
    )))
}

/// A refused load, put down to the step that failed.
fn loading_failed(error: &LoadError) -> Vec<Tried> {
    let step = match error {
        LoadError::Privilege { source, .. } => source,
        other => other,
    };
    let attaching = matches!(
        step,
        LoadError::Program {
            action: "attach",
            ..
        }
    );
    if attaching {
        vec![
            Tried::ok(FeatureName::Programs, "both programs and all maps load"),
            Tried::failed(FeatureName::Dispatch, error),
        ]
    } else {
        vec![Tried::failed(FeatureName::Programs, error)]
    }
}

/// The sockets that a proxy registers, one of each kind.
struct Listeners {
    proxy: TcpListener,
    _dns: OwnedFd,
}

impl Listeners {
    fn register(pins: &Pins) -> Result<Self, Failure> {
        let proxy = transparent(SockType::Stream)?;
        listen(&proxy, Backlog::new(8)?).map_err(io::Error::from)?;
        let dns = transparent(SockType::Datagram)?;
        let mut dispatch = Dispatch::open(pins)?;
        dispatch.register(SocketClass::ProxyTcp, 0, proxy.as_fd())?;
        dispatch.register(SocketClass::DnsUdp, 0, dns.as_fd())?;
        dispatch.set_workers(1)?;
        let proxy = TcpListener::from(proxy);
        proxy.set_nonblocking(true)?;
        Ok(Self { proxy, _dns: dns })
    }
}

fn transparent(kind: SockType) -> io::Result<OwnedFd> {
    let fd = socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, IpTransparent, &true)?;
    bind(fd.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0))?;
    Ok(fd)
}

/// Sends what must be dropped, and waits for the kernel to tell.
async fn drop_event(stage: &Stage, pins: &Pins) -> Result<(), Failure> {
    let mut events = DropEvents::open(pins)?;
    stage.pod.run(|| -> io::Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.send_to(b"probe", (*WORLD.ip(), 443))?;
        Ok(())
    })??;
    let told = tokio::time::timeout(PATIENCE, async {
        loop {
            if events.next().await?.reason == Reason::Udp {
                return Ok::<_, Failure>(());
            }
        }
    });
    told.await
        .map_err(|_| sentence("a dropped packet is not told through the ring buffer"))?
}
