//! Who listens on the ports that ZeroProxy needs, from `/proc/net` and the processes' descriptors.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// The documented ports.
pub(crate) const PROXY_PORT: u16 = 18080;
/// Of the DNS proxy, UDP and TCP.
pub(crate) const DNS_PORT: u16 = 18053;

/// A TCP socket that listens, or a UDP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listener {
    /// `tcp` or `udp`.
    pub(crate) protocol: &'static str,
    /// Its address.
    pub(crate) address: IpAddr,
    /// Its port.
    pub(crate) port: u16,
    /// What names it among the processes' descriptors.
    pub(crate) inode: u64,
    /// The process that has it, where that can be seen (not from a pod without the host's PIDs).
    pub(crate) owner: Option<String>,
}

/// Those of [`PROXY_PORT`] and [`DNS_PORT`].
///
/// # Errors
/// The kernel's list cannot be read.
pub(crate) fn look() -> io::Result<Vec<Listener>> {
    let mut found = Vec::new();
    for (file, protocol) in [
        ("tcp", "tcp"),
        ("tcp6", "tcp"),
        ("udp", "udp"),
        ("udp6", "udp"),
    ] {
        match fs::read_to_string(format!("/proc/thread-self/net/{file}")) {
            Ok(text) => found.extend(parse(&text, protocol)),
            // IPv6 that is switched off altogether
            Err(error) if error.kind() == io::ErrorKind::NotFound && file.ends_with('6') => {}
            Err(error) => return Err(error),
        }
    }
    found.retain(|one| one.port == PROXY_PORT || one.port == DNS_PORT);
    owners(&mut found);
    Ok(found)
}

/// Whether anybody listens on the TCP port, at whatever address.
///
/// # Errors
/// The kernel's list cannot be read.
pub(crate) fn is_there(port: u16) -> io::Result<bool> {
    let text = fs::read_to_string("/proc/thread-self/net/tcp")?;
    Ok(parse(&text, "tcp").iter().any(|one| one.port == port))
}

/// The lines of `/proc/net/tcp` and its relatives.
fn parse(text: &str, protocol: &'static str) -> Vec<Listener> {
    const LISTEN: &str = "0A";
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, port) = fields.get(1)?.split_once(':')?;
        if protocol == "tcp" && fields.get(3) != Some(&LISTEN) {
            return None;
        }
        Some(Listener {
            protocol,
            address: address_of(address)?,
            port: u16::from_str_radix(port, 16).ok()?,
            inode: fields.get(9)?.parse().ok()?,
            owner: None,
        })
    };
    text.lines().skip(1).filter_map(line).collect()
}

/// Words of 32 bits in the machine's order.
fn address_of(text: &str) -> Option<IpAddr> {
    let mut bytes = Vec::new();
    for at in (0..text.len()).step_by(8) {
        let word = u32::from_str_radix(text.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes)
            .ok()
            .map(|b| Ipv4Addr::from(b).into()),
        16 => <[u8; 16]>::try_from(bytes)
            .ok()
            .map(|b| IpAddr::from(Ipv6Addr::from(b)).to_canonical()),
        _ => None,
    }
}

/// Finds the processes that have the sockets; those that cannot be looked at have none.
fn owners(listeners: &mut [Listener]) {
    if listeners.is_empty() {
        return;
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let path = process.path();
        let Ok(descriptors) = fs::read_dir(path.join("fd")) else {
            continue;
        };
        for descriptor in descriptors.flatten() {
            let Ok(target) = fs::read_link(descriptor.path()) else {
                continue;
            };
            let target = target.to_string_lossy();
            let inode = target
                .strip_prefix("socket:[")
                .and_then(|rest| rest.strip_suffix(']'))
                .and_then(|inode| inode.parse::<u64>().ok());
            for listener in listeners.iter_mut().filter(|one| Some(one.inode) == inode) {
                listener.owner = fs::read_to_string(path.join("comm"))
                    .ok()
                    .map(|name| name.trim().to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:46A0 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1234 1 0000000000000000 100 0 0 10 0
   1: 0100007F:46A0 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 99 1 0000000000000000 20 4 30 10 -1
   2: garbage";
    const UDP6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  1: 00000000000000000000000000000000:4685 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 77 2 0000000000000000 0";

    #[test]
    fn listeners_are_read_and_connections_are_not() {
        let found = parse(TCP, "tcp");
        assert_eq!(
            found,
            [Listener {
                protocol: "tcp",
                address: Ipv4Addr::LOCALHOST.into(),
                port: PROXY_PORT,
                inode: 1234,
                owner: None
            }]
        );
        let found = parse(UDP6, "udp");
        assert_eq!(
            (found[0].address, found[0].port),
            (Ipv6Addr::UNSPECIFIED.into(), DNS_PORT)
        );
    }

    #[test]
    fn a_mapped_address_is_the_one_it_maps() {
        assert_eq!(
            address_of("0000000000000000FFFF00000100007F"),
            Some(Ipv4Addr::LOCALHOST.into())
        );
        for text in ["", "01", "zzzzzzzz", "0100007F01"] {
            assert_eq!(address_of(text), None, "{text}");
        }
    }
}
