//! The table at the end. Pure.

use super::{outcome::Outcome, scenarios::Scenario};

/// One scenario on one kernel.
pub(super) struct Row {
    kernel: String,
    mode: String,
    scenario: String,
    outcome: Outcome,
}

impl Row {
    pub(super) fn new(kernel: &str, mode: String, scenario: &Scenario, outcome: Outcome) -> Row {
        Row {
            kernel: kernel.to_owned(),
            mode,
            scenario: scenario.name.clone(),
            outcome,
        }
    }

    /// What `auto` chose on a kernel. All of these have what eBPF needs: another answer is a fault of the probe or of
    /// the programs, and would leave the rest of the table saying little.
    pub(super) fn of_probe(kernel: &str, chosen: Option<&str>) -> Row {
        let (verdict, mode) = match chosen.map(|text| text.split_once(':').unwrap_or((text, ""))) {
            Some(("ebpf", _)) => (Ok(()), "auto: ebpf".to_owned()),
            Some((other, why)) => (Err(format!("not ebpf:{why}")), format!("auto: {other}")),
            None => (Err("not run, or it chose nothing".into()), "auto".into()),
        };
        Row {
            kernel: kernel.to_owned(),
            mode,
            scenario: "the choice".into(),
            outcome: Outcome {
                tests: u32::from(verdict.is_ok()),
                verdict,
                seconds: 0,
                output: String::new(),
            },
        }
    }

    pub(super) fn passed(&self) -> bool {
        self.outcome.verdict.is_ok()
    }

    fn cells(&self) -> [String; 6] {
        let result = match &self.outcome.verdict {
            Ok(()) => "pass".to_owned(),
            Err(why) => format!("FAIL: {why}"),
        };
        [
            self.kernel.clone(),
            self.mode.clone(),
            self.scenario.clone(),
            self.outcome.tests.to_string(),
            self.outcome.seconds.to_string(),
            result,
        ]
    }
}

/// All rows, as Markdown that is aligned for a terminal too.
pub(super) fn render(rows: &[Row]) -> String {
    let head = ["kernel", "mode", "scenario", "tests", "s", "result"].map(str::to_owned);
    let cells: Vec<[String; 6]> = rows.iter().map(Row::cells).collect();
    let width = |column: usize| {
        let all = cells.iter().chain([&head]);
        all.map(|row| row[column].len()).max().unwrap_or(0)
    };
    let line = |row: &[String; 6]| {
        let padded: Vec<String> = row
            .iter()
            .enumerate()
            .map(|(column, text)| format!("{text:<width$}", width = width(column)))
            .collect();
        format!("| {} |\n", padded.join(" | "))
    };
    let rule = std::array::from_fn(|column| "-".repeat(width(column)));
    let body: String = cells.iter().map(line).collect();
    format!("{}{}{body}", line(&head), line(&rule))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_matrix::scenarios;

    #[test]
    fn a_failure_is_a_row_with_its_reason() {
        let scenario = scenarios::all().remove(0);
        let outcome = |verdict| Outcome {
            verdict,
            tests: 3,
            seconds: 12,
            output: String::new(),
        };
        let rows = [
            Row::new("5.10.0", "every".into(), &scenario, outcome(Ok(()))),
            Row::new(
                "6.12",
                "every".into(),
                &scenario,
                outcome(Err("exit code 101".into())),
            ),
        ];
        assert_eq!(
            render(&rows),
            "| kernel | mode  | scenario | tests | s  | result              |\n\
             | ------ | ----- | -------- | ----- | -- | ------------------- |\n\
             | 5.10.0 | every | probe    | 3     | 12 | pass                |\n\
             | 6.12   | every | probe    | 3     | 12 | FAIL: exit code 101 |\n"
        );
        assert!(rows[0].passed() && !rows[1].passed());
    }

    #[test]
    fn a_kernel_on_which_auto_does_not_choose_ebpf_has_failed() {
        for (chosen, passes) in [
            (Some("ebpf: everything that it needs works"), true),
            (Some("iptables-compat: ebpf does not work here"), false),
            (None, false),
        ] {
            assert_eq!(Row::of_probe("6.1", chosen).passed(), passes, "{chosen:?}");
        }
    }
}
