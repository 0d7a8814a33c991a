//! What a check answers: a level, what was found, and what mends it.

use agent_datapath::error::some_of;
use serde::Serialize;

/// How bad it is. Ordered: the worst is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// Works, or could not be judged; somebody should know.
    Warn,
    /// Pods do not get what they should, or could get what they should not.
    Fail,
}

impl Level {
    /// As it is printed.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// The answer of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The check's name; fixed, for scripts and documents.
    pub(crate) id: &'static str,
    /// How bad it is.
    pub(crate) level: Level,
    /// What was found.
    pub(crate) found: String,
    /// What mends it; empty when nothing has to be mended.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) remedy: String,
}

/// A fact, or why it could not be looked at.
pub(crate) type Seen<T> = Result<T, String>;

/// A check at work: collects problems, and is a finding in the end.
#[derive(Debug)]
pub(crate) struct Check {
    id: &'static str,
    problems: Vec<(Level, String, String)>,
}

impl Check {
    /// A check that has found nothing yet.
    pub(crate) fn new(id: &'static str) -> Self {
        Self {
            id,
            problems: Vec::new(),
        }
    }

    /// Something that must be mended.
    pub(crate) fn fail(&mut self, found: impl Into<String>, remedy: impl Into<String>) {
        self.problems
            .push((Level::Fail, found.into(), remedy.into()));
    }

    /// Something that somebody should know.
    pub(crate) fn warn(&mut self, found: impl Into<String>, remedy: impl Into<String>) {
        self.problems
            .push((Level::Warn, found.into(), remedy.into()));
    }

    /// Takes a fact out; one that could not be looked at is a failure, never fine.
    pub(crate) fn see<'a, T>(&mut self, what: &str, seen: &'a Seen<T>) -> Option<&'a T> {
        match seen {
            Ok(fact) => Some(fact),
            Err(why) => {
                self.fail(
                    format!("cannot look at {what}: {why}"),
                    "run doctor as root on the node, or in the agent-cni-installer pod",
                );
                None
            }
        }
    }

    /// The finding: the worst level, everything that was found, each remedy once. `fine` is what a check says that
    /// found no problem.
    pub(crate) fn finish(self, fine: impl Into<String>) -> Finding {
        let Some(level) = self.problems.iter().map(|(level, ..)| *level).max() else {
            return Finding {
                id: self.id,
                level: Level::Ok,
                found: fine.into(),
                remedy: String::new(),
            };
        };
        let mut found: Vec<String> = Vec::new();
        let mut remedies: Vec<String> = Vec::new();
        for (_, problem, remedy) in &self.problems {
            if !found.contains(problem) {
                found.push(problem.clone());
            }
            if !remedy.is_empty() && !remedies.contains(remedy) {
                remedies.push(remedy.clone());
            }
        }
        Finding {
            id: self.id,
            level,
            found: some_of(&found, "; "),
            remedy: some_of(&remedies, "; "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_has_the_worst_level_and_each_remedy_once() {
        let mut check = Check::new("x");
        check.warn("a", "do this");
        check.fail("b", "do that");
        check.warn("c", "do this");
        let finding = check.finish("fine");
        assert_eq!(finding.level, Level::Fail);
        assert_eq!(finding.found, "a; b; c");
        assert_eq!(finding.remedy, "do this; do that");
    }

    #[test]
    fn nothing_found_is_ok_without_a_remedy() {
        let finding = Check::new("x").finish("fine");
        assert_eq!((finding.level, finding.found.as_str()), (Level::Ok, "fine"));
        assert!(finding.remedy.is_empty());
    }

    #[test]
    fn what_cannot_be_looked_at_is_never_ok() {
        let mut check = Check::new("x");
        let seen: Seen<()> = Err("permission denied".into());
        assert!(check.see("the maps", &seen).is_none());
        let finding = check.finish("fine");
        assert_eq!(finding.level, Level::Fail);
        assert!(finding.found.contains("the maps: permission denied"));
    }

    #[test]
    fn two_hundred_broken_pods_are_not_two_hundred_lines() {
        let mut check = Check::new("x");
        for pod in 0..200 {
            check.fail(format!("pod {pod}"), "recreate them");
        }
        assert!(check.finish("").found.ends_with("pod 4; and 195 more"));
    }
}
