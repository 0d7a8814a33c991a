//! The closed list of reason codes. Owns the names; who gives which code is settled where the decision is made.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! reason_codes {
    ($($(#[doc = $doc:literal])+ $variant:ident = $text:literal,)+) => {
        /// Why a decision is what it is; the same word in audit lines, error bodies and tests.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum ReasonCode {
            $($(#[doc = $doc])+ #[serde(rename = $text)] $variant,)+
        }

        impl ReasonCode {
            /// Every code, for documentation, metrics and tests.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The code as written in audit lines.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }
    };
}

reason_codes! {
    /// An allow rule lets the request out.
    EgressAllowed = "EGRESS_ALLOWED_BY_POLICY",
    /// A credential rule lets the request out, with its credential set.
    CredentialInjected = "CREDENTIAL_INJECTED_BY_ZEROPROXY",
    /// A deny rule matches, or no rule lets the request out (then `rule` is absent).
    EgressDenied = "EGRESS_DENIED_BY_POLICY",
    /// An ingress rule lets the caller reach the target.
    IngressAllowed = "INGRESS_ALLOWED_BY_ZEROPROXY",
    /// An ingress deny rule matches, or no rule lets the caller reach the target.
    IngressDenied = "INGRESS_DENIED_BY_ZEROPROXY",
    /// The pod dialled an address in a Fake IP CIDR.
    DirectBypassDenied = "DIRECT_BYPASS_DENIED_BY_ZEROPROXY",
    /// The destination lies in a sensitive range, built-in or the operator's.
    SensitiveAddressDenied = "SENSITIVE_ADDRESS_DENIED_BY_ZEROPROXY",
    /// The destination is the node itself, loopback, or an address that is no host's.
    NodeAddressDenied = "NODE_ADDRESS_DENIED_BY_ZEROPROXY",
    /// No pod of this node has the source address.
    UnknownSourceDenied = "UNKNOWN_SOURCE_DENIED_BY_ZEROPROXY",
    /// `X-Agent-Caller` claims another identity than the source pod's.
    IdentityMismatch = "IDENTITY_MISMATCH",
    /// The pod's attachment was deleted while the connection was open.
    WorkloadGone = "WORKLOAD_GONE",
    /// The SNI names a host whose addresses do not include the one that was dialled.
    SniMismatch = "SNI_MISMATCH",
    /// A TLS connection without a usable server name.
    SniMissing = "SNI_MISSING",
    /// The request is malformed, or two parsers could read it in two ways.
    BadRequest = "BAD_REQUEST",
    /// A limit on headers, connections or time was reached.
    LimitExceeded = "LIMIT_EXCEEDED",
    /// The credential's file is missing, empty or unusable.
    CredentialUnavailable = "CREDENTIAL_UNAVAILABLE",
    /// The credential would have left in cleartext to an upstream that is not local.
    CredentialCleartextRefused = "CREDENTIAL_CLEARTEXT_REFUSED",
    /// The name has no address.
    NameNotResolved = "NAME_NOT_RESOLVED",
    /// The upstream could not be connected to.
    UpstreamUnreachable = "UPSTREAM_UNREACHABLE",
    /// The upstream's certificate or handshake is not acceptable.
    UpstreamTlsFailed = "UPSTREAM_TLS_FAILED",
    /// The upstream broke the protocol or closed too early.
    UpstreamFailed = "UPSTREAM_FAILED",
    /// The upstream did not answer in time.
    UpstreamTimeout = "UPSTREAM_TIMEOUT",
    /// The name may be resolved.
    DnsAllowed = "DNS_ALLOWED_BY_POLICY",
    /// No rule could let the name through, so it is not resolved.
    DnsDenied = "DNS_DENIED_BY_POLICY",
    /// An answer held sensitive addresses, which were taken out.
    DnsAddressStripped = "DNS_ADDRESS_STRIPPED",
    /// A DNS upstream did not answer or answered nonsense.
    DnsUpstreamFailed = "DNS_UPSTREAM_FAILED",
    /// The kernel program dropped packets; `detail` says why.
    KernelDrop = "KERNEL_DROP",
    /// An open connection was closed because the new policy denies it.
    PolicyRevoked = "POLICY_REVOKED",
    /// No policy is loaded yet.
    PolicyNotLoaded = "POLICY_NOT_LOADED",
    /// Audit lines cannot be written and the operator chose to fail closed.
    AuditUnavailable = "AUDIT_UNAVAILABLE",
    /// The proxy is shutting down.
    Draining = "DRAINING",
    /// The proxy failed; nothing was let through.
    InternalError = "INTERNAL_ERROR",
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_distinct_and_serialise_as_written() {
        let mut seen = BTreeSet::new();
        for code in ReasonCode::ALL {
            assert!(seen.insert(code.as_str()), "{code}");
            assert_eq!(serde_json::to_string(code).unwrap(), format!("\"{code}\""));
            assert!(
                code.as_str()
                    .bytes()
                    .all(|b| b.is_ascii_uppercase() || b == b'_'),
                "{code}"
            );
        }
    }
}
