//! One rule after compilation: canonical, and able to say whether it covers a request. Owns what each field of a rule
//! means; the order among rules is settled in `compile`.
//!
//! What is not seen counts against the pod: a deny rule that names methods or paths covers requests whose method or path
//! is not seen (TLS that is passed through), other rules do not.

use crate::policy::cidr::IpCidr;
use crate::policy::document::{BypassAction, PolicyMode, RuleKind, RuleProtocol};
use crate::policy::facts::Protocol;
use crate::policy::host::HostPattern;
use crate::policy::permit::{CredentialRef, PolicyName, RuleName};
use crate::policy::port::PortSpec;

/// "No rule", and larger than every rank.
pub(crate) const NO_RULE: u32 = u32::MAX;

/// Number of [`Channel`]s.
pub(crate) const CHANNELS: usize = 2 * Protocol::ALL.len();

/// What is spoken, and whether a host is named: what decides whether a rule can cover a request at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channel(u8);

impl Channel {
    pub(crate) fn new(protocol: Protocol, named: bool) -> Self {
        // Two times five protocols fit.
        let index = protocol.index() + if named { 0 } else { Protocol::ALL.len() };
        Self(index as u8)
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A set of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelSet(u16);

impl ChannelSet {
    fn of(protocols: impl Fn(Protocol) -> bool, bare: impl Fn(Protocol) -> bool) -> Self {
        let mut set = 0;
        for protocol in Protocol::ALL {
            if protocols(protocol) {
                set |= 1 << Channel::new(protocol, true).0;
                if bare(protocol) {
                    set |= 1 << Channel::new(protocol, false).0;
                }
            }
        }
        Self(set)
    }

    pub(crate) fn contains(self, channel: Channel) -> bool {
        self.0 >> channel.0 & 1 == 1
    }

    pub(crate) const NONE: Self = Self(0);
    pub(crate) const ALL: Self = Self((1 << CHANNELS) - 1);

    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn is_subset_of(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    pub(crate) fn indices(self) -> impl Iterator<Item = usize> {
        (0..CHANNELS).filter(move |i| self.0 >> i & 1 == 1)
    }
}

/// The channels that a rule covers.
///
/// `tcp` and no protocol mean anything. A deny rule takes the wider reading where the protocol leaves a doubt. A rule
/// that lets through needs to see what it names: HTTP for methods, paths and credentials; a host for a host; and a port
/// besides the network where nothing but the destination is known.
pub(crate) fn channels(
    kind: RuleKind,
    protocol: Option<RuleProtocol>,
    needs_sight: bool,
    destination: &Destination,
    any_port: bool,
) -> ChannelSet {
    let denies = kind == RuleKind::Deny;
    let spoken = move |p: Protocol| match protocol {
        None | Some(RuleProtocol::Tcp) => true,
        Some(RuleProtocol::Http) => matches!(p, Protocol::Http | Protocol::Grpc),
        Some(RuleProtocol::Https | RuleProtocol::Tls) => {
            matches!(p, Protocol::Https | Protocol::Tls) || denies && p == Protocol::Grpc
        }
        Some(RuleProtocol::Grpc) => p == Protocol::Grpc,
    };
    if denies {
        return ChannelSet::of(spoken, |_| true);
    }
    let by_network = matches!(destination, Destination::Network(_));
    ChannelSet::of(
        |p| {
            spoken(p)
                && (p.is_visible_http() || !needs_sight)
                && (p != Protocol::Tcp || by_network && !any_port)
        },
        |p| by_network && (p.is_visible_http() || !any_port),
    )
}

/// Where a rule leads to.
#[derive(Debug)]
pub(crate) enum Destination {
    Host(HostPattern),
    Network(IpCidr),
    /// Ingress.
    Call(Box<Call>),
}

/// Who calls whom, in the canonical text of `Caller` and `Target`; `*` for any.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) caller: Box<str>,
    pub(crate) target: Box<str>,
}

/// A path as rules write it, in comparable form (see `path::comparable`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathPattern {
    Exact(Box<str>),
    /// Everything that begins with this text, which ends with a slash.
    Under(Box<str>),
}

impl PathPattern {
    fn covers(&self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *path,
            Self::Under(prefix) => path.starts_with(&**prefix),
        }
    }
}

#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub(crate) name: RuleName,
    pub(crate) policy: u32,
    pub(crate) kind: RuleKind,
    pub(crate) tls_originate: bool,
    pub(crate) channels: ChannelSet,
    pub(crate) destination: Destination,
    /// Empty = any.
    pub(crate) ports: Box<[PortSpec]>,
    /// Empty = any; `GET` has brought `HEAD` with it.
    pub(crate) methods: Box<[Box<str>]>,
    /// Empty = any.
    pub(crate) paths: Box<[PathPattern]>,
    pub(crate) credential: Option<Box<CredentialRef>>,
}

