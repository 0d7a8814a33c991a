//! `agent-cni doctor` on a living node: each thing is broken by itself, the doctor names it and nothing else, and after
//! what it said was done it is content again. A module for each subject.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../support/mod.rs"]
mod support;

mod beside;
mod case;
mod files;
mod machine;
mod network;
mod patient;
mod pods;
