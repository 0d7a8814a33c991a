//! Which mode, given what was asked for, what the node has, and what works. Pure.

use std::{fmt, str::FromStr};

use agent_core::attachment::Mode;

use super::{Report, Why};
use crate::attach::AttachKind;

/// What the operator asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Requested {
    /// Whatever works, eBPF first.
    #[default]
    Auto,
    /// This mode and no other.
    This(Mode),
}

impl Requested {
    /// As it is written in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::This(Mode::Ebpf) => "ebpf",
            Self::This(Mode::IptablesCompat) => "iptables-compat",
        }
    }
}

impl FromStr for Requested {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        match text {
            "auto" => Ok(Self::Auto),
            "ebpf" => Ok(Self::This(Mode::Ebpf)),
            "iptables-compat" => Ok(Self::This(Mode::IptablesCompat)),
            other => Err(UnknownMode(other.chars().take(40).collect())),
        }
    }
}

/// Text that names no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("mode \"{0}\" is unknown; write auto, ebpf or iptables-compat")]
pub struct UnknownMode(String);

/// What the node was set up with before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its mode.
    pub mode: Mode,
    /// Whether pods are attached in it.
    pub in_use: bool,
}

/// Why this mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It was asked for.
    Requested,
    /// The node's pods are attached in it, and it still works.
    Kept,
    /// eBPF works.
    EbpfWorks(AttachKind),
    /// eBPF doesn't, for these reasons.
    EbpfFails(Vec<Why>),
}

impl Reason {
    /// All that [`Self::as_str`] can be.
    pub const LABELS: [&'static str; 4] = ["requested", "kept", "ebpf_works", "ebpf_fails"];

    /// A fixed label for logs and metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Kept => "kept",
            Self::EbpfWorks(_) => "ebpf_works",
            Self::EbpfFails(_) => "ebpf_fails",
        }
    }

    /// What is in the way of eBPF, when that is the reason.
    #[must_use]
    pub fn why_not_ebpf(&self) -> &[Why] {
        match self {
            Self::EbpfFails(whys) => whys,
            Self::Requested | Self::Kept | Self::EbpfWorks(_) => &[],
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested => f.write_str("as configured"),
            Self::Kept => f.write_str("kept, because pods are attached in this mode"),
            Self::EbpfWorks(AttachKind::Tcx) => f.write_str("eBPF works here, attached by TCX"),
            Self::EbpfWorks(AttachKind::Clsact) => {
                f.write_str("eBPF works here, attached by clsact filters")
            }
            Self::EbpfFails(whys) => write!(f, "eBPF does not work here: {}", list(whys)),
        }
    }
}

/// No mode can be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChooseError {
    /// The one that was asked for doesn't work.
    #[error("mode {} does not work on this node: {}", mode.as_str(), list(whys))]
    Impossible {
        /// Which.
        mode: Mode,
        /// What is in its way.
        whys: Vec<Why>,
    },
    /// None works.
    #[error(
        "no mode works on this node. ebpf: {}. iptables-compat: {}",
        list(ebpf),
        list(compat)
    )]
    None {
        /// What is in the way of eBPF.
        ebpf: Vec<Why>,
        /// What is in the way of iptables-compat.
        compat: Vec<Why>,
    },
}

impl ChooseError {
    /// A fixed label for logs and metrics.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Impossible { .. } => "mode_impossible",
            Self::None { .. } => "no_mode",
        }
    }
}

/// Chooses the mode: the one that was asked for; with `auto` the one that the node's pods are attached in as long as
/// it works, else eBPF, else iptables-compat.
///
/// A node without pods changes to the better mode by itself, because that costs nobody a connection.
///
/// # Errors
/// When the one asked for doesn't work, or none does.
pub fn choose(
    requested: Requested,
    stored: Option<Stored>,
    report: &Report,
) -> Result<(Mode, Reason), ChooseError> {
    if let Requested::This(mode) = requested {
        return match report.against(mode) {
            [] => Ok((mode, Reason::Requested)),
            whys => Err(ChooseError::Impossible {
                mode,
                whys: whys.to_vec(),
            }),
        };
    }
    if let Some(Stored { mode, in_use: true }) = stored
        && mode != Mode::Ebpf
        && report.works(mode)
        && report.works(Mode::Ebpf)
    {
        return Ok((mode, Reason::Kept));
    }
    match (&report.ebpf, &report.compat) {
        (Ok(kind), _) => Ok((Mode::Ebpf, Reason::EbpfWorks(*kind))),
        (Err(whys), Ok(())) => Ok((Mode::IptablesCompat, Reason::EbpfFails(whys.clone()))),
        (Err(ebpf), Err(compat)) => Err(ChooseError::None {
            ebpf: ebpf.clone(),
            compat: compat.clone(),
        }),
    }
}

