//! What the guest said, and what that makes of a scenario. Pure.

use super::scenarios::Scenario;

/// All lines of the guest's second serial line, and the end of its console.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    pub(super) lines: Vec<String>,
    pub(super) console: String,
}

impl Heard {
    /// What `agent-cni probe` said: the lines between two marks.
    pub(super) fn probe(&self) -> Vec<&str> {
        let from = self.lines.iter().skip_while(|line| *line != "@chose");
        from.skip(1)
            .take_while(|line| *line != "@chosen")
            .map(String::as_str)
            .collect()
    }

    /// The mode that it chose, and why.
    pub(super) fn chosen(&self) -> Option<&str> {
        self.probe()
            .into_iter()
            .find_map(|line| line.strip_prefix("auto chooses "))
    }
}

/// What a line says to somebody who waits.
pub(super) fn progress(line: &str, scenarios: &[Scenario]) -> Option<String> {
    let mut words = line.split(' ');
    match words.next()? {
        "@up" => Some(format!("up after {} s", words.next()?)),
        "auto" | "test" if !line.starts_with("test result") => Some(line.to_owned()),
        "@end" => {
            let scenario = scenarios.get(words.next()?.parse::<usize>().ok()?)?;
            let result = match words.next()? {
                "0" => "ended well",
                _ => "failed",
            };
            let (mode, name) = (scenario.mode.as_str(), &scenario.name);
            Some(format!(
                "{name} ({mode}) {result} after {} s",
                words.next()?
            ))
        }
        _ => None,
    }
}

/// Which scenario a line says the end of.
pub(super) fn ended(line: &str) -> Option<usize> {
    let index = line.strip_prefix("@end ")?.split(' ').next()?;
    index.parse().ok()
}

/// How a scenario went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Passed, or what is wrong.
    pub(super) verdict: Result<(), String>,
    /// How many tests passed.
    pub(super) tests: u32,
    /// How long it took in the guest.
    pub(super) seconds: u32,
    /// What the program printed, when it failed.
    pub(super) output: String,
}

/// Judges a scenario. Nothing counts as passed but a program that ran to its end, with all tests that were asked for.
pub(super) fn of(index: usize, scenario: &Scenario, lines: &[String], console: &str) -> Outcome {
    let begin = format!("@begin {index}");
    let printed = format!("@output {index}");
    let end = format!("@end {index} ");
    let Some(from) = lines.iter().position(|line| *line == begin) else {
        return Outcome {
            verdict: Err("not run: the guest ended before".into()),
            tests: 0,
            seconds: 0,
            output: console.to_owned(),
        };
    };
    let rest = &lines[from + 1..];
    let Some(length) = rest.iter().position(|line| line.starts_with(&end)) else {
        return Outcome {
            verdict: Err("the guest ended while it ran".into()),
            tests: 0,
            seconds: 0,
            output: format!("{}\nconsole:\n{}", rest.join("\n"), console),
        };
    };
    let output = &rest[..length];
    // what comes before was for whoever waits; a space tells the one from the other
    let from = output.iter().position(|line| *line == printed);
    let output: Vec<&str> = output[from.map_or(0, |at| at + 1)..]
        .iter()
        .map(|line| line.strip_prefix(' ').unwrap_or(line))
        .collect();
    let output = output.join("\n");
    let mut numbers = rest[length][end.len()..]
        .split(' ')
        .filter_map(|word| word.parse::<u32>().ok());
    let (code, seconds) = (numbers.next(), numbers.next().unwrap_or(0));
    let summary = Summary::find(&output);
    let tests = summary.map_or(0, |s| s.passed);
    let wanted = scenario.tests.len() as u32;
    let verdict = match (code, summary) {
        (Some(0), Some(Summary { passed, ignored: 0 })) if passed > 0 && wanted == 0 => Ok(()),
        (Some(0), Some(Summary { passed, ignored: 0 })) if passed == wanted && wanted > 0 => Ok(()),
        (Some(0), Some(s)) => Err(format!(
            "{} passed and {} ignored, of {wanted} wanted",
            s.passed, s.ignored
        )),
        (Some(0), None) => Err("it ended well without saying what it tested".into()),
        (Some(124 | 137), _) => Err(format!("not finished after {seconds} s")),
        (Some(code), _) => Err(format!("exit code {code}")),
        (None, _) => Err("the guest's last line is garbled".into()),
    };
    Outcome {
        verdict,
        tests,
        seconds,
        output,
    }
}

