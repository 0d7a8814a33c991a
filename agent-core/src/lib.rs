//! Identity, policy decisions, audit records and state file formats: everything that can be decided from its arguments.
//!
//! This crate does no I/O, reads no clock and no environment, and knows neither tokio nor Kubernetes. What it is told
//! (a workload, a request, the node's addresses, the time) comes in as arguments, so every answer can be tested as a
//! table. Sockets, files and the kernel are the business of the crates that depend on it.
#![forbid(unsafe_code)]

pub mod attachment;
pub mod audit;
pub mod identity;
pub mod install;
pub mod ipam;
pub mod mac;
pub mod node;
pub mod node_settings;
pub mod path;
pub mod policy;
pub mod time;
pub mod workloads;
