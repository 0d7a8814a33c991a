//! What is known about a request when it is decided. Owns no parsing: the proxy fills it in.

use std::net::SocketAddrV4;

use serde::{Deserialize, Serialize};

use crate::policy::HostName;

/// What the proxy sees on the connection, which is what rules can be held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP in cleartext: host, method and path are seen.
    Http,
    /// HTTP inside a TLS session that the proxy terminates (interception): host, method and path are seen.
    Https,
    /// TLS that is passed through: only the server name is seen.
    Tls,
    /// Anything else: only the original destination is known.
    Tcp,
    /// gRPC over HTTP/2 that the proxy sees.
    Grpc,
}

impl Protocol {
    /// Every protocol, in the order of their bits in rule masks.
    pub const ALL: [Self; 5] = [Self::Http, Self::Https, Self::Tls, Self::Tcp, Self::Grpc];

    /// The word used in rules, audit lines and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Tls => "tls",
            Self::Tcp => "tcp",
            Self::Grpc => "grpc",
        }
    }

    /// True when methods and paths are seen.
    pub const fn is_visible_http(self) -> bool {
        match self {
            Self::Http | Self::Https | Self::Grpc => true,
            Self::Tls | Self::Tcp => false,
        }
    }

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Http => 0,
            Self::Https => 1,
            Self::Tls => 2,
            Self::Tcp => 3,
            Self::Grpc => 4,
        }
    }
}

/// One request, or one connection whose content is not seen.
#[derive(Clone, Copy, Debug)]
pub struct RequestFacts<'a> {
    /// What is spoken.
    pub protocol: Protocol,
    /// The name from Host, `:authority` or SNI; `None` for an IP literal or when there is none.
    pub host: Option<&'a HostName>,
    /// The address that the pod dialled.
    pub dst: SocketAddrV4,
    /// The port that rules are held against: the dialled one, except for an explicit-proxy request (CONNECT, absolute
    /// form to the proxy), where it is the authority's.
    pub port: u16,
    /// The method; ignored for protocols whose content is not seen.
    pub method: Option<&'a str>,
    /// The canonical path (see [`crate::path`]) without query; ignored for protocols whose content is not seen. A path
    /// that is not canonical is treated as unseen: deny rules on paths match it, other rules on paths do not.
    pub path: Option<&'a str>,
}
