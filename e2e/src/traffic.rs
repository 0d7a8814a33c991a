//! Many connections at once: a server that tells each client which address it reached, and a client that dials any
//! number of addresses from a pod, from source ports of its own choice if it likes. Plain blocking sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};

use crate::place::{Place, enter_network};

/// How long a client waits for its line.
const PATIENCE: Duration = Duration::from_secs(20);

/// Listens on some ports of every address of its place; tells each connection the address and port it reached, and
/// holds it open.
pub struct AddressServer {
    stop: Arc<AtomicBool>,
    accepted: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl AddressServer {
    /// Starts it.
    ///
    /// # Errors
    /// When a port can't be bound.
    pub fn start(place: &Place, ports: &[u16]) -> Result<AddressServer> {
        let listeners = place.on_network(|| {
            ports
                .iter()
                .map(|p| Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, *p))?))
                .collect::<Result<Vec<_>>>()
        })?;
        let stop = Arc::new(AtomicBool::new(false));
        let accepted = Arc::new(AtomicUsize::new(0));
        let threads = listeners
            .into_iter()
            .map(|listener| {
                let (stop, accepted) = (stop.clone(), accepted.clone());
                std::thread::spawn(move || tell(&listener, &stop, &accepted))
            })
            .collect();
        Ok(AddressServer {
            stop,
            accepted,
            threads,
        })
    }

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for AddressServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn tell(listener: &TcpListener, stop: &AtomicBool, accepted: &AtomicUsize) {
    let mut held = Vec::new();
    if listener.set_nonblocking(true).is_err() {
        return;
    }
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((mut stream, _)) => {
                accepted.fetch_add(1, Ordering::Relaxed);
                if let Ok(here) = stream.local_addr() {
                    let _ = stream.write_all(format!("{here}\n").as_bytes());
                }
                held.push(stream);
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// One connection's outcome.
pub struct Dialled {
    /// The address that was dialled.
    pub target: SocketAddrV4,
    /// The line that came back, or why none did.
    pub line: Result<String>,
    /// The open connection.
    pub stream: Option<TcpStream>,
}

/// Dials every target from `place` on `threads` threads, then reads a line from each; all stay open meanwhile.
///
/// # Errors
/// When the place can't be entered.
pub fn dial_all(place: &Place, targets: &[SocketAddrV4], threads: usize) -> Result<Vec<Dialled>> {
    let share = targets.len().div_ceil(threads.max(1)).max(1);
    let opened: Vec<(SocketAddrV4, Result<TcpStream>)> = std::thread::scope(|s| {
        let workers: Vec<_> = targets
            .chunks(share)
            .map(|chunk| {
                s.spawn(move || -> Result<Vec<_>> {
                    enter_network(place.netns())?;
                    Ok(chunk.iter().map(|t| (*t, open(*t, None))).collect())
                })
            })
            .collect();
        let mut all = Vec::new();
        for worker in workers {
            all.extend(
                worker
                    .join()
                    .map_err(|_| anyhow::anyhow!("a client thread panicked"))??,
            );
        }
        Ok::<_, anyhow::Error>(all)
    })?;
    Ok(opened
        .into_iter()
        .map(|(target, stream)| hear(target, stream))
        .collect())
}

/// Dials one target from a source port of choice; `SO_REUSEADDR` is set, so that a port can serve several
/// destinations and be used again while an old connection of it lingers.
///
/// # Errors
/// When the place can't be entered.
pub fn dial_from(place: &Place, source: SocketAddrV4, target: SocketAddrV4) -> Result<Dialled> {
    place.on_network(|| Ok(hear(target, open(target, Some(source)))))
}

fn open(target: SocketAddrV4, source: Option<SocketAddrV4>) -> Result<TcpStream> {
    let mut stream = match source {
        None => TcpStream::connect_timeout(&SocketAddr::V4(target), PATIENCE)?,
        Some(source) => connect_from(source, target)?,
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    // not a byte that any known protocol starts with: the proxy sees plain TCP at once
    stream.write_all(b"\x01\n")?;
    Ok(stream)
}

fn connect_from(source: SocketAddrV4, target: SocketAddrV4) -> Result<TcpStream> {
    let fd: OwnedFd = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    bind(fd.as_raw_fd(), &SockaddrIn::from(source)).with_context(|| format!("bind {source}"))?;
    connect(fd.as_raw_fd(), &SockaddrIn::from(target))
        .with_context(|| format!("connect {target}"))?;
    Ok(TcpStream::from(fd))
}

fn hear(target: SocketAddrV4, stream: Result<TcpStream>) -> Dialled {
    let heard = stream.and_then(|stream| {
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        Ok((line.trim().to_owned(), stream))
    });
    match heard {
        Ok((line, stream)) => Dialled {
            target,
            line: Ok(line),
            stream: Some(stream),
        },
        Err(error) => Dialled {
            target,
            line: Err(error),
            stream: None,
        },
    }
}

/// An HTTP server that swallows request bodies and answers how many bytes they had.
pub struct Sink {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sink {
    /// Starts it on `port` of every address of `place`.
    ///
    /// # Errors
    /// When the port can't be bound.
    pub fn start(place: &Place, port: u16) -> Result<Sink> {
        let listener =
            place.on_network(|| Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?))?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        std::thread::spawn(move || swallow(stream));
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Ok(Sink {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers every datagram with `pong`.
pub struct Pong {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pong {
    /// Starts it on one address and port of `place`.
    ///
    /// # Errors
    /// When the port can't be bound.
    pub fn start(place: &Place, address: SocketAddrV4) -> Result<Pong> {
        let socket = place.on_network(|| Ok(UdpSocket::bind(address)?))?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut buffer = [0u8; 2048];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((_, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(b"pong", from);
                }
            }
        });
        Ok(Pong {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Pong {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn swallow(stream: TcpStream) -> Result<()> {
    stream.set_nonblocking(false)?;
    let mut reader = BufReader::with_capacity(256 * 1024, stream.try_clone()?);
    let mut length = 0u64;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        if line.is_empty() {
            break;
        }
    }
    let got = std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
    let body = format!("received {got}\n");
    let mut stream = stream;
    stream.write_all(
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .as_bytes(),
    )?;
    Ok(())
}
