//! Which mode this node redirects in: what is configured, what is stored, and, where that is called for, what the
//! kernel can do.
//!
//! A probe loads programs into a throw-away node and takes some hundred milliseconds. `setup` and the installer
//! always probe; an ADD does only when nothing is settled yet.

use agent_core::{attachment::Mode, node::NodeState};
use agent_datapath::probe::{self, ChooseError, Reason, Report, Requested, Stored};

use crate::{clock, error::CniError, netconf::NetConf, state::StateDir};

/// How sure the answer must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Care {
    /// What is settled is believed: on the way of an ADD.
    Trust,
    /// Everything is tried anew: when a person or the installer sets the node up.
    Probe,
}

/// What is decided about the mode before the node's own record is read under its lock.
pub(crate) struct Decided<R> {
    requested: Requested,
    chosen: Option<(Mode, Reason)>,
    report: R,
}

/// Decides as far as the care asks for: nothing is probed for an ADD on a settled node.
///
/// # Errors
/// When the mode asked for doesn't work here, or none does.
pub(crate) fn decide<'a>(
    conf: &'a NetConf,
    dir: &StateDir,
    care: Care,
) -> Result<Decided<impl Fn() -> Report + use<'a>>, CniError> {
    let mut decided = Decided {
        requested: conf.mode,
        chosen: None,
        report: || probe::probe(&conf.pin_dir),
    };
    if care == Care::Probe {
        let stored = dir.node()?.map(|node| Stored {
            mode: node.mode,
            in_use: has_pods(dir),
        });
        decided.choose(stored)?;
    }
    Ok(decided)
}

impl<R: Fn() -> Report> Decided<R> {
    /// The mode, given what is stored. Probes when neither that nor the configuration nor an earlier probe says.
    ///
    /// # Errors
    /// When no mode works here.
    pub(crate) fn mode(&mut self, stored: Option<&NodeState>) -> Result<Mode, ChooseError> {
        let chosen = self.chosen.as_ref().map(|(mode, _)| *mode);
        match (self.requested, chosen.or(stored.map(|stored| stored.mode))) {
            (Requested::This(mode), _) | (Requested::Auto, Some(mode)) => Ok(mode),
            (Requested::Auto, None) => self.choose(None),
        }
    }

    /// Writes down why this mode: because it was asked for, else from this probe, else from the one that settled it. An ADD
    /// and `setup` write the same of a mode that was asked for, though only the latter probes.
    pub(crate) fn explain(&self, stored: Option<&NodeState>, node: &mut NodeState) {
        (node.mode_reason, node.mode_cause, node.ebpf_missing) = match (&self.chosen, stored) {
            (Some((_, reason)), _) => (
                Some(reason.to_string()),
                Some(reason.as_str().to_owned()),
                missing(reason),
            ),
            (None, Some(stored)) if self.requested == Requested::Auto => (
                stored.mode_reason.clone(),
                stored.mode_cause.clone(),
                stored.ebpf_missing.clone(),
            ),
            (None, _) if matches!(self.requested, Requested::This(_)) => {
                let reason = Reason::Requested;
                let cause = reason.as_str().to_owned();
                (Some(reason.to_string()), Some(cause), Vec::new())
            }
            (None, _) => (None, None, Vec::new()),
        };
    }

    /// Why this mode, when the kernel was asked.
    pub(crate) fn reason(self) -> Option<Reason> {
        self.chosen.map(|(_, reason)| reason)
    }

    fn choose(&mut self, stored: Option<Stored>) -> Result<Mode, ChooseError> {
        let (mode, reason) = probe::choose(self.requested, stored, &(self.report)())?;
        match &reason {
            Reason::EbpfFails(_) => {
                tracing::warn!(mode = mode.as_str(), reason = %reason, "redirect mode chosen");
            }
            _ => tracing::info!(mode = mode.as_str(), reason = %reason, "redirect mode chosen"),
        }
        self.chosen = Some((mode, reason));
        Ok(mode)
    }
}

