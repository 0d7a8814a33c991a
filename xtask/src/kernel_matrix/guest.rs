//! The script that the guest runs as its process 1.

use std::{fmt::Write as _, path::Path, time::Duration};

use anyhow::{Context, Result};

use super::{
    TestPrograms,
    kernels::Kernel,
    scenarios::{Mode, Scenario},
};

const PROLOGUE: &str = include_str!("guest.sh");
/// How much longer than on the machine itself things may take: waits of the tests are multiplied by it.
const SLOWDOWN: u32 = 10;
/// Seconds to boot on a busy machine.
const BOOT: u32 = 240;

/// The whole script for one kernel.
pub(super) fn script(
    kernel: &Kernel,
    scenarios: &[Scenario],
    programs: &Path,
    tests: &TestPrograms,
) -> Result<String> {
    let workspace = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let workspace = workspace
        .canonicalize()
        .context("find this workspace's folder")?;
    let keep = [workspace.as_path(), programs].map(|dir| quoted(&dir.to_string_lossy()));
    let mut script = format!(
        "# {}\nKEEP=({})\n{PROLOGUE}\n",
        kernel.release,
        keep.join(" ")
    );
    writeln!(script, "export AGENT_NETWORK_TEST_SLOWDOWN={SLOWDOWN}")?;
    writeln!(
        script,
        "echo @chose; {} probe --mode auto; echo @chosen",
        quoted(&programs.join("agent-cni").to_string_lossy())
    )?;
    for (index, scenario) in scenarios.iter().enumerate() {
        let (package, target) = scenario.program;
        let program = tests
            .get(&(package.to_owned(), target.to_owned()))
            .with_context(|| format!("{package} has no test program {target}"))?;
        // one after another: two at once make each other miss their deadlines on an emulated machine
        let mut words = vec![
            program.to_string_lossy().into_owned(),
            "--test-threads=1".to_owned(),
        ];
        if !scenario.tests.is_empty() {
            words.extend(["--exact", "--include-ignored"].map(str::to_owned));
            words.extend(scenario.tests.iter().map(|&test| test.to_owned()));
        }
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let mode = match scenario.mode {
            Mode::Every => "",
            mode => mode.as_str(),
        };
        writeln!(
            script,
            "scenario {index} {} '{mode}' {}",
            scenario.limit,
            words.join(" ")
        )?;
    }
    script.push_str("echo @done\nsync\necho o > /proc/sysrq-trigger\nsleep 60\n");
    Ok(script)
}

/// After how long the machine is given up.
pub(super) fn limit(scenarios: &[Scenario]) -> Duration {
    let seconds: u32 = scenarios.iter().map(|scenario| scenario.limit).sum();
    Duration::from_secs((BOOT + seconds).into())
}

/// A word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one_word() {
        assert_eq!(quoted("/a b/it's"), r"'/a b/it'\''s'");
    }

    #[test]
    fn a_test_program_that_does_not_exist_is_an_error_and_no_empty_row() {
        let kernel = Kernel {
            release: "5.10.0-1-cloud-amd64".into(),
            image: "vmlinuz".into(),
            modules: "modules".into(),
        };
        let scenarios = super::super::scenarios::all();
        let error = script(&kernel, &scenarios, Path::new("/p"), &TestPrograms::new());
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("has no test program")
        );
    }
}
