//! The steps of an installation in their order, and which may be done when others failed. Pure: `pass` does them.
//!
//! An installation and a repair are the same pass over the same steps: each looks, and mends what differs. The order is
//! the safety argument. The configuration is what makes the runtime call us, so it is written last, when everything an
//! ADD needs stands. On a node that is installed already it is the other way round: a configuration that is missing
//! hands new pods to another network, where nobody controls them, while an ADD on a half-broken node merely fails.

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// The state directory.
    State,
    /// Bridge, settings, routes, rules, programs.
    Node,
    /// Every pod that is attached: program, entry, port, neighbour.
    Pods,
    /// The plugin, written beside its name and renamed.
    Binary,
    /// The network of the pods that are not ours, when only some are: it is looked for, and what it wants is copied.
    Primary,
    /// The version record.
    Record,
    /// The configuration, written beside its name and renamed.
    Conf,
    /// Pins of other layouts, which nobody needs once everything stands in this one's.
    OldLayouts,
}

/// All steps in order.
pub(crate) const STEPS: [Step; 8] = [
    Step::State,
    Step::Node,
    Step::Pods,
    Step::Binary,
    Step::Primary,
    Step::Record,
    Step::Conf,
    Step::OldLayouts,
];

impl Step {
    /// A fixed label for logs.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Node => "node",
            Self::Pods => "pods",
            Self::Binary => "binary",
            Self::Primary => "primary",
            Self::Record => "record",
            Self::Conf => "conf",
            Self::OldLayouts => "old_layouts",
        }
    }

    /// What must have worked in this pass.
    fn needs(self, installed: bool) -> &'static [Self] {
        match self {
            Self::State => &[],
            Self::Node => &[Self::State],
            // an attachment is mended by what the node's step opened
            Self::Pods => &[Self::State, Self::Node],
            // nothing is written for a node that cannot be made ready
            Self::Binary if !installed => &[Self::State, Self::Node],
            Self::Binary => &[],
            Self::Primary => &[],
            // the record says that the node is installed, which it is not while the configuration has to wait
            Self::Record if !installed => &[Self::State, Self::Binary, Self::Primary],
            Self::Record => &[Self::State, Self::Binary],
            // one that gives pods to a network which is not there would make the kubelet start them in vain
            Self::Conf if !installed => &[
                Self::State,
                Self::Node,
                Self::Binary,
                Self::Primary,
                Self::Record,
            ],
            Self::Conf => &[],
            // a pod that is not in the new layout yet is controlled by the old one
            Self::OldLayouts => &[Self::Node, Self::Pods, Self::Binary, Self::Conf],
        }
    }
}

/// One pass: hands out the steps, and passes over those that need one that failed.
#[derive(Debug)]
pub(crate) struct Pass {
    installed: bool,
    next: usize,
    failed: Vec<Step>,
}

impl Pass {
    /// Begins. `installed` says that an earlier pass came as far as the configuration.
    pub(crate) fn new(installed: bool) -> Self {
        Self {
            installed,
            next: 0,
            failed: Vec::new(),
        }
    }

    /// The next step to do.
    pub(crate) fn next(&mut self) -> Option<Step> {
        loop {
            let step = *STEPS.get(self.next)?;
            self.next += 1;
            let needs = step.needs(self.installed);
            if self.failed.iter().all(|failed| !needs.contains(failed)) {
                return Some(step);
            }
            // what needs this one cannot be done either
            self.failed.push(step);
        }
    }

    /// Notes that a step did not work.
    pub(crate) fn failed(&mut self, step: Step) {
        self.failed.push(step);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The steps that are done when those of `broken` fail.
    fn done(installed: bool, broken: &[Step]) -> Vec<Step> {
        let mut pass = Pass::new(installed);
        let mut done = Vec::new();
        while let Some(step) = pass.next() {
            if broken.contains(&step) {
                pass.failed(step);
            } else {
                done.push(step);
            }
        }
        done
    }

    fn at(steps: &[Step], wanted: Step) -> Option<usize> {
        steps.iter().position(|step| *step == wanted)
    }

    #[test]
    fn nothing_that_an_add_needs_comes_after_the_configuration() {
        let conf = at(&STEPS, Step::Conf);
        assert_eq!(STEPS.last(), Some(&Step::OldLayouts));
        assert_eq!(conf, Some(STEPS.len() - 2));
    }

    #[test]
    fn on_an_installed_node_configuration_and_plugin_are_mended_whatever_else_is_broken() {
        for broken in [
            Step::State,
            Step::Node,
            Step::Pods,
            Step::Primary,
            Step::Record,
        ] {
            let done = done(true, &[broken]);
            assert!(done.contains(&Step::Conf), "{broken:?}");
            assert!(done.contains(&Step::Binary), "{broken:?}");
        }
    }

    #[test]
    fn a_node_that_waits_for_its_primary_network_is_not_taken_for_installed() {
        let done = done(false, &[Step::Primary]);
        assert_eq!(done, [Step::State, Step::Node, Step::Pods, Step::Binary]);
    }

    fn any_steps() -> impl Strategy<Value = Vec<Step>> {
        proptest::collection::vec(proptest::sample::select(STEPS.to_vec()), 0..5)
    }

    proptest! {
        #[test]
        fn the_first_configuration_is_written_last_and_only_when_all_it_needs_stands(
            broken in any_steps(),
        ) {
            let done = done(false, &broken);
            if let Some(conf) = at(&done, Step::Conf) {
                for needed in [Step::State, Step::Node, Step::Binary, Step::Primary, Step::Record] {
                    prop_assert!(at(&done, needed).is_some_and(|needed| needed < conf), "{needed:?}");
                }
            }
        }

        #[test]
        fn old_layouts_stay_while_anything_is_not_in_the_new_one(
            broken in any_steps(),
            installed: bool,
        ) {
            let done = done(installed, &broken);
            if done.contains(&Step::OldLayouts) {
                prop_assert!(done.contains(&Step::Node) && done.contains(&Step::Pods));
                prop_assert_eq!(done.last(), Some(&Step::OldLayouts));
            }
        }

        #[test]
        fn steps_keep_their_order(broken in any_steps(), installed: bool) {
            let done = done(installed, &broken);
            let mut sorted = done.clone();
            sorted.sort();
            sorted.dedup();
            prop_assert_eq!(done, sorted);
        }
    }
}
