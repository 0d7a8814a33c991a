//! What must be so before a node is taken over: every problem at once, each with its remedy. The decision is pure;
//! `look` gathers what it is made from.
//!
//! On a node that is installed already a problem makes it not ready, and nothing is taken away from running pods.

use std::{fs, io, path::Path};

use agent_core::{node::BRIDGE, policy::address::BUILT_IN_SENSITIVE};
use agent_datapath::{
    footprint::{CONF, Places, UnfitStateDir},
    routing,
    rtnl::Rtnl,
};
use ipnet::Ipv4Net;
use nix::unistd::{AccessFlags, access};

use super::report::Problem;
use crate::{
    file,
    listeners::{self, DNS_PORT, Listener, PROXY_PORT},
    netconf::NetConf,
    status,
};

/// The program that may have the proxy's ports.
const PROXY: &str = "agent-node";
/// What runtimes read in `net.d`, by the end of a name.
const CONF_SUFFIXES: [&str; 3] = ["conf", "conflist", "json"];

/// What was seen of the node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Facts {
    /// Directories that are needed, each with what is wrong with it.
    pub(crate) directories: Vec<(String, Option<DirProblem>)>,
    /// What is wrong with the state directory besides.
    pub(crate) unfit_state_dir: Option<UnfitStateDir>,
    /// Why nothing can be pinned.
    pub(crate) bpffs: Option<String>,
    /// Files that a runtime reads in `net.d`, in its order.
    pub(crate) confs: Vec<String>,
    /// Sockets on the proxy's ports.
    pub(crate) listeners: Vec<Listener>,
    /// Networks of the node's own addresses.
    pub(crate) addresses: Vec<Ipv4Net>,
    /// All networks that the node's addresses and routes use.
    pub(crate) in_use: Vec<Ipv4Net>,
    /// The range of an earlier installation.
    pub(crate) settled: Option<Ipv4Net>,
    /// The schema version of the node's state, when it is newer than this build's.
    pub(crate) newer_state: Option<u64>,
}

/// What is wrong with a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DirProblem {
    /// It is not there.
    Missing,
    /// Something else has its name.
    NoDirectory,
    /// Nothing can be written in it.
    NotWritable(String),
}

/// Everything that is in the way. Pure.
pub(crate) fn problems(facts: &Facts, conf: &NetConf) -> Vec<Problem> {
    let mut problems = Vec::new();
    problems.extend(facts.directories.iter().filter_map(|(path, problem)| {
        let (what, remedy) = match problem.as_ref()? {
            DirProblem::Missing => (
                format!("{path} is missing"),
                "name the directory that the runtime uses (--bin-dir, --conf-dir), or mount it into the container",
            ),
            DirProblem::NoDirectory => (
                format!("{path} is no directory"),
                "move what is there away, or name another directory",
            ),
            DirProblem::NotWritable(why) => (
                format!("{path} cannot be written: {why}"),
                "mount it writable",
            ),
        };
        Some(Problem::new(what, remedy))
    }));
    problems.extend(
        facts
            .unfit_state_dir
            .iter()
            .map(|unfit| Problem::new(unfit.what(), unfit.remedy())),
    );
    problems.extend(
        facts
            .bpffs
            .iter()
            .map(|why| Problem::new(why.clone(), "mount it on the host, where it is seen by all")),
    );
    if let Some(version) = facts.newer_state {
        problems.push(Problem::new(
            format!("the node's state was written by a newer version (schema {version})"),
            "install that version, or run agent-cni rollback first",
        ));
    }
    problems.extend(first_file(&facts.confs));
    problems.extend(ports(&facts.listeners));
    problems.extend(overlaps(facts, conf));
    problems
}

/// The kubelet's runtime takes the first file.
fn first_file(confs: &[String]) -> Option<Problem> {
    let before: Vec<&str> = confs
        .iter()
        .map(String::as_str)
        .take_while(|name| *name < CONF)
        .collect();
    (!before.is_empty()).then(|| {
        Problem::new(
            format!(
                "{} comes before {CONF}, so the runtime never reads ours",
                before.join(", ")
            ),
            "rename it so that it comes after, such as 10-primary.conflist",
        )
    })
}

