//! `cargo xtask test`: everything that must hold before a change lands, in the order that fails soonest.

use std::path::Path;
use std::process::{Child, Command};

use anyhow::{Context, Result};

use crate::{build, cargo, check, demo, kernel_matrix, run, setup};

/// Sets up, checks, builds, tests, runs the demo and boots other kernels; `filter` goes to nextest and leaves out all
/// but the tests.
///
/// # Errors
/// At the first thing that doesn't hold.
pub(crate) fn test(filter: &[String]) -> Result<()> {
    setup::for_tests(filter.is_empty())?;
    let cluster = ClusterPrograms::start()?;
    let programs = build::programs_and_tests()?;
    if filter.is_empty() {
        check::all()?;
    }
    cluster.wait()?;
    nextest(filter, None)?;
    if filter.is_empty() {
        nextest(&IN_COMPAT.map(str::to_owned), Some("iptables-compat"))?;
        budgets()?;
        demo::show(&programs, false)?;
        kernel_matrix::short(&programs)?;
    }
    Ok(())
}

/// What is about traffic is run a second time, on nodes in the other mode: the same answers are expected.
const IN_COMPAT: [&str; 2] = [
    "-E",
    "package(e2e) & kind(test) & !binary(harness) & !binary(kubelet) & !binary(demo) & !binary(ipvs) & !binary(api) & !binary(identity) & !binary(/^controller/)",
];

fn nextest(filter: &[String], mode: Option<&str>) -> Result<()> {
    let mut command = match setup::tool("cargo-nextest")? {
        Some(nextest) => {
            let mut c = Command::new(nextest);
            c.args(["nextest", "run"]);
            if std::env::var("CI").is_ok_and(|v| v == "true") {
                c.args(["--profile", "ci"]);
            }
            c
        }
        None => {
            println!(
                "xtask: cargo-nextest can't be had here; plain `cargo test` runs the tests one crate after another"
            );
            let mut c = cargo();
            c.arg("test");
            c
        }
    };
    // A machine that can't run a test fails it, instead of passing it by.
    command.env("CI", "true");
    if let Some(mode) = mode {
        println!("xtask: the node tests once more, in {mode} mode");
        command.env("AGENT_NETWORK_TEST_MODE", mode);
    }
    run(command.args(build::HOST_PACKAGES).args(filter)).context("tests failed")
}

/// Loading 100,000 rules, held to its seconds and bytes in the build that people run.
fn budgets() -> Result<()> {
    println!("xtask: loading 100,000 rules in a release build");
    run(cargo().args([
        "test",
        "--quiet",
        "--release",
        "-p",
        "agent-core",
        "--test",
        "memory",
    ]))
    .context("loading 100,000 rules costs too much")
}

/// Kubernetes, containerd and what belongs to them are compiled from source the first time (nine minutes of two cores);
/// that goes on beside the Rust build.
struct ClusterPrograms {
    build: Child,
}

impl ClusterPrograms {
    fn start() -> Result<ClusterPrograms> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("no workspace")?;
        let mut command = Command::new("nice");
        command
            .arg(root.join("e2e/cluster/build-bins.sh"))
            .env("AGENT_NETWORK_CACHE", setup::cache()?);
        Ok(ClusterPrograms {
            build: command.spawn().context("start e2e/cluster/build-bins.sh")?,
        })
    }

    fn wait(mut self) -> Result<()> {
        println!("xtask: waiting for Kubernetes and containerd (built from source once)");
        let status = self.build.wait()?;
        anyhow::ensure!(
            status.success(),
            "e2e/cluster/build-bins.sh failed: {status}"
        );
        Ok(())
    }
}
