//! What `agent-cni install` is told, and the CNI configuration that follows from it.

use std::{
    collections::BTreeSet,
    net::Ipv6Addr,
    path::{Path, PathBuf},
};

use agent_datapath::{
    footprint::{CONF_VERSION_KEY, Places},
    network::ProxyPorts,
    probe::Requested,
};
use clap::Args;
use ipnet::{Ipv4Net, Ipv6Net};
use serde_json::{Map, Value, json};

use crate::netconf::{DEFAULT_PIN_DIR, DEFAULT_STATE_DIR};

/// What everybody's runtime speaks; STATUS and GC come with 1.1.0.
const DEFAULT_CNI_VERSION: &str = "1.0.0";
const DEFAULT_BIN_DIR: &str = "/opt/cni/bin";
const DEFAULT_CONF_DIR: &str = "/etc/cni/net.d";

/// Where things lie on the host; `install` and `rollback` must be told the same.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct PlaceOptions {
    /// Below which the host's files are: /host in a container that mounts them there.
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) host_root: PathBuf,
    /// Where the runtime looks for plugins.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_BIN_DIR, value_parser = absolute)]
    pub(crate) bin_dir: PathBuf,
    /// Where the runtime looks for network configurations.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_CONF_DIR, value_parser = absolute)]
    pub(crate) conf_dir: PathBuf,
    /// Where attachments and the node's choices are kept.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_STATE_DIR, value_parser = absolute)]
    pub(crate) state_dir: PathBuf,
    /// Where programs, maps and links are pinned; on a bpf file system.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_DIR, value_parser = absolute)]
    pub(crate) pin_dir: PathBuf,
}

/// What `agent-cni install` is told.
#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct InstallOptions {
    #[command(flatten)]
    pub(crate) places: PlaceOptions,
    /// Destinations that kube-proxy serves, such as 10.96.0.0/12 (required, but for --ready and with --node-settings).
    ///
    /// Find yours: kubectl cluster-info dump | grep -m1 service-cluster-ip-range
    #[arg(
        long = "service-cidrs",
        value_name = "CIDR,…",
        value_delimiter = ',',
        value_parser = ipv4_net,
        required_unless_present_any = ["ready", "node_settings"]
    )]
    pub(crate) service_cidrs: Vec<Ipv4Net>,
    /// The pods' addresses, /8 to /30 (default: a /24 of 169.254.0.0/16, by the node's name).
    #[arg(long, value_name = "CIDR", value_parser = ipv4_net)]
    pub(crate) fake_ip_cidr: Option<Ipv4Net>,
    /// How traffic is redirected: auto, ebpf or iptables-compat.
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub(crate) mode: Requested,
    /// The controller's nodes.json (ConfigMap agent-network-nodes), which says what this node is; it is followed.
    ///
    /// The node is the one of --node-name. What its class says counts before the flags; a node that is not installed waits
    /// for it. Where the file is, as this process sees it.
    #[arg(long, value_name = "FILE", value_parser = absolute)]
    pub(crate) node_settings: Option<PathBuf>,
    /// What the Fake IP CIDR is derived from, and the node's name in --node-settings (default: the host name).
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub(crate) node_name: Option<String>,
    /// Which pods get agent-cni's network, as a label selector in JSON; others get the primary network.
    ///
    /// {"matchLabels": {"agent-network.io/agent": "true"}}
    #[arg(long, value_name = "JSON", value_parser = json_object, requires = "workloads_file")]
    pub(crate) workload_selector: Option<Value>,
    /// Where pods' labels are written, on the host.
    #[arg(long, value_name = "FILE", value_parser = absolute)]
    pub(crate) workloads_file: Option<PathBuf>,
    /// The primary network's file in net.d (default: the next after ours), such as 10-calico.conflist.
    #[arg(long, value_name = "NAME", value_parser = file_name)]
    pub(crate) primary_file: Option<String>,
    /// MTU of the pods' interfaces (default: the uplink's).
    #[arg(long)]
    pub(crate) mtu: Option<u32>,
    /// Seconds that an address rests after its pod.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) cool_down: Option<u64>,
    /// Version of the CNI specification in the configuration.
    #[arg(long, value_name = "VERSION", default_value = DEFAULT_CNI_VERSION)]
    pub(crate) cni_version: String,
    /// Install or mend once, and end: exit code 0 when the node is ready.
    #[arg(long, conflicts_with = "ready")]
    pub(crate) once: bool,
    /// Ask whether the installer that runs has the node ready: exit code 0 or 1. For a readiness probe.
    #[arg(long)]
    pub(crate) ready: bool,
    /// The proxy's ports, by the class.
    #[arg(skip)]
    pub(crate) ports: Option<ProxyPorts>,
    /// Whether pods go out without the proxy while it is away, by the class.
    #[arg(skip)]
    pub(crate) fail_open: bool,
    /// Ranges that stay closed to pods, by the class.
    #[arg(skip)]
    pub(crate) sensitive_cidrs: Vec<Ipv4Net>,
}

