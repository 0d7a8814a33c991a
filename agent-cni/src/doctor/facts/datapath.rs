//! The pinned programs and maps.

use std::path::Path;

use agent_core::attachment::Mode;
use agent_datapath::{
    compat::Compat,
    load::{Datapath, DatapathConfig},
    maps::PodEndpoint,
    pins::Pins,
    plane::Plane,
};

use super::{seen, state::State};
use crate::doctor::check::Seen;

/// See the module.
#[derive(Debug)]
pub(crate) struct DatapathFacts {
    /// Whether all pins are there and of this layout; everything else here is read from them.
    pub(crate) opened: Seen<()>,
    /// Whether the programs are this build's.
    pub(crate) this_build: Seen<bool>,
    /// Whether connections to the proxy are found in this network namespace.
    pub(crate) dispatching: Seen<bool>,
    /// Programs besides ours that look sockets up here.
    pub(crate) foreign_dispatchers: Seen<usize>,
    /// What the programs were told.
    pub(crate) settings: Seen<DatapathConfig>,
    /// What they should have been told.
    pub(crate) wanted: Seen<DatapathConfig>,
    /// The pods that the programs know.
    pub(crate) endpoints: Seen<Vec<(u32, PodEndpoint)>>,
}

/// Opens what there is of the node's mode.
pub(crate) fn open(state: &State, pin_dir: &Path) -> Seen<Plane> {
    let mode = state.node.as_ref().map_or(Mode::Ebpf, |node| node.mode);
    seen(Plane::open(mode, &Pins::new(pin_dir)))
}

impl DatapathFacts {
    /// Reads it, from what [`open`] opened. What programs alone have is right where there are none.
    pub(crate) fn read(state: &State, plane: &Seen<Plane>) -> Self {
        let wanted = state.node.clone().map(|node| {
            let mut wanted = crate::node::datapath_config(&node);
            wanted.service_cidrs.sort();
            wanted.fake_cidrs.sort();
            wanted
        });
        let endpoints = plane
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|plane| seen(plane.endpoints()));
        let compat = matches!(&state.node, Ok(node) if node.mode == Mode::IptablesCompat);
        let programs = match plane {
            Ok(Plane::Ebpf(datapath)) => Some(Ok(datapath)),
            Ok(Plane::Compat(_)) => None,
            // without its table a node of the other mode has no programs either
            Err(_) if compat => None,
            Err(why) => Some(Err(why)),
        };
        // of the other mode's table the settings are compared with everything else in it
        let settings = match (plane, &wanted) {
            (Ok(Plane::Compat(_)), Ok(wanted)) => {
                seen(Compat::check(wanted)).map(|()| wanted.clone())
            }
            (Err(why), _) => Err(why.clone()),
            _ => of(programs, |d| seen(d.settings()), wanted.clone()),
        };
        Self {
            opened: plane.as_ref().map(|_| ()).map_err(Clone::clone),
            this_build: of(programs, |d| seen(d.is_this_build()), Ok(true)),
            dispatching: of(programs, |d| seen(d.is_dispatching()), Ok(true)),
            foreign_dispatchers: of(programs, |d| seen(d.foreign_dispatchers()), Ok(0)),
            settings,
            wanted,
            endpoints,
        }
    }
}

/// A fact of the programs, or `without` in a mode that has none.
fn of<T>(
    programs: Option<Result<&Datapath, &String>>,
    fact: impl FnOnce(&Datapath) -> Seen<T>,
    without: Seen<T>,
) -> Seen<T> {
    match programs {
        None => without,
        Some(Ok(datapath)) => fact(datapath),
        Some(Err(why)) => Err(why.clone()),
    }
}
