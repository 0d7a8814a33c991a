//! Doing the steps of `plan`: each looks first, and mends what differs.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use agent_core::{attachment::Mode, node::NodeState};
use agent_datapath::{
    bridge, bridge_filter,
    error::{NetError, some_of},
    footprint::{self, BINARY, CONF, Places, STAGED_BINARY, STAGED_CONF, VERSION_RECORD},
    inspect::{self, Ours},
    link,
    load::Datapath,
    network,
    pins::Pins,
    plane::Plane,
    probe::Requested,
    rtnl::Rtnl,
    sysctl,
};
use serde_json::json;

use super::{
    InstallOptions,
    plan::{self, Step},
    pods,
    primary::Primary,
    report::{Found, Kind, Problem},
    stage::{self, Content, StageError, Target, Watched},
};
use crate::{
    claim::{Kept, Owner, Say},
    error::{CniError, Code},
    file,
    mode::Care,
    netconf::NetConf,
    node::{self, Node},
    state::StateDir,
};

/// What the installer keeps right.
#[derive(Debug)]
pub(crate) struct Installer {
    places: Places,
    conf: NetConf,
    record: String,
    binary: Watched,
    conf_file: Watched,
    /// The network of the pods that are not ours.
    primary: Primary,
    /// Whether the kernel has to be asked yet.
    care: Care,
    every: Duration,
    /// The node, from its step to the end of the pass.
    node: Option<Node>,
}

/// What a pass came to.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// What differed, and is right now.
    pub(crate) found: Vec<Found>,
    /// Steps that did not work.
    pub(crate) problems: Vec<Problem>,
    /// What should be known.
    pub(crate) notes: Vec<String>,
    /// Who took the say over the node meanwhile: the pass ended there.
    pub(crate) lost: Option<Owner>,
}

impl Installer {
    /// For these places, this configuration, and the plugin that runs now.
    ///
    /// # Errors
    /// The program cannot read itself.
    pub(crate) fn new(
        places: Places,
        conf: NetConf,
        options: InstallOptions,
        own: &Path,
    ) -> Result<Self, StageError> {
        let hash = stage::hash_of(own)?;
        let digest: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let record = format!(
            "{}\n",
            json!({"version": env!("CARGO_PKG_VERSION"), "sha256": digest})
        );
        let binary = Target {
            dir: places.bin_dir.clone(),
            name: BINARY,
            staged: STAGED_BINARY,
            mode: stage::BINARY_MODE,
        };
        let conf_file = Target {
            dir: places.conf_dir.clone(),
            name: CONF,
            staged: STAGED_CONF,
            mode: stage::CONF_MODE,
        };
        let source = own.to_owned();
        let primary = Primary::new(options);
        Ok(Self {
            binary: Watched::new(binary, Content::CopyOf { source, hash }),
            conf_file: Watched::new(conf_file, primary.first_content()),
            primary,
            places,
            conf,
            record,
            care: Care::Probe,
            every: pace(Mode::Ebpf),
            node: None,
        })
    }

    /// Whether an earlier pass, of whatever process, came as far as the configuration.
    pub(crate) fn is_installed(&self) -> bool {
        super::is_installed(&self.places)
    }

    /// How long nothing may go unseen.
    pub(crate) fn every(&self) -> Duration {
        self.every
    }

    /// Does every step that can be done, for as long as the installer has the say.
    pub(crate) async fn pass(&mut self, say: &Say) -> Outcome {
        let mut outcome = Outcome::default();
        let mut pass = plan::Pass::new(self.is_installed());
        while let Some(step) = pass.next() {
            tracing::debug!(step = step.label(), "begin");
            // a claim that cannot be read is looked at by the next pass; the configuration's steps ask again
            outcome.lost = say.lost().unwrap_or_default();
            if outcome.lost.is_some() {
                break;
            }
            if let Err(problem) = self.step(step, say, &mut outcome).await {
                outcome.problems.push(problem);
                pass.failed(step);
            }
        }
        // between passes nothing of the node is held
        self.node = None;
        outcome
    }

