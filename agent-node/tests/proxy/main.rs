//! The proxy over real sockets: what the pod sees, what the upstream sees, what is audited.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    unreachable_pub
)]

mod addresses;
mod ambiguity;
mod connect;
mod credentials;
mod decisions;
mod ingress;
mod life;
mod streaming;
mod support;
mod tls;
mod upgrades;
