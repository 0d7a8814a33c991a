//! Drop events of the iptables-compat mode: what the rules of the table `bridge agent_network` log (NFLOG).
//!
//! Source: `linux/netfilter/nfnetlink_log.h`. One listener per group: a second one is refused.

use std::{
    collections::VecDeque,
    io,
    time::{Duration, SystemTime},
};

use agent_ebpf_common::{
    Reason,
    abi::Ipv4Bytes,
    packet::{ETHERNET_LEN, ETHERTYPE_IPV4, Packet, parse},
};
use netlink_sys::{
    AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket, protocols::NETLINK_NETFILTER,
};

use crate::{
    compat::LOG_GROUP,
    events::Drop,
    nft::{
        encode::{Attributes, NLM_F_ACK, framed},
        socket::{attribute, bodies},
        text,
    },
};

/// `NFNL_SUBSYS_ULOG`.
const SUBSYSTEM: u16 = 4;
/// `NFULNL_MSG_PACKET`.
const PACKET: u16 = SUBSYSTEM << 8;
/// `NFULNL_MSG_CONFIG`.
const CONFIG: u16 = (SUBSYSTEM << 8) | 1;
// `enum nfulnl_attr_config`
const CONFIG_COMMAND: u16 = 1;
const CONFIG_MODE: u16 = 2;
const CONFIG_THRESHOLD: u16 = 5;
/// `NFULNL_CFG_CMD_BIND`.
const BIND: u8 = 1;
/// `NFULNL_COPY_PACKET`.
const COPY_PACKET: u8 = 2;
// `enum nfulnl_attr_type`
const TIMESTAMP: u16 = 3;
const INTERFACE: u16 = 4;
const PORT: u16 = 6;
const PAYLOAD: u16 = 9;
const PREFIX: u16 = 10;
const VLAN: u16 = 20;
const LINK_HEADER: u16 = 21;

/// The listening end of the group.
pub(crate) struct DropLog {
    socket: TokioSocket,
    waiting: VecDeque<Drop>,
}

impl DropLog {
    /// Listens to the group in the calling thread's network namespace.
    ///
    /// # Errors
    /// EBUSY when somebody else does; EPERM without CAP_NET_ADMIN.
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
        let inner = socket.socket_mut();
        inner.bind_auto()?;
        inner.connect(&SocketAddr::new(0, 0))?;
        inner.set_non_blocking(false)?;
        for (sequence, settings) in [
            Attributes::default().push(CONFIG_COMMAND, &[BIND]),
            Attributes::default().push(CONFIG_MODE, &copy_all()),
            // each packet at once, instead of a hundred at a time
            Attributes::default().u32(CONFIG_THRESHOLD, 1),
        ]
        .into_iter()
        .enumerate()
        {
            let request = framed(
                CONFIG,
                NLM_F_ACK,
                u32::try_from(sequence).unwrap_or_default(),
                0,
                LOG_GROUP,
                settings.bytes(),
            );
            inner.send(&request, 0)?;
            acknowledged(inner)?;
        }
        inner.set_non_blocking(true)?;
        Ok(Self {
            socket,
            waiting: VecDeque::new(),
        })
    }

    /// Waits for the next event. Cancel safe: no event is lost.
    ///
    /// # Errors
    /// When the socket can't be waited on.
    pub(crate) async fn next(&mut self) -> io::Result<Drop> {
        loop {
            if let Some(drop) = self.waiting.pop_front() {
                return Ok(drop);
            }
            match self.socket.recv_from_full().await {
                Ok((datagram, _)) => self.take_in(&datagram),
                // the kernel had more than fits: what is lost is counted by the rules all the same
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn take_in(&mut self, datagram: &[u8]) {
        let now = SystemTime::now();
        self.waiting.extend(
            bodies(datagram)
                .filter(|(kind, _)| *kind == PACKET)
                .filter_map(|(_, body)| event(body, now)),
        );
    }
}

/// The settings of `struct nfulnl_msg_config_mode`: as much as the rule says.
fn copy_all() -> [u8; 6] {
    [0, 0, 0xff, 0xff, COPY_PACKET, 0]
}

/// Reads the kernel's answer to a request; packets that come before it are passed over.
fn acknowledged(socket: &netlink_sys::Socket) -> io::Result<()> {
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        if let Some(answer) = crate::nft::socket::answer(&datagram) {
            return answer;
        }
    }
}

/// Reads one logged packet; none when it is not one of ours.
fn event(body: &[u8], now: SystemTime) -> Option<Drop> {
    let label = text(body, PREFIX)?;
    let reason = *Reason::ALL.iter().find(|reason| reason.as_str() == label)?;
    let number = |kind| {
        attribute(body, kind)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u32::from_be_bytes)
    };
    // a port of a bridge, where the kernel tells it apart from the bridge
    let ifindex = number(PORT).or_else(|| number(INTERFACE))?;
    let frame = Frame {
        header: attribute(body, LINK_HEADER).unwrap_or_default(),
        payload: attribute(body, PAYLOAD).unwrap_or_default(),
        tagged: attribute(body, VLAN).is_some(),
    };
    let headers = parse(&frame);
    let known = |address: Ipv4Bytes| (address != [0; 4]).then(|| address.into());
    Some(Drop {
        time: attribute(body, TIMESTAMP)
            .and_then(timestamp)
            .unwrap_or(now),
        ifindex,
        reason,
        src: known(headers.src),
        dst: known(headers.dst),
        proto: headers.protocol,
        sport: headers.sport,
        dport: headers.dport,
        len: frame.length(),
        ethertype: headers.ethertype,
        suppressed: 0,
    })
}

