//! The network of the pods that are not ours, where only some are: waiting for it, and passing on what it wants from the
//! runtime.
//!
//! A runtime that is given our configuration says that its network is ready, and the kubelet starts pods. So the first
//! configuration waits for the network that it hands pods on to. Only STATUS can tell a runtime otherwise: where it is
//! spoken the configuration comes at once, and no pod can slip by while the primary network is there and we are not.

use std::{collections::BTreeSet, path::PathBuf};

use agent_datapath::footprint::Places;

use super::{
    InstallOptions,
    pass::Outcome,
    report::Problem,
    stage::{Content, Watched},
};
use crate::{delegate, netconf::NetConf, version::SpecVersion};

/// What the plugins behind most primary networks want, until the real one was seen.
const USUAL_CAPABILITIES: [&str; 2] = ["bandwidth", "portMappings"];

/// See the module.
#[derive(Debug)]
pub(super) struct Primary {
    options: InstallOptions,
    /// Its configuration, when there is one that can be used.
    seen: Option<PathBuf>,
}

impl Primary {
    /// Nothing is seen yet.
    pub(super) fn new(options: InstallOptions) -> Self {
        Self {
            options,
            seen: None,
        }
    }

    /// Our configuration, before the primary network was seen.
    pub(super) fn first_content(&self) -> Content {
        self.content(&USUAL_CAPABILITIES.map(str::to_owned).into())
    }

    fn content(&self, capabilities: &BTreeSet<String>) -> Content {
        Content::Text(self.options.conf_text(capabilities))
    }

    /// Looks at it, and has our configuration say what it wants.
    ///
    /// # Errors
    /// It is not there or cannot be used, and nobody else tells the runtime so; or our configuration cannot be written.
    pub(super) fn follow(
        &mut self,
        conf: &NetConf,
        places: &Places,
        conf_file: &mut Watched,
        outcome: &mut Outcome,
    ) -> Result<(), Problem> {
        if conf.selective.is_none() {
            return Ok(());
        }
        let primary = match delegate::primary_of(conf, &places.conf_dir) {
            Ok(primary) => primary,
            Err(error) => {
                self.seen = None;
                let problem = Problem::new(
                    format!("pods that the workload selector leaves out cannot start: {error}"),
                    "install the cluster's CNI, or name its file with --primary-file; the directory is watched, and looked at again at once",
                );
                if conf.version < SpecVersion::V1_1_0 {
                    return Err(problem);
                }
                outcome.problems.push(problem);
                return Ok(());
            }
        };
        if self.seen.as_ref() != Some(&primary.path) {
            tracing::info!(file = %primary.path.display(), plugins = ?primary.kinds, "the primary network");
            self.seen = Some(primary.path);
        }
        // the runtime may look for plugins elsewhere too: no reason not to be ready
        let missing = primary.kinds.iter();
        let missing = missing.filter(|kind| !places.bin_dir.join(kind).is_file());
        outcome.notes.extend(missing.map(|kind| {
            format!(
                "the primary network's plugin {kind} is not in {}",
                places.bin_dir.display()
            )
        }));
        let content = self.content(&primary.capabilities);
        if conf_file.must_hold(&content) {
            return Ok(());
        }
        // following the primary network is no repair, unless the file was wrong already
        let was_right = matches!(conf_file.difference(), Ok(None));
        conf_file.change(content);
        if was_right {
            conf_file.place().map_err(Problem::from)?;
            let capabilities = &primary.capabilities;
            tracing::info!(
                ?capabilities,
                "the primary network wants other capabilities"
            );
        }
        Ok(())
    }
}
