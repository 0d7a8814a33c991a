//! The configuration file as it is written, and its way to [`Config`].

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_core::identity::{Workload, is_object_name};
use ipnet::Ipv4Net;
use serde::Deserialize;

use super::upstreams::{UpstreamFile, Upstreams};
use super::{
    AuditConfig, Config, DEFAULT_AUDIT_KEEP, DEFAULT_AUDIT_ROTATE_BYTES, DEFAULT_CLUSTER_DOMAIN,
    DEFAULT_CONNECTIONS_PER_POD, DEFAULT_DNS_LISTEN, DEFAULT_DRAIN, DEFAULT_FIRST_BYTE_TIMEOUT,
    DEFAULT_HEADER_BYTES, DEFAULT_HEADER_COUNT, DEFAULT_IDENTITY_WAIT, DEFAULT_IDLE_TIMEOUT,
    DEFAULT_LISTEN, DEFAULT_PIN_DIR, DEFAULT_RECHECK, DEFAULT_SNAPSHOT_FILE, DEFAULT_STATE_DIR,
    DeniedRcode, DnsConfig, FactsFrom, Limits, LocalClient, MAX_WORKERS, TlsConfig,
};
use crate::workloads::ClusterConfig;

/// Asked for the node's name servers when the configuration names none.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Why a configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("read the configuration {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It isn't JSON, or has an unknown or missing field, or one of another type.
    #[error("the configuration is not valid; docs/zeroproxy-config.md lists every field")]
    Syntax(#[source] serde_json::Error),
    /// A field has a value that makes no sense.
    #[error("{field}: {problem}; write {remedy}")]
    Field {
        /// The field, as a path (`dns.upstreams[0]`).
        field: String,
        /// What is wrong.
        problem: String,
        /// What to write instead.
        remedy: &'static str,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ConfigFile {
    state_dir: Option<PathBuf>,
    pin_dir: Option<PathBuf>,
    policy_file: PathBuf,
    workloads_file: Option<PathBuf>,
    cluster: Option<ClusterFile>,
    credentials_dir: PathBuf,
    listen: Option<String>,
    admin_listen: Option<String>,
    local_client: Option<LocalClientFile>,
    #[serde(default)]
    dns: DnsFile,
    #[serde(default)]
    upstreams: BTreeMap<String, UpstreamFile>,
    #[serde(default)]
    tls: TlsFile,
    reload_token_file: Option<PathBuf>,
    #[serde(default)]
    audit: AuditFile,
    #[serde(default)]
    limits: LimitsFile,
    drain_seconds: Option<f64>,
    recheck_seconds: Option<f64>,
    identity_wait_ms: Option<u64>,
    workers: Option<u16>,
    #[serde(default)]
    fake_cidrs: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ClusterFile {
    node_name: String,
    kubeconfig: Option<PathBuf>,
    snapshot_file: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LocalClientFile {
    token_file: PathBuf,
    namespace: String,
    name: String,
    service_account: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    namespace_labels: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DnsFile {
    listen: Option<String>,
    #[serde(default)]
    upstreams: Vec<String>,
    enforce: Option<bool>,
    cluster_domain: Option<String>,
    denied_rcode: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TlsFile {
    #[serde(default, rename = "allowUnverifiedSNI")]
    allow_unverified_sni: bool,
    extra_ca_file: Option<PathBuf>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AuditFile {
    stdout: Option<bool>,
    file: Option<PathBuf>,
    #[serde(default)]
    fail_closed: bool,
    rotate_bytes: Option<u64>,
    keep: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LimitsFile {
    connections_per_pod: Option<u32>,
    header_bytes: Option<usize>,
    header_count: Option<usize>,
    idle_timeout_seconds: Option<f64>,
    first_byte_timeout_ms: Option<u64>,
}

pub(super) fn parse(text: &[u8]) -> Result<Config, ConfigError> {
    let file: ConfigFile = serde_json::from_slice(text).map_err(ConfigError::Syntax)?;
    Ok(Config {
        state_dir: absolute(
            "stateDir",
            file.state_dir.or(Some(DEFAULT_STATE_DIR.into())),
        )?,
        pin_dir: absolute("pinDir", file.pin_dir.or(Some(DEFAULT_PIN_DIR.into())))?,
        policy_file: absolute("policyFile", Some(file.policy_file))?,
        facts: facts(file.workloads_file, file.cluster)?,
        credentials_dir: absolute("credentialsDir", Some(file.credentials_dir))?,
        listen: listen(
            "listen",
            file.listen,
            DEFAULT_LISTEN,
            "for example `127.0.0.1:18080`",
        )?,
        admin_listen: file.admin_listen.map(admin_listen).transpose()?,
        local_client: file.local_client.map(local_client).transpose()?,
        dns: dns(file.dns)?,
        upstreams: Upstreams::parse(file.upstreams)?,
        tls: TlsConfig {
            allow_unverified_sni: file.tls.allow_unverified_sni,
            extra_ca_file: optional("tls.extraCaFile", file.tls.extra_ca_file)?,
        },
        reload_token_file: optional("reloadTokenFile", file.reload_token_file)?,
        audit: audit(file.audit)?,
        limits: limits(&file.limits)?,
        drain: seconds(
            "drainSeconds",
            file.drain_seconds,
            DEFAULT_DRAIN,
            0.0..=3600.0,
        )?,
        recheck: seconds(
            "recheckSeconds",
            file.recheck_seconds,
            DEFAULT_RECHECK,
            0.1..=3600.0,
        )?,
        identity_wait: millis(
            "identityWaitMs",
            file.identity_wait_ms,
            DEFAULT_IDENTITY_WAIT,
            10_000,
        )?,
        workers: workers(file.workers)?,
        fake_cidrs: fake_cidrs(&file.fake_cidrs)?,
    })
}

pub(super) fn field(
    field: impl Into<String>,
    problem: impl Into<String>,
    remedy: &'static str,
) -> ConfigError {
    ConfigError::Field {
        field: field.into(),
        problem: problem.into(),
        remedy,
    }
}

fn absolute(name: &str, path: Option<PathBuf>) -> Result<PathBuf, ConfigError> {
    match path {
        Some(path) if path.is_absolute() => Ok(path),
        Some(path) => Err(not_absolute(name, &path)),
        None => Err(field(name, "it is missing", "an absolute path")),
    }
}

fn optional(name: &str, path: Option<PathBuf>) -> Result<Option<PathBuf>, ConfigError> {
    match path {
        Some(path) if !path.is_absolute() => Err(not_absolute(name, &path)),
        other => Ok(other),
    }
}

fn not_absolute(name: &str, path: &Path) -> ConfigError {
    field(
        name,
        format!("`{}` is not an absolute path", path.display()),
        "a path that starts with `/`",
    )
}

fn listen(
    name: &str,
    text: Option<String>,
    default: SocketAddrV4,
    remedy: &'static str,
) -> Result<SocketAddrV4, ConfigError> {
    let Some(text) = text else {
        return Ok(default);
    };
    text.parse().map_err(|_| {
        field(
            name,
            format!("`{text}` is not an IPv4 address with a port"),
            remedy,
        )
    })
}

fn facts(
    workloads_file: Option<PathBuf>,
    cluster: Option<ClusterFile>,
) -> Result<FactsFrom, ConfigError> {
    let cluster = match (workloads_file, cluster) {
        (Some(path), None) => {
            return absolute("workloadsFile", Some(path)).map(FactsFrom::File);
        }
        (None, Some(cluster)) => cluster,
        (Some(_), Some(_)) => {
            return Err(field(
                "workloadsFile",
                "`cluster` is there too",
                "one of them: `cluster` in Kubernetes, `workloadsFile` elsewhere",
            ));
        }
        (None, None) => {
            return Err(field(
                "cluster",
                "neither it nor `workloadsFile` is there, so no pod would have an identity",
                "`cluster` with `nodeName` in Kubernetes, `workloadsFile` elsewhere",
            ));
        }
    };
    if !is_object_name(&cluster.node_name) {
        return Err(field(
            "cluster.nodeName",
            format!("`{}` is no name of a node", cluster.node_name),
            "what `kubectl get nodes` shows, or `spec.nodeName` by the downward API",
        ));
    }
    let snapshot = cluster.snapshot_file;
    Ok(FactsFrom::Cluster(ClusterConfig {
        node_name: cluster.node_name,
        kubeconfig: optional("cluster.kubeconfig", cluster.kubeconfig)?,
        snapshot_file: absolute(
            "cluster.snapshotFile",
            snapshot.or(Some(DEFAULT_SNAPSHOT_FILE.into())),
        )?,
    }))
}

/// Not every address: the gateway's would be pods' way in.
fn admin_listen(text: String) -> Result<SocketAddrV4, ConfigError> {
    const REMEDY: &str = "the node's own address with a port, for example `192.0.2.7:18081`";
    let address = listen("adminListen", Some(text), DEFAULT_LISTEN, REMEDY)?;
    if address.ip().is_unspecified() || address.port() == 0 {
        return Err(field(
            "adminListen",
            format!("`{address}` is no single address with a port"),
            REMEDY,
        ));
    }
    Ok(address)
}

fn local_client(file: LocalClientFile) -> Result<LocalClient, ConfigError> {
    let token_file = absolute("localClient.tokenFile", Some(file.token_file))?;
    let (namespace, name) = (file.namespace, file.name);
    for (key, value) in [
        ("localClient.namespace", Some(&namespace)),
        ("localClient.name", Some(&name)),
        ("localClient.serviceAccount", file.service_account.as_ref()),
    ] {
        if value.is_some_and(|value| !is_object_name(value)) {
            return Err(field(
                key,
                "it is no name of a Kubernetes object",
                "lower-case letters, digits, `-` and `.`",
            ));
        }
    }
    Ok(LocalClient {
        token_file,
        workload: Workload {
            namespace,
            name,
            uid: String::new(),
            service_account: file.service_account,
            labels: file.labels,
            namespace_labels: file.namespace_labels,
            fake_ip: Ipv4Addr::LOCALHOST,
        },
    })
}

fn dns(file: DnsFile) -> Result<DnsConfig, ConfigError> {
    let mut upstreams = Vec::with_capacity(file.upstreams.len());
    for (i, text) in file.upstreams.iter().enumerate() {
        let parsed = text
            .parse::<SocketAddr>()
            .or_else(|_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 53)));
        upstreams.push(parsed.map_err(|_| {
            field(
                format!("dns.upstreams[{i}]"),
                format!("`{text}` is not an address"),
                "for example `10.96.0.10` or `10.96.0.10:53`",
            )
        })?);
    }
    if upstreams.is_empty() {
        let resolv_conf = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
        upstreams = Config::dns_servers_of(&resolv_conf);
    }
    let cluster_domain = file
        .cluster_domain
        .unwrap_or_else(|| DEFAULT_CLUSTER_DOMAIN.into());
    let cluster_domain = cluster_domain.trim_matches('.').to_ascii_lowercase();
    if cluster_domain.is_empty() || !cluster_domain.split('.').all(is_label) {
        return Err(field(
            "dns.clusterDomain",
            format!("`{cluster_domain}` is not a domain name"),
            "for example `cluster.local`",
        ));
    }
    let listen = listen(
        "dns.listen",
        file.listen,
        DEFAULT_DNS_LISTEN,
        "for example `127.0.0.1:18053`",
    )?;
    let denied_rcode = match file.denied_rcode.as_deref() {
        None | Some("NXDOMAIN") => DeniedRcode::NxDomain,
        Some("REFUSED") => DeniedRcode::Refused,
        Some(other) => {
            return Err(field(
                "dns.deniedRcode",
                format!("`{other}` is not known"),
                "`NXDOMAIN` or `REFUSED`",
            ));
        }
    };
    Ok(DnsConfig {
        listen,
        upstreams,
        enforce: file.enforce.unwrap_or(true),
        cluster_domain,
        denied_rcode,
    })
}

fn is_label(label: &str) -> bool {
    !label.is_empty()
        && label.len() <= 63
        && label
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn audit(file: AuditFile) -> Result<AuditConfig, ConfigError> {
    let stdout = file.stdout.unwrap_or(true);
    let path = optional("audit.file", file.file)?;
    if !stdout && path.is_none() {
        return Err(field(
            "audit.stdout",
            "it is off and there is no `audit.file`, so decisions would leave no trace",
            "`true`, or a path in `audit.file`",
        ));
    }
    let rotate_bytes = file.rotate_bytes.unwrap_or(DEFAULT_AUDIT_ROTATE_BYTES);
    if rotate_bytes < 4096 {
        return Err(field(
            "audit.rotateBytes",
            format!("{rotate_bytes} is less than a few lines"),
            "a number of bytes of at least 4096",
        ));
    }
    Ok(AuditConfig {
        stdout,
        file: path,
        fail_closed: file.fail_closed,
        rotate_bytes,
        keep: file.keep.unwrap_or(DEFAULT_AUDIT_KEEP),
    })
}

fn limits(file: &LimitsFile) -> Result<Limits, ConfigError> {
    let connections_per_pod = file
        .connections_per_pod
        .unwrap_or(DEFAULT_CONNECTIONS_PER_POD);
    if connections_per_pod == 0 {
        return Err(field(
            "limits.connectionsPerPod",
            "0 would refuse every connection",
            "a number of at least 1",
        ));
    }
    let header_bytes = file.header_bytes.unwrap_or(DEFAULT_HEADER_BYTES);
    if !(8192..=1024 * 1024).contains(&header_bytes) {
        return Err(field(
            "limits.headerBytes",
            format!("{header_bytes} is out of range"),
            "a number of bytes from 8192 to 1048576",
        ));
    }
    let header_count = file.header_count.unwrap_or(DEFAULT_HEADER_COUNT);
    if !(16..=4096).contains(&header_count) {
        return Err(field(
            "limits.headerCount",
            format!("{header_count} is out of range"),
            "a number from 16 to 4096",
        ));
    }
    Ok(Limits {
        connections_per_pod,
        header_bytes,
        header_count,
        idle_timeout: seconds(
            "limits.idleTimeoutSeconds",
            file.idle_timeout_seconds,
            DEFAULT_IDLE_TIMEOUT,
            0.1..=86_400.0,
        )?,
        first_byte_timeout: millis(
            "limits.firstByteTimeoutMs",
            file.first_byte_timeout_ms,
            DEFAULT_FIRST_BYTE_TIMEOUT,
            60_000,
        )?,
    })
}

fn seconds(
    name: &str,
    value: Option<f64>,
    default: Duration,
    range: std::ops::RangeInclusive<f64>,
) -> Result<Duration, ConfigError> {
    match value {
        None => Ok(default),
        Some(value) if range.contains(&value) => Ok(Duration::from_secs_f64(value)),
        Some(value) => Err(field(
            name,
            format!("{value} is outside {} to {}", range.start(), range.end()),
            "a number of seconds within that range",
        )),
    }
}

fn millis(
    name: &str,
    value: Option<u64>,
    default: Duration,
    max: u64,
) -> Result<Duration, ConfigError> {
    match value {
        None => Ok(default),
        Some(value) if (1..=max).contains(&value) => Ok(Duration::from_millis(value)),
        Some(value) => Err(field(
            name,
            format!("{value} is outside 1 to {max}"),
            "a number of milliseconds within that range",
        )),
    }
}

fn workers(value: Option<u16>) -> Result<u16, ConfigError> {
    match value {
        None => {
            let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
            Ok(u16::try_from(cores).unwrap_or(MAX_WORKERS).min(MAX_WORKERS))
        }
        Some(n) if (1..=MAX_WORKERS).contains(&n) => Ok(n),
        Some(n) => Err(field(
            "workers",
            format!("{n} is out of range"),
            "a number from 1 to 16, or leave it out for one per core",
        )),
    }
}

fn fake_cidrs(texts: &[String]) -> Result<Vec<Ipv4Net>, ConfigError> {
    let mut nets = Vec::with_capacity(texts.len());
    for (i, text) in texts.iter().enumerate() {
        nets.push(text.parse::<Ipv4Net>().map_err(|_| {
            field(
                format!("fakeCidrs[{i}]"),
                format!("`{text}` is not an IPv4 CIDR"),
                "for example `169.254.64.0/24`",
            )
        })?);
    }
    Ok(nets)
}