/// Seconds and microseconds.
fn timestamp(bytes: &[u8]) -> Option<SystemTime> {
    let seconds = u64::from_be_bytes(*bytes.first_chunk()?);
    let micros = u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?);
    let since = Duration::from_secs(seconds).checked_add(Duration::from_micros(micros))?;
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// A logged frame: its beginning, in two pieces.
struct Frame<'a> {
    header: &'a [u8],
    payload: &'a [u8],
    tagged: bool,
}

impl Packet for Frame<'_> {
    /// Of the whole frame: what was logged is only its beginning, but an IPv4 header tells.
    fn length(&self) -> u32 {
        let logged = u32::try_from(self.header.len() + self.payload.len()).unwrap_or(u32::MAX);
        let is_ipv4 = self.header.get(12..14) == Some(&ETHERTYPE_IPV4.to_be_bytes());
        let told = self
            .payload
            .get(2..4)
            .filter(|_| is_ipv4)
            .map_or(0, |length| {
                ETHERNET_LEN + u32::from(u16::from_be_bytes([length[0], length[1]]))
            });
        // a short frame that claims to be long is as long as it is
        if self.payload.len() < LOGGED_AT_MOST {
            logged
        } else {
            logged.max(told)
        }
    }

    fn has_vlan_tag(&self) -> bool {
        self.tagged
    }

    fn load<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        let offset = offset as usize;
        if let Some(bytes) = self
            .header
            .get(offset..)
            .and_then(|rest| rest.first_chunk())
        {
            return Some(*bytes);
        }
        self.payload
            .get(offset.checked_sub(self.header.len())?..)?
            .first_chunk()
            .copied()
    }
}

/// What the rules log of a packet.
const LOGGED_AT_MOST: usize = crate::compat::LOG_BYTES as usize;

#[cfg(test)]
mod tests {
    use agent_ebpf_common::testing::{POD_IP, WORLD_IP, udp};

    use super::*;

    fn logged(frame: &[u8], prefix: &str) -> Vec<u8> {
        Attributes::default()
            .text(PREFIX, prefix)
            .u32(INTERFACE, 3)
            .u32(PORT, 7)
            .push(LINK_HEADER, &frame[..14])
            .push(PAYLOAD, &frame[14..])
            .bytes()
            .to_vec()
    }

    #[test]
    fn a_logged_packet_says_who_where_to_and_why() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(9);
        let event = event(&logged(&udp(WORLD_IP, 443), "udp"), now).unwrap();
        assert_eq!(
            event,
            Drop {
                time: now,
                ifindex: 7,
                reason: Reason::Udp,
                src: Some(POD_IP.into()),
                dst: Some(WORLD_IP.into()),
                proto: 17,
                sport: 40_000,
                dport: 443,
                len: 46,
                suppressed: 0,
                ethertype: 0x0800,
            }
        );
    }

    #[test]
    fn what_others_log_to_the_group_is_no_event() {
        let now = SystemTime::UNIX_EPOCH;
        assert_eq!(event(&logged(&udp(WORLD_IP, 443), "firewall"), now), None);
        assert_eq!(event(&[], now), None);
    }

    #[test]
    fn a_long_packet_that_was_logged_in_part_has_its_own_length() {
        let mut frame = udp(WORLD_IP, 443);
        frame[16..18].copy_from_slice(&1_400u16.to_be_bytes());
        frame.resize(14 + LOGGED_AT_MOST, 0);
        let event = event(&logged(&frame, "udp"), SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!((event.len, event.dport), (1_414, 443));
    }
}
