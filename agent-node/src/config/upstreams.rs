//! Names with fixed addresses: for tests, split-horizon names and inter-agent targets.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use serde::Deserialize;

use super::file::{ConfigError, field};

/// How an upstream is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Cleartext.
    Http,
    /// TLS, with the certificate verified.
    Https,
}

/// Where a name leads, instead of where DNS says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Tried in order; never empty.
    pub addresses: Vec<IpAddr>,
    /// Another port than the one that was dialled.
    pub port: Option<u16>,
    /// Whether neither the key nor the entry names a port, so that it would be the pod's choice.
    pub any_port: bool,
    /// Another scheme than the one that was spoken.
    pub scheme: Option<Scheme>,
}

/// The fixed upstreams, by lower-case name and optionally port.
#[derive(Debug, Clone, Default)]
pub struct Upstreams(HashMap<String, PortMap>);

#[derive(Debug, Clone, Default)]
struct PortMap {
    any: Option<Upstream>,
    ports: Vec<(u16, Upstream)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct UpstreamFile {
    addresses: Vec<String>,
    port: Option<u16>,
    scheme: Option<String>,
}

impl Upstreams {
    /// The upstream for `name` (lower case, no trailing dot) when `port` was asked for: the entry
    /// with that port, else the entry without one.
    pub fn get(&self, name: &str, port: u16) -> Option<&Upstream> {
        let entry = self.0.get(name)?;
        entry
            .ports
            .iter()
            .find(|(p, _)| *p == port)
            .map(|(_, upstream)| upstream)
            .or(entry.any.as_ref())
    }

    /// Whether any entry has this name.
    pub fn has_name(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(super) fn parse(file: BTreeMap<String, UpstreamFile>) -> Result<Upstreams, ConfigError> {
        let mut all = Upstreams::default();
        for (key, value) in file {
            let name = format!("upstreams[{key:?}]");
            let (host, port) = split_key(&key).ok_or_else(|| {
                field(
                    &name,
                    "the key is not a name with an optional port",
                    "for example `git.example.com` or `git.example.com:443`",
                )
            })?;
            let upstream = parse_one(&name, &value, port)?;
            let entry = all.0.entry(host).or_default();
            match port {
                Some(port) => entry.ports.push((port, upstream)),
                None => entry.any = Some(upstream),
            }
        }
        Ok(all)
    }
}

fn split_key(key: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match key.rsplit_once(':') {
        Some((host, port)) => (host, Some(port.parse::<u16>().ok().filter(|p| *p != 0)?)),
        None => (key, None),
    };
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let fine = !host.is_empty()
        && host.len() <= 253
        && host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'/'));
    fine.then_some((host, port))
}

fn parse_one(
    name: &str,
    file: &UpstreamFile,
    key_port: Option<u16>,
) -> Result<Upstream, ConfigError> {
    if file.addresses.is_empty() {
        return Err(field(
            format!("{name}.addresses"),
            "it is empty",
            "at least one IP address",
        ));
    }
    let mut addresses = Vec::with_capacity(file.addresses.len());
    for (i, text) in file.addresses.iter().enumerate() {
        addresses.push(text.parse::<IpAddr>().map_err(|_| {
            field(
                format!("{name}.addresses[{i}]"),
                format!("`{text}` is not an IP address"),
                "an address such as `192.0.2.10`; the port has a field of its own",
            )
        })?);
    }
    if file.port == Some(0) {
        return Err(field(
            format!("{name}.port"),
            "0 is no port",
            "a number from 1 to 65535, or leave it out to keep the port that was dialled",
        ));
    }
    let any_port = key_port.is_none() && file.port.is_none();
    if any_port && addresses.iter().any(is_this_host) {
        return Err(field(
            format!("{name}.port"),
            "it is missing, and pods could reach any port of this node's loopback",
            "the port of the server, here or in the key",
        ));
    }
    let scheme = match file.scheme.as_deref() {
        None => None,
        Some("http") => Some(Scheme::Http),
        Some("https") => Some(Scheme::Https),
        Some(other) => {
            return Err(field(
                format!("{name}.scheme"),
                format!("`{other}` is not known"),
                "`http` or `https`, or leave it out",
            ));
        }
    };
    Ok(Upstream {
        addresses,
        port: file.port,
        any_port,
        scheme,
    })
}

/// Whether a connection to `ip` never leaves this host: loopback, or the unspecified address, which
/// Linux takes for it.
fn is_this_host(ip: &IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || ip.is_unspecified()
}
