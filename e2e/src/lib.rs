//! A test node out of real parts, in namespaces that vanish with the process that made them.
//!
//! [`world`] holds the namespaces, [`outside`] the servers beyond the uplink, [`node`] puts the real CNI plugin and the
//! real proxy on top, [`pod`] is where clients run. The demo (`e2e demo`) and the tests under `tests/` are written
//! against these. Doesn't test anything itself, and doesn't know how the binaries work: only their documented
//! protocols.

pub mod addresses;
pub mod capture;
pub mod cgroup;
pub mod cluster;
pub mod cni;
pub mod containerd;
pub mod demo;
pub mod images;
pub mod machine;
pub mod node;
pub mod outside;
pub mod patience;
pub mod pki;
pub mod place;
pub mod pod;
pub mod policy;
pub mod process;
pub mod procfs;
pub mod secrets;
pub mod service;
pub mod steps;
pub mod traffic;
pub mod world;

pub use node::Node;
pub use pod::{Pod, PodSpec};
