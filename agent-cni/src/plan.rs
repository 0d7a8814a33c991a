//! The steps of an ADD in their order, each with what undoes it. Pure: `apply` does them.
//!
//! The order is the security argument: the pod's end comes into being while the host's end is down, and the host's end
//! goes up only when the program checks every packet of it and the state says whose they are. At no instant can a
//! packet of a half-made pod reach the node.

/// One step of an ADD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Remove what an ADD that died left under the same names, and what connections are left of the address.
    ClearRemains,
    /// Create the veth pair, both ends down, the pod's under its final name in its namespace.
    CreateLink,
    /// Write the endpoint's entry and attach the program to the host's end.
    AttachProgram,
    /// Make the host's end an isolated port of the bridge.
    JoinBridge,
    /// Write the forwarding entry and the permanent neighbour.
    Announce,
    /// Address, routes and neighbour in the pod.
    ConfigurePod,
    /// Write the attachment, so that the proxy knows whose packets come.
    SaveState,
    /// Take the host's end up: from here packets flow.
    OpenLink,
}

/// What takes a step back. Each is fine when there is nothing to take back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undo {
    /// Remove the veth, and with it the port, the forwarding entry, and the pod's addresses and routes.
    DeleteLink,
    /// Remove the endpoint's entry and the pinned link.
    DetachProgram,
    /// Remove the permanent neighbour.
    Forget,
    /// Remove the attachment.
    RemoveState,
}

/// All steps in order.
pub(crate) const STEPS: [Step; 8] = [
    Step::ClearRemains,
    Step::CreateLink,
    Step::AttachProgram,
    Step::JoinBridge,
    Step::Announce,
    Step::ConfigurePod,
    Step::SaveState,
    Step::OpenLink,
];

impl Step {
    /// What undoes it, when it did something that lasts by itself.
    pub(crate) fn undo(self) -> Option<Undo> {
        match self {
            Self::CreateLink => Some(Undo::DeleteLink),
            Self::AttachProgram => Some(Undo::DetachProgram),
            Self::Announce => Some(Undo::Forget),
            Self::SaveState => Some(Undo::RemoveState),
            Self::ClearRemains | Self::JoinBridge | Self::ConfigurePod | Self::OpenLink => None,
        }
    }
}

/// What to take back after `failed` did not work, in order: last done, first undone, the failed one included, because
/// it may have done half. The link goes before the program that guards it: a packet must never find the one without
/// the other.
pub(crate) fn undo_after(failed: Step) -> Vec<Undo> {
    let done = STEPS.iter().position(|step| *step == failed).unwrap_or(0);
    let mut undo: Vec<Undo> = STEPS[..=done]
        .iter()
        .rev()
        .filter_map(|step| step.undo())
        .collect();
    undo.sort_by_key(|undo| *undo != Undo::DeleteLink);
    undo
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(step: Step) -> usize {
        STEPS.iter().position(|other| *other == step).unwrap()
    }

    #[test]
    fn the_link_opens_last_after_program_and_state() {
        assert_eq!(STEPS.last(), Some(&Step::OpenLink));
        assert!(position(Step::AttachProgram) < position(Step::JoinBridge));
        assert!(position(Step::AttachProgram) < position(Step::ConfigurePod));
        assert!(position(Step::SaveState) < position(Step::OpenLink));
    }

    #[test]
    fn whatever_fails_all_that_was_done_is_undone() {
        for failed in STEPS {
            let undo = undo_after(failed);
            for step in &STEPS[..=position(failed)] {
                if let Some(needed) = step.undo() {
                    assert!(undo.contains(&needed), "{failed:?} leaves {needed:?}");
                }
            }
        }
    }

    #[test]
    fn nothing_is_undone_that_was_not_begun() {
        assert!(undo_after(Step::ClearRemains).is_empty());
        assert_eq!(undo_after(Step::CreateLink), [Undo::DeleteLink]);
    }

    #[test]
    fn the_link_goes_before_its_program() {
        for failed in STEPS {
            let undo = undo_after(failed);
            let at = |wanted| undo.iter().position(|undo| *undo == wanted);
            if let (Some(link), Some(program)) = (at(Undo::DeleteLink), at(Undo::DetachProgram)) {
                assert!(link < program, "{failed:?}");
            }
        }
    }
}
