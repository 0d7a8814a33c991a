//! `e2e demo`: the main job on this machine, step by step, with what each side saw.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Shows agent-network at work on a node made of namespaces. Needs root.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the main job; exits 0 only when everything that it shows holds
    Demo {
        /// Leave the node up, and print how to enter a pod and how to remove the node
        #[arg(long)]
        keep: bool,
    },
    /// Remove a node that `demo --keep` left up
    Remove {
        /// The folder that the demo named
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Demo { keep } => e2e::demo::run(keep),
        Command::Remove { folder } => e2e::world::remove(&folder).map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("e2e: {error:#}");
            ExitCode::FAILURE
        }
    }
}