fn ports(listeners: &[Listener]) -> Vec<Problem> {
    let mut problems: Vec<Problem> = listeners
        .iter()
        .filter_map(|listener| {
            // whose socket it is cannot be seen from a container without the host's processes
            let owner = listener.owner.as_deref().filter(|owner| *owner != PROXY)?;
            let purpose = match listener.port {
                PROXY_PORT => "the proxy",
                DNS_PORT => "the DNS proxy",
                _ => return None,
            };
            Some(Problem::new(
                format!(
                    "{}/{} is needed by {purpose} and taken by {owner}",
                    listener.port, listener.protocol
                ),
                format!("stop {owner}, or let it listen on another port"),
            ))
        })
        .collect();
    problems.dedup();
    problems
}

fn overlaps(facts: &Facts, conf: &NetConf) -> Vec<Problem> {
    let mut problems = Vec::new();
    for service in &conf.service_cidrs {
        // a Service's own address on the node is IPVS's work
        let own = |net: &&Ipv4Net| net.prefix_len() < 32 && overlap(**net, *service);
        if let Some(own) = facts.addresses.iter().find(own) {
            problems.push(Problem::new(
                format!(
                    "the Service CIDR {service} overlaps {own}, where this node has an address"
                ),
                "pass the cluster's --service-cluster-ip-range as --service-cidrs",
            ));
        }
    }
    let Some(pool) = conf.fake_ip_cidr else {
        return problems;
    };
    let sensitive = BUILT_IN_SENSITIVE
        .iter()
        .filter_map(|text| text.parse::<Ipv4Net>().ok());
    problems.extend(sensitive.filter(|net| overlap(*net, pool)).map(|net| {
        Problem::new(
            format!("fakeIPCIDR {pool} overlaps {net}, which every policy denies"),
            "choose another range",
        )
    }));
    if facts.settled != Some(pool)
        && let Some(used) = facts
            .in_use
            .iter()
            .find(|net| net.prefix_len() > 0 && overlap(**net, pool))
    {
        problems.push(Problem::new(
            format!("fakeIPCIDR {pool} overlaps {used}, which this node uses already"),
            "choose a range that nothing uses",
        ));
    }
    problems
}

/// Whether another network is configured, for pods that are not ours and for the day of the rollback. Pure.
pub(crate) fn has_primary(confs: &[String]) -> bool {
    confs.iter().any(|name| name != CONF)
}

fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

/// Looks at the node; changes nothing.
pub(crate) async fn look(places: &Places, conf: &NetConf) -> Facts {
    let mut facts = Facts {
        directories: [&places.bin_dir, &places.conf_dir]
            .into_iter()
            .map(|path| (path.display().to_string(), directory(path)))
            .chain(std::iter::once(state_directory(&places.state_dir)))
            .collect(),
        unfit_state_dir: places.unfit_state_dir(),
        bpffs: status::bpffs(&conf.pin_dir)
            .err()
            .map(|error| error.to_string()),
        confs: confs(&places.conf_dir),
        listeners: listeners::look().unwrap_or_default(),
        ..Facts::default()
    };
    if let Ok(bytes) = file::read_own(&places.state_dir.join(agent_core::node::FILE_NAME)) {
        match agent_core::node::NodeState::parse(&bytes) {
            Ok(state) => facts.settled = Some(state.fake_ip_cidr),
            Err(agent_core::node::NodeStateError::SchemaVersion(version))
                if version > u64::from(agent_core::node::SCHEMA_VERSION) =>
            {
                facts.newer_state = Some(version);
            }
            // set aside by whoever reads it for use
            Err(_) => {}
        }
    }
    if let Ok(rtnl) = Rtnl::connect() {
        facts.addresses = routing::networks_of_addresses(&rtnl, BRIDGE)
            .await
            .unwrap_or_default();
        facts.in_use = routing::networks_in_use(&rtnl, BRIDGE)
            .await
            .unwrap_or_default();
    }
    facts
}

/// The files that a runtime reads, in its order.
pub(crate) fn confs(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| {
            let end = Path::new(name).extension().and_then(|end| end.to_str());
            end.is_some_and(|end| CONF_SUFFIXES.contains(&end))
        })
        .collect();
    // as libcni sorts: by bytes
    names.sort();
    names
}

fn directory(path: &Path) -> Option<DirProblem> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(DirProblem::Missing),
        Err(error) => Some(DirProblem::NotWritable(error.to_string())),
        Ok(metadata) if !metadata.is_dir() => Some(DirProblem::NoDirectory),
        // asks also whether the file system is mounted read-only
        Ok(_) => access(path, AccessFlags::W_OK)
            .err()
            .map(|errno| DirProblem::NotWritable(errno.desc().to_owned())),
    }
}

