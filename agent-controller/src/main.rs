//! The control plane of agent-network: reads arguments and files, and leaves the compiling to `agent-api`.
#![forbid(unsafe_code)]

mod app;
mod class_reconciler;
mod config;
mod health;
mod leader;
mod metrics;
mod policy_reconciler;
mod publish;
mod reload;
mod status;
mod status_writer;
mod watch;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};

use agent_api::{CompileOptions, NamedPolicy, compile, crds, parse_manifests};

/// The control plane of agent-network.
#[derive(Parser)]
#[command(name = "agent-controller", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bring the cluster's policies to every ZeroProxy, and say in their status what became of them.
    ///
    /// Finds the API server as kubectl does: the pod's service account, or KUBECONFIG. Several replicas may run; one leads.
    /// SIGTERM gives the Lease back and ends the process.
    Run(Box<config::RunArgs>),
    /// Compile AgentNetworkPolicy YAML into the runtime policy that ZeroProxy reads.
    ///
    /// Prints one JSON document. A policy that is invalid is left out and named on standard error, with what to write
    /// instead; the exit code is then 1, and the document still holds the valid ones. Exit code 2: a file could not be read.
    ///
    /// Example: agent-controller compile chart/examples/coding-agent.yaml -o policy.json
    Compile {
        /// YAML files, each with one or more policies; `-` is standard input.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Where to write the document; standard output when not given. The file is replaced as a whole.
        #[arg(short, long)]
        output: Option<PathBuf>,
        /// The namespace whose policies apply to agent pods of every namespace.
        #[arg(long, default_value = agent_api::SYSTEM_NAMESPACE)]
        system_namespace: String,
        /// A Secret that credential rules may name; repeat it for several. SECRET@NAMESPACE opens it to that namespace's
        /// policies too.
        #[arg(long = "credential-secret", default_value = agent_api::CREDENTIALS_SECRET)]
        credential_secrets: Vec<String>,
    },
    /// Print the CustomResourceDefinitions of AgentNetworkPolicy and AgentNetworkClass.
    ///
    /// Example: agent-controller crds | kubectl apply --server-side -f -
    Crds {
        /// Write one file for each kind into this folder instead; it is made when it isn't there.
        #[arg(long)]
        output_dir: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Compile {
            files,
            output,
            system_namespace,
            credential_secrets,
        } => {
            let secrets = credential_secrets.iter().map(String::as_str);
            CompileOptions::with_secrets(&system_namespace, secrets)
                .context("--credential-secret")
                .and_then(|options| compile_files(&files, output.as_deref(), &options))
        }
        Command::Run(arguments) => app::run(*arguments).map(|()| 0),
        Command::Crds { output_dir } => write_crds(output_dir.as_deref()).map(|()| 0),
    };
    match outcome {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("agent-controller: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Compiles and writes; returns how many policies were left out.
fn compile_files(
    files: &[PathBuf],
    output: Option<&Path>,
    options: &CompileOptions,
) -> anyhow::Result<usize> {
    let mut policies: Vec<NamedPolicy> = Vec::new();
    for file in files {
        let text = read(file).with_context(|| format!("read {}", file.display()))?;
        let read = parse_manifests(&text, &options.system_namespace)
            .with_context(|| file.display().to_string())?;
        policies.extend(read);
    }
    let (document, invalid) = compile(&policies, options);
    for policy in &invalid {
        eprintln!("agent-controller: {policy}");
    }
    let text = document.to_json() + "\n";
    match output {
        None => std::io::stdout()
            .write_all(text.as_bytes())
            .context("write standard output")?,
        Some(path) => replace(path, &text).with_context(|| format!("write {}", path.display()))?,
    }
    Ok(invalid.len())
}

fn write_crds(dir: Option<&Path>) -> anyhow::Result<()> {
    let files = crds::files()?;
    let Some(dir) = dir else {
        let documents: Vec<String> = files.into_iter().map(|file| file.text).collect();
        return std::io::stdout()
            .write_all(documents.join("---\n").as_bytes())
            .context("write standard output");
    };
    std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    for file in files {
        let path = dir.join(&file.name);
        replace(&path, &file.text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn read(file: &Path) -> std::io::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(file)
}

/// Writes beside the file and renames, so that a reader sees the old document or the new one.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, path)
}
