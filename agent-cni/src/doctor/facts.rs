//! What is so on this node: everything that doctor reads, read once, before anything is judged.
//!
//! Looks only: it repairs nothing, makes no file, and sets no garbage aside. What cannot be looked at is an `Err` that
//! says why, for the checks to tell.

use std::fmt::Display;

use agent_datapath::{
    inspect::{self, ProgramName},
    rtnl::Rtnl,
};

use super::{check::Seen, options::Options};
use crate::listeners::{self, Listener};

pub(crate) mod cni;
pub(crate) mod datapath;
pub(crate) mod leftovers;
pub(crate) mod machine;
pub(crate) mod network;
pub(crate) mod pods;
pub(crate) mod proxy;
pub(crate) mod selective;
pub(crate) mod services;
pub(crate) mod state;

/// All of it.
#[derive(Debug)]
pub(crate) struct Facts {
    /// Kernel, clock and this process's rights.
    pub(crate) machine: machine::Machine,
    /// The state directory.
    pub(crate) state: state::State,
    /// Programs and maps.
    pub(crate) datapath: datapath::DatapathFacts,
    /// The node's own network.
    pub(crate) network: network::Network,
    /// Every pod of this boot.
    pub(crate) pods: Vec<pods::Pod>,
    /// The plugin's binary and the configurations.
    pub(crate) cni: cni::Cni,
    /// What a selective configuration needs; nothing when every pod is ours.
    pub(crate) selective: Option<selective::Selective>,
    /// What should not be there any more.
    pub(crate) leftovers: leftovers::Leftovers,
    /// What ZeroProxy answers.
    pub(crate) proxy: proxy::Proxy,
    /// Who listens on the ports that ZeroProxy needs.
    pub(crate) listeners: Seen<Vec<Listener>>,
    /// Who translates Services.
    pub(crate) services: services::Services,
    /// Every program on the machine.
    pub(crate) programs: Seen<Vec<ProgramName>>,
}

impl Facts {
    /// Reads everything.
    pub(crate) async fn collect(options: &Options) -> Self {
        let rtnl = seen(Rtnl::connect());
        let state = state::State::read(&options.state_dir);
        let pin_dir = options.on_host(&state.pin_dir());
        let plane = datapath::open(&state, &pin_dir);
        let datapath = datapath::DatapathFacts::read(&state, &plane);
        let cni = cni::Cni::read(options);
        let network = network::Network::read(&rtnl, &state, &cni.conf()).await;
        let pods = pods::read(&rtnl, &state, &network, &plane, options).await;
        let leftovers = leftovers::Leftovers::read(&state, options, &pin_dir).await;
        let proxy = proxy::Proxy::ask(&options.zeroproxy_url);
        let listeners = seen_at("/proc/net", listeners::look());
        let services = services::Services::read(options);
        Self {
            machine: machine::Machine::read(&pin_dir),
            datapath,
            network,
            pods,
            selective: selective::Selective::read(&cni, options),
            cni,
            leftovers,
            proxy,
            listeners,
            services,
            programs: seen(inspect::programs()),
            state,
        }
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// A result as a fact.
pub(crate) fn seen<T, E: std::error::Error>(result: Result<T, E>) -> Seen<T> {
    result.map_err(|error| chain(&error))
}

/// A result of reading something, as a fact that names it.
pub(crate) fn seen_at<T>(what: impl Display, result: std::io::Result<T>) -> Seen<T> {
    result.map_err(|error| format!("{what}: {error}"))
}
