//! Keys and values of the maps.
//!
//! Every type is `#[repr(C)]` without padding, asserted below, so that its bytes can be compared. A change of
//! any of them, or of a map's type or size, is a new [`ABI_VERSION`] and with it a new pin directory
//! ([`crate::names::LAYOUT_DIR`]).

/// Version of the map layout.
pub const ABI_VERSION: u32 = 1;

/// An IPv4 address as it is on the wire: network byte order.
pub type Ipv4Bytes = [u8; 4];
/// An Ethernet address as it is on the wire.
pub type MacBytes = [u8; 6];

/// Most pods a node can have; the size of [`crate::names::ENDPOINTS`].
pub const MAX_ENDPOINTS: u32 = 4096;
/// Most prefixes in each of the two CIDR maps.
pub const MAX_CIDRS: u32 = 16_384;
/// Most (interface, reason) pairs with counters of their own; further ones are counted under [`NODE_IFINDEX`].
pub const MAX_COUNTERS: u32 = 65_536;
/// Size of the drop event ring in bytes: about 2,700 events. A power of two and a multiple of any page size.
pub const EVENTS_BYTES: u32 = 128 * 1024;
/// Most worker threads that can hold listeners.
pub const MAX_WORKERS: u32 = 16;
/// Number of socket classes; see [`crate::dispatch::SocketClass`].
pub const SOCKET_CLASSES: u32 = 3;
/// Size of [`crate::names::SOCKETS`].
pub const MAX_SOCKETS: u32 = SOCKET_CLASSES * MAX_WORKERS;
/// Interface index under which packets of no particular (or no longer existing) pod are counted.
pub const NODE_IFINDEX: u32 = 0;

/// [`Config::flags`]: while the proxy has no listener, connections that are meant for it look for a socket of the
/// node's own, instead of finding none.
pub const CONFIG_FAIL_OPEN: u16 = 1;

/// One pod, by the index of its host-side interface. Aligned for comparisons of whole words.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// The only source address the pod may use.
    pub fake_ip: Ipv4Bytes,
    /// The only source MAC the pod may use.
    pub mac: MacBytes,
    /// Reserved, 0.
    pub flags: u16,
}

/// The node's settings.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Address of the bridge.
    pub gateway_ip: Ipv4Bytes,
    /// MAC of the bridge.
    pub gateway_mac: MacBytes,
    /// `CONFIG_*` bits.
    pub flags: u16,
    /// Mark of packets for the proxy.
    pub proxy_mark: u32,
    /// Bits that [`Self::proxy_mark`] owns. 0 means that no configuration was written yet.
    pub proxy_mask: u32,
    /// Mark of packets that bypass the proxy towards a Service.
    pub service_mark: u32,
    /// Bits that [`Self::service_mark`] owns.
    pub service_mask: u32,
    /// Most drop events sent per pod and second; 0 sends none. Counting is not limited.
    pub events_per_second: u32,
}

/// Key of the counters.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterKey {
    /// Interface, or [`NODE_IFINDEX`].
    pub ifindex: u32,
    /// A [`crate::Reason`] as number.
    pub reason: u32,
}

/// Counters of one CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Packets; a GSO packet counts once.
    pub packets: u64,
    /// Bytes with Ethernet header.
    pub bytes: u64,
}

/// One dropped packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropEvent {
    /// Nanoseconds since boot, suspended time included (`CLOCK_BOOTTIME`).
    pub time_ns: u64,
    /// Interface the packet came from.
    pub ifindex: u32,
    /// A [`crate::Reason`] as number.
    pub reason: u32,
    /// Source address; zeros when the packet is not IPv4 or ARP.
    pub src: Ipv4Bytes,
    /// Destination address; zeros when the packet is not IPv4 or ARP.
    pub dst: Ipv4Bytes,
    /// Source port in host byte order; 0 when unknown.
    pub sport: u16,
    /// Destination port in host byte order; 0 when unknown.
    pub dport: u16,
    /// Length in bytes with Ethernet header.
    pub len: u32,
    /// Events of this pod that were not sent for the rate limit since the last one that was.
    pub suppressed: u32,
    /// EtherType in host byte order.
    pub ethertype: u16,
    /// IP protocol; 0 when unknown.
    pub protocol: u8,
    /// Reserved, 0.
    pub reserved: u8,
}

/// How many drop events a pod has sent in the current second.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventBudget {
    /// Start of the current second, nanoseconds since boot.
    pub window_ns: u64,
    /// Events sent in it.
    pub sent: u32,
    /// Events withheld since the last one that was sent.
    pub suppressed: u32,
}

/// How many workers hold listeners.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DispatchState {
    /// 1 to [`MAX_WORKERS`]; 0 before a proxy ever registered.
    pub workers: u32,
}

/// Which object the pinned programs were loaded from.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Build {
    /// SHA-256 of the object and of the settings it was loaded with.
    pub sha256: [u8; 32],
}

const _: () = {
    use core::mem::size_of;
    assert!(size_of::<Endpoint>() == 12);
    assert!(size_of::<Config>() == 32);
    assert!(size_of::<CounterKey>() == 8);
    assert!(size_of::<Counter>() == 16);
    assert!(size_of::<DropEvent>() == 40);
    assert!(size_of::<EventBudget>() == 16);
    assert!(size_of::<DispatchState>() == 4);
    assert!(size_of::<Build>() == 32);
};

/// Lets userspace write these types into maps.
#[cfg(feature = "user")]
#[expect(unsafe_code, reason = "aya::Pod is an unsafe trait")]
mod pod {
    use super::{
        Build, Config, Counter, CounterKey, DispatchState, DropEvent, Endpoint, EventBudget,
    };
    macro_rules! pod {
        ($($t:ty),+) => {$(
            // SAFETY: #[repr(C)], Copy, integers only and, by the size assertions above, without padding.
            unsafe impl aya::Pod for $t {}
        )+};
    }
    pod!(
        Build,
        Config,
        Counter,
        CounterKey,
        DispatchState,
        DropEvent,
        Endpoint,
        EventBudget
    );
}
