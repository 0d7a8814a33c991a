//! `cargo xtask kernel-matrix`: the data path on the kernels that people run, each in a virtual machine.
//!
//! Debian's packaged kernels are booted by QEMU in software emulation. The guest's root is this machine's own, read-only
//! through virtiofs with a tmpfs over it, so that the programs, tests and tools are the very same ones; nothing but the
//! kernel and its modules differs. What runs is in `scenarios`; a scenario that didn't run counts as failed.

use std::{collections::BTreeMap, path::PathBuf, process::Command, time::Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{build, cargo, setup};

mod guest;
mod initramfs;
mod kernels;
mod outcome;
mod scenarios;
mod table;
mod vm;
mod work;

use kernels::{Kernel, Series};
use outcome::Outcome;
use scenarios::Scenario;
use table::Row;

/// What `--kernels` is when nothing is said.
pub(crate) const DEFAULT_KERNELS: &str = "5.10,6.1,6.12,newest";
/// What `--fast` runs: the oldest, where everything is a fallback, and the first long-term kernel with TCX.
const FAST_KERNELS: &str = "5.10,6.12";

/// What a person may say.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Kernel series of Debian, comma separated; `newest` is the newest in any suite
    #[arg(long, value_name = "LIST")]
    kernels: Option<String>,
    /// 5.10 and 6.12, and the scenarios that tell most per second: what `cargo xtask test` ends with
    #[arg(long)]
    fast: bool,
    /// Only scenarios whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Look for newer packages of kernels that are in the cache already
    #[arg(long)]
    update: bool,
}

/// Sets up, builds, boots every kernel in turn, and prints the table.
///
/// # Errors
/// When a scenario fails on any kernel, or can't be run at all.
pub(crate) fn kernel_matrix(options: &Options) -> Result<()> {
    setup::for_kernel_matrix()?;
    let programs = build::programs_and_tests()?;
    run_in(&programs, options)
}

/// The short form, with programs that are built already.
///
/// # Errors
/// As [`kernel_matrix`].
pub(crate) fn short(programs: &std::path::Path) -> Result<()> {
    run_in(
        programs,
        &Options {
            kernels: None,
            fast: true,
            only: None,
            update: false,
        },
    )
}

fn run_in(programs: &std::path::Path, options: &Options) -> Result<()> {
    let wanted = options.kernels.as_deref().unwrap_or(if options.fast {
        FAST_KERNELS
    } else {
        DEFAULT_KERNELS
    });
    let series: Vec<Series> = wanted
        .split(',')
        .map(|text| text.trim().parse())
        .collect::<Result<_>>()?;
    let scenarios: Vec<Scenario> = scenarios::all()
        .into_iter()
        .filter_map(|scenario| match options.fast {
            true => scenario.shortened(),
            false => Some(scenario),
        })
        .filter(|scenario| {
            options
                .only
                .as_ref()
                .is_none_or(|text| scenario.name.contains(text.as_str()))
        })
        .collect();
    if scenarios.is_empty() {
        bail!("no scenario has that name; without --only all are run");
    }
    work::remove_abandoned(&setup::cache()?)?;
    let tests = test_programs()?;
    let kernels = kernels::obtain(&series, options.update)?;
    // a guest keeps one processor busy most of the time
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut rows = Vec::new();
    for kernels in kernels.chunks(processors) {
        let ended: Vec<Result<Vec<Row>>> = std::thread::scope(|scope| {
            let machines: Vec<_> = kernels
                .iter()
                .map(|kernel| scope.spawn(|| on_kernel(kernel, &scenarios, programs, &tests)))
                .collect();
            machines
                .into_iter()
                .map(|machine| {
                    machine
                        .join()
                        .unwrap_or_else(|_| bail!("a machine's thread panicked"))
                })
                .collect()
        });
        for of_kernel in ended {
            rows.extend(of_kernel?);
        }
    }
    println!("\n{}", table::render(&rows));
    let failed = rows.iter().filter(|row| !row.passed()).count();
    if failed > 0 {
        bail!("{failed} of {} scenarios failed", rows.len());
    }
    Ok(())
}

