//! Drop events from the kernel, in both modes.
//!
//! Owns the reading end of the ring buffer; `nflog` that of the iptables-compat mode. Two readers would take events from
//! each other: one process per node reads.

use std::{
    io,
    mem::offset_of,
    net::Ipv4Addr,
    time::{Duration, SystemTime},
};

use agent_core::attachment::Mode;
use agent_ebpf_common::{
    Reason,
    abi::{DropEvent, Ipv4Bytes},
    names,
};
use aya::maps::{MapData, RingBuf};
use nix::time::{ClockId, clock_gettime};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    maps::{self, MapError},
    nflog::DropLog,
    pins::Pins,
};

/// One dropped packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drop {
    /// When it was dropped.
    pub time: SystemTime,
    /// The pod's host interface.
    pub ifindex: u32,
    /// Why.
    pub reason: Reason,
    /// Source address, when the packet is IPv4 or ARP.
    pub src: Option<Ipv4Addr>,
    /// Destination address, when the packet is IPv4 or ARP.
    pub dst: Option<Ipv4Addr>,
    /// IP protocol number, 0 when unknown.
    pub proto: u8,
    /// Source port, 0 when unknown.
    pub sport: u16,
    /// Destination port, 0 when unknown.
    pub dport: u16,
    /// Length in bytes with Ethernet header.
    pub len: u32,
    /// EtherType.
    pub ethertype: u16,
    /// Events of this pod that were withheld for the rate limit since the last one that was sent. Always 0 in the
    /// iptables-compat mode, whose kernel does not tell; the counters know.
    pub suppressed: u32,
}

/// Drop events could not be read.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    /// The ring buffer could not be waited on.
    #[error("cannot wait for drop events")]
    Wait(#[source] io::Error),
    /// The map could not be opened.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// The reading end, of either mode.
pub struct DropEvents(Source);

enum Source {
    Ring(AsyncFd<RingBuf<MapData>>),
    Log(DropLog),
}

impl std::fmt::Debug for DropEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DropEvents").finish_non_exhaustive()
    }
}

impl DropEvents {
    /// Opens the pinned ring buffer; events since the last reader stopped are still in it, as many as it holds.
    ///
    /// Must be called in a tokio runtime with I/O enabled.
    ///
    /// # Errors
    /// When the data path is not loaded.
    pub fn open(pins: &Pins) -> Result<Self, EventsError> {
        Self::open_mode(Mode::Ebpf, pins)
    }

    /// As [`Self::open`], of the mode that the node is in. The iptables-compat mode keeps no events while nobody reads.
    ///
    /// # Errors
    /// When the data path is not loaded, or somebody else listens to the group.
    #[expect(
        unsafe_code,
        reason = "tokio can't know that the descriptor outlives the registration"
    )]
    pub fn open_mode(mode: Mode, pins: &Pins) -> Result<Self, EventsError> {
        if mode == Mode::IptablesCompat {
            let log = DropLog::open().map_err(EventsError::Wait)?;
            return Ok(Self(Source::Log(log)));
        }
        let ring: RingBuf<MapData> = maps::open(pins, names::EVENTS)?;
        // SAFETY: the map owns its descriptor, which stays open and the same until `ring` is dropped.
        let ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) };
        let ring = ring.map_err(|error| EventsError::Wait(error.into()))?;
        Ok(Self(Source::Ring(ring)))
    }

    /// Waits for the next event. Cancel safe: no event is lost.
    ///
    /// # Errors
    /// When the runtime can't wait on the ring buffer.
    pub async fn next(&mut self) -> Result<Drop, EventsError> {
        let ring = match &mut self.0 {
            Source::Ring(ring) => ring,
            Source::Log(log) => return log.next().await.map_err(EventsError::Wait),
        };
        loop {
            let mut guard = ring.readable_mut().await.map_err(EventsError::Wait)?;
            while let Some(item) = guard.get_inner_mut().next() {
                // something of a newer program's, whose meaning is not known here, is skipped
                if let Some(drop) = parse(&item, now(), since_boot()) {
                    return Ok(drop);
                }
            }
            guard.clear_ready();
        }
    }
}

fn now() -> SystemTime {
    SystemTime::now()
}

fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

/// Reads an event's bytes. `now` and `since_boot` are the same instant on two clocks.
fn parse(bytes: &[u8], now: SystemTime, since_boot: Duration) -> Option<Drop> {
    const fn field<const N: usize>(bytes: &[u8; size_of::<DropEvent>()], at: usize) -> [u8; N] {
        let mut field = [0; N];
        let mut i = 0;
        while i < N {
            field[i] = bytes[at + i];
            i += 1;
        }
        field
    }
    let bytes: &[u8; size_of::<DropEvent>()] = bytes.try_into().ok()?;
    let sent = Duration::from_nanos(u64::from_ne_bytes(field(
        bytes,
        offset_of!(DropEvent, time_ns),
    )));
    let age = since_boot.saturating_sub(sent);
    let known = |address: Ipv4Bytes| (address != [0; 4]).then(|| Ipv4Addr::from(address));
    Some(Drop {
        time: now.checked_sub(age).unwrap_or(now),
        ifindex: u32::from_ne_bytes(field(bytes, offset_of!(DropEvent, ifindex))),
        reason: Reason::from_u32(u32::from_ne_bytes(field(
            bytes,
            offset_of!(DropEvent, reason),
        )))?,
        src: known(field(bytes, offset_of!(DropEvent, src))),
        dst: known(field(bytes, offset_of!(DropEvent, dst))),
        sport: u16::from_ne_bytes(field(bytes, offset_of!(DropEvent, sport))),
        dport: u16::from_ne_bytes(field(bytes, offset_of!(DropEvent, dport))),
        len: u32::from_ne_bytes(field(bytes, offset_of!(DropEvent, len))),
        suppressed: u32::from_ne_bytes(field(bytes, offset_of!(DropEvent, suppressed))),
        ethertype: u16::from_ne_bytes(field(bytes, offset_of!(DropEvent, ethertype))),
        proto: bytes[offset_of!(DropEvent, protocol)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_of_another_size_or_reason_is_skipped() {
        assert_eq!(
            parse(&[0; 39], SystemTime::UNIX_EPOCH, Duration::ZERO),
            None
        );
        assert_eq!(
            parse(&[0; 40], SystemTime::UNIX_EPOCH, Duration::ZERO),
            None
        );
    }

    #[test]
    fn time_is_now_less_the_age_of_the_event() {
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&2_000_000_000u64.to_ne_bytes());
        bytes[12..16].copy_from_slice(&(Reason::Udp as u32).to_ne_bytes());
        bytes[16..20].copy_from_slice(&[169, 254, 1, 2]);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let drop = parse(&bytes, now, Duration::from_secs(5)).unwrap();
        assert_eq!(drop.time, SystemTime::UNIX_EPOCH + Duration::from_secs(97));
        assert_eq!(drop.reason, Reason::Udp);
        assert_eq!(
            (drop.src, drop.dst),
            (Some(Ipv4Addr::new(169, 254, 1, 2)), None)
        );
    }
}
