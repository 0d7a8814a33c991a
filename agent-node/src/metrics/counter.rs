//! The closed lists of what is counted: names, help texts, labels.

use agent_core::audit::{AuditRecord, Decision, Direction, ReasonCode};

/// Name (without `agent_network_`), help, and one label with its value (or none).
pub(super) type Described = (
    &'static str,
    &'static str,
    Option<(&'static str, &'static str)>,
);

macro_rules! described {
    ($(#[$outer:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $described:expr;)* }) => {
        $(#[$outer])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $name { $($(#[$doc])* $variant),* }

        impl $name {
            /// How many there are.
            pub const COUNT: usize = $name::ALL.len();
            /// All of them, families together.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            pub(super) fn describe(self) -> Described {
                match self { $($name::$variant => $described),* }
            }
        }
    };
}

const ACCEPT_ERRORS: &str = "Failed accepts; the listener backs off and goes on";
const CONNECTIONS: &str = "Connections accepted from pods";
const REFUSED: &str = "Connections refused before they were looked at";
const DNS: &str = "DNS queries by how they ended";
const UPSTREAM_ERRORS: &str = "Upstream failures by kind";
const RELAYED: &str = "Bytes of bodies and tunnels";

described! {
    /// What a worker counts. Variants of one family stand together.
    Counter {
        /// A connection to the TCP proxy.
        ProxyConnections = ("connections", CONNECTIONS, Some(("class", "proxy_tcp")));
        /// A connection to the DNS proxy.
        DnsConnections = ("connections", CONNECTIONS, Some(("class", "dns_tcp")));
        /// The process has no file descriptor left.
        AcceptEmfile = ("accept_errors", ACCEPT_ERRORS, Some(("reason", "emfile")));
        /// The system has no file descriptor left.
        AcceptEnfile = ("accept_errors", ACCEPT_ERRORS, Some(("reason", "enfile")));
        /// Any other failure.
        AcceptOther = ("accept_errors", ACCEPT_ERRORS, Some(("reason", "other")));
        /// The pod has its share of connections.
        RefusedPodLimit = ("connections_refused", REFUSED, Some(("reason", "pod_limit")));
        /// The peer or the original destination isn't IPv4.
        RefusedNotIpv4 = ("connections_refused", REFUSED, Some(("reason", "not_ipv4")));
        /// No state entry for the source address.
        UnknownSource = ("unknown_sources", "Connections and queries from addresses that belong to no known pod", None);
        /// An HTTP request was read.
        HttpRequests = ("http_requests", "HTTP requests read from pods", None);
        /// A request that isn't HTTP as the standard has it.
        HttpMalformed = ("http_malformed", "HTTP requests refused because two parsers could read them two ways", None);
        /// A tunnel began: TLS passthrough, TCP, upgrade or CONNECT.
        Tunnels = ("tunnels", "Tunnels begun: TLS passthrough, TCP, upgrades, CONNECT", None);
        /// Pod to upstream.
        BytesToUpstream = ("relayed_bytes", RELAYED, Some(("direction", "to_upstream")));
        /// Upstream to pod.
        BytesToPod = ("relayed_bytes", RELAYED, Some(("direction", "to_pod")));
        /// A connection from the pool was used again.
        UpstreamReused = ("upstream_connections", "Upstream connections by where they came from", Some(("source", "pool")));
        /// A new connection was made.
        UpstreamDialed = ("upstream_connections", "Upstream connections by where they came from", Some(("source", "dialed")));
        /// The name has no address, or the resolvers failed.
        UpstreamResolve = ("upstream_errors", UPSTREAM_ERRORS, Some(("kind", "resolve")));
        /// The connection was refused or timed out.
        UpstreamConnect = ("upstream_errors", UPSTREAM_ERRORS, Some(("kind", "connect")));
        /// The handshake failed, or the certificate isn't trusted.
        UpstreamTls = ("upstream_errors", UPSTREAM_ERRORS, Some(("kind", "tls")));
        /// The upstream ended before its response did.
        UpstreamClosed = ("upstream_errors", UPSTREAM_ERRORS, Some(("kind", "closed")));
        /// The upstream broke the protocol.
        UpstreamProtocol = ("upstream_errors", UPSTREAM_ERRORS, Some(("kind", "protocol")));
        /// A credential went into a request.
        CredentialsInjected = ("credentials_injected", "Requests that left with a credential", None);
        /// A credential couldn't be read, and the request got a 502.
        CredentialsUnavailable = ("credentials_unavailable", "Requests refused because their credential can't be read", None);
        /// A response header that held the credential.
        CredentialsRedacted = ("credentials_redacted", "Response headers that echoed a credential and were redacted", None);
        /// A stream that a new policy denies was closed.
        Rechecked = ("connections_cut", "Connections that the proxy closed by itself", Some(("reason", "policy")));
        /// The pod was deleted.
        PodGone = ("connections_cut", "Connections that the proxy closed by itself", Some(("reason", "pod_gone")));
        /// The node went from one mode of its data path to the other.
        ModeLeft = ("connections_cut", "Connections that the proxy closed by itself", Some(("reason", "mode_left")));
        /// Silent for longer than the idle timeout.
        IdleClosed = ("connections_cut", "Connections that the proxy closed by itself", Some(("reason", "idle")));
        /// Answered by an upstream server.
        DnsForwarded = ("dns_queries", DNS, Some(("outcome", "forwarded")));
        /// Answered from the cache.
        DnsCached = ("dns_queries", DNS, Some(("outcome", "cached")));
        /// The pod may not resolve the name.
        DnsDenied = ("dns_queries", DNS, Some(("outcome", "denied")));
        /// No upstream server answered.
        DnsFailed = ("dns_queries", DNS, Some(("outcome", "failed")));
        /// Not a query we understand.
        DnsMalformed = ("dns_queries", DNS, Some(("outcome", "malformed")));
        /// The pod asks more than its share.
        DnsShed = ("dns_queries", DNS, Some(("outcome", "shed")));
        /// An answer was cut and marked, so that the client comes back over TCP.
        DnsTruncated = ("dns_truncated", "DNS answers truncated to what the client takes over UDP", None);
        /// A read of the DNS socket failed.
        DnsReceiveErrors = ("dns_receive_errors", "Failed reads of the DNS sockets; the worker backs off and goes on", None);
        /// A sensitive address was removed from an answer.
        DnsStripped = ("dns_stripped_addresses", "Sensitive addresses removed from DNS answers", None);
        /// Kernel drop events that were not written as audit lines.
        KernelEventsShed = ("kernel_events_shed", "Kernel drop events that the per-pod rate limit kept out of the audit log", None);
        /// Listeners put into the dispatch map.
        Registrations = ("listener_registrations", "Times the listeners were put into the dispatch map", None);
    }
}

described! {
    /// What a worker has now.
    Gauge {
        /// Connections to the TCP proxy.
        ProxyConnections = ("connections_open", "Connections of pods that are open", Some(("class", "proxy_tcp")));
        /// Connections to the DNS proxy.
        DnsConnections = ("connections_open", "Connections of pods that are open", Some(("class", "dns_tcp")));
    }
}

pub(super) const DIRECTIONS: &[Direction] = &[
    Direction::Egress,
    Direction::Ingress,
    Direction::Dns,
    Direction::Bypass,
    Direction::Kernel,
];
pub(super) const DECISIONS: &[Decision] = &[Decision::Allow, Decision::Deny, Decision::WouldDeny];
pub(super) const REASONS: &[ReasonCode] = ReasonCode::ALL;

/// The cell of a decision in the (direction, decision, reason) cube.
pub(super) fn decision_cell(record: &AuditRecord) -> Option<usize> {
    let direction = DIRECTIONS.iter().position(|d| *d == record.direction)?;
    let decision = DECISIONS.iter().position(|d| *d == record.decision)?;
    let reason = REASONS.iter().position(|r| *r == record.reason)?;
    Some((direction * DECISIONS.len() + decision) * REASONS.len() + reason)
}
