//! ZeroProxy's configuration: one JSON file, read once into typed values.
//!
//! Owns the fields, their defaults and what is wrong with a bad one. Doesn't own what the fields
//! do; nothing here opens a socket or reads a secret. `docs/zeroproxy-config.md` is the manual.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_core::identity::Workload;
use ipnet::Ipv4Net;

use crate::workloads::ClusterConfig;

mod file;
mod upstreams;

pub use file::ConfigError;
pub use upstreams::{Scheme, Upstream, Upstreams};

/// Where agent-cni keeps its state unless told otherwise (reference, "Troubleshooting").
pub const DEFAULT_STATE_DIR: &str = "/var/lib/tke-agent-network/agent-cni";
/// Keeps what the API server said about pods; beside agent-cni's state, and not in it.
pub const DEFAULT_SNAPSHOT_FILE: &str = "/var/lib/tke-agent-network/zeroproxy/pods.json";
/// The folder of the pinned programs and maps, without the layout's version.
pub const DEFAULT_PIN_DIR: &str = "/sys/fs/bpf/agent-network";
/// The documented port (see reference, "Core Concepts"); by its own address only the node reaches it.
pub const DEFAULT_LISTEN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 18080);
/// Names under `svc.<this>` are cluster names; the value that Kubernetes ships with.
pub const DEFAULT_CLUSTER_DOMAIN: &str = "cluster.local";
/// A pod rarely needs more; 100 pods at this limit stay under the 200,000 files of a large node.
pub const DEFAULT_CONNECTIONS_PER_POD: u32 = 2048;
/// Large enough for cookies and tokens of real services; what nginx and hyper accept by default.
pub const DEFAULT_HEADER_BYTES: usize = 64 * 1024;
/// The number of header lines that browsers, SDKs and git stay far below.
pub const DEFAULT_HEADER_COUNT: usize = 128;
/// Long enough for an LLM that thinks before its first token, short enough to free dead peers.
pub const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a client may stay silent before it is taken for a server-speaks-first protocol.
pub const DEFAULT_FIRST_BYTE_TIMEOUT: Duration = Duration::from_millis(1000);
/// Below the 30 s after which kubelet kills what is still there.
pub const DEFAULT_DRAIN: Duration = Duration::from_secs(25);
/// How long a stream that a new policy denies may live on.
pub const DEFAULT_RECHECK: Duration = Duration::from_secs(5);
/// How long a new pod's first packet waits for its state file.
pub const DEFAULT_IDENTITY_WAIT: Duration = Duration::from_secs(1);
/// One audit file holds about 150,000 lines.
pub const DEFAULT_AUDIT_ROTATE_BYTES: u64 = 64 * 1024 * 1024;
/// Rotated audit files that are kept beside the open one.
pub const DEFAULT_AUDIT_KEEP: u32 = 4;
/// The documented port of the DNS proxy (see reference, "Core Concepts").
pub const DEFAULT_DNS_LISTEN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 18053);
/// The dispatch program keeps 16 slots for each class of listener.
pub const MAX_WORKERS: u16 = 16;

/// The whole configuration. See `docs/zeroproxy-config.md` for every field.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where agent-cni keeps one file per attachment, and `node.json`.
    pub state_dir: PathBuf,
    /// The folder of the pinned programs and maps, without the layout's version.
    pub pin_dir: PathBuf,
    /// The runtime policy document.
    pub policy_file: PathBuf,
    /// Where service accounts and labels of this node's pods come from.
    pub facts: FactsFrom,
    /// The folder that every credential file must be in.
    pub credentials_dir: PathBuf,
    /// Where pods' TCP and the node's own connections are taken; its port is the gateway's, too.
    pub listen: SocketAddrV4,
    /// Where the endpoints are also served to other hosts: to the controller, and to whoever scrapes metrics. Nowhere by
    /// default.
    pub admin_listen: Option<SocketAddrV4>,
    /// As whom the node's own connections may use the proxy explicitly; nobody by default.
    pub local_client: Option<LocalClient>,
    /// The DNS proxy.
    pub dns: DnsConfig,
    /// Names with fixed addresses.
    pub upstreams: Upstreams,
    /// TLS towards upstreams, and what is asked of a ClientHello.
    pub tls: TlsConfig,
    /// Holds the bearer token of `/reload` and `/policy/explain`; without it they answer 403.
    pub reload_token_file: Option<PathBuf>,
    /// Where audit lines go.
    pub audit: AuditConfig,
    /// What one pod or one request may use.
    pub limits: Limits,
    /// How long requests in flight may go on after SIGTERM.
    pub drain: Duration,
    /// How soon a long-lived connection is decided again after a policy change.
    pub recheck: Duration,
    /// How long an unknown source address waits for its state file.
    pub identity_wait: Duration,
    /// Worker threads, 1 to [`MAX_WORKERS`].
    pub workers: u16,
    /// Fake IP CIDRs of other nodes; this node's own comes from the state.
    pub fake_cidrs: Vec<Ipv4Net>,
}

