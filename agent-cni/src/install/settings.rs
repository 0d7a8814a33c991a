//! What the node's class says, from the `nodes.json` that the controller publishes: followed while it is there, kept while
//! it isn't, and staged as far as pods that run can't follow. The decisions are pure; [`Follow`] does the reading.

use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use agent_core::{
    attachment::Mode,
    node::{FILE_NAME, NodeState},
    node_settings::{DataPathMode, FailMode, NodeSettingsFile, TakenSettings},
};
use agent_datapath::{footprint::Places, network::ProxyPorts, probe::Requested};
use ipnet::Ipv4Net;
use serde_json::json;

use super::{InstallOptions, report::Problem};
use crate::{
    clock, file, netconf, node,
    state::{self, StateDir},
};

/// Reads the file, as often as it is asked.
#[derive(Debug)]
pub(super) struct Follow {
    base: InstallOptions,
    file: PathBuf,
    node: String,
    state_dir: PathBuf,
    /// What was taken last, also while the disk is full.
    last: Option<TakenSettings>,
}

/// What the node is to be.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wanted {
    /// The options that it comes to.
    pub(super) options: InstallOptions,
    /// What is remembered of it; absent while the flags alone say it.
    pub(super) taken: Option<TakenSettings>,
    /// What should be known.
    pub(super) notes: Vec<String>,
}

impl Follow {
    /// Follows what the options name, if they name a file.
    pub(super) fn new(base: &InstallOptions, state_dir: &Path) -> Option<Self> {
        Some(Self {
            file: base.node_settings.clone()?,
            node: base
                .node_name
                .clone()
                .filter(|name| !name.is_empty())
                .unwrap_or_else(node::host_name),
            base: base.clone(),
            state_dir: state_dir.to_owned(),
            last: None,
        })
    }

    /// The directory to watch. In a projected volume it is where the link `..data` is replaced.
    pub(super) fn directory(&self) -> PathBuf {
        self.file.parent().unwrap_or(Path::new("/")).to_owned()
    }

    /// Looks at the file. A class that can't be followed is no better than a file that can't be read: what was taken last
    /// holds, without what it opens, else what the flags say.
    ///
    /// # Errors
    /// What the node is to be is not known, or can't be.
    pub(super) fn look(&mut self, installed: bool) -> Result<Wanted, Problem> {
        let read = match file::read(&self.file) {
            Ok(bytes) => NodeSettingsFile::parse(&bytes).map_err(|error| Problem::of(&error).what),
            Err(error) => Err(error.to_string()),
        };
        let path = self.file.display();
        let read = read.map_err(|why| format!("{path} can't be used: {why}"));
        let before = self.last.clone().or_else(|| self.before());
        match take(read, &self.node, before, |taken| self.wanted(taken)) {
            Ok(wanted) => {
                self.last.clone_from(&wanted.taken);
                Ok(wanted)
            }
            // an installation by flags that is to follow a class from now on goes on as it is until the class comes
            Err(why) if installed && !self.base.service_cidrs.is_empty() => Ok(Wanted {
                options: self.base.clone(),
                taken: None,
                notes: vec![format!("{why}; until then the flags say what the node is")],
            }),
            Err(why) => Err(Problem::new(
                format!("{why}; the node isn't taken over before"),
                "look at the class (kubectl get anc) and the controller's log; it is looked at again every second",
            )),
        }
    }

    /// What settings come to on this node, or in words for people why nothing.
    fn wanted(&self, mut taken: TakenSettings) -> Result<Wanted, String> {
        taken.staged_behind = staged(taken.fake_ip_cidr, self.settled(), &self.live());
        let words = |problem: Problem| format!("{}: {}", problem.what, problem.remedy);
        let options = apply(&self.base, &taken).map_err(words)?;
        // which capabilities it names has no part in whether it can be
        let conf = options.conf_text(&BTreeSet::new());
        if let Err(error) = netconf::parse(conf.as_bytes()) {
            let why = Problem::of(&error).what;
            return Err(format!("class {} can't be followed: {why}", taken.class));
        }
        Ok(Wanted {
            options,
            notes: notes(&taken),
            taken: Some(taken),
        })
    }