/// The last line of a libtest program.
#[derive(Clone, Copy)]
struct Summary {
    passed: u32,
    ignored: u32,
}

impl Summary {
    fn find(output: &str) -> Option<Self> {
        let line = output
            .lines()
            .rfind(|line| line.starts_with("test result:"))?;
        let number = |what: &str| {
            let before = line.split(what).next()?;
            before.split_whitespace().next_back()?.parse().ok()
        };
        Some(Self {
            passed: number(" passed")?,
            ignored: number(" ignored")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_matrix::scenarios;

    fn heard(text: &str) -> Heard {
        Heard {
            lines: text.lines().map(str::to_owned).collect(),
            console: "Kernel panic".into(),
        }
    }

    fn judged(text: &str, tests: &'static [&'static str]) -> Outcome {
        let scenario = Scenario {
            tests,
            ..scenarios::all().remove(0)
        };
        of(0, &scenario, &heard(text).lines, "Kernel panic")
    }

    const GOOD: &str = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1s";

    #[test]
    fn only_a_program_that_ran_all_it_should_has_passed() {
        for (end, summary, tests, wanted) in [
            ("@end 0 0 7", GOOD, &[][..], Ok(())),
            ("@end 0 0 7", GOOD, &["a", "b"][..], Ok(())),
            ("@end 0 0 7", GOOD, &["a", "b", "c"][..], Err("of 3 wanted")),
            ("@end 0 0 7", "", &[][..], Err("without saying")),
            ("@end 0 101 7", GOOD, &[][..], Err("exit code 101")),
            ("@end 0 124 7", "", &[][..], Err("not finished after 7 s")),
            ("@end 0 x", GOOD, &[][..], Err("garbled")),
            (
                "@end 0 0 7",
                "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured",
                &[][..],
                Err("0 passed"),
            ),
            (
                "@end 0 0 7",
                "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured",
                &[][..],
                Err("1 ignored"),
            ),
        ] {
            let outcome = judged(&format!("@begin 0\n{summary}\n{end}"), tests);
            match (&outcome.verdict, wanted) {
                (Ok(()), Ok(())) => assert_eq!((outcome.tests, outcome.seconds), (2, 7)),
                (Err(why), Err(part)) => assert!(why.contains(part), "{end} {summary}: {why}"),
                other => panic!("{end} {summary}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_output_of_a_program_is_not_told_twice() {
        let text = format!("@begin 0\ntest a ... FAILED\n@output 0\n why\n {GOOD}\n\n@end 0 101 7");
        assert_eq!(judged(&text, &[]).output, format!("why\n{GOOD}\n"));
    }

    #[test]
    fn a_guest_that_ends_early_fails_what_it_did_not_finish() {
        let outcome = judged("@up 5 6.1", &[]);
        assert!(outcome.verdict.unwrap_err().contains("not run"));
        let outcome = judged("@begin 0\nhalf a", &[]);
        assert!(outcome.verdict.unwrap_err().contains("while it ran"));
        assert!(outcome.output.contains("half a") && outcome.output.contains("Kernel panic"));
    }

    #[test]
    fn progress_names_what_ended() {
        let scenarios = scenarios::all();
        let said = |line| progress(line, &scenarios);
        assert_eq!(said("@up 9.5 6.1.0").as_deref(), Some("up after 9.5 s"));
        assert_eq!(
            said("@end 0 101 7").as_deref(),
            Some("probe (every) failed after 7 s")
        );
        assert_eq!(said("@end 999 0 7"), None);
        assert_eq!(said("test result: ok."), None);
        let line = "test services_answer ... ok";
        assert_eq!(said(line).as_deref(), Some(line));
    }

    #[test]
    fn the_mode_that_auto_chose_is_heard() {
        let heard = heard("@chose\nfeature\nauto chooses ebpf: it works\n@chosen\n");
        assert_eq!(heard.chosen(), Some("ebpf: it works"));
    }
}
