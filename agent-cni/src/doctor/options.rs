//! How doctor is called: as a command, or with the documented flags. Both are the same command in the end.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};

use crate::netconf::DEFAULT_STATE_DIR;

/// Where the node's endpoints of ZeroProxy are.
const DEFAULT_URL: &str = "http://127.0.0.1:18080/healthz";

/// Where doctor looks, and how it answers.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// The state directory.
    #[arg(
        long,
        alias = "doctor-state-dir",
        value_name = "DIR",
        default_value = DEFAULT_STATE_DIR
    )]
    pub(crate) state_dir: PathBuf,
    /// Where the runtime looks for plugins.
    #[arg(
        long,
        alias = "doctor-host-cni-bin",
        value_name = "DIR",
        default_value = "/opt/cni/bin"
    )]
    pub(crate) host_cni_bin: PathBuf,
    /// Where the runtime looks for network configurations.
    #[arg(
        long,
        alias = "doctor-host-cni-conf",
        value_name = "DIR",
        default_value = "/etc/cni/net.d"
    )]
    pub(crate) host_cni_conf: PathBuf,
    /// ZeroProxy's health endpoint; /readyz beside it is asked too.
    #[arg(
        long,
        alias = "doctor-zeroproxy-url",
        value_name = "URL",
        default_value = DEFAULT_URL
    )]
    pub(crate) zeroproxy_url: String,
    /// A table for people, or one JSON object for programs.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

/// The form of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// One line a check, and the mend below it.
    Table,
    /// One JSON object on stdout; the last line goes to stderr.
    Json,
}

impl Options {
    /// Where the host's files lie: `/`, or `/host` in the installer's pod, as the state directory tells.
    pub(crate) fn host_root(&self) -> PathBuf {
        let below = DEFAULT_STATE_DIR.trim_start_matches('/');
        let text = self.state_dir.to_string_lossy();
        match text.trim_end_matches('/').strip_suffix(below) {
            Some(root) if root.starts_with('/') => PathBuf::from(root),
            _ => PathBuf::from("/"),
        }
    }

    /// A path of the host's, as this process reaches it.
    pub(crate) fn on_host(&self, path: &Path) -> PathBuf {
        let below = path.strip_prefix("/").unwrap_or(path);
        self.host_root().join(below)
    }
}

/// Turns `agent-cni --doctor --doctor-…` into `agent-cni doctor --doctor-…`; other arguments stay as they are.
pub(crate) fn spelt_as_command(arguments: Vec<OsString>) -> Vec<OsString> {
    let Some(at) = arguments.iter().skip(1).position(|one| one == "--doctor") else {
        return arguments;
    };
    let mut spelt = arguments;
    spelt.remove(at + 1);
    spelt.insert(1, "doctor".into());
    spelt
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn parse(arguments: &[&str]) -> Options {
        let mut all = vec!["agent-cni"];
        all.extend(arguments);
        Cli::parse_from(all).options
    }

    #[test]
    fn the_documented_flags_are_the_commands_options() {
        let documented = parse(&[
            "--doctor-state-dir=/host/var/lib/tke-agent-network/agent-cni",
            "--doctor-host-cni-bin=/host/opt/cni/bin",
            "--doctor-host-cni-conf=/host/etc/cni/net.d",
            "--doctor-zeroproxy-url=http://127.0.0.1:1/healthz",
        ]);
        assert_eq!(documented.host_cni_bin, Path::new("/host/opt/cni/bin"));
        assert_eq!(documented.host_cni_conf, Path::new("/host/etc/cni/net.d"));
        assert_eq!(documented.zeroproxy_url, "http://127.0.0.1:1/healthz");
        assert_eq!(documented.host_root(), Path::new("/host/"));
        assert_eq!(
            documented.on_host(Path::new("/run/netns/a")),
            Path::new("/host/run/netns/a")
        );
    }

    #[test]
    fn without_options_it_looks_at_the_node_itself() {
        let options = parse(&[]);
        assert_eq!(options.state_dir, Path::new(DEFAULT_STATE_DIR));
        assert_eq!(options.host_root(), Path::new("/"));
        assert_eq!(parse(&["--state-dir=/x/y"]).host_root(), Path::new("/"));
    }

    #[test]
    fn the_flag_becomes_the_command_wherever_it_stands() {
        let spelt = |text: &str| -> Vec<String> {
            let words = text.split(' ').map(OsString::from).collect();
            let spelt = spelt_as_command(words).into_iter();
            spelt.map(|word| word.into_string().unwrap()).collect()
        };
        assert_eq!(spelt("a --doctor --x=1"), ["a", "doctor", "--x=1"]);
        assert_eq!(spelt("a --x=1 --doctor"), ["a", "doctor", "--x=1"]);
        assert_eq!(spelt("a setup --config c"), ["a", "setup", "--config", "c"]);
        // a program of that name is not asked for by the flag
        assert_eq!(spelt("--doctor"), ["--doctor"]);
    }
}
