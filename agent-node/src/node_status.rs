//! How the node's data path is: which mode and why, and what the installer found and mended.
//!
//! Owns turning `node.json` and `install.json`, which agent-cni writes, into metrics. Labels come from closed lists: a
//! label that this build doesn't know is `other`. Doesn't judge; doctor and the installer do.

use std::path::{Path, PathBuf};

use agent_core::install::{self, Kind, Status};
use agent_core::node::NodeState;
use agent_core::node_settings::TakenSettings;
use agent_datapath::probe::{FeatureName, Reason};

use crate::config::{Config, FactsFrom};
use crate::metrics::Sample;
use crate::telemetry::chain;

/// It holds counters and a few sentences.
const MAX_BYTES: u64 = 1024 * 1024;

/// What the installer wrote last; `None` when there is none, or what it wrote can't be read.
pub fn read_install(state_dir: &Path) -> Option<Status> {
    Status::parse(&read(&state_dir.join(install::FILE))?)
}

/// Where it stands what this node has taken over of its class.
#[derive(Clone, Debug)]
pub struct OwnSettings {
    /// The file, which the installer writes.
    pub path: PathBuf,
    /// Whose it must be, when this process knows its node's name: a state directory may have come with a disk's image.
    pub node: Option<String>,
}

impl OwnSettings {
    /// As the configuration has it.
    pub fn of(config: &Config) -> Self {
        let node = match &config.facts {
            FactsFrom::Cluster(cluster) => Some(cluster.node_name.clone()),
            FactsFrom::File(_) => None,
        };
        Self {
            path: config.state_dir.join(TakenSettings::FILE),
            node,
        }
    }

    /// Reads the file's content.
    ///
    /// # Errors
    /// It is garbage, or another node's: a sentence for people.
    pub fn parse(&self, bytes: &[u8]) -> Result<TakenSettings, String> {
        let taken = TakenSettings::parse(bytes).map_err(|error| chain(&error))?;
        match &self.node {
            Some(node) if *node != taken.node => Err(format!(
                "they are those of node {}, and this is {node}",
                taken.node
            )),
            _ => Ok(taken),
        }
    }

    /// What is there; `None` when the node follows no class, or what is there can't be used.
    pub fn read(&self) -> Option<TakenSettings> {
        self.parse(&read(&self.path)?).ok()
    }
}

