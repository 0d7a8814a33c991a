//! Says which host and port a request is for, or that it can't be said.
//!
//! Owns the rules of RFC 9112 section 3.2 on Host, authority form and absolute form, and our own:
//! one authority, never two; the port is the one that was dialled, unless the client speaks to us as
//! to an explicit proxy (`CONNECT`, absolute form) and names another. It resolves nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};

use agent_core::policy::HostName;
use http::header::HOST;
use http::uri::Scheme;
use http::{HeaderMap, Method, Uri, Version};

use super::fault::Fault;

/// What a request names as its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Host {
    Name(HostName),
    Address(Ipv4Addr),
}

/// The one server that a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Authority {
    /// `None` only for HTTP/1.0 without Host.
    pub(crate) host: Option<Host>,
    /// What rules are held against and what is connected to.
    pub(crate) port: u16,
    /// Whether the client named another server than the one it dialled, as explicit-proxy clients
    /// do. What it dialled then says nothing about where it wants to go.
    pub(crate) explicit: bool,
}

impl Authority {
    /// The name, if it is one.
    pub(crate) fn name(&self) -> Option<&HostName> {
        match &self.host {
            Some(Host::Name(name)) => Some(name),
            _ => None,
        }
    }
}

/// Finds the server of a request that was dialled as `dst`.
///
/// # Errors
/// When there is not exactly one.
pub(crate) fn of(
    method: &Method,
    uri: &Uri,
    version: Version,
    headers: &HeaderMap,
    dst: SocketAddrV4,
) -> Result<Authority, Fault> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => return Err(Fault::SeveralHosts),
        (Some(value), None) => Some(parse(value.as_bytes())?),
        (None, _) if version == Version::HTTP_10 => None,
        (None, _) => return Err(Fault::NoHost),
    };
    if method == Method::CONNECT {
        return connect(uri, host);
    }
    match (uri.scheme(), uri.authority()) {
        (None, None) if uri.path().starts_with('/') => dialled(host, dst),
        (None, None) if uri.path() == "*" && method == Method::OPTIONS => dialled(host, dst),
        (Some(scheme), Some(authority)) if *scheme == Scheme::HTTP => {
            let (named, port) = parse(authority.as_str().as_bytes())?;
            let port = port.unwrap_or(80);
            if let Some((host, host_port)) = host
                && (host != named || host_port.unwrap_or(80) != port)
            {
                return Err(Fault::HostConflict);
            }
            Ok(Authority {
                explicit: is_elsewhere(&named, port, dst),
                host: Some(named),
                port,
            })
        }
        _ => Err(Fault::Form),
    }
}

fn connect(uri: &Uri, host: Option<(Host, Option<u16>)>) -> Result<Authority, Fault> {
    let authority = uri.authority().ok_or(Fault::Form)?;
    let (named, Some(port)) = parse(authority.as_str().as_bytes())? else {
        return Err(Fault::Form);
    };
    if let Some((host, host_port)) = host
        && (host != named || host_port.is_some_and(|p| p != port))
    {
        return Err(Fault::HostConflict);
    }
    Ok(Authority {
        host: Some(named),
        port,
        explicit: true,
    })
}

/// Origin form: the port is the dialled one, whatever Host says; an address must be the dialled one.
fn dialled(host: Option<(Host, Option<u16>)>, dst: SocketAddrV4) -> Result<Authority, Fault> {
    let host = match host {
        Some((Host::Address(ip), _)) if ip != *dst.ip() => return Err(Fault::HostNotDialled),
        Some((host, _)) => Some(host),
        None => None,
    };
    Ok(Authority {
        host,
        port: dst.port(),
        explicit: false,
    })
}

fn is_elsewhere(host: &Host, port: u16, dst: SocketAddrV4) -> bool {
    match host {
        Host::Address(ip) => *ip != *dst.ip() || port != dst.port(),
        Host::Name(_) => port != dst.port(),
    }
}

/// Reads `host[:port]`.
fn parse(bytes: &[u8]) -> Result<(Host, Option<u16>), Fault> {
    let text = std::str::from_utf8(bytes).map_err(|_| Fault::Host)?;
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(parse_port(port)?)),
        _ => (text, None),
    };
    if !text.is_ascii() {
        return Err(Fault::Host);
    }
    if let Ok(ip) = host.parse::<Ipv4Addr>() {
        return Ok((Host::Address(ip), port));
    }
    if let Some(v6) = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        // No pod has IPv6; only the mapped form can be what was dialled.
        return match v6
            .parse::<Ipv6Addr>()
            .map(IpAddr::from)
            .map(|ip| ip.to_canonical())
        {
            Ok(IpAddr::V4(ip)) => Ok((Host::Address(ip), port)),
            _ => Err(Fault::Host),
        };
    }
    HostName::parse(host)
        .map(|name| (Host::Name(name), port))
        .map_err(|_| Fault::Host)
}

