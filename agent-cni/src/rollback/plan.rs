//! The steps of a rollback in their order. Pure: `rollback` does them.
//!
//! The configuration goes first, so that no new pod comes in. The pods' links go before what controls their packets: a
//! pod has no network then, and at no instant an uncontrolled one. The record of old settings goes with the state, last.

use agent_datapath::footprint::Thing;

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait for verbs of the plugin that are at work: an ADD would build up again what is being removed.
    AwaitVerbs,
    /// Remove everything of one kind.
    Remove(Thing),
    /// End the tracked connections of the pods' addresses.
    EndConnections,
}

/// All steps in order.
pub(crate) fn steps() -> Vec<Step> {
    let mut steps = Vec::new();
    for thing in Thing::ALL {
        steps.push(Step::Remove(thing));
        match thing {
            Thing::Conf => steps.push(Step::AwaitVerbs),
            Thing::PodLinks => steps.push(Step::EndConnections),
            _ => {}
        }
    }
    steps
}

impl Step {
    /// A fixed label for logs.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::AwaitVerbs => "await_verbs",
            Self::Remove(thing) => thing.label(),
            Self::EndConnections => "connections",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(wanted: Step) -> usize {
        steps().iter().position(|step| *step == wanted).unwrap()
    }

    #[test]
    fn the_configuration_goes_first_and_the_state_last() {
        let steps = steps();
        assert_eq!(steps.first(), Some(&Step::Remove(Thing::Conf)));
        assert_eq!(steps.last(), Some(&Step::Remove(Thing::State)));
    }

    #[test]
    fn no_verb_is_at_work_when_links_go() {
        assert!(at(Step::AwaitVerbs) < at(Step::Remove(Thing::PodLinks)));
    }

    #[test]
    fn every_kind_of_thing_is_removed_once() {
        for thing in Thing::ALL {
            let count = steps()
                .iter()
                .filter(|step| **step == Step::Remove(thing))
                .count();
            assert_eq!(count, 1, "{thing:?}");
        }
    }

    #[test]
    fn nothing_that_controls_packets_goes_while_a_pod_has_a_link() {
        for control in [
            Thing::Pins,
            Thing::PolicyRoute,
            Thing::DropRules,
            Thing::PoolRoute,
            Thing::NftTables,
            Thing::IptablesChains,
            Thing::Sysctls,
        ] {
            assert!(
                at(Step::Remove(Thing::PodLinks)) < at(Step::Remove(control)),
                "{control:?}"
            );
        }
    }
}