fn read(path: &Path) -> Option<Vec<u8>> {
    use std::io::Read;
    let file = std::fs::File::open(path).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// How the node follows its class.
pub fn settings_samples(taken: &TakenSettings) -> Vec<Sample> {
    vec![
        Sample::gauge(
            "node_settings_staged",
            "1 while the class's Fake IP CIDR waits for pods that have the old one",
            u64::from(taken.staged_behind.is_some()),
        ),
        Sample::gauge(
            "node_settings_kept",
            "1 while the class's last word is kept because nodes.json says nothing",
            u64::from(taken.kept_because.is_some()),
        ),
    ]
}

/// The metrics, at `now` in seconds since 1970.
pub fn samples(node: Option<&NodeState>, install: Option<&Status>, now: u64) -> Vec<Sample> {
    let mut samples = Vec::new();
    if let Some(node) = node {
        samples.push(mode(node));
        samples.push(missing(node));
    }
    if let Some(install) = install {
        samples.push(Sample::gauge(
            "installer_ready",
            "1 while the installer is at work and found the node as it should be",
            u64::from(install.is_ready(now)),
        ));
        samples.push(Sample::gauge(
            "installer_heartbeat_age_seconds",
            "Time since the installer last said how the node is",
            install.age(now),
        ));
        samples.push(Sample::gauge(
            "installer_problems",
            "What keeps the node from being ready; install.json and doctor have the words",
            install.problems.len() as u64,
        ));
        samples.push(repairs(install));
        samples.push(Sample::gauge(
            "fail_mode_open",
            "1 when the node's class says failMode: Open",
            u64::from(install.fail_open.wanted),
        ));
        samples.push(Sample::gauge(
            "fail_open_now",
            "1 while pods go out past a proxy that is away, as the installer saw it last",
            u64::from(install.fail_open.now),
        ));
        samples.push(Sample::counter(
            "fail_opens",
            "Times that pods began to go out past a proxy that was away",
            install.fail_open.times,
        ));
    }
    samples
}

fn mode(node: &NodeState) -> Sample {
    let cause = node.mode_cause.as_deref().map_or("not_probed", |cause| {
        Reason::LABELS
            .into_iter()
            .find(|known| *known == cause)
            .unwrap_or("other")
    });
    let labels = vec![
        ("mode", node.mode.as_str().to_owned()),
        ("reason", cause.to_owned()),
    ];
    Sample {
        name: "data_path_mode",
        help: "1 for the mode of the data path and why it is this one; node.json and doctor have the words",
        counter: false,
        values: vec![(labels, 1)],
    }
}

fn missing(node: &NodeState) -> Sample {
    let is_missing = |feature: &FeatureName| {
        let label = feature.as_str();
        node.ebpf_missing.iter().any(|missing| missing == label)
    };
    let values = FeatureName::EBPF.iter().map(|feature| {
        let labels = vec![("feature", feature.as_str().to_owned())];
        (labels, u64::from(is_missing(feature)))
    });
    Sample {
        name: "ebpf_missing",
        help: "1 for what the ebpf mode needs and the last probe did not find on this node",
        counter: false,
        values: values.collect(),
    }
}

fn repairs(install: &Status) -> Sample {
    let values = Kind::ALL.into_iter().map(|kind| {
        let labels = vec![("kind", kind.label().to_owned())];
        (labels, install.repairs.get(&kind).copied().unwrap_or(0))
    });
    Sample {
        name: "node_repairs",
        help: "What the installer found broken on the node and mended",
        counter: true,
        values: values.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_core::attachment::Mode;

    fn value(samples: &[Sample], name: &str, label: &str) -> Option<u64> {
        let sample = samples.iter().find(|sample| sample.name == name)?;
        let found = |(labels, _): &&(Vec<(&str, String)>, u64)| {
            label.is_empty() || labels.iter().any(|(_, value)| value == label)
        };
        sample.values.iter().find(found).map(|(_, value)| *value)
    }

    #[test]
    fn the_mode_its_reason_and_what_is_missing_are_told() {
        let cidr = "169.254.9.0/24".parse().unwrap();
        let mut node = NodeState::new(cidr, vec![], Mode::IptablesCompat, "/pins").unwrap();
        node.mode_cause = Some("ebpf_fails".into());
        node.ebpf_missing = vec!["programs".into(), "<made up>".into()];
        let told = samples(Some(&node), None, 0);
        assert_eq!(value(&told, "data_path_mode", "iptables-compat"), Some(1));
        assert_eq!(value(&told, "data_path_mode", "ebpf_fails"), Some(1));
        assert_eq!(value(&told, "ebpf_missing", "programs"), Some(1));
        assert_eq!(value(&told, "ebpf_missing", "bpffs"), Some(0));
        assert_eq!(value(&told, "ebpf_missing", "<made up>"), None);
        for (cause, label) in [(None, "not_probed"), (Some("<made up>"), "other")] {
            node.mode_cause = cause.map(str::to_owned);
            let told = samples(Some(&node), None, 0);
            assert_eq!(value(&told, "data_path_mode", label), Some(1));
        }
    }

    #[test]
    fn the_installers_counters_and_its_silence_are_told() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_install(dir.path()), None);
        let mut status = Status::new("1", None);
        status.count([Kind::Rules, Kind::Rules]);
        (status.ready, status.heartbeat) = (true, 1000);
        (status.fail_open.wanted, status.fail_open.times) = (true, 3);
        let text = serde_json::to_vec(&status).unwrap();
        std::fs::write(dir.path().join(install::FILE), text).unwrap();
        let read = read_install(dir.path());
        for (now, ready) in [(1003, 1), (1060, 0)] {
            let told = samples(None, read.as_ref(), now);
            assert_eq!(value(&told, "node_repairs", "rules"), Some(2));
            assert_eq!(value(&told, "node_repairs", "bridge"), Some(0));
            assert_eq!(value(&told, "installer_ready", ""), Some(ready));
            assert_eq!(value(&told, "fail_mode_open", ""), Some(1));
            assert_eq!(value(&told, "fail_opens", ""), Some(3));
            let age = value(&told, "installer_heartbeat_age_seconds", "");
            assert_eq!(age, Some(now - 1000));
        }
        std::fs::write(dir.path().join(install::FILE), "{").unwrap();
        assert_eq!(read_install(dir.path()), None);
    }
}