    /// What the state directory has of it; garbage is nothing.
    fn before(&self) -> Option<TakenSettings> {
        let bytes = file::read_own(&self.state_dir.join(TakenSettings::FILE)).ok()?;
        TakenSettings::parse(&bytes).ok()
    }

    fn settled(&self) -> Option<Ipv4Net> {
        let bytes = file::read_own(&self.state_dir.join(FILE_NAME)).ok()?;
        Some(NodeState::parse(&bytes).ok()?.fake_ip_cidr)
    }

    /// Addresses of pods. What can't be read is nobody: whoever changes the range looks again.
    fn live(&self) -> Vec<Ipv4Addr> {
        let boot = clock::boot_id();
        let all = StateDir::look(&self.state_dir)
            .attachments()
            .unwrap_or_default();
        let of_this_boot = all.iter().filter(|one| one.boot_id == boot);
        of_this_boot.map(|one| one.fake_ip).collect()
    }
}

/// Keeps what was taken over, for the time without the file and for ZeroProxy.
pub(super) fn remember(places: &Places, taken: &TakenSettings) -> Result<(), Problem> {
    let text = taken.to_json();
    let path = places.state_dir.join(TakenSettings::FILE);
    if file::read_own(&path).is_ok_and(|found| found == text.as_bytes()) {
        return Ok(());
    }
    let dir = StateDir::open(&places.state_dir).map_err(|error| Problem::of(&error))?;
    dir.replace(TakenSettings::FILE, text.as_bytes())
        .map_err(|error| Problem::of(&error))
}

/// Removes what is kept, on a node that goes by flags: nobody is to go on by what a class said once.
pub(super) fn forget(places: &Places) -> Result<(), Problem> {
    let path = places.state_dir.join(TakenSettings::FILE);
    state::remove(&path).map_err(|error| Problem::of(&error))
}

/// Says that pods go out past the proxy, or no more.
pub(super) fn tell_open(now: bool) {
    match now {
        true => tracing::warn!(
            "ZeroProxy is away and failMode is Open: this node's pods reach the network without any policy"
        ),
        false => tracing::warn!("this node's pods are the proxy's again, or closed"),
    }
}

/// Forgets the pods' tracked connections: what went out past the proxy was translated, and would stay so.
pub(super) fn forget_open(places: &Places) {
    let pods = StateDir::look(&places.state_dir).attachments();
    for pod in pods.unwrap_or_default() {
        if let Err(error) = agent_datapath::conntrack::forget(pod.fake_ip) {
            tracing::warn!(pod = %pod.fake_ip, %error, "its connections past the proxy may last as long as the pod uses them");
        }
    }
}

/// What the file says, as far as `follow` can make something of it, else what it said last. Pure.
///
/// # Errors
/// Neither can be followed: why the file's word can't.
fn take<T>(
    read: Result<NodeSettingsFile, String>,
    node: &str,
    before: Option<TakenSettings>,
    follow: impl Fn(TakenSettings) -> Result<T, String>,
) -> Result<T, String> {
    let said = read.and_then(|file| {
        TakenSettings::of(&file, node).ok_or_else(|| format!("no class is for node {node} yet"))
    });
    let why = match said.and_then(&follow) {
        Ok(followed) => return Ok(followed),
        Err(why) => why,
    };
    before
        .filter(|before| before.node == node)
        .and_then(|before| follow(before.kept(why.clone())).ok())
        .ok_or(why)
}

/// The range that pods still live in, when it is not the one that is wanted. Pure.
fn staged(wanted: Ipv4Net, settled: Option<Ipv4Net>, live: &[Ipv4Addr]) -> Option<Ipv4Net> {
    let outside = live.iter().any(|address| !wanted.contains(address));
    settled.filter(|settled| *settled != wanted && outside)
}