/// Most bytes of a method that a rule names.
pub(crate) const METHOD_BYTES: usize = 32;

/// A request's method. Methods know upper and lower case, but some servers take `post` for `POST`: a deny rule for one
/// covers the other, rules that let through do not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Method<'a> {
    /// In capitals, as rules are written; a method that is too long for any rule stays as it is.
    upper: &'a str,
    as_sent: bool,
}

impl<'a> Method<'a> {
    /// Writes to `buffer` only what is not in capitals.
    pub(crate) fn new(method: &'a str, buffer: &'a mut [u8; METHOD_BYTES]) -> Self {
        let in_capitals = Self {
            upper: method,
            as_sent: true,
        };
        if !method.bytes().any(|b| b.is_ascii_lowercase()) {
            return in_capitals;
        }
        let upper = buffer.get_mut(..method.len()).and_then(|upper| {
            upper.copy_from_slice(method.as_bytes());
            upper.make_ascii_uppercase();
            std::str::from_utf8(upper).ok()
        });
        Self {
            upper: upper.unwrap_or(method),
            as_sent: false,
        }
    }

    /// What rules that could cover the method name.
    pub(crate) fn upper(self) -> &'a str {
        self.upper
    }

    /// True when a rule of the kind that names [`Self::upper`] covers the method.
    pub(crate) fn is_for(self, kind: RuleKind) -> bool {
        self.as_sent || kind == RuleKind::Deny
    }
}

/// What of a request rules are held against, the destination apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe<'a> {
    pub(crate) channel: Channel,
    pub(crate) port: u16,
    pub(crate) method: Option<Method<'a>>,
    pub(crate) path: Option<&'a str>,
}

impl CompiledRule {
    /// True when everything but the destination covers the request.
    pub(crate) fn covers(&self, probe: &Probe<'_>) -> bool {
        let unseen = self.kind == RuleKind::Deny;
        self.channels.contains(probe.channel)
            && (self.ports.is_empty() || self.ports.iter().any(|ports| ports.contains(probe.port)))
            && (self.methods.is_empty()
                || probe.method.map_or(unseen, |method| {
                    method.is_for(self.kind) && self.methods.iter().any(|m| **m == *method.upper())
                }))
            && (self.paths.is_empty()
                || probe
                    .path
                    .map_or(unseen, |path| self.paths.iter().any(|p| p.covers(path))))
    }

    /// True when the rule covers every request to its destination.
    pub(crate) fn is_unconditional(&self) -> bool {
        self.ports.is_empty()
            && self.methods.is_empty()
            && self.paths.is_empty()
            && (0..CHANNELS).all(|i| self.channels.0 >> i & 1 == 1)
    }

    /// True when the rule lets something through, but only what the proxy can see.
    pub(crate) fn needs_sight(&self) -> bool {
        self.kind != RuleKind::Deny
            && (self.credential.is_some() || !self.methods.is_empty() || !self.paths.is_empty())
    }
}

/// What decisions need to know of a policy.
#[derive(Debug)]
pub(crate) struct PolicyInfo {
    pub(crate) name: PolicyName,
    pub(crate) priority: i32,
    pub(crate) mode: PolicyMode,
    pub(crate) direct_bypass: Option<BypassAction>,
}

/// All rules of a set by rank: of two rules that cover a request, the one with the lower rank decides.
#[derive(Debug, Default)]
pub(crate) struct RuleTable {
    pub(crate) rules: Vec<CompiledRule>,
    pub(crate) policies: Vec<PolicyInfo>,
}

impl RuleTable {
    pub(crate) fn get(&self, rank: u32) -> Option<&CompiledRule> {
        self.rules.get(usize::try_from(rank).ok()?)
    }

    pub(crate) fn policy(&self, rule: &CompiledRule) -> &PolicyInfo {
        // `compile` gives every rule the position of an existing policy.
        &self.policies[rule.policy as usize]
    }

    pub(crate) fn policy_name(&self, rule: &CompiledRule) -> &PolicyName {
        &self.policy(rule).name
    }

    /// True for a deny rule that is only observed, because its policy is in audit mode.
    pub(crate) fn is_observed(&self, rule: &CompiledRule) -> bool {
        rule.kind == RuleKind::Deny && self.policy(rule).mode == PolicyMode::Audit
    }
}
