//! The DNS proxy: what a pod may ask, who is asked for it, and what the pod gets.
//!
//! ```text
//! server_udp ─┐                       ┌─ names, decide   may it be asked?
//! server_tcp ─┴─► service ─► query ───┼─ resolver ─► cache, upstream (UDP, TCP)
//!                    │                ├─ scrub            denied addresses out
//!                    ▼                └─ bindings         who was given what
//!                 respond ─► reply
//! ```
//!
//! A name is forwarded when a rule of the pod's could let it through, or when it is a cluster
//! name; anything else is answered here and reaches no upstream. The rule is about the name that
//! is asked: aliases (CNAME) on the way to its addresses are the name owner's affair and need no
//! rule of their own, because the proxy connects by the asked name too.
//!
//! Everything from bytes to bytes is free of I/O; sockets are in `server_*`, `socket` and
//! `upstream`. Messages pass as the bytes that came (see `answer`); hickory-proto decodes and
//! encodes those that must change (see `scrub`), and is what the tests are held against.

mod answer;
mod bindings;
mod cache;
mod decide;
mod frame;
mod limits;
mod names;
mod query;
mod report;
mod resolver;
mod respond;
mod scrub;
mod server_tcp;
mod server_udp;
mod service;
mod socket;
mod upstream;
mod wire;

#[cfg(test)]
mod testing;

pub use bindings::Bindings;
pub use resolver::{ResolveError, Resolved, Resolver};
pub use server_tcp::serve_tcp;
pub use server_udp::serve_udp;
pub use service::State;
pub use upstream::UpstreamError;
