//! The node agent: ZeroProxy, its DNS proxy and the tools around them.
//!
//! The binary is a thin `main` over this library, so that tests can build the same parts.

pub mod admin;
pub mod app;
pub mod audit;
pub mod cli;
pub mod config;
pub mod context;
pub mod credential;
pub mod credential_upstream;
pub mod dns;
pub mod drain;
pub mod events;
pub mod file_watch;
pub mod listener;
pub mod metrics;
pub mod node_nets;
pub mod node_status;
pub mod policy_parts;
pub mod policy_store;
pub mod proxy;
pub mod telemetry;
mod token;
pub mod workloads;
