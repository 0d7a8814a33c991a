//! What a person can type.

use std::path::PathBuf;

use agent_datapath::probe::Requested;
use clap::{CommandFactory, Parser, Subcommand};

use crate::{doctor, install, probe::Output, rollback};

/// Gives each pod of a node its Fake IP and puts the kernel programs on its link.
///
/// This is a CNI plugin: container runtimes call it with CNI_COMMAND set (ADD, DEL, CHECK, GC, STATUS, VERSION) and its
/// configuration on stdin, and it answers with JSON on stdout. People use the commands below.
#[derive(Debug, Parser)]
#[command(name = "agent-cni", version, after_long_help = CONFIGURATION)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make the node ready before its first pod: bridge, settings, routes, nftables table, programs.
    ///
    /// Does what the first ADD would do, and mends what is broken; running it again changes nothing. The node's choices
    /// are written to node.json in the state directory.
    Setup {
        /// The plugin's configuration, or a list that holds it.
        #[arg(
            long,
            value_name = "FILE",
            default_value = "/etc/cni/net.d/00-agent-cni.conf"
        )]
        config: PathBuf,
    },
    /// Try what this kernel can do, and say which mode follows; changes nothing.
    ///
    /// Loads the real programs and writes the real rules in namespaces that end with this process. Exits 1 when the mode
    /// asked for would not work.
    Probe {
        /// auto, ebpf or iptables-compat.
        #[arg(long, default_value = "auto")]
        mode: Requested,
        /// Where programs would be pinned.
        #[arg(long, value_name = "DIR", default_value = crate::netconf::DEFAULT_PIN_DIR)]
        pin_dir: PathBuf,
        /// A table for people, or JSON.
        #[arg(long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Take this node over, and keep it right until the process ends.
    ///
    /// Looks whether the node can be taken over and names everything that is in the way. Sets the node up, puts the
    /// plugin into the runtime's directory and the configuration, last, into net.d; then compares everything with what
    /// it must be each second, and mends what somebody changed. Ending it removes nothing: that is what rollback is for.
    Install(Box<install::InstallOptions>),
    /// Give this node back: remove everything that is agent-network's, configuration first.
    ///
    /// Works with pods still running (they lose their network and are named, to be recreated), twice, and on a node that
    /// was half installed or installed by another version. An installer that runs does nothing any more.
    Rollback(rollback::RollbackOptions),
    /// Say what is wrong with this node, and what mends it. Changes nothing.
    ///
    /// One line a check: ok, warn or fail, what was found, and the mend below it. The last line is
    /// AGENT_CNI_DOCTOR_PASSED when nothing fails, else AGENT_CNI_DOCTOR_FAILED and how many checks fail; the exit code is
    /// 0 or 1. Also written as: agent-cni --doctor --doctor-state-dir=DIR --doctor-host-cni-bin=DIR
    /// --doctor-host-cni-conf=DIR --doctor-zeroproxy-url=URL
    Doctor(doctor::Options),
}

const CONFIGURATION: &str = r#"Configuration (JSON; on stdin for a runtime, in a file for setup):
  cniVersion       0.3.1, 0.4.0, 1.0.0 or 1.1.0
  name, type       the network's name; "agent-cni"
  nodeName         what the Fake IP CIDR is derived from (default: the host name)
  fakeIPCIDR       the pods' addresses, /8 to /30 (default: a /24 of 169.254.0.0/16)
  serviceCIDRs     destinations that kube-proxy serves, e.g. ["10.96.0.0/12"]
  mtu              of the pods' interfaces (default: the uplink's)
  stateDir         default /var/lib/tke-agent-network/agent-cni
  pinDir           on a bpf file system (default /sys/fs/bpf/agent-network)
  coolDownSeconds  how long an address rests after DEL (default 60)
  proxy            {"port": 18080, "dnsPort": 18053}
  workloadSelector a label selector: only these pods are ours (default: all)
  workloadsFile    where pods' labels are written; ZeroProxy's file
  primary          {"confDir": "/etc/cni/net.d", "file": …}: the network of the others
                   (default: the file after ours)
  mode             auto, ebpf or iptables-compat (default: auto; `agent-cni probe` says which it is)

Error codes beyond the CNI specification's:
  100  every address of the pool belongs to a pod      103  ADD repeated with another namespace
  101  the kernel refused a link, route or rule        104  CHECK found a difference
  102  a program could not be loaded or attached       105  the Fake IP CIDR cannot be settled
  106  the primary network is missing or cannot be used

Environment: AGENT_CNI_LOG=error|warn|info|debug (stderr; default warn, info for install and rollback)
Exit codes: 0 done, 1 failed, 2 wrong usage

Try it: echo '{"cniVersion": "1.1.0"}' | CNI_COMMAND=VERSION agent-cni"#;

/// Parses the arguments and does what they say; answers the exit code.
pub(crate) fn run() -> u8 {
    let arguments = doctor::spelt_as_command(std::env::args_os().collect());
    match Cli::parse_from(arguments).command {
        None => {
            println!("{}", Cli::command().render_long_help());
            0
        }
        Some(Command::Probe {
            mode,
            pin_dir,
            output,
        }) => {
            let (text, works) = crate::probe::run(mode, &pin_dir, output);
            println!("{text}");
            u8::from(!works)
        }
        Some(Command::Install(options)) => told(install::run(&options)),
        Some(Command::Rollback(options)) => told(rollback::run(&options)),
        Some(Command::Doctor(options)) => doctor::run(&options).unwrap_or_else(|error| {
            eprintln!("agent-cni: {error:#}");
            1
        }),
        Some(Command::Setup { config }) => match crate::setup::run(&config) {
            Ok(report) => {
                println!("{report}");
                0
            }
            Err(error) => {
                eprintln!("agent-cni: {error:#}");
                1
            }
        },
    }
}

fn told(outcome: anyhow::Result<u8>) -> u8 {
    outcome.unwrap_or_else(|error| {
        eprintln!("agent-cni: {error:#}");
        1
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netconf::{DEFAULT_PIN_DIR, DEFAULT_STATE_DIR};

    #[test]
    fn the_help_is_consistent_and_names_the_defaults() {
        Cli::command().debug_assert();
        assert!(CONFIGURATION.contains(DEFAULT_STATE_DIR));
        assert!(CONFIGURATION.contains(DEFAULT_PIN_DIR));
    }
}