/// Where service accounts and labels of pods come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FactsFrom {
    /// A file, outside Kubernetes.
    File(PathBuf),
    /// The API server.
    Cluster(ClusterConfig),
}

/// Who may use the proxy from the node itself, as an explicit proxy, and under which identity.
#[derive(Debug, Clone)]
pub struct LocalClient {
    /// Holds the token that such a client has to show in `Proxy-Authorization`.
    pub token_file: PathBuf,
    /// Whom policy takes it for.
    pub workload: Workload,
}

/// What the DNS proxy asks and answers.
#[derive(Debug, Clone)]
pub struct DnsConfig {
    /// Where the sockets for UDP and TCP are bound; pods' queries come to them through the dispatch map.
    pub listen: SocketAddrV4,
    /// Servers that are asked, in order.
    pub upstreams: Vec<SocketAddr>,
    /// Whether names that no rule of the pod's could let through are answered here.
    pub enforce: bool,
    /// The suffix of cluster names, lower case, without dots at its ends.
    pub cluster_domain: String,
    /// What a name that may not be resolved is answered with.
    pub denied_rcode: DeniedRcode,
}

/// The answer for a name that the pod may not resolve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeniedRcode {
    /// `NXDOMAIN`: search lists go on to their next entry.
    NxDomain,
    /// `REFUSED`: some resolvers (musl) stop here.
    Refused,
}

/// TLS towards upstreams, and what is asked of a ClientHello.
#[derive(Debug, Clone)]
pub struct TlsConfig {
    /// Connect where the pod dialled, without resolving the SNI ourselves.
    pub allow_unverified_sni: bool,
    /// PEM certificates that are trusted besides the system's.
    pub extra_ca_file: Option<PathBuf>,
}

/// Where audit lines go, and what happens when they can't.
#[derive(Debug, Clone)]
pub struct AuditConfig {
    /// Write lines to standard output.
    pub stdout: bool,
    /// Write lines to this file too.
    pub file: Option<PathBuf>,
    /// Refuse new decisions while lines can't be written, instead of shedding lines.
    pub fail_closed: bool,
    /// The size, in bytes, at which the file is rotated.
    pub rotate_bytes: u64,
    /// Rotated files that are kept.
    pub keep: u32,
}

/// What one pod or one request may use.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections of one pod at the same time.
    pub connections_per_pod: u32,
    /// Bytes of one request's or response's head.
    pub header_bytes: usize,
    /// Header lines of one request or response.
    pub header_count: usize,
    /// After this long without a byte in either direction a connection is closed.
    pub idle_timeout: Duration,
    /// After this long without a first byte a connection is taken for server-speaks-first.
    pub first_byte_timeout: Duration,
}

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// When the file can't be read, isn't JSON of this shape, or a value makes no sense; the error
    /// names the field and says what to write.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Config::parse(&text)
    }

    /// Checks the text of a configuration file.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(text: &[u8]) -> Result<Config, ConfigError> {
        file::parse(text)
    }

    /// The servers of a `resolv.conf`, for a configuration that names none.
    pub fn dns_servers_of(resolv_conf: &str) -> Vec<SocketAddr> {
        resolv_conf
            .lines()
            .filter_map(|line| line.trim().strip_prefix("nameserver"))
            .filter_map(|rest| rest.trim().parse::<IpAddr>().ok())
            .map(|ip| SocketAddr::new(ip, 53))
            .collect()
    }
}

#[cfg(test)]
mod tests;
