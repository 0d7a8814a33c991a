//! What a pod may reach: the runtime policy document, its compilation to an index, and every decision made from it.
//!
//! One engine decides egress, ingress, names, direct bypass and resolved addresses. It is a pure function of identity,
//! request and snapshot; nothing in it allows by default, and a [`Permit`] is made nowhere else.
//!
//! ```text
//! bytes ──parse──► RuntimePolicy ──compile──► PolicySet ──scope(workload)──► Scope ──decide_*──► Permit | Denial
//! ```
//!
//! # What rules mean
//! The order is built-in deny, deny, credential, allow, default deny. Inside one kind: higher priority, then the more
//! specific destination (exact host, longer `*.suffix`, `*`, longer prefix), then the policy's name, then the rule's.
//!
//! - `protocol: tcp`, like no protocol, means whatever is spoken to the port. `http` covers gRPC; `https` and `tls`
//!   cover TLS that is passed through as well as HTTP inside TLS that the proxy terminates.
//! - `GET` brings `HEAD` with it. `/x/*` is everything under `/x/`, not `/x` itself. A path with parameters (`/a;v=1/b`)
//!   must be let through both as it stands and without them.
//! - Methods know upper and lower case, but some servers take `post` for `POST`: a deny rule for one covers the other, a
//!   rule that lets through does not.
//! - A rule that lets through must see what it names: TLS that is passed through satisfies no rule with methods, paths or
//!   a credential. A deny rule takes what it cannot see for a hit: with methods or paths it denies TLS to its host
//!   altogether, unless it says `protocol: http`.
//! - Where nothing names a host (an address in Host, TLS without SNI, other TCP) only `cidr` rules let through; what is
//!   not HTTP needs a port in the rule too. A deny rule for `*` denies these as well.
//! - A rule with `cidr` lets through to the dialled address alone ([`DialBy::OriginalDestination`]): a host named on such
//!   a connection is a label and is not resolved. A deny rule with `cidr` also covers what names resolve to,
//!   by the port that was decided on and by the one that is connected to ([`PolicySet::check_address`]).
//! - A policy in audit mode allows as any other. Its deny rules are recorded as `would_deny` and passed over. Default
//!   deny is passed over only where every policy for the pod is in audit mode: one policy that is enforced keeps it.
//!   Built-in denials and direct bypass do not know audit mode.
//! - Of several policies that say something about direct bypass, the one with the highest priority counts; among equals,
//!   deny. Nothing said is deny.
//! - A bare ingress target means the caller's namespace or a fixed upstream; in a deny rule it means every namespace.

pub mod address;
pub mod cidr;
pub mod document;
pub mod explain;
pub mod facts;
pub mod host;
pub mod parts;
pub mod permit;
pub mod port;
pub mod selector;
pub mod set;
pub mod target;
pub mod version;

mod compile;
mod decide;
mod index;
mod rule;
mod scope;

pub use address::NodeNets;
pub use cidr::IpCidr;
pub use document::{
    BypassAction, CredentialFormat, DocumentError, PolicyHeader, PolicyMode, Rule, RuleDirection,
    RuleKind, RuleProtocol, RuntimePolicy, Subjects, TlsMode,
};
pub use explain::{ExplainError, ExplainRequest, Explanation};
pub use facts::{Protocol, RequestFacts};
pub use host::{HostName, HostNameError, HostPattern};
pub use permit::{
    ConnectionVerdict, CredentialRef, Denial, DialBy, Permit, PermitKind, PolicyName, RuleName,
    Verdict,
};
pub use port::PortSpec;
pub use selector::LabelSelector;
pub use set::{CompileError, PolicySet, Scope};
pub use target::Target;
