//! Names of maps, programs and pins.
//!
//! The kernel truncates names at 15 characters, so none is longer.

/// Directory of everything pinned by this map layout, below the pin base; see [`crate::abi::ABI_VERSION`].
pub const LAYOUT_DIR: &str = "v1";
/// Directory of the pinned programs, below [`LAYOUT_DIR`].
pub const PROGRAMS_DIR: &str = "programs";
/// Directory of the pinned links, below [`LAYOUT_DIR`]: one per pod, named by its host interface, and [`DISPATCH_LINK`].
pub const LINKS_DIR: &str = "links";

/// TC ingress classifier on the host side of each pod's veth.
pub const POD_INGRESS: &str = "pod_ingress";
/// SK_LOOKUP program on the node's network namespace.
pub const DISPATCH: &str = "dispatch";
/// Pinned link of [`DISPATCH`]. No interface name holds a colon, so it never collides with a pod's link.
pub const DISPATCH_LINK: &str = "netns:dispatch";

/// Array of one [`crate::abi::Config`].
pub const CONFIG: &str = "CONFIG";
/// Hash: ifindex -> [`crate::abi::Endpoint`].
pub const ENDPOINTS: &str = "ENDPOINTS";
/// LPM trie of Service CIDRs.
pub const SERVICE_CIDRS: &str = "SERVICE_CIDRS";
/// LPM trie of Fake IP CIDRs.
pub const FAKE_CIDRS: &str = "FAKE_CIDRS";
/// Per-CPU hash: [`crate::abi::CounterKey`] -> [`crate::abi::Counter`].
pub const COUNTERS: &str = "COUNTERS";
/// Ring buffer of [`crate::abi::DropEvent`].
pub const EVENTS: &str = "EVENTS";
/// LRU hash: ifindex -> [`crate::abi::EventBudget`].
pub const EVENT_BUDGET: &str = "EVENT_BUDGET";
/// SockMap of the proxy's listeners.
pub const SOCKETS: &str = "SOCKETS";
/// Array of one [`crate::abi::DispatchState`].
pub const DISPATCH_STATE: &str = "DISPATCH";
/// Array of one [`crate::abi::Build`].
pub const BUILD: &str = "BUILD";
