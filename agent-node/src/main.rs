//! The `agent-node` binary. Everything is in the library.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    agent_node::cli::Cli::parse().run()
}
