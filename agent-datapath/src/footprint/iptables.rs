//! Chains `AGENT-CNI…` in both backends of iptables, whoever made them: seen in what iptables-save says, removed by
//! one iptables-restore transaction per backend and family. Rules that others have are passed over.

use std::{fs, io};

use super::{CHAIN_PREFIX, netfilter};
use crate::{error::NetError, iptables::command};

/// The program's names, with where the kernel says that the legacy backend has tables.
const FAMILIES: [(&str, &str); 2] = [
    ("iptables", "/proc/thread-self/net/ip_tables_names"),
    ("ip6tables", "/proc/thread-self/net/ip6_tables_names"),
];

/// How long a program waits for the lock of the legacy backend.
const LOCK_SECONDS: &str = "10";

/// What is ours in one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chains {
    /// The table: `nat`.
    pub table: String,
    /// Our chains.
    pub chains: Vec<String>,
    /// Rules of other chains that lead to ours, as iptables-save writes them: `-A PREROUTING …`.
    pub jumps: Vec<String>,
}

/// What is ours in the text of iptables-save. Pure.
#[must_use]
pub fn chains_in(save: &str) -> Vec<Chains> {
    let mut tables: Vec<Chains> = Vec::new();
    for line in save.lines() {
        if let Some(table) = line.strip_prefix('*') {
            tables.push(Chains {
                table: table.trim().to_owned(),
                chains: Vec::new(),
                jumps: Vec::new(),
            });
            continue;
        }
        let Some(current) = tables.last_mut() else {
            continue;
        };
        if let Some(chain) = line.strip_prefix(':') {
            let name = chain.split_whitespace().next().unwrap_or_default();
            if name.starts_with(CHAIN_PREFIX) {
                current.chains.push(name.to_owned());
            }
        } else if line.starts_with("-A ") && !chain_of(line).starts_with(CHAIN_PREFIX) {
            // what is quoted is a comment, whatever it says
            let plain: String = line.split('"').step_by(2).collect();
            let words: Vec<&str> = plain.split_whitespace().collect();
            let leads = words
                .windows(2)
                .any(|pair| matches!(pair, ["-j" | "-g", to] if to.starts_with(CHAIN_PREFIX)));
            if leads {
                current.jumps.push(line.to_owned());
            }
        }
    }
    tables.retain(|table| !table.chains.is_empty() || !table.jumps.is_empty());
    tables
}

/// The text for `iptables-restore --noflush` that removes these chains and what leads there. Pure.
///
/// Jumps go first, then the chains' rules, then the chains: ours may lead to one another.
#[must_use]
pub fn removal(tables: &[Chains]) -> String {
    let mut text = String::new();
    for table in tables {
        text.push_str(&format!("*{}\n", table.table));
        for jump in &table.jumps {
            text.push_str(&format!("-D {}\n", jump.trim_start_matches("-A ")));
        }
        for action in ["-F", "-X"] {
            for chain in &table.chains {
                text.push_str(&format!("{action} {chain}\n"));
            }
        }
        text.push_str("COMMIT\n");
    }
    text
}

fn chain_of(rule: &str) -> &str {
    rule.split_whitespace().nth(1).unwrap_or_default()
}

pub(super) fn find() -> Result<Vec<(String, String)>, NetError> {
    let mut found = Vec::new();
    for backend in backends()? {
        for table in chains_in(&backend.save()?) {
            for chain in &table.chains {
                found.push((
                    format!("{} chain {chain} of table {}", backend.program, table.table),
                    format!(
                        "{0} -t {1} -F {chain}; {0} -t {1} -X {chain}",
                        backend.program, table.table
                    ),
                ));
            }
        }
    }
    Ok(found)
}

pub(super) fn remove() -> Result<(), NetError> {
    let mut errors = Vec::new();
    for backend in backends()? {
        let outcome = backend.save().and_then(|save| {
            let ours = chains_in(&save);
            match ours.is_empty() {
                true => Ok(()),
                false => backend.restore(&removal(&ours)),
            }
        });
        errors.extend(outcome.err());
    }
    NetError::of_all(errors)
}

/// One backend of one family, by its program.
struct Backend {
    /// `iptables-legacy`.
    program: String,
}

/// The backends that may have something of ours. Those that surely have nothing are not asked: iptables-save makes the
/// kernel load modules.
fn backends() -> Result<Vec<Backend>, NetError> {
    let nft = !netfilter::iptables_chains()?.is_empty();
    let mut backends = Vec::new();
    for (program, tables) in FAMILIES {
        // without the legacy backend there is no such file
        if fs::read_to_string(tables).is_ok_and(|names| !names.trim().is_empty()) {
            backends.push(Backend {
                program: format!("{program}-legacy"),
            });
        }
        if nft {
            backends.push(Backend {
                program: format!("{program}-nft"),
            });
        }
    }
    Ok(backends)
}

impl Backend {
    fn save(&self) -> Result<String, NetError> {
        self.run("save", &[], "", "list the rules of iptables")
    }

    fn restore(&self, text: &str) -> Result<(), NetError> {
        // waits for whoever has the lock of the legacy backend
        let arguments = ["--noflush", "-w", LOCK_SECONDS];
        self.run("restore", &arguments, text, "remove our iptables rules")
            .map(|_| ())
    }

    fn run(
        &self,
        what: &str,
        arguments: &[&str],
        input: &str,
        action: &str,
    ) -> Result<String, NetError> {
        let name = format!("{}-{what}", self.program);
        let Some(program) = command::find(&name) else {
            let missing = io::Error::other(format!("there is no {name}: install iptables"));
            return Err(NetError::refused(action, missing));
        };
        command::run(&program, arguments, input, action)
    }
}
