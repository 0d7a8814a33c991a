//! The plugin driven through the CNI protocol on nodes of the tests' own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on should say where"
)]

#[path = "../support/mod.rs"]
mod support;

mod add;
mod check;
mod concurrency;
mod del;
mod faults;
mod gc;
mod killed;
mod modes;
mod pool;
mod protocol;
mod setup;
mod status;
mod traffic;
