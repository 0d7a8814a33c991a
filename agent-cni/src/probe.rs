//! `agent-cni probe`: what this kernel can do, for people and for scripts. Changes nothing.

use std::path::Path;

use agent_datapath::probe::{self, Report, Requested, State, Why};
use serde_json::{Value, json};

/// How to say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// A line for each thing that was tried.
    Table,
    /// One object.
    Json,
}

/// Tries everything, and says what came out and which mode follows from it; the flag is false when none does.
pub(crate) fn run(requested: Requested, pin_dir: &Path, output: Output) -> (String, bool) {
    let report = probe::probe(pin_dir);
    let text = match output {
        Output::Table => table(requested, &report),
        Output::Json => json(requested, &report).to_string(),
    };
    (text, probe::choose(requested, None, &report).is_ok())
}

fn state(state: State) -> &'static str {
    match state {
        State::Works => "works",
        State::Fails => "FAILS",
        State::Untried => "untried",
    }
}

fn table(requested: Requested, report: &Report) -> String {
    let mut lines: Vec<String> = report
        .features
        .iter()
        .map(|feature| {
            format!(
                "{:<14} {:<8} {}",
                feature.name.as_str(),
                state(feature.state),
                feature.detail
            )
        })
        .collect();
    for why in whys(report) {
        if !why.meaning.is_empty() {
            lines.push(format!("{}: {}", why.feature.as_str(), why.meaning));
        }
    }
    let asked = requested.as_str();
    lines.push(match probe::choose(requested, None, report) {
        Ok((mode, reason)) => format!("{asked} chooses {}: {reason}", mode.as_str()),
        Err(error) => error.to_string(),
    });
    lines.join("\n")
}

fn json(requested: Requested, report: &Report) -> Value {
    let features: Vec<Value> = report
        .features
        .iter()
        .map(|feature| {
            json!({
                "name": feature.name.as_str(),
                "state": state(feature.state).to_ascii_lowercase(),
                "detail": feature.detail,
            })
        })
        .collect();
    let listed = |whys: &[Why]| -> Vec<Value> {
        whys.iter()
            .map(|why| {
                json!({"feature": why.feature.as_str(), "said": why.said, "meaning": why.meaning})
            })
            .collect()
    };
    let mut value = json!({
        "requested": requested.as_str(),
        "features": features,
        "againstEbpf": report.ebpf.as_ref().err().map(|whys| listed(whys)).unwrap_or_default(),
        "againstIptablesCompat": report.compat.as_ref().err().map(|whys| listed(whys)).unwrap_or_default(),
    });
    match probe::choose(requested, None, report) {
        Ok((mode, reason)) => {
            value["mode"] = mode.as_str().into();
            value["reason"] = reason.to_string().into();
        }
        Err(error) => value["error"] = error.to_string().into(),
    }
    value
}

/// All that is in the way of either mode, once.
fn whys(report: &Report) -> Vec<&Why> {
    let mut whys: Vec<&Why> = report.ebpf.as_ref().err().into_iter().flatten().collect();
    for why in report.compat.as_ref().err().into_iter().flatten() {
        if !whys.contains(&why) {
            whys.push(why);
        }
    }
    whys
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_datapath::probe::{Feature, FeatureName};

    fn refused() -> Report {
        let why = Why {
            feature: FeatureName::Programs,
            said: "cannot load the eBPF object".into(),
            meaning: "a seccomp filter is in force".into(),
        };
        Report {
            features: vec![Feature {
                name: FeatureName::Programs,
                state: State::Fails,
                detail: why.said.clone(),
            }],
            ebpf: Err(vec![why]),
            compat: Ok(()),
        }
    }

    #[test]
    fn the_table_ends_with_the_choice_and_its_reason() {
        assert_eq!(
            table(Requested::Auto, &refused()),
            "programs       FAILS    cannot load the eBPF object\n\
             programs: a seccomp filter is in force\n\
             auto chooses iptables-compat: eBPF does not work here: programs: cannot load the eBPF object (a seccomp filter is in force)"
        );
    }

    #[test]
    fn the_object_has_the_choice_or_the_error() {
        let value = json(Requested::Auto, &refused());
        assert_eq!(value["mode"], "iptables-compat");
        assert_eq!(value["againstEbpf"][0]["feature"], "programs");
        let only = Requested::This(agent_core::attachment::Mode::Ebpf);
        let value = json(only, &refused());
        assert!(
            value["error"]
                .as_str()
                .unwrap()
                .contains("mode ebpf does not work")
        );
        assert!(value.get("mode").is_none());
    }
}
