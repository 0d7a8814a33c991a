//! Everything agent-network owns in the kernel: programs, maps, bridge, routes, rules.

pub mod attach;
mod bpf;
pub mod bridge;
pub mod compat;
pub mod conntrack;
pub mod debug_log;
pub mod error;
pub mod events;
mod filter;
pub mod iptables;
pub mod footprint;
pub mod link;
pub mod load;
pub mod maps;
pub mod netns;
pub mod network;
mod nflog;
pub mod nft;
pub mod pins;
pub mod plane;
pub mod probe;
pub mod ports;
pub mod routing;
pub mod rtnl;
mod shapes;
pub mod sockets;
pub mod sysctl;
