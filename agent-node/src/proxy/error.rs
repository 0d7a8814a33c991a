//! Why a permitted request or connection could not be served.
//!
//! Owns the kinds, their statuses and reason codes. Denials are `agent_core`'s; malformed requests
//! are `fault`'s.

use std::io;
use std::net::SocketAddr;

use agent_core::audit::ReasonCode;
use agent_core::policy::Denial;
use http::StatusCode;

use crate::credential::CredentialError;
use crate::dns::ResolveError;
use crate::metrics::Counter;

/// What went wrong between the permit and the upstream's answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("resolve `{name}`")]
    Resolve { name: String, source: ResolveError },
    #[error("no address of the upstream may be connected to: {0}")]
    Address(Denial),
    #[error("the request names no host, so there is nothing to connect to")]
    NoHost,
    #[error("nothing says where the target `{0}` is; the operator adds it to `upstreams`")]
    NoTarget(String),
    #[error("connect to {address}")]
    Connect {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("{address} did not accept the connection in time")]
    ConnectTimeout { address: SocketAddr },
    #[error("TLS with {address}")]
    Tls {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("the credential that the rule sets can't be had")]
    Credential(#[from] CredentialError),
    #[error(
        "the rule's credential would leave in cleartext to {address}; use `tls: originate`, or \
         `allowCleartext: true` if that is meant"
    )]
    Cleartext { address: SocketAddr },
    #[error("the upstream broke off or broke the protocol")]
    Upstream(#[source] hyper::Error),
    #[error("the upstream switched protocols without being asked to")]
    UnexpectedUpgrade,
    #[error("the upstream did not answer in time")]
    ResponseTimeout,
}

impl Failure {
    /// What the pod is told. The rest (addresses, files, names of servers) is the operator's: it is
    /// in the audit line with the same request id.
    pub(crate) fn message(&self) -> &'static str {
        match self {
            Failure::Resolve { .. } => "the host's name can't be resolved",
            Failure::Address(_) => "no address of the host may be connected to",
            Failure::NoHost => "the request names no host, so there is nothing to connect to",
            Failure::NoTarget(_) => "nothing says where the target is",
            Failure::Connect { .. } => "the upstream can't be connected to",
            Failure::ConnectTimeout { .. } => "the upstream did not accept the connection in time",
            Failure::Tls { .. } => "TLS with the upstream failed",
            Failure::Credential(_) => "the credential that the rule sets can't be had",
            Failure::Cleartext { .. } => "the rule's credential would leave in cleartext",
            Failure::Upstream(_) => "the upstream broke off or broke the protocol",
            Failure::UnexpectedUpgrade => "the upstream switched protocols without being asked to",
            Failure::ResponseTimeout => "the upstream did not answer in time",
        }
    }

    /// The status that the pod gets.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Failure::Address(_) => StatusCode::FORBIDDEN,
            Failure::ConnectTimeout { .. } | Failure::ResponseTimeout => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Failure::Resolve { .. }
            | Failure::NoHost
            | Failure::NoTarget(_)
            | Failure::Connect { .. }
            | Failure::Tls { .. }
            | Failure::Credential(_)
            | Failure::Cleartext { .. }
            | Failure::Upstream(_)
            | Failure::UnexpectedUpgrade => StatusCode::BAD_GATEWAY,
        }
    }

    /// The code in the audit line and the error body.
    pub(crate) fn reason(&self) -> ReasonCode {
        match self {
            Failure::Address(denial) => denial.reason,
            Failure::Resolve { .. } | Failure::NoHost | Failure::NoTarget(_) => {
                ReasonCode::NameNotResolved
            }
            Failure::Connect { .. } => ReasonCode::UpstreamUnreachable,
            Failure::ConnectTimeout { .. } | Failure::ResponseTimeout => {
                ReasonCode::UpstreamTimeout
            }
            Failure::Tls { .. } => ReasonCode::UpstreamTlsFailed,
            Failure::Credential(_) => ReasonCode::CredentialUnavailable,
            Failure::Cleartext { .. } => ReasonCode::CredentialCleartextRefused,
            Failure::Upstream(_) | Failure::UnexpectedUpgrade => ReasonCode::UpstreamFailed,
        }
    }

    /// Whether the proxy itself refused, after the policy had permitted.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Failure::Address(_) | Failure::Credential(_) | Failure::Cleartext { .. }
        )
    }

    /// What is counted.
    pub(crate) fn counter(&self) -> Option<Counter> {
        match self {
            Failure::Resolve { .. } | Failure::NoTarget(_) => Some(Counter::UpstreamResolve),
            Failure::Connect { .. } | Failure::ConnectTimeout { .. } => {
                Some(Counter::UpstreamConnect)
            }
            Failure::Tls { .. } => Some(Counter::UpstreamTls),
            Failure::Upstream(_) | Failure::ResponseTimeout => Some(Counter::UpstreamClosed),
            Failure::UnexpectedUpgrade => Some(Counter::UpstreamProtocol),
            Failure::Credential(_) => Some(Counter::CredentialsUnavailable),
            Failure::Address(_) | Failure::NoHost | Failure::Cleartext { .. } => None,
        }
    }
}