/// The options that settings come to. Pure. What they don't say is as the flags say it.
///
/// # Errors
/// A flag is missing that goes with one of them.
fn apply(base: &InstallOptions, taken: &TakenSettings) -> Result<InstallOptions, Problem> {
    let said = &taken.settings;
    let mut options = base.clone();
    options.fake_ip_cidr = Some(taken.staged_behind.unwrap_or(taken.fake_ip_cidr));
    if !said.service_cidrs.is_empty() {
        options.service_cidrs.clone_from(&said.service_cidrs);
    }
    options.mode = match said.mode {
        // the flag may be wiser about this node than a class for many
        DataPathMode::Auto => base.mode,
        DataPathMode::Ebpf => Requested::This(Mode::Ebpf),
        DataPathMode::IptablesCompat => Requested::This(Mode::IptablesCompat),
    };
    options.ports = Some(ProxyPorts {
        proxy: said.proxy_port,
        dns: said.dns_port,
    });
    options.fail_open = said.fail_mode == FailMode::Open;
    // pods have IPv4 alone
    let networks = said.sensitive_cidrs.iter().map(ToString::to_string);
    options.sensitive_cidrs = networks.filter_map(|text| text.parse().ok()).collect();
    options.workload_selector = said
        .workload_selector
        .as_ref()
        .map(|selector| json!(selector));
    if options.service_cidrs.is_empty() {
        return Err(Problem::new(
            format!(
                "class {} names no serviceCIDRs, and the installer has none either",
                taken.class
            ),
            "write the cluster's range into the class, or start the installer with --service-cidrs",
        ));
    }
    if options.workload_selector.is_some() && options.workloads_file.is_none() {
        return Err(Problem::new(
            format!(
                "class {} has a workloadSelector, and the installer doesn't know pods' labels",
                taken.class
            ),
            "start it with --workloads-file, the file that ZeroProxy writes (workloadsFile)",
        ));
    }
    Ok(options)
}

