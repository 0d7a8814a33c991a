//! The table `bridge agent_network` on real frames: a pod's veth on a bridge, and what the table makes of what it sends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

#[path = "../support/mod.rs"]
mod support;

mod bridge;
mod changes;
mod frames;
mod told;
