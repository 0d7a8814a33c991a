//! A table, its chains, rules and expressions as plain values: what `encode` turns into bytes.
//!
//! Only what our own rules need. The names follow nft(8).

/// A table of family `ip`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// Its chains, all of them base chains.
    pub chains: Vec<Chain>,
}

/// A base chain with policy accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: &'static str,
    /// `filter` or `nat`.
    pub kind: ChainKind,
    /// Where the kernel calls it.
    pub hook: Hook,
    /// When, among the chains of that hook: lower is earlier.
    pub priority: i32,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
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

/// A netfilter hook, by its number in `enum nf_inet_hooks`.
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

/// A rule, with the sentence that nft shows as its comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What it is for.
    pub purpose: &'static str,
    /// Matches, then statements.
    pub expressions: Vec<Expr>,
}

/// One expression. Loads go to register 1; comparisons read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// Load a property of the packet.
    Meta(Meta),
    /// Load a property of its connection. A packet without one matches no rule that has this.
    Ct(Ct),
    /// Load the IPv4 source address.
    SourceAddress,
    /// Load the IPv4 destination address.
    DestinationAddress,
    /// Load the kind of address that the destination is to the node, an `RTN_` number (fib).
    DestinationType,
    /// Load 1 when a socket of the node takes the packet and is IP_TRANSPARENT, else 0. A packet for no socket matches
    /// no rule that has this.
    SocketIsTransparent,
    /// Keep only these bits of the register, in memory order.
    Mask([u8; 4]),
    /// Keep these bits of the register, and write the others from a value.
    Replace {
        /// The bits that stay.
        keep: [u8; 4],
        /// What the others become.
        with: [u8; 4],
    },
    /// Write the register to the packet's mark.
    SetMark,
    /// Go on when the register equals these bytes.
    Equal(Vec<u8>),
    /// Go on when the register differs from these bytes.
    NotEqual(Vec<u8>),
    /// Count packets and bytes.
    Counter,
    /// Leave the packet out of connection tracking.
    Notrack,
    /// Use the leaving interface's address as source, with a random port.
    Masquerade,
    /// End this chain; other base chains still see the packet.
    Accept,
    /// End the packet.
    Drop,
}

/// Properties of a packet, by `enum nft_meta_keys`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Meta {
    /// Its mark.
    Mark = 3,
    /// The name of the interface it came by.
    InputName = 6,
    /// The name of the interface it leaves by.
    OutputName = 7,
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
