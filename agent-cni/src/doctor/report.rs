//! The answer as a person or a program reads it.

use serde::Serialize;

use super::{
    check::{Finding, Level},
    options::Output,
};

/// What a doctor's answer begins with when nothing fails: documented, and looked for by scripts.
const PASSED: &str = "AGENT_CNI_DOCTOR_PASSED";
/// And when something does; the number of failures follows.
const FAILED: &str = "AGENT_CNI_DOCTOR_FAILED";

/// All findings.
#[derive(Debug)]
pub(crate) struct Report {
    findings: Vec<Finding>,
}

impl Report {
    /// A report of these.
    pub(crate) fn new(findings: Vec<Finding>) -> Self {
        Self { findings }
    }

    /// How many checks fail.
    pub(crate) fn failed(&self) -> usize {
        self.findings
            .iter()
            .filter(|finding| finding.level == Level::Fail)
            .count()
    }

    /// The last line.
    pub(crate) fn verdict(&self) -> String {
        match self.failed() {
            0 => PASSED.to_owned(),
            failed => format!("{FAILED}: {failed}"),
        }
    }

    /// Everything but the last line.
    pub(crate) fn body(&self, output: Output, colour: bool) -> String {
        match output {
            Output::Table => self.table(colour),
            Output::Json => self.json(),
        }
    }

    fn table(&self, colour: bool) -> String {
        let width = self.findings.iter().map(|one| one.id.len()).max();
        let width = width.unwrap_or_default();
        let mut text = String::new();
        for finding in &self.findings {
            let level = painted(finding.level, colour);
            text.push_str(&format!(
                "{level} {:width$}  {}\n",
                finding.id, finding.found
            ));
            if !finding.remedy.is_empty() {
                text.push_str(&format!("     {:width$}  mend: {}\n", "", finding.remedy));
            }
        }
        text
    }

    fn json(&self) -> String {
        #[derive(Serialize)]
        struct Object<'a> {
            passed: bool,
            failed: usize,
            result: String,
            checks: &'a [Finding],
        }
        let object = Object {
            passed: self.failed() == 0,
            failed: self.failed(),
            result: self.verdict(),
            checks: &self.findings,
        };
        // strings and numbers always serialise
        let mut text = serde_json::to_string_pretty(&object).unwrap_or_default();
        text.push('\n');
        text
    }
}

fn painted(level: Level, colour: bool) -> String {
    let code = match level {
        Level::Ok => 32,
        Level::Warn => 33,
        Level::Fail => 31,
    };
    let word = format!("{:4}", level.as_str());
    if colour {
        format!("\u{1b}[{code}m{word}\u{1b}[0m")
    } else {
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let finding = |id, level, remedy: &str| Finding {
            id,
            level,
            found: "it is so".into(),
            remedy: remedy.into(),
        };
        Report::new(vec![
            finding("kernel", Level::Ok, ""),
            finding("kube-proxy", Level::Warn, "look"),
            finding("maps", Level::Fail, "do it"),
        ])
    }

    #[test]
    fn a_line_a_check_and_the_mend_below() {
        assert_eq!(
            report().body(Output::Table, false),
            "ok   kernel      it is so\n\
             warn kube-proxy  it is so\n\
             \x20                mend: look\n\
             fail maps        it is so\n\
             \x20                mend: do it\n"
        );
        assert_eq!(report().verdict(), "AGENT_CNI_DOCTOR_FAILED: 1");
    }

    #[test]
    fn warnings_do_not_fail_it() {
        let mut report = report();
        report.findings.pop();
        assert_eq!(report.verdict(), "AGENT_CNI_DOCTOR_PASSED");
        assert_eq!(report.failed(), 0);
    }

    #[test]
    fn json_has_the_same() {
        let value: serde_json::Value =
            serde_json::from_str(&report().body(Output::Json, true)).unwrap();
        assert_eq!(value["passed"], false);
        assert_eq!(value["failed"], 1);
        assert_eq!(value["result"], "AGENT_CNI_DOCTOR_FAILED: 1");
        assert_eq!(
            value["checks"][1],
            serde_json::json!({"id": "kube-proxy", "level": "warn", "found": "it is so", "remedy": "look"})
        );
        assert_eq!(value["checks"][0].get("remedy"), None);
    }

    #[test]
    fn colours_are_asked_for() {
        assert!(
            report()
                .body(Output::Table, true)
                .contains("\u{1b}[31mfail")
        );
        assert!(!report().body(Output::Table, false).contains('\u{1b}'));
    }
}
