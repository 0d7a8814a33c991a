//! Development tasks: `cargo xtask --help`.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

mod apt;
mod build;
mod build_ebpf;
mod check;
mod crds;
mod demo;
mod images;
mod kernel_matrix;
mod setup;
mod test;

/// Development tasks of agent-network.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Compile the eBPF programs; brings rust-src and bpf-linker along when they are missing
    BuildEbpf,
    /// Compile everything
    Build,
    /// Show the main job on this machine, as root: two pods, the data path, the proxy, an upstream that wants a token
    Demo {
        /// Leave the node up, and print how to enter a pod and how to remove the node
        #[arg(long)]
        keep: bool,
    },
    /// Run all checks, all tests, the demo and the short kernel matrix, as root; with a filter only the tests that it names
    Test {
        /// Arguments for nextest, for example `-E 'test(dns)'`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        filter: Vec<String>,
    },
    /// Run the data path on other kernels in emulated machines, as root, and print a table
    KernelMatrix(kernel_matrix::Options),
    /// Write the container images as OCI archives, without a daemon
    Images(images::Options),
    /// Formatting, package arrows, licences, lints, generated files
    Check,
    /// Write the CustomResourceDefinitions into chart/crds/, from the types in agent-api
    Crds,
    /// Install what the demo and the tests need (Debian packages)
    Setup,
}

fn main() -> ExitCode {
    let Err(error) = perform(Arguments::parse().task) else {
        return ExitCode::SUCCESS;
    };
    eprintln!("xtask: {error:#}");
    ExitCode::FAILURE
}

fn perform(task: Task) -> Result<()> {
    match task {
        Task::BuildEbpf => build_ebpf::build(),
        Task::Build => build::programs().map(|_| ()),
        Task::Demo { keep } => demo::demo(keep),
        Task::Test { filter } => test::test(&filter),
        Task::KernelMatrix(options) => kernel_matrix::kernel_matrix(&options),
        Task::Images(options) => images::images(&options),
        Task::Check => check::all(),
        Task::Crds => crds::write(),
        Task::Setup => setup::for_tests(true),
    }
}

/// The cargo that runs this, in the workspace's root.
fn cargo() -> Command {
    let mut c = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    c.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    c
}

/// Runs a command to its end.
fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("start {name}"))?;
    if !status.success() {
        let arguments: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
        bail!("`{name} {}` failed ({status})", arguments.join(" "));
    }
    Ok(())
}
