//! What a rollback, and a look for residues, tell: lines for people, or one JSON object.

use agent_datapath::footprint::Survey;
use clap::ValueEnum;
use serde_json::{Value, json};

/// The form of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Lines for people.
    Table,
    /// One JSON object.
    Json,
}

/// What a rollback did.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Pods that have lost their network: `namespace/name`.
    pub(crate) recreate: Vec<String>,
    /// Steps that did not work, with why.
    pub(crate) failed: Vec<String>,
    /// Whether an installer still runs, and must be stopped.
    pub(crate) installer: bool,
}

/// The answer of `rollback --check`.
pub(crate) fn residues(survey: &Survey, output: Output) -> String {
    if output == Output::Json {
        return residues_json(survey).to_string();
    }
    if survey.is_clean() {
        return "clean: nothing of agent-network is on this node".into();
    }
    let mut lines: Vec<String> = survey
        .residues
        .iter()
        .map(|residue| format!("residue: {}\n    mend: {}", residue.what, residue.by_hand))
        .collect();
    lines.extend(
        survey
            .unseen
            .iter()
            .map(|(thing, why)| format!("cannot look for {}: {why}", thing.label())),
    );
    match survey.residues.len() {
        // what could not be looked at is told above
        0 => {}
        1 => lines.push("1 residue; agent-cni rollback removes it".to_owned()),
        many => lines.push(format!("{many} residues; agent-cni rollback removes them")),
    }
    lines.join("\n")
}

/// The answer of `rollback`.
pub(crate) fn done(done: &Done, survey: &Survey, output: Output) -> String {
    if output == Output::Json {
        let mut value = residues_json(survey);
        value["recreate"] = json!(done.recreate);
        value["failed"] = json!(done.failed);
        value["installerRuns"] = json!(done.installer);
        return value.to_string();
    }
    let mut lines: Vec<String> = done
        .recreate
        .iter()
        .map(|pod| format!("pod {pod} has no network any more: recreate it"))
        .collect();
    lines.extend(
        done.failed
            .iter()
            .map(|failure| format!("failed: {failure}")),
    );
    if done.installer {
        lines.push(
            "an installer still runs on this node: it does nothing now, but would install again when restarted; remove it"
                .into(),
        );
    }
    lines.push(residues(survey, output));
    lines.join("\n")
}

fn residues_json(survey: &Survey) -> Value {
    let residues: Vec<Value> = survey
        .residues
        .iter()
        .map(|residue| {
            json!({
                "kind": residue.thing.label(),
                "documented": residue.thing.is_documented(),
                "what": residue.what,
                "mend": residue.by_hand,
            })
        })
        .collect();
    let unseen: Vec<Value> = survey
        .unseen
        .iter()
        .map(|(thing, why)| json!({"kind": thing.label(), "why": why}))
        .collect();
    json!({"clean": survey.is_clean(), "residues": residues, "unseen": unseen})
}

#[cfg(test)]
mod tests {
    use agent_datapath::footprint::{Residue, Thing};

    use super::*;

    fn survey() -> Survey {
        Survey {
            residues: vec![Residue {
                thing: Thing::Bridge,
                what: "agentcni0".into(),
                by_hand: "ip link del agentcni0".into(),
            }],
            unseen: vec![(
                Thing::IptablesChains,
                "cannot run iptables-legacy-save".into(),
            )],
        }
    }

    #[test]
    fn each_residue_is_told_with_what_removes_it() {
        let text = residues(&survey(), Output::Table);
        assert!(
            text.contains("residue: agentcni0\n    mend: ip link del agentcni0"),
            "{text}"
        );
        assert!(text.contains("cannot look for iptables_chains"), "{text}");
        assert!(
            text.ends_with("\n1 residue; agent-cni rollback removes it"),
            "{text}"
        );
        let mut two = survey();
        two.residues.extend(survey().residues);
        let text = residues(&two, Output::Table);
        assert!(
            text.ends_with("\n2 residues; agent-cni rollback removes them"),
            "{text}"
        );
        let json: Value = serde_json::from_str(&residues(&survey(), Output::Json)).unwrap();
        assert_eq!(json["clean"], false);
        assert_eq!(json["residues"][0]["documented"], true);
    }

    #[test]
    fn a_clean_node_is_clean_in_both_forms() {
        let clean = Survey::default();
        assert!(residues(&clean, Output::Table).starts_with("clean"));
        let json: Value = serde_json::from_str(&residues(&clean, Output::Json)).unwrap();
        assert_eq!(json["clean"], true);
    }

    #[test]
    fn what_could_not_be_seen_is_not_clean() {
        let mut survey = survey();
        survey.residues.clear();
        assert!(!survey.is_clean());
        let text = residues(&survey, Output::Table);
        assert!(!text.contains("residue"), "{text}");
    }
}
