//! The CNI plugin of agent-network: gives each pod its Fake IP and puts the kernel programs on its link.
//!
//! A runtime calls it with `CNI_COMMAND` set and the configuration on stdin; a person types `agent-cni setup`. Both
//! lead to the same modules: `plugin` is the runtime's door, `cli` the person's.

mod add;
mod allocate;
mod apply;
mod args;
mod check;
mod choice;
mod claim;
mod cli;
mod clock;
mod command;
mod del;
mod delegate;
mod doctor;
mod error;
mod file;
mod gc;
mod install;
mod listeners;
mod lock;
mod mode;
mod names;
mod netconf;
mod node;
mod plan;
mod plugin;
mod probe;
mod result;
mod rollback;
mod setup;
mod state;
mod status;
mod teardown;
mod version;

use std::{io::IsTerminal, process::ExitCode};

fn main() -> ExitCode {
    // a person, or a container's log, wants to see what these do
    let level = match std::env::args().nth(1).as_deref() {
        Some("install" | "rollback") => "info",
        _ => "warn",
    };
    // stdout belongs to the protocol
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("AGENT_CNI_LOG")
                .unwrap_or_else(|_| level.into()),
        )
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    match std::env::var("CNI_COMMAND") {
        Ok(verb) if !verb.is_empty() && std::env::args_os().len() == 1 => plugin::run(&verb).into(),
        _ => cli::run().into(),
    }
}
