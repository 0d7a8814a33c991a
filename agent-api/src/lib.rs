//! The policy objects that people write, and their compilation into the runtime policy.
//!
//! Owns the shape of `AgentNetworkPolicy` and `AgentNetworkClass` (group `agent.tke.cloud.tencent.com`, version `v1alpha1`),
//! their definitions for the API server, and the pure function from a list of policies to the one document that every
//! proxy reads. It knows no API server and reads no file.
#![forbid(unsafe_code)]

pub mod class;
pub mod compile;
pub mod crds;
pub mod manifest;
pub mod policy;
mod schema;
pub mod settings;
pub mod status;

pub use class::AgentNetworkClass;
pub use compile::{
    CompileOptions, CompiledPolicy, InvalidPolicy, InvalidReason, NamedPolicy, assemble, compile,
    compile_policy,
};
pub use manifest::{ManifestError, parse_manifests};
pub use policy::AgentNetworkPolicy;

/// The API group and version of the objects.
pub const API_VERSION: &str = "agent.tke.cloud.tencent.com/v1alpha1";
/// The namespace whose policies apply to agent pods of every namespace (see reference, "Typical Use Cases").
pub const SYSTEM_NAMESPACE: &str = "tke-agent-network-real";
/// The Secret whose keys credential rules may name unless the operator lists more.
pub const CREDENTIALS_SECRET: &str = "zeroproxy-credentials";