    async fn step(&mut self, step: Step, say: &Say, outcome: &mut Outcome) -> Result<(), Problem> {
        // these write the configuration, which a rollback takes away without waiting for the pass
        let _say = match step {
            Step::Primary | Step::Conf => match say.keep().map_err(|error| Problem::of(&error))? {
                Kept::Mine(lock) => Some(lock),
                Kept::Lost(owner) => {
                    outcome.lost = Some(owner);
                    return Ok(());
                }
            },
            _ => None,
        };
        match step {
            Step::State => {
                StateDir::open(&self.conf.state_dir).map_err(|error| Problem::of(&error))?;
            }
            Step::Node => {
                let dir = self.dir()?;
                let mut differences = differences(&self.conf, &dir).await;
                let mut node = None;
                // what the kernel can do is tried once by each installer: it may be another kernel than the last one's
                if differences.is_empty() && self.care == Care::Trust {
                    match standing(&self.conf, &dir).await {
                        Ok(stands) => node = Some(stands),
                        Err(error) => {
                            let what = Problem::from(error).what;
                            differences.push(Found::new(Kind::Node, what));
                        }
                    }
                }
                let node = match node {
                    Some(node) => node,
                    None => node::ensure(&self.conf, &dir, self.care).await?,
                };
                self.care = Care::Trust;
                self.every = pace(node.state.mode);
                outcome
                    .notes
                    .extend(of_others(&self.conf, &node.state, &dir).await);
                self.node = Some(node);
                outcome.found.extend(differences);
            }
            Step::Pods => {
                let dir = self.dir()?;
                let Some(node) = &self.node else {
                    return Ok(());
                };
                let rtnl = Rtnl::connect().map_err(|error| Problem::of(&error))?;
                let pods = pods::mend(node, &dir, &rtnl).await?;
                outcome.found.extend(pods.found);
                outcome.notes.extend(pods.notes);
                if let Some(error) = pods.error {
                    return Err(error.into());
                }
            }
            Step::Binary => place(&mut self.binary, Kind::Binary, outcome)?,
            Step::Primary => {
                self.primary
                    .follow(&self.conf, &self.places, &mut self.conf_file, outcome)?;
            }
            Step::Record => {
                let dir = self.dir()?;
                let found = file::read_own(&dir.path().join(VERSION_RECORD));
                if !found.is_ok_and(|found| found == self.record.as_bytes()) {
                    dir.replace(VERSION_RECORD, self.record.as_bytes())
                        .map_err(|error| Problem::of(&error))?;
                    outcome
                        .found
                        .push(Found::new(Kind::Record, "the version record differs"));
                }
            }
            Step::Conf => place(&mut self.conf_file, Kind::Conf, outcome)?,
            Step::OldLayouts => self.old_layouts(outcome)?,
        }
        Ok(())
    }

    fn old_layouts(&self, outcome: &mut Outcome) -> Result<(), Problem> {
        let layouts = footprint::foreign_layouts(&self.places.pin_base)
            .map_err(|error| Problem::of(&error))?;
        for layout in layouts {
            footprint::remove_layout(&layout).map_err(|error| Problem::of(&error))?;
            outcome.found.push(Found::new(
                Kind::OldLayout,
                format!("{} is of another version", layout.display()),
            ));
        }
        Ok(())
    }

    fn dir(&self) -> Result<StateDir, Problem> {
        StateDir::open(&self.conf.state_dir).map_err(|error| Problem::of(&error))
    }
}

fn place(file: &mut Watched, kind: Kind, outcome: &mut Outcome) -> Result<(), Problem> {
    let differs = file.difference().map_err(Problem::from)?;
    match differs {
        None => file.sweep().map_err(Problem::from),
        Some(what) => {
            file.place().map_err(Problem::from)?;
            outcome.found.push(Found::new(kind, what));
            Ok(())
        }
    }
}

/// The node, when nothing of it differs.
async fn standing(conf: &NetConf, dir: &StateDir) -> Result<Node, CniError> {
    let mode = dir.keep_mode()?;
    let state = dir
        .node()?
        .ok_or_else(|| CniError::new(Code::Io, "node.json vanished"))?;
    let rtnl = Rtnl::connect()?;
    let bridge = bridge::check(&rtnl, &node::network(conf, &state, dir)?.bridge).await?;
    let config = node::datapath_config(&state);
    let plane = Plane::check(state.mode, &Pins::new(&conf.pin_dir), &config)
        .map_err(|error| node::datapath_error("vouch for the data path", &error))?;
    Ok(Node {
        state,
        bridge,
        plane,
        _mode: Some(mode),
        reason: None,
    })
}

/// iptables has to be asked by its own programs, which is dearer than asking the kernel.
fn pace(mode: Mode) -> Duration {
    match mode {
        Mode::Ebpf => Duration::from_secs(1),
        Mode::IptablesCompat => Duration::from_secs(2),
    }
}

/// Everything about the node that is not as `node::ensure` makes it. What cannot be looked at counts as different.
async fn differences(conf: &NetConf, dir: &StateDir) -> Vec<Found> {
    let state = match dir.node() {
        Ok(Some(state)) => state,
        Ok(None) => return vec![Found::new(Kind::Node, "the node was not set up")],
        Err(error) => return vec![Found::new(Kind::Node, error.to_string())],
    };
    let mut found = Vec::new();
    if let Some(what) = outdated(conf, &state) {
        found.push(Found::new(Kind::Node, what));
    }
    match node::network(conf, &state, dir) {
        Ok(network) => found.extend(network_differences(&network).await),
        Err(error) => found.push(Found::new(Kind::Node, error.to_string())),
    }
    let programs = match state.mode {
        Mode::Ebpf => program_difference(&state, &conf.pin_dir),
        Mode::IptablesCompat => {
            let config = node::datapath_config(&state);
            let checked = Plane::check(state.mode, &Pins::new(&conf.pin_dir), &config);
            checked.err().map(|error| Problem::of(&error).what)
        }
    };
    found.extend(programs.map(|what| Found::new(Kind::Programs, what)));
    found
}