/// What people should know of settings. Pure.
fn notes(taken: &TakenSettings) -> Vec<String> {
    let mut notes = Vec::new();
    let class = &taken.class;
    if let Some(why) = &taken.kept_because {
        notes.push(format!(
            "{why}: the node keeps the last settings of class {class}, without what they open"
        ));
    }
    if let Some(old) = taken.staged_behind {
        notes.push(format!(
            "class {class} gives this node {}; it stays on {old} until no pod has an address of it: drain the node",
            taken.fake_ip_cidr
        ));
    }
    if taken.settings.fail_mode == FailMode::Open {
        notes.push(format!(
            "class {class} says failMode: Open: while no ZeroProxy listens on this node, pods reach the network without any policy"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::options::testing::options;
    use super::*;

    use agent_core::node_settings::Connectivity;

    const FILE: &str = r#"{"schemaVersion":1,"classes":{"c":{"serviceCIDRs":["10.97.0.0/16"],"proxyPort":18090,"dnsPort":18091,"failMode":"Open","defaultConnectivity":"Passthrough","mode":"iptables-compat","workloadSelector":{"matchLabels":{"app":"agent"}},"sensitiveCIDRs":["192.0.2.0/24","fd00::/8"]}},"nodes":{"n1":{"class":"c","fakeIPCIDR":"169.254.3.0/24"}}}"#;

    fn file() -> NodeSettingsFile {
        NodeSettingsFile::parse(FILE.as_bytes()).unwrap()
    }

    fn taken() -> TakenSettings {
        take(Ok(file()), "n1", None, Ok).unwrap()
    }

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn the_classs_word_is_in_the_configuration_that_the_plugin_reads() {
        let base = options(&["--node-settings=/f", "--workloads-file=/run/w.json"]);
        let taken = taken();
        let options = apply(&base, &taken).unwrap();
        let text = options.conf_text(&std::collections::BTreeSet::new());
        let conf = crate::netconf::parse(text.as_bytes()).unwrap();
        assert_eq!(conf.fake_ip_cidr, Some(net("169.254.3.0/24")));
        assert_eq!(conf.service_cidrs, [net("10.97.0.0/16")]);
        assert_eq!((conf.ports.proxy, conf.ports.dns), (18090, 18091));
        assert_eq!(conf.mode, Requested::This(Mode::IptablesCompat));
        assert!(conf.selective.is_some() && conf.fail_open);
        assert_eq!(conf.sensitive_cidrs, [net("192.0.2.0/24")]);
        let said = notes(&taken).join("\n");
        assert!(said.contains("failMode: Open"), "{said}");
    }

    #[test]
    fn what_the_class_leaves_out_the_flags_say() {
        let base = options(&[
            "--node-settings=/f",
            "--service-cidrs=10.96.0.0/12",
            "--mode=ebpf",
        ]);
        let mut taken = taken();
        taken.settings.service_cidrs.clear();
        taken.settings.mode = DataPathMode::Auto;
        let missing = apply(&base, &taken).unwrap_err();
        assert!(missing.remedy.contains("--workloads-file"), "{missing:?}");
        taken.settings.workload_selector = None;
        let none = super::super::options::testing::options(&["--node-settings=/f"]);
        let missing = apply(&none, &taken).unwrap_err();
        assert!(missing.remedy.contains("--service-cidrs"), "{missing:?}");
        let options = apply(&base, &taken).unwrap();
        assert_eq!(options.service_cidrs, [net("10.96.0.0/12")]);
        assert_eq!(options.mode, Requested::This(Mode::Ebpf));
    }

    #[test]
    fn without_the_file_the_last_word_holds_and_opens_nothing() {
        let before = taken();
        let garbage = || Err("it is garbage".to_owned());
        for (read, says) in [
            (garbage(), "it is garbage"),
            (Ok(NodeSettingsFile::default()), "no class is for node n1"),
        ] {
            let nothing = take(read.clone(), "n1", None, Ok).unwrap_err();
            assert!(nothing.contains(says), "{nothing}");
            let kept = take(read, "n1", Some(before.clone()), Ok).unwrap();
            assert_eq!(kept.fake_ip_cidr, before.fake_ip_cidr);
            assert_eq!(kept.settings.fail_mode, FailMode::Closed);
            assert!(notes(&kept)[0].contains(says), "{kept:?}");
        }
        // a state directory that came with a disk's image is another node's
        assert!(take(garbage(), "n2", Some(before), Ok).is_err());
    }

    #[test]
    fn a_class_that_cannot_be_followed_is_no_better_than_garbage() {
        let before = taken();
        let closed_alone = |taken: TakenSettings| match taken.settings.fail_mode {
            FailMode::Open => Err("it names no serviceCIDRs".to_owned()),
            FailMode::Closed => Ok(taken),
        };
        let kept = take(Ok(file()), "n1", Some(before), closed_alone).unwrap();
        assert_eq!(
            kept.kept_because.as_deref(),
            Some("it names no serviceCIDRs")
        );
        assert_eq!(kept.settings.default_connectivity, Connectivity::Zero);
        let nothing = take(Ok(file()), "n1", None, closed_alone).unwrap_err();
        assert_eq!(nothing, "it names no serviceCIDRs");
    }

    #[test]
    fn a_range_waits_for_the_last_pod_of_the_old_one() {
        let (old, new) = (net("169.254.9.0/24"), net("169.254.3.0/24"));
        let pod = [Ipv4Addr::new(169, 254, 9, 7)];
        assert_eq!(staged(new, Some(old), &pod), Some(old));
        assert_eq!(staged(new, Some(old), &[]), None);
        assert_eq!(staged(new, Some(new), &pod), None);
        assert_eq!(staged(new, None, &[]), None);
        let mut taken = taken();
        taken.staged_behind = Some(old);
        let base = options(&["--node-settings=/f", "--workloads-file=/w"]);
        assert_eq!(apply(&base, &taken).unwrap().fake_ip_cidr, Some(old));
        assert!(notes(&taken)[0].contains("drain the node"));
    }
}
