//! A table, its sets, chains, rules and expressions as plain values: what `encode` turns into bytes.
//!
//! Only what our own rules need. The names follow nft(8).

use std::borrow::Cow;

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// What packets it sees.
    pub family: Family,
    /// Its name.
    pub name: &'static str,
    /// Its sets and maps.
    pub sets: Vec<Set>,
    /// Its chains.
    pub chains: Vec<Chain>,
}

/// The family of a table, by its number in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Family {
    /// IPv4 and IPv6 packets.
    Inet = 1,
    /// IPv4 packets.
    Ip = 2,
    /// Frames on a bridge.
    Bridge = 7,
}

impl Family {
    /// As nft calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Ip => "ip",
            Self::Bridge => "bridge",
        }
    }
}

/// A named set or map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Its name.
    pub name: &'static str,
    /// What its keys are.
    pub key: Key,
    /// What it holds for a key.
    pub kind: SetKind,
    /// Its elements when the table is written. Those of a map of verdicts or of a dynamic set come later and are not
    /// part of the table.
    pub elements: Vec<Element>,
}

/// What the keys of a set are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// An IPv4 address, or four bytes that nft may show as one.
    Ipv4,
    /// An Ethernet address.
    Ethernet,
    /// An interface's name.
    Interface,
    /// Eight bytes.
    Bytes8,
}

impl Key {
    /// nft's number for the type, and the length in bytes.
    pub(super) fn number_and_length(self) -> (u32, u32) {
        match self {
            Self::Bytes8 => (4, 8),
            Self::Ipv4 => (7, 4),
            Self::Ethernet => (9, 6),
            Self::Interface => (41, 16),
        }
    }
}

/// What a set is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetKind {
    /// Single keys.
    Keys,
    /// Ranges of keys; neighbours and overlaps are the maker's to merge.
    Ranges,
    /// A map from keys to verdicts.
    Verdicts,
    /// Filled by rules; an element is forgotten after that many milliseconds without use.
    Dynamic {
        /// How long an element lasts.
        timeout_ms: u64,
        /// Most elements.
        size: u32,
    },
}

/// An element of a set of keys or ranges.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element {
    /// The key, or the first one of a range, or the first one after it.
    pub key: Vec<u8>,
    /// Whether a range ends before this key.
    pub end: bool,
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Where the kernel calls it, with policy accept; none for a chain that only other chains lead to.
    pub base: Option<Base>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// Where the kernel calls a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    /// `filter` or `nat`.
    pub kind: ChainKind,
    /// The hook.
    pub hook: Hook,
    /// When, among the chains of that hook: lower is earlier.
    pub priority: i32,
}

/// What a base chain may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainKind {
    /// Sees every packet.
    Filter,
    /// Sees the first packet of a connection.
    Nat,
}

impl ChainKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

/// A netfilter hook, by its number in `enum nf_inet_hooks` (the bridge's have the same).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Hook {
    /// Before routing.
    Prerouting = 0,
    /// For the node itself.
    Input = 1,
    /// Through the node.
    Forward = 2,
    /// Before leaving.
    Postrouting = 4,
}

/// A rule, with the text that nft shows as its comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What it is for.
    pub purpose: Cow<'static, str>,
    /// Matches, then statements.
    pub expressions: Vec<Expr>,
}

