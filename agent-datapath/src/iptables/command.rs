//! The programs of iptables and ipset: found, run, and what they say when they refuse.

use std::{
    env, io,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::Backend;
use crate::error::NetError;

/// Where to look besides `PATH`, which a runtime may leave without them.
const DIRECTORIES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];
/// How long a program waits for the lock of the legacy one.
const LOCK_SECONDS: &str = "10";

/// The programs of one iptables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tools {
    pub(super) backend: Backend,
    save: PathBuf,
    restore: PathBuf,
}

/// What is installed of the two. Programs without a backend in their name are asked which one they are.
pub(super) fn installed() -> Vec<Tools> {
    let mut found: Vec<Tools> = [Backend::Nft, Backend::Legacy]
        .into_iter()
        .filter_map(|backend| {
            Some(Tools {
                backend,
                save: find(&format!("{}-save", backend.name()))?,
                restore: find(&format!("{}-restore", backend.name()))?,
            })
        })
        .collect();
    if found.is_empty()
        && let (Some(save), Some(restore)) = (find("iptables-save"), find("iptables-restore"))
        && let Some(backend) = backend_of(&restore)
    {
        found.push(Tools {
            backend,
            save,
            restore,
        });
    }
    found
}

/// `iptables-restore v1.8.9 (nf_tables)`; before 1.8 there was only one, and it does not say.
fn backend_of(program: &Path) -> Option<Backend> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(match version.contains("nf_tables") {
        true => Backend::Nft,
        false => Backend::Legacy,
    })
}

/// The program of this name.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .chain(DIRECTORIES.map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// All rules, as text.
pub(super) fn save(tools: &Tools) -> Result<String, NetError> {
    run(&tools.save, &[], "", "list the rules of iptables")
}

/// Changes rules in one transaction per table.
pub(super) fn restore(tools: &Tools, text: &str) -> Result<(), NetError> {
    let arguments = ["--noflush", "-w", LOCK_SECONDS];
    run(
        &tools.restore,
        &arguments,
        text,
        "change the rules of iptables",
    )
    .map(|_| ())
}

/// Runs a program and answers what it prints.
///
/// # Errors
/// `Refused` with what it says about why.
pub(crate) fn run(
    program: &Path,
    arguments: &[&str],
    input: &str,
    action: &str,
) -> Result<String, NetError> {
    let failed = |source| NetError::refused(format!("{action} with {}", program.display()), source);
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // these programs read all of their input before they say anything
    let written = child
        .stdin
        .take()
        .map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said: String = said.trim().replace('\n', "; ").chars().take(400).collect();
        return Err(failed(io::Error::other(format!(
            "{}: {said}",
            output.status
        ))));
    }
    written.map_err(failed)?;
    String::from_utf8(output.stdout)
        .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))
}
