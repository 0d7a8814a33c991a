//! The command line: what a person types, and the exit codes they get.
//!
//! Exit codes: 0 done (or allowed, for `policy explain`), 1 failed, 2 wrong usage, 3 denied.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::app;
use crate::config::Config;
use crate::credential_upstream;
use crate::telemetry::{self, LogFormat};

mod policy;

use policy::ExplainArgs;

/// Exit code of `policy explain` when the answer is no.
const DENIED: u8 = 3;

/// The node agent of agent-network.
#[derive(Debug, Parser)]
#[command(name = "agent-node", version, about, propagate_version = true)]
pub struct Cli {
    /// Which lines are logged to standard error, for example `agent_node=debug,warn`.
    #[arg(long, global = true, env = "AGENT_NODE_LOG", default_value = "info")]
    log: String,
    /// How log lines look.
    #[arg(
        long,
        global = true,
        env = "AGENT_NODE_LOG_FORMAT",
        value_enum,
        default_value = "auto"
    )]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run ZeroProxy: the TCP proxy, the DNS proxy and the local endpoints.
    #[command(after_long_help = CONFIG_HELP)]
    Zeroproxy(ZeroproxyArgs),
    /// Serve what end-to-end tests of a cluster talk to: repositories, a vector search and an agent, some of which want
    /// a token. Not for production.
    #[command(after_long_help = UPSTREAM_HELP)]
    CredentialUpstream(UpstreamArgs),
    /// Look at a runtime policy document without a proxy.
    #[command(subcommand)]
    Policy(PolicyCommand),
}

#[derive(Debug, Args)]
struct ZeroproxyArgs {
    /// The configuration file (JSON).
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Read and check the configuration, say what was understood, and end.
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Args)]
struct UpstreamArgs {
    /// Where it listens; ZeroProxy's `upstreams` lead names here.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:18090")]
    listen: SocketAddr,
    /// The folder with the files REPO_TOKEN and RAG_TOKEN.
    #[arg(long, value_name = "FOLDER")]
    credentials_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// Check that a document can be run, and print its version.
    Check {
        /// The runtime policy document (JSON).
        file: PathBuf,
        /// How to print the answer.
        #[arg(long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Say what would be decided about a request, and by which rule. Sends nothing.
    ///
    /// Exit code 0: it would be let through; 3: it would be denied.
    #[command(after_long_help = EXPLAIN_HELP)]
    Explain(Box<ExplainArgs>),
}

/// How answers are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// One JSON object.
    Json,
}

const EXPLAIN_HELP: &str = "\
Examples:
  agent-node policy explain policy.json --workload demo/coder --service-account coder \\
      --host git.example.com --port 443
  agent-node policy explain policy.json --workload demo/coder --label app=coder \\
      --host api.example.com --port 80 --method GET --path /v1/models
  agent-node policy explain policy.json --workload demo/coder --target rag-agent";

const UPSTREAM_HELP: &str = "\
By the name that a request is for:
  git.example.com                  /public.git, for `git clone`
  git.internal.example.com         /private.git; Authorization: Basic, x-access-token:REPO_TOKEN
  api.example.com                  anything; Authorization: Bearer REPO_TOKEN
  vector-db.internal.example.com   POST /query {\"query\": \"words\", \"top\": 3}; X-Api-Key: RAG_TOKEN
  agent-server                     says who called (X-Agent-Caller)
  any other name                   says what was asked
/observed/NAME says how many requests came for a name, and how many brought the right token, another, or none.
The header X-Upstream-Saw says it of one request. A token is never in an answer.";

const CONFIG_HELP: &str = "\
Fields of the configuration (docs/zeroproxy-config.md has units and reasons):
  policyFile, credentialsDir                    absolute paths; required
  cluster.nodeName        the node whose pods these are: labels and service accounts from the API server
  cluster.kubeconfig      how to reach it [as a pod, by its service account]
  cluster.snapshotFile    kept for an outage [/var/lib/tke-agent-network/zeroproxy/pods.json]
  workloadsFile           instead of cluster, outside Kubernetes
  stateDir                [/var/lib/tke-agent-network/agent-cni]
  pinDir                  [/sys/fs/bpf/agent-network]
  listen                  local endpoints [127.0.0.1:18080]
  adminListen             the same endpoints for other hosts (controller, scraper) [nowhere]
  dns.upstreams           servers to ask [the node's /etc/resolv.conf]
  dns.enforce             answer NXDOMAIN for names no rule could let through [true]
  dns.clusterDomain       [cluster.local]
  dns.deniedRcode         NXDOMAIN or REFUSED [NXDOMAIN]
  upstreams               {\"name[:port]\": {\"addresses\": [..], \"port\": .., \"scheme\": \"http|https\"}}
  tls.allowUnverifiedSNI  [false]
  tls.extraCaFile         PEM, trusted besides the system's roots
  reloadTokenFile         turns /reload and /policy/explain on
  audit.stdout [true], audit.file, audit.failClosed [false], audit.rotateBytes [67108864], audit.keep [4]
  limits.connectionsPerPod [2048], limits.headerBytes [65536], limits.headerCount [128],
  limits.idleTimeoutSeconds [600], limits.firstByteTimeoutMs [1000]
  drainSeconds [25], recheckSeconds [5], identityWaitMs [1000]
  workers                 threads, 1 to 16 [one per core]
  fakeCidrs               Fake IP CIDRs of other nodes";

impl Cli {
    /// Does what was asked.
    pub fn run(self) -> ExitCode {
        let failed = match self.command {
            Command::Zeroproxy(args) => telemetry::init(&self.log, self.log_format)
                .map_err(anyhow::Error::from)
                .and_then(|()| zeroproxy(&args)),
            Command::CredentialUpstream(args) => telemetry::init(&self.log, self.log_format)
                .map_err(anyhow::Error::from)
                .and_then(|()| credential_upstream::run(args.listen, &args.credentials_dir)),
            Command::Policy(PolicyCommand::Check { file, output }) => policy::check(&file, output),
            Command::Policy(PolicyCommand::Explain(args)) => match policy::explain_file(&args) {
                Ok(true) => return ExitCode::SUCCESS,
                Ok(false) => return ExitCode::from(DENIED),
                Err(error) => Err(error),
            },
        };
        match failed {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        }
    }
}

fn zeroproxy(args: &ZeroproxyArgs) -> anyhow::Result<()> {
    let config = Config::read(&args.config)?;
    if args.check {
        println!("{config:#?}");
        return Ok(());
    }
    app::run(config)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