/// One expression. Unless it says otherwise, loads go to register 1, and comparisons read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// Load a property of the packet.
    Meta(Meta),
    /// Load a property of its connection. A packet without one matches no rule that has this.
    Ct(Ct),
    /// Load bytes of the packet. A packet that is too short matches no rule that has this.
    Load(Load),
    /// As `Load`, into the `n`-th four bytes of register 1.
    LoadAt(u32, Load),
    /// Load the kind of address that the destination is to the node, an `RTN_` number (fib).
    DestinationType,
    /// Load 1 when a socket of the node takes the packet and is IP_TRANSPARENT, else 0. A packet for no socket matches
    /// no rule that has this.
    SocketIsTransparent,
    /// Keep only these bits of the register, in memory order.
    Mask(Vec<u8>),
    /// Keep only these bits of the register, then flip these, in memory order.
    MaskAndFlip(Vec<u8>, Vec<u8>),
    /// Give the packet the mark that is in the register.
    SetMark,
    /// Turn a number of four bytes from the host's order into the network's.
    ToNetworkOrder,
    /// Go on when the register equals these bytes.
    Equal(Vec<u8>),
    /// Go on when the register differs from these bytes.
    NotEqual(Vec<u8>),
    /// Go on when the register is less, byte by byte.
    Less(Vec<u8>),
    /// Go on when the register is not less, byte by byte.
    AtLeast(Vec<u8>),
    /// Go on when the register is in the set.
    In(&'static str),
    /// Go on when the register is not in the set.
    NotIn(&'static str),
    /// Do what the map says for the register; go on when it says nothing.
    Verdict(&'static str),
    /// Go on as long as the dynamic set's element for the register was used at most that often per second.
    Within {
        /// The set.
        set: &'static str,
        /// Packets per second.
        per_second: u32,
    },
    /// Count packets and bytes, from these on.
    Counter {
        /// Packets to begin with.
        packets: u64,
        /// Bytes to begin with.
        bytes: u64,
    },
    /// Hand a copy of the packet's beginning to whoever listens to the group (NFLOG).
    Log {
        /// The group.
        group: u16,
        /// The text that comes along.
        prefix: &'static str,
        /// How many bytes.
        length: u32,
    },
    /// Leave the packet out of connection tracking.
    Notrack,
    /// Use the leaving interface's address as source, with a random port.
    Masquerade,
    /// Put these bytes into the register.
    Put(Vec<u8>),
    /// To the port in the register, of the first address of the interface that the packet came by.
    Redirect,
    /// End this chain; other base chains still see the packet.
    Accept,
    /// End the packet.
    Drop,
    /// Go on in another chain, and never come back.
    Goto(Cow<'static, str>),
}

impl Expr {
    /// A counter that begins at zero.
    pub const COUNTER: Self = Self::Counter {
        packets: 0,
        bytes: 0,
    };
    /// Load the IPv4 source address.
    pub const SOURCE_ADDRESS: Self = Self::Load(Load::network(12, 4));
    /// Load the IPv4 destination address.
    pub const DESTINATION_ADDRESS: Self = Self::Load(Load::network(16, 4));
}

/// Some bytes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    pub(super) header: Header,
    pub(super) offset: u32,
    pub(super) length: u32,
}

impl Load {
    /// Of the frame's header, which has a VLAN tag also when the kernel took it off.
    pub const fn link(offset: u32, length: u32) -> Self {
        Self {
            header: Header::Link,
            offset,
            length,
        }
    }

    /// Of what the frame carries.
    pub const fn network(offset: u32, length: u32) -> Self {
        Self {
            header: Header::Network,
            offset,
            length,
        }
    }

    /// Of what a whole IPv4 packet carries.
    pub const fn transport(offset: u32, length: u32) -> Self {
        Self {
            header: Header::Transport,
            offset,
            length,
        }
    }
}

/// Where the bytes of a [`Load`] are counted from, by `enum nft_payload_bases`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Header {
    Link = 0,
    Network = 1,
    Transport = 2,
}

/// Properties of a packet, by `enum nft_meta_keys`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Meta {
    /// Its length, from the network header on, in the host's order.
    Length = 0,
    /// Its mark.
    Mark = 3,
    /// The name of the interface it came by.
    InputName = 6,
    /// The name of the interface it leaves by.
    OutputName = 7,
    /// Its IP protocol; a packet whose IP header is not whole matches no rule that has this.
    Protocol = 16,
}

/// Properties of a connection, by `enum nft_ct_keys`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Ct {
    /// Bits new, established, related, …
    State = 0,
    /// Bits of `enum ip_conntrack_status`.
    Status = 2,
}