impl PlaceOptions {
    /// The places as this process sees them.
    pub(crate) fn places(&self) -> Places {
        Places {
            bin_dir: self.seen(&self.bin_dir),
            conf_dir: self.seen(&self.conf_dir),
            state_dir: self.seen(&self.state_dir),
            pin_base: self.seen(&self.pin_dir),
        }
    }

    fn seen(&self, path: &Path) -> PathBuf {
        self.host_root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

impl InstallOptions {
    /// The configuration's text, with what the primary network's plugins want from the runtime. Pure: the same options of
    /// the same version give the same bytes, so that comparing is enough to know whether somebody changed the file.
    pub(crate) fn conf_text(&self, capabilities: &BTreeSet<String>) -> String {
        let mut conf = Map::new();
        let mut put = |key: &str, value: Value| {
            conf.insert(key.to_owned(), value);
        };
        put("cniVersion", json!(self.cni_version));
        put("name", json!("agent-network"));
        put("type", json!("agent-cni"));
        put(CONF_VERSION_KEY, json!(env!("CARGO_PKG_VERSION")));
        put("mode", json!(self.mode.as_str()));
        put("serviceCIDRs", json!(self.service_cidrs));
        if let Some(name) = self.node_name.as_ref().filter(|name| !name.is_empty()) {
            put("nodeName", json!(name));
        }
        if let Some(cidr) = self.fake_ip_cidr {
            put("fakeIPCIDR", json!(cidr));
        }
        if let Some(selector) = &self.workload_selector {
            put("workloadSelector", selector.clone());
            // what the runtime passes for these reaches the primary network's plugins through us
            if !capabilities.is_empty() {
                let all = capabilities.iter().map(|name| (name.clone(), json!(true)));
                put("capabilities", Value::Object(all.collect()));
            }
        }
        let mut primary = Map::new();
        if self.places.conf_dir != Path::new(DEFAULT_CONF_DIR) {
            primary.insert("confDir".to_owned(), json!(self.places.conf_dir));
        }
        if let Some(file) = &self.primary_file {
            primary.insert("file".to_owned(), json!(file));
        }
        if !primary.is_empty() {
            put("primary", Value::Object(primary));
        }
        // with settings the flag is there for the selector that may come
        let is_used = self.workload_selector.is_some() || self.node_settings.is_none();
        if let Some(file) = self.workloads_file.as_ref().filter(|_| is_used) {
            put("workloadsFile", json!(file));
        }
        if let Some(ports) = self.ports.filter(|ports| *ports != ProxyPorts::default()) {
            put("proxy", json!({"port": ports.proxy, "dnsPort": ports.dns}));
        }
        if self.fail_open {
            put("failMode", json!("Open"));
        }
        if !self.sensitive_cidrs.is_empty() {
            put("sensitiveCIDRs", json!(self.sensitive_cidrs));
        }
        if let Some(mtu) = self.mtu {
            put("mtu", json!(mtu));
        }
        if let Some(seconds) = self.cool_down {
            put("coolDownSeconds", json!(seconds));
        }
        // the runtime calls the plugin on the host: these are the host's paths
        for (key, path, default) in [
            ("stateDir", &self.places.state_dir, DEFAULT_STATE_DIR),
            ("pinDir", &self.places.pin_dir, DEFAULT_PIN_DIR),
        ] {
            if path != Path::new(default) {
                put(key, json!(path));
            }
        }
        // a map of strings and numbers always serialises
        let mut text = serde_json::to_string_pretty(&conf).unwrap_or_default();
        text.push('\n');
        text
    }
}

fn ipv4_net(text: &str) -> Result<Ipv4Net, String> {
    if let Ok(net) = text.parse() {
        return Ok(net);
    }
    if text.parse::<Ipv6Net>().is_ok() || text.parse::<Ipv6Addr>().is_ok() {
        return Err(
            "agent-network's pods have IPv4 only; of a dual-stack cluster name the IPv4 range"
                .into(),
        );
    }
    Err("it must be an IPv4 range such as 10.96.0.0/12".into())
}

fn file_name(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains('/') {
        true => Err("it must be the name of a file in the configuration directory".into()),
        false => Ok(text.to_owned()),
    }
}

fn json_object(text: &str) -> Result<Value, String> {
    match serde_json::from_str(text) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err("it must be a JSON object".into()),
        Err(error) => Err(error.to_string()),
    }
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.is_absolute() {
        true => Ok(path),
        false => Err("it must be an absolute path, as the host has it".into()),
    }
}

#[cfg(test)]
pub(super) mod testing {
    use clap::Parser;

    use super::InstallOptions;

    #[derive(Debug, Parser)]
    pub(super) struct Cli {
        #[command(flatten)]
        pub(super) options: InstallOptions,
    }