/// The labels of what is in eBPF's way, each once.
fn missing(reason: &Reason) -> Vec<String> {
    let mut labels: Vec<String> = reason
        .why_not_ebpf()
        .iter()
        .map(|why| why.feature.as_str().to_owned())
        .collect();
    labels.dedup();
    labels
}

/// Whether pods of this boot are attached; when that can't be read, they may be.
fn has_pods(dir: &StateDir) -> bool {
    let boot = clock::boot_id();
    dir.attachments()
        .map_or(true, |all| all.iter().any(|one| one.boot_id == boot))
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_datapath::{
        attach::AttachKind,
        probe::{FeatureName, Why},
    };

    fn stored(mode: Mode) -> NodeState {
        let cidr = "169.254.100.0/24".parse().unwrap();
        NodeState::new(cidr, vec![], mode, "/sys/fs/bpf/agent-network").unwrap()
    }

    fn undecided<R: Fn() -> Report>(requested: Requested, report: R) -> Decided<R> {
        Decided {
            requested,
            chosen: None,
            report,
        }
    }

    #[test]
    fn an_add_on_a_settled_node_probes_nothing() {
        let unasked = || -> Report { panic!("nothing may be probed") };
        let mut compat = stored(Mode::IptablesCompat);
        compat.mode_reason = Some("no bpf(2)".into());
        compat.mode_cause = Some("ebpf_fails".into());
        compat.ebpf_missing = vec!["programs".into()];
        let asked_for = |node: &mut NodeState| {
            node.mode_reason = Some(Reason::Requested.to_string());
            node.mode_cause = Some("requested".into());
        };
        for (requested, wanted, kept) in [
            (Requested::Auto, Mode::IptablesCompat, true),
            (Requested::This(Mode::Ebpf), Mode::Ebpf, false),
            (
                Requested::This(Mode::IptablesCompat),
                Mode::IptablesCompat,
                false,
            ),
        ] {
            let mut decided = undecided(requested, unasked);
            let mut explained = stored(wanted);
            decided.explain(Some(&compat), &mut explained);
            let why = |node: &NodeState| {
                let NodeState {
                    mode_reason,
                    mode_cause,
                    ebpf_missing,
                    ..
                } = node.clone();
                (mode_reason, mode_cause, ebpf_missing)
            };
            let mut asked = stored(wanted);
            asked_for(&mut asked);
            let expected = if kept { &compat } else { &asked };
            assert_eq!(why(&explained), why(expected));
            assert_eq!(decided.mode(Some(&compat)).unwrap(), wanted);
            assert_eq!(decided.reason(), None);
        }
    }

    #[test]
    fn the_first_add_of_a_node_probes_once() {
        let probes = std::cell::Cell::new(0);
        let mut decided = undecided(Requested::Auto, || {
            probes.set(probes.get() + 1);
            Report {
                features: vec![],
                ebpf: Ok(AttachKind::Tcx),
                compat: Ok(()),
            }
        });
        for _ in 0..2 {
            assert_eq!(decided.mode(None).unwrap(), Mode::Ebpf);
        }
        assert_eq!(probes.get(), 1);
        assert_eq!(decided.reason(), Some(Reason::EbpfWorks(AttachKind::Tcx)));
    }

    #[test]
    fn what_is_in_ebpfs_way_is_written_down_by_its_labels() {
        let why = |feature| Why {
            feature,
            said: "no".into(),
            meaning: String::new(),
        };
        let mut decided = undecided(Requested::Auto, || Report {
            features: vec![],
            ebpf: Err(vec![
                why(FeatureName::Programs),
                why(FeatureName::Programs),
                why(FeatureName::Dispatch),
            ]),
            compat: Ok(()),
        });
        assert_eq!(decided.mode(None).unwrap(), Mode::IptablesCompat);
        let mut node = stored(Mode::IptablesCompat);
        decided.explain(None, &mut node);
        assert_eq!(node.mode_cause.as_deref(), Some("ebpf_fails"));
        assert_eq!(node.ebpf_missing, ["programs", "dispatch"]);
    }
}
