//! What a decision gives back. A [`Permit`] can only be made by this crate's decision functions; a [`Denial`] by anyone,
//! since refusing needs no authority.

use std::borrow::Borrow;
use std::fmt;
use std::net::SocketAddrV4;
use std::ops::Deref;
use std::sync::Arc;

use serde::Serialize;

use crate::audit::{Decision, ReasonCode};
use crate::policy::document::CredentialFormat;
use crate::policy::rule::{Channel, CompiledRule};
use crate::policy::scope::ScopeInner;

macro_rules! shared_name {
    ($(#[doc = $doc:literal])+ $name:ident) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl Deref for $name {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
    };
}

shared_name! {
    /// The name of a rule within its policy.
    RuleName
}
shared_name! {
    /// The name of a policy, as `namespace/name`.
    PolicyName
}

/// Why something is refused, for the audit line and for the person who reads the error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Denial {
    /// The fixed code.
    pub reason: ReasonCode,
    /// The rule that decided; `None` for built-in and default decisions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleName>,
    /// The policy of that rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyName>,
    /// A sentence that says what was refused and what could be done.
    pub message: String,
}

impl Denial {
    /// A denial that no rule made.
    pub fn built_in(reason: ReasonCode, message: impl Into<String>) -> Self {
        Self {
            reason,
            rule: None,
            policy: None,
            message: message.into(),
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Denial {}

/// What is decided when a connection is accepted, before anything on it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionVerdict {
    /// Refused whatever is spoken on it.
    Deny(Denial),
    /// To be looked into and decided by `decide_request`.
    Inspect,
}

/// What is decided about a request.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Refused.
    Deny(Denial),
    /// Let through under the permit's conditions.
    Permit(Permit),
}

impl Verdict {
    /// The permit, or the denial as the error.
    ///
    /// # Errors
    /// The denial.
    pub fn into_result(self) -> Result<Permit, Denial> {
        match self {
            Self::Permit(permit) => Ok(permit),
            Self::Deny(denial) => Err(denial),
        }
    }
}

/// A reference to a credential; never its value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct CredentialRef {
    /// The header that carries the credential, lower case.
    pub header: String,
    /// The file that holds the value, relative to the credentials directory, as `secret/key`.
    pub file: String,
    /// Text that goes before the value.
    pub prefix: String,
    /// How value and header relate.
    pub format: CredentialFormat,
    /// The user name of the `basic` format.
    pub username: Option<String>,
    /// True when the value is redacted in response headers.
    pub strip_from_response: bool,
    /// True when the rule accepts that the value leaves in cleartext.
    pub allow_cleartext: bool,
}

/// By which kind of rule a permit was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PermitKind {
    /// An allow rule.
    Allow,
    /// A credential rule: the request leaves with the credential or not at all.
    Credential,
    /// No rule: every policy that selects the pod is in audit mode.
    AuditOnly,
}

/// What a permitted connection may be made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialBy {
    /// The proxy's own resolution of the request's host; `check_address` decides about each result.
    Name,
    /// The address that the pod dialled and nothing else: the rule names a network, so the host is a mere label and is
    /// not resolved (resolving what the pod wrote would be a way out through DNS).
    OriginalDestination(SocketAddrV4),
    /// An agent, by the target of an ingress rule.
    Target,
}

/// Leave to make one connection or send one request. Made only by `PolicySet::decide_*`.
///
/// It holds the scope that decided (see `check_address`), the rule and the reference of the credential, never a secret.
#[derive(Clone)]
pub struct Permit {
    pub(crate) scope: Arc<ScopeInner>,
    pub(crate) rule: Option<u32>,
    pub(crate) would_deny: Option<Box<Denial>>,
    pub(crate) dial: DialBy,
    /// The address that the pod dialled; `None` for ingress.
    pub(crate) dst: Option<SocketAddrV4>,
    pub(crate) seen: Option<Seen>,
}

/// What of the request deny rules on networks are held against when an address is checked.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) channel: Channel,
    pub(crate) port: u16,
    /// Kept only when the scope has a deny rule on a network that names methods or paths.
    pub(crate) method: Option<Box<str>>,
    pub(crate) path: Option<Box<str>>,
}

impl Permit {
    fn compiled(&self) -> Option<&CompiledRule> {
        self.rule.and_then(|rank| self.scope.rules.get(rank))
    }

    /// The policy of the deciding rule; `None` for [`PermitKind::AuditOnly`].
    pub fn policy(&self) -> Option<&PolicyName> {
        self.compiled()
            .map(|rule| self.scope.rules.policy_name(rule))
    }

    /// The deciding rule; `None` for [`PermitKind::AuditOnly`].
    pub fn rule(&self) -> Option<&RuleName> {
        self.compiled().map(|rule| &rule.name)
    }

    /// By which kind of rule the permit was made.
    pub fn kind(&self) -> PermitKind {
        match self.compiled() {
            None => PermitKind::AuditOnly,
            Some(rule) if rule.credential.is_some() => PermitKind::Credential,
            Some(_) => PermitKind::Allow,
        }
    }

    /// The credential that the request must carry.
    pub fn credential(&self) -> Option<&CredentialRef> {
        self.compiled()?.credential.as_deref()
    }

    /// What a policy in audit mode would have refused about this request.
    pub fn would_deny(&self) -> Option<&Denial> {
        self.would_deny.as_deref()
    }

    /// True when the request came in cleartext and leaves as HTTPS.
    pub fn tls_originate(&self) -> bool {
        self.compiled().is_some_and(|rule| rule.tls_originate)
    }

    /// The port that is connected to for one that was named: `http://name/` leaves as `https://name/`, whose port is
    /// another; a port that was named stays.
    pub fn upstream_port(named: u16, tls: bool) -> u16 {
        if tls && named == 80 { 443 } else { named }
    }

    /// What may be connected to.
    pub fn dial_by(&self) -> DialBy {
        self.dial
    }

    /// The decision for the audit line.
    pub fn decision(&self) -> Decision {
        if self.would_deny.is_some() {
            Decision::WouldDeny
        } else {
            Decision::Allow
        }
    }

    /// The reason code for the audit line.
    pub fn reason(&self) -> ReasonCode {
        match (self.kind(), self.dial) {
            (_, DialBy::Target) => ReasonCode::IngressAllowed,
            (PermitKind::Credential, _) => ReasonCode::CredentialInjected,
            (PermitKind::Allow | PermitKind::AuditOnly, _) => ReasonCode::EgressAllowed,
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("policy", &self.policy())
            .field("rule", &self.rule())
            .field("kind", &self.kind())
            .field("dial", &self.dial)
            .field("would_deny", &self.would_deny)
            .finish_non_exhaustive()
    }
}