fn list(whys: &[Why]) -> String {
    let texts: Vec<String> = whys.iter().map(Why::to_string).collect();
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::FeatureName;

    const EBPF: Mode = Mode::Ebpf;
    const COMPAT: Mode = Mode::IptablesCompat;

    fn why(feature: FeatureName) -> Vec<Why> {
        vec![Why {
            feature,
            said: "cannot load".into(),
            meaning: "no CAP_BPF".into(),
        }]
    }

    fn report(ebpf: bool, compat: bool) -> Report {
        Report {
            features: vec![],
            ebpf: ebpf
                .then_some(AttachKind::Tcx)
                .ok_or_else(|| why(FeatureName::Programs)),
            compat: compat
                .then_some(())
                .ok_or_else(|| why(FeatureName::CompatRules)),
        }
    }

    #[test]
    fn the_mode_is_the_first_that_may_be_and_works() {
        let auto = Requested::Auto;
        let kept = Stored {
            mode: COMPAT,
            in_use: true,
        };
        let unused = Stored {
            mode: COMPAT,
            in_use: false,
        };
        let ebpf_used = Stored {
            mode: EBPF,
            in_use: true,
        };
        type Row = (
            Requested,
            Option<Stored>,
            bool,
            bool,
            Option<(Mode, &'static str)>,
        );
        let table: &[Row] = &[
            (auto, None, true, true, Some((EBPF, "ebpf_works"))),
            (auto, None, true, false, Some((EBPF, "ebpf_works"))),
            (auto, None, false, true, Some((COMPAT, "ebpf_fails"))),
            (auto, None, false, false, None),
            // pods stay where they are while that works
            (auto, Some(kept), true, true, Some((COMPAT, "kept"))),
            (auto, Some(kept), true, false, Some((EBPF, "ebpf_works"))),
            (auto, Some(kept), false, true, Some((COMPAT, "ebpf_fails"))),
            (
                auto,
                Some(ebpf_used),
                true,
                true,
                Some((EBPF, "ebpf_works")),
            ),
            (
                auto,
                Some(ebpf_used),
                false,
                true,
                Some((COMPAT, "ebpf_fails")),
            ),
            // nobody is disturbed when there are none
            (auto, Some(unused), true, true, Some((EBPF, "ebpf_works"))),
            // what was asked for, or nothing
            (
                Requested::This(EBPF),
                Some(kept),
                true,
                true,
                Some((EBPF, "requested")),
            ),
            (Requested::This(EBPF), None, false, true, None),
            (
                Requested::This(COMPAT),
                None,
                true,
                true,
                Some((COMPAT, "requested")),
            ),
            (Requested::This(COMPAT), Some(ebpf_used), true, false, None),
        ];
        for (requested, stored, ebpf, compat, wanted) in table {
            let chosen = choose(*requested, *stored, &report(*ebpf, *compat));
            let found = chosen
                .as_ref()
                .ok()
                .map(|(mode, reason)| (*mode, reason.as_str()));
            assert_eq!(
                found, *wanted,
                "{requested:?} {stored:?} ebpf {ebpf} compat {compat}"
            );
        }
    }

    #[test]
    fn a_refusal_says_what_is_in_the_way_of_each_mode() {
        let error = choose(Requested::Auto, None, &report(false, false)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no mode works on this node. ebpf: programs: cannot load (no CAP_BPF). \
             iptables-compat: compat_rules: cannot load (no CAP_BPF)"
        );
        let (_, reason) = choose(Requested::Auto, None, &report(false, true)).unwrap();
        assert_eq!(reason.why_not_ebpf().len(), 1);
        assert!(reason.to_string().contains("no CAP_BPF"), "{reason}");
    }

    #[test]
    fn requested_modes_read_as_they_are_written() {
        for text in ["auto", "ebpf", "iptables-compat"] {
            assert_eq!(text.parse::<Requested>().unwrap().as_str(), text);
        }
        let error = "eBPF".parse::<Requested>().unwrap_err();
        assert!(error.to_string().contains("write auto, ebpf"), "{error}");
    }
}
