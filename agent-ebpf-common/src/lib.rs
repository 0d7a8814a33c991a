#![no_std]
//! What the eBPF programs and userspace must agree on.
//!
//! - [`abi`]: keys and values of the maps, with their sizes asserted.
//! - [`names`]: names of maps, programs and pin directories, each written once.
//! - [`reason`]: why a packet was passed or dropped.
//! - [`packet`]: what is read from a packet, and what makes one malformed.
//! - [`classify`]: the verdict over a parsed packet.
//! - [`dispatch`]: which listener a connection from a pod belongs to.
//!
//! Everything here is pure: it runs unchanged in the kernel and in host tests. It touches no map and
//! no packet memory itself; the programs in `agent-ebpf` bring those.

pub mod abi;
pub mod classify;
pub mod dispatch;
pub mod names;
pub mod packet;
pub mod reason;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use reason::Reason;