/// The state directory is made by us, in the nearest directory above it that is there.
fn state_directory(path: &Path) -> (String, Option<DirProblem>) {
    let nearest = path
        .ancestors()
        .find(|path| fs::symlink_metadata(path).is_ok())
        .unwrap_or(path);
    (path.display().to_string(), directory(nearest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    fn conf(pool: Option<&str>) -> NetConf {
        let mut conf = crate::netconf::parse(
            br#"{"cniVersion": "1.1.0", "name": "agents", "serviceCIDRs": ["10.96.0.0/12"]}"#,
        )
        .unwrap();
        conf.fake_ip_cidr = pool.map(net);
        conf
    }

    fn listener(port: u16, owner: Option<&str>) -> Listener {
        Listener {
            protocol: "tcp",
            address: std::net::Ipv4Addr::LOCALHOST.into(),
            port,
            inode: 1,
            owner: owner.map(str::to_owned),
        }
    }

    #[track_caller]
    fn only_problem(facts: &Facts, pool: Option<&str>, says: &str) {
        let found = problems(facts, &conf(pool));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].what.contains(says), "{found:?}");
        assert!(!found[0].remedy.is_empty());
    }

    #[test]
    fn a_sound_node_has_no_problem() {
        let facts = Facts {
            directories: vec![("/opt/cni/bin".into(), None)],
            confs: vec![CONF.into(), "10-primary.conflist".into()],
            // whoever cannot be seen may be the proxy
            listeners: vec![listener(PROXY_PORT, Some(PROXY)), listener(DNS_PORT, None)],
            // IPVS has Services' addresses on the node
            addresses: vec![net("192.0.2.0/24"), net("10.96.0.1/32")],
            in_use: vec![net("0.0.0.0/0"), net("10.96.0.0/16")],
            ..Facts::default()
        };
        assert_eq!(problems(&facts, &conf(Some("10.200.0.0/16"))), []);
    }

    #[test]
    fn everything_is_told_at_once() {
        let facts = Facts {
            directories: vec![
                ("/opt/cni/bin".into(), Some(DirProblem::Missing)),
                (
                    "/etc/cni/net.d".into(),
                    Some(DirProblem::NotWritable("x".into())),
                ),
            ],
            bpffs: Some("no bpf file system".into()),
            newer_state: Some(2),
            listeners: vec![listener(PROXY_PORT, Some("nginx"))],
            ..Facts::default()
        };
        assert_eq!(problems(&facts, &conf(None)).len(), 5);
    }

    #[test]
    fn a_file_that_comes_before_ours_is_named() {
        for (name, before) in [
            ("00-aaa.conf", true),
            // a hyphen sorts before a digit
            ("0-x.conflist", true),
            ("00-agent-cni.conflist", false),
            ("10-primary.conflist", false),
            ("-.json", true),
        ] {
            let facts = Facts {
                confs: vec![name.into()],
                ..Facts::default()
            };
            match before {
                true => only_problem(&facts, None, name),
                false => assert_eq!(problems(&facts, &conf(None)), [], "{name}"),
            }
        }
    }

    #[test]
    fn a_port_of_another_program_is_named() {
        let facts = Facts {
            listeners: vec![listener(DNS_PORT, Some("dnsmasq"))],
            ..Facts::default()
        };
        only_problem(&facts, None, "taken by dnsmasq");
    }

    #[test]
    fn ranges_that_overlap_are_named() {
        let facts = Facts {
            addresses: vec![net("10.100.0.0/16")],
            ..Facts::default()
        };
        only_problem(&facts, None, "10.100.0.0/16");
        only_problem(&Facts::default(), Some("100.100.0.0/16"), "100.64.0.0/10");
        only_problem(&Facts::default(), Some("169.254.0.0/16"), "169.254.169.254");
        let mut facts = Facts {
            in_use: vec![net("10.200.7.0/24")],
            ..Facts::default()
        };
        only_problem(&facts, Some("10.200.0.0/16"), "10.200.7.0/24");
        // what is there is our own
        facts.settled = Some(net("10.200.0.0/16"));
        assert_eq!(problems(&facts, &conf(Some("10.200.0.0/16"))), []);
    }
}