/// How the node's choices are not what the configuration asks for.
fn outdated(conf: &NetConf, state: &NodeState) -> Option<String> {
    let pin_dir = conf.pin_dir_on_host();
    let is_another = |cidr| cidr != state.fake_ip_cidr;
    let mut found = Vec::new();
    let mut note = |differs: bool, what: &str| {
        if differs {
            found.push(what.to_owned());
        }
    };
    note(
        conf.fake_ip_cidr.is_some_and(is_another),
        "the Fake IP CIDR is another",
    );
    note(
        conf.service_cidrs != state.service_cidrs,
        "the Service CIDRs are others",
    );
    note(
        Path::new(&state.pin_dir) != pin_dir,
        "the pins' directory is another",
    );
    note(
        matches!(conf.mode, Requested::This(mode) if mode != state.mode),
        &format!("the mode is {}", state.mode.as_str()),
    );
    note(
        Plane::is_present(other(state.mode), &Pins::new(&conf.pin_dir)).unwrap_or(true),
        "the other mode's data path is there too",
    );
    joined(&found)
}

/// As one finding.
fn joined(found: &[String]) -> Option<String> {
    (!found.is_empty()).then(|| some_of(found, "; "))
}

fn other(mode: Mode) -> Mode {
    match mode {
        Mode::Ebpf => Mode::IptablesCompat,
        Mode::IptablesCompat => Mode::Ebpf,
    }
}

async fn network_differences(network: &network::NodeNetwork) -> Vec<Found> {
    let mut found = Vec::new();
    let mut note = |kind, result: Result<(), NetError>| {
        if let Err(error) = result {
            found.push(Found::new(kind, Problem::of(&error).what));
        }
    };
    match Rtnl::connect() {
        Ok(rtnl) => {
            let bridge = bridge::check(&rtnl, &network.bridge).await;
            // without a bridge there is no way to it
            if let Ok(index) = bridge {
                let way = network.pool_route().check(&rtnl, index).await;
                note(Kind::PoolRoute, way);
            }
            note(Kind::Bridge, bridge.map(|_| ()));
            let filter = bridge_filter::check_by_name(&rtnl, network).await;
            note(Kind::BridgeFilter, filter);
            if network.mode == Mode::Ebpf {
                let route = network.policy_route().check(&rtnl).await;
                note(Kind::PolicyRoute, route);
            }
            let drops = network.drop_rules().check(&rtnl).await;
            note(Kind::PolicyRoute, drops);
        }
        Err(error) => note(Kind::Bridge, Err(error)),
    }
    note(
        Kind::Sysctl,
        sysctl::check(&sysctl::node_settings(&network.bridge.name)),
    );
    note(Kind::Rules, network::check_rules(network));
    found
}

/// What others have put before ours: told, and left to whoever put it there. What cannot be looked at is told by a step that
/// needs it.
async fn of_others(conf: &NetConf, state: &NodeState, dir: &StateDir) -> Vec<String> {
    let (Ok(network), Ok(rtnl)) = (node::network(conf, state, dir), Rtnl::connect()) else {
        return Vec::new();
    };
    let rules = network.rules_before(&rtnl).await.unwrap_or_default();
    let rules = rules
        .iter()
        .map(|rule| format!("{}; take it away: {}", rule.what(), rule.removal()));
    let name = &network.bridge.name;
    let programs = match link::index_of(&rtnl, name).await {
        Ok(Some(index)) => inspect::others_at_ingress(name, index, Ours::Filter),
        _ => Ok(Vec::new()),
    };
    let programs = programs.unwrap_or_default();
    let programs = programs.iter().filter(|one| one.before).map(|one| {
        format!(
            "program {} ({}) is on {name} before the bridge's filter, which sees only what that lets by; take it away: {}",
            one.program.id,
            one.program.name,
            one.removal(name)
        )
    });
    rules.chain(programs).collect()
}

fn program_difference(state: &NodeState, pin_dir: &Path) -> Option<String> {
    let datapath = match Datapath::open(&Pins::new(pin_dir)) {
        Ok(datapath) => datapath,
        Err(error) => return Some(error.to_string()),
    };
    let mut wanted = node::datapath_config(state);
    wanted.fake_cidrs.sort();
    wanted.service_cidrs.sort();
    wanted.service_cidrs.dedup();
    let said = |is_right: Result<bool, String>, otherwise: &str| match is_right {
        Ok(true) => None,
        Ok(false) => Some(otherwise.to_owned()),
        Err(error) => Some(error),
    };
    let found = [
        said(
            datapath.is_this_build().map_err(|error| error.to_string()),
            "the programs are of another build",
        ),
        said(
            datapath.is_dispatching().map_err(|error| error.to_string()),
            "the dispatch program is not attached",
        ),
        match datapath.settings() {
            Ok(settings) if settings == wanted => None,
            Ok(_) => Some("the programs' settings are others".to_owned()),
            Err(error) => Some(error.to_string()),
        },
    ];
    joined(&found.into_iter().flatten().collect::<Vec<_>>())
}

/// The program that runs now, also when its file was replaced.
pub(crate) fn own_program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}
