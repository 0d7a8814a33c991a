//! The TCP proxy: what a pod's connection is, whether it may be, and its way to the upstream.
//!
//! A connection is a chain of states, one module each:
//!
//! ```text
//! accepted ── source ──► identified ── sniff ──► HTTP ── guard, request ──► decided ── forward ──► dial, pool
//!                                            ├─► TLS ─── clienthello, tls ─► decided ── dial ────► tunnel, relay
//!                                            └─► other ─ opaque ───────────► decided ── dial ────► tunnel, relay
//! ```
//!
//! What it doesn't own: decisions (`agent_core::policy`), secrets (`credential`), names to addresses
//! (`dns`), accepting (`listener`). Everything runs on one worker's thread.

mod answer;
mod authority;
mod body;
mod clienthello;
mod close;
mod connection;
mod dial;
mod error;
mod exchange;
mod fault;
mod forward;
mod framing;
mod guard;
mod head;
mod headers;
mod http1;
mod interim;
mod opaque;
mod origin;
mod pool;
mod record;
mod relay;
mod request;
mod signal;
mod sniff;
mod source;
mod tls;
mod tunnel;
mod upgrade;

pub use connection::{serve_connection, serve_local};
pub use pool::Pool;
