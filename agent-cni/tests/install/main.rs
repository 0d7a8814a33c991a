//! `agent-cni install` and `agent-cni rollback` on nodes of the tests' own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on should say where"
)]

#[path = "../support/mod.rs"]
mod support;

mod disk;
mod host;
mod installing;
mod killed;
mod locks;
mod others;
mod primary;
mod repair;
mod rollback;
mod settings;
mod upgrade;
mod witness;