fn parse_port(text: &str) -> Result<u16, Fault> {
    let digits = !text.is_empty() && text.len() <= 5 && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u16>() {
        Ok(port) if digits && port != 0 => Ok(port),
        _ => Err(Fault::Host),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const DST: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 9), 8080);

    fn of_lines(line: &str, hosts: &[&str]) -> Result<Authority, Fault> {
        let mut parts = line.split(' ');
        let method = Method::from_bytes(parts.next().unwrap().as_bytes()).unwrap();
        let uri: Uri = parts.next().unwrap().parse().unwrap();
        let version = match parts.next() {
            Some("1.0") => Version::HTTP_10,
            _ => Version::HTTP_11,
        };
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_bytes(host.as_bytes()).unwrap());
        }
        of(&method, &uri, version, &headers, DST)
    }

    fn summary(line: &str, hosts: &[&str]) -> Result<(String, u16, bool), Fault> {
        of_lines(line, hosts).map(|a| {
            let host = match a.host {
                Some(Host::Name(n)) => n.as_str().to_owned(),
                Some(Host::Address(ip)) => ip.to_string(),
                None => "-".to_owned(),
            };
            (host, a.port, a.explicit)
        })
    }

    #[test]
    fn one_authority_is_found_in_every_form() {
        type Case = (
            &'static str,
            &'static [&'static str],
            (&'static str, u16, bool),
        );
        let cases: &[Case] = &[
            ("GET /x", &["a.example"], ("a.example", 8080, false)),
            ("GET /x", &["A.Example.:80"], ("a.example", 8080, false)),
            (
                "GET //evil.example/x",
                &["a.example"],
                ("a.example", 8080, false),
            ),
            ("GET /x", &["192.0.2.9"], ("192.0.2.9", 8080, false)),
            (
                "GET /x",
                &["[::ffff:192.0.2.9]:8080"],
                ("192.0.2.9", 8080, false),
            ),
            ("GET /x 1.0", &[], ("-", 8080, false)),
            ("OPTIONS *", &["a.example"], ("a.example", 8080, false)),
            (
                "GET http://a.example:8080/x",
                &["a.example:8080"],
                ("a.example", 8080, false),
            ),
            (
                "GET http://a.example/x",
                &["a.example"],
                ("a.example", 80, true),
            ),
            (
                "GET http://a.example/x",
                &["A.EXAMPLE:80"],
                ("a.example", 80, true),
            ),
            (
                "CONNECT a.example:443",
                &["a.example:443"],
                ("a.example", 443, true),
            ),
            (
                "CONNECT a.example:443",
                &["a.example"],
                ("a.example", 443, true),
            ),
            ("CONNECT a.example:443 1.0", &[], ("a.example", 443, true)),
        ];
        for (line, hosts, (host, port, explicit)) in cases {
            let expected = Ok(((*host).to_owned(), *port, *explicit));
            assert_eq!(summary(line, hosts), expected, "{line} {hosts:?}");
        }
    }

    #[test]
    fn no_or_several_authorities_are_refused() {
        let cases: &[(&str, &[&str], Fault)] = &[
            ("GET /", &[], Fault::NoHost),
            ("GET http://a.example/", &[], Fault::NoHost),
            ("GET /", &["a.example", "a.example"], Fault::SeveralHosts),
            (
                "GET / 1.0",
                &["a.example", "b.example"],
                Fault::SeveralHosts,
            ),
            ("GET /", &[""], Fault::Host),
            ("GET /", &["a.example:"], Fault::Host),
            ("GET /", &["a.example:0"], Fault::Host),
            ("GET /", &["a.example:99999"], Fault::Host),
            ("GET /", &["a.example:+80"], Fault::Host),
            ("GET /", &["user@a.example"], Fault::Host),
            ("GET /", &["a.example, b.example"], Fault::Host),
            ("GET /", &["a.example/x"], Fault::Host),
            ("GET /", &["a..example"], Fault::Host),
            ("GET /", &["0x7f.1"], Fault::Host),
            ("GET /", &["2130706433"], Fault::Host),
            ("GET /", &["[::1]"], Fault::Host),
            ("GET /", &["127.0.0.1"], Fault::HostNotDialled),
            ("GET http://a.example/", &["b.example"], Fault::HostConflict),
            (
                "GET http://a.example/",
                &["a.example:8080"],
                Fault::HostConflict,
            ),
            ("GET http://u:p@a.example/", &["a.example"], Fault::Host),
            ("GET https://a.example/", &["a.example"], Fault::Form),
            ("GET ftp://a.example/", &["a.example"], Fault::Form),
            ("GET a.example:80", &["a.example"], Fault::Form),
            ("GET *", &["a.example"], Fault::Form),
            ("CONNECT a.example", &["a.example"], Fault::Form),
            ("CONNECT /x", &["a.example"], Fault::Form),
            (
                "CONNECT a.example:443",
                &["b.example:443"],
                Fault::HostConflict,
            ),
            (
                "CONNECT a.example:443",
                &["a.example:80"],
                Fault::HostConflict,
            ),
        ];
        for (line, hosts, fault) in cases {
            assert_eq!(
                of_lines(line, hosts).unwrap_err(),
                *fault,
                "{line} {hosts:?}"
            );
        }
    }
}