    /// What these arguments come to.
    pub(in super::super) fn options(arguments: &[&str]) -> InstallOptions {
        Cli::try_parse_from([&["install"], arguments].concat())
            .unwrap()
            .options
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{
        testing::{Cli, options},
        *,
    };

    fn text(options: &InstallOptions) -> String {
        options.conf_text(&BTreeSet::new())
    }

    #[test]
    fn the_configuration_is_one_that_the_plugin_reads() {
        let options = options(&[
            "--host-root=/host",
            "--service-cidrs=10.96.0.0/12,10.200.0.0/16",
            "--fake-ip-cidr=10.201.0.0/20",
            "--node-name=worker-1",
            "--mtu=1400",
            "--cool-down=5",
            "--pin-dir=/sys/fs/bpf/other",
        ]);
        let conf = crate::netconf::parse(text(&options).as_bytes()).unwrap();
        assert_eq!(conf.service_cidrs.len(), 2);
        assert_eq!(conf.fake_ip_cidr, options.fake_ip_cidr);
        assert_eq!(conf.node_name.as_deref(), Some("worker-1"));
        assert_eq!((conf.mtu, conf.cool_down_seconds), (Some(1400), 5));
        // the host's paths in the file, this process's in what it does itself
        assert_eq!(conf.pin_dir, Path::new("/sys/fs/bpf/other"));
        let seen = conf.seen_below(&options.places.host_root);
        assert_eq!(seen.pin_dir, Path::new("/host/sys/fs/bpf/other"));
        assert_eq!(seen.state_dir, options.places.places().state_dir);
        assert_eq!(seen.pin_dir_on_host(), Path::new("/sys/fs/bpf/other"));
    }

    #[test]
    fn the_configuration_names_the_version() {
        let conf: Value =
            serde_json::from_str(&text(&options(&["--service-cidrs=10.96.0.0/12"]))).unwrap();
        assert_eq!(conf[CONF_VERSION_KEY], env!("CARGO_PKG_VERSION"));
        for absent in ["stateDir", "primary", "capabilities"] {
            assert!(conf.get(absent).is_none(), "{absent}");
        }
    }

    #[test]
    fn a_selector_goes_into_the_configuration() {
        let options = options(&[
            "--service-cidrs=10.96.0.0/12",
            r#"--workload-selector={"matchLabels": {"agent-network.io/agent": "true"}}"#,
            "--workloads-file=/run/agent-network/workloads.json",
        ]);
        let conf = crate::netconf::parse(text(&options).as_bytes()).unwrap();
        assert!(conf.selective.is_some());
        let wanted = BTreeSet::from(["bandwidth".to_owned(), "dns".to_owned()]);
        let conf: Value = serde_json::from_str(&options.conf_text(&wanted)).unwrap();
        assert_eq!(
            conf["capabilities"],
            json!({"bandwidth": true, "dns": true})
        );
        for wrong in ["[]", "{"] {
            let selector = format!("--workload-selector={wrong}");
            let arguments = ["install", "--ready", "--workloads-file=/f", &selector];
            assert!(Cli::try_parse_from(arguments).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_primary_network_is_where_the_options_say() {
        let options = options(&[
            "--service-cidrs=10.96.0.0/12",
            "--conf-dir=/etc/other/net.d",
            "--primary-file=10-calico.conflist",
        ]);
        let conf = crate::netconf::parse(text(&options).as_bytes()).unwrap();
        assert_eq!(conf.primary.conf_dir, Path::new("/etc/other/net.d"));
        assert_eq!(conf.primary.file.as_deref(), Some("10-calico.conflist"));
        for wrong in ["", "a/b"] {
            let file = format!("--primary-file={wrong}");
            assert!(Cli::try_parse_from(["install", "--ready", &file]).is_err());
        }
    }

    #[test]
    fn a_range_that_cannot_be_used_is_told_with_what_can() {
        for (range, says) in [
            ("fd00::/108", "name the IPv4 range"),
            ("fd00::1", "name the IPv4 range"),
            ("10.96.0.0", "an IPv4 range such as 10.96.0.0/12"),
            ("10.96.0.0/33", "an IPv4 range such as"),
            ("", "an IPv4 range such as"),
        ] {
            for flag in [
                "--service-cidrs=10.96.0.0/12,",
                "--service-cidrs=",
                "--fake-ip-cidr=",
            ] {
                let error = Cli::try_parse_from(["install", "--ready", &format!("{flag}{range}")])
                    .map(|_| ())
                    .unwrap_err()
                    .to_string();
                assert!(error.contains(says), "{flag}{range}: {error}");
            }
        }
    }

    #[test]
    fn the_help_says_what_is_required() {
        use clap::CommandFactory;
        let help = Cli::command().render_help().to_string();
        // wherever the terminal's width breaks it
        let words: Vec<_> = help.split_whitespace().collect();
        let said = words.join(" ");
        assert!(
            said.contains("(required, but for --ready and with --node-settings)"),
            "{help}"
        );
    }

    #[test]
    fn service_cidrs_are_asked_for() {
        assert!(Cli::try_parse_from(["install"]).is_err());
        assert!(Cli::try_parse_from(["install", "--ready"]).is_ok());
        assert!(Cli::try_parse_from(["install", "--node-settings=/f"]).is_ok());
        assert!(Cli::try_parse_from(["install", "--service-cidrs=x"]).is_err());
        assert!(Cli::try_parse_from(["install", "--ready", "--bin-dir=opt"]).is_err());
    }
}