fn on_kernel(
    kernel: &Kernel,
    scenarios: &[Scenario],
    programs: &std::path::Path,
    tests: &TestPrograms,
) -> Result<Vec<Row>> {
    println!("xtask: booting {}", kernel.release);
    let start = Instant::now();
    let script = guest::script(kernel, scenarios, programs, tests)?;
    let progress = |lines: &[String]| {
        let last = lines.last().map_or("", String::as_str);
        if let Some(text) = outcome::progress(last, scenarios) {
            println!("xtask: {}: {text}", kernel.release);
        }
        if let Some(index) = outcome::ended(last)
            && let Some(scenario) = scenarios.get(index)
        {
            tell(kernel, scenario, &outcome::of(index, scenario, lines, ""));
        }
    };
    let limit = guest::limit(scenarios);
    let heard = vm::run(kernel, &script, limit, &progress)?;
    println!(
        "xtask: {} took {} s",
        kernel.release,
        start.elapsed().as_secs()
    );
    let chosen = Row::of_probe(&kernel.release, heard.chosen());
    if !chosen.passed() {
        println!(
            "\n--- agent-cni probe on {}:\n{}",
            kernel.release,
            heard.probe().join("\n")
        );
    }
    let of_scenarios = scenarios.iter().enumerate().map(|(index, scenario)| {
        let outcome = outcome::of(index, scenario, &heard.lines, &heard.console);
        let ended = |line: &String| outcome::ended(line) == Some(index);
        if !heard.lines.iter().any(ended) {
            tell(kernel, scenario, &outcome);
        }
        let mode = match (scenario.mode, heard.chosen()) {
            (scenarios::Mode::Auto, Some(chosen)) => {
                format!("auto: {}", chosen.split(':').next().unwrap_or(chosen))
            }
            (mode, _) => mode.as_str().to_owned(),
        };
        Row::new(&kernel.release, mode, scenario, outcome)
    });
    Ok(std::iter::once(chosen).chain(of_scenarios).collect())
}

/// Prints what a scenario that failed had to say.
fn tell(kernel: &Kernel, scenario: &Scenario, outcome: &Outcome) {
    if let Err(why) = &outcome.verdict {
        println!(
            "\n--- {} {} on {}: {why}\n{}",
            scenario.mode.as_str(),
            scenario.name,
            kernel.release,
            outcome.output
        );
    }
}

/// The test programs by package and target, as cargo has built them.
type TestPrograms = BTreeMap<(String, String), PathBuf>;

fn test_programs() -> Result<TestPrograms> {
    let mut command = cargo();
    command
        .args(["test", "--no-run", "--message-format=json", "--quiet"])
        .args(build::HOST_PACKAGES)
        .args(["--lib", "--bins", "--tests"]);
    let output = Command::output(&mut command).context("start cargo")?;
    if !output.status.success() {
        bail!(
            "the tests can't be built: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(test_program).collect())
}

/// A line of cargo's, when it is about a test program.
fn test_program(line: &str) -> Option<((String, String), PathBuf)> {
    let message: Value = serde_json::from_str(line).ok()?;
    let executable = message["executable"].as_str()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    let package = manifest.parent()?.file_name()?.to_str()?.to_owned();
    let target = message["target"]["name"].as_str()?.to_owned();
    Some(((package, target), executable.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_is_known_by_its_package_and_target() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/agent-datapath/Cargo.toml",
            "target":{"name":"loading"},"profile":{"test":true},"executable":"/w/target/debug/deps/loading-1"}"#;
        let (name, path) = test_program(line).unwrap();
        assert_eq!(name, ("agent-datapath".into(), "loading".into()));
        assert_eq!(path, PathBuf::from("/w/target/debug/deps/loading-1"));
        assert_eq!(
            test_program(&line.replace(r#""test":true"#, r#""test":false"#)),
            None
        );
    }
}
