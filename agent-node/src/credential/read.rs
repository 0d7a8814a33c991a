//! One credential file: found below the folder and nowhere else, read whole, trimmed, checked.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use zeroize::Zeroizing;

use crate::file_watch::read_open;

/// The largest header value that common servers take is 8 KiB.
const MAX_VALUE_BYTES: u64 = 64 * 1024;

/// Why a credential can't be used. Never holds a part of the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// No such file.
    #[error("the credential file `{0}` is missing")]
    Missing(String),
    /// The path leads out of the folder.
    #[error("the credential file `{0}` is not inside the credentials folder; write `secret/key`")]
    Outside(String),
    /// The system refused it.
    #[error("the credential file `{file}` can't be read: {problem}")]
    Unreadable {
        /// The file, as the rule names it.
        file: String,
        /// What the system said.
        problem: String,
    },
    /// Nothing in it.
    #[error("the credential file `{0}` is empty")]
    Empty(String),
    /// CR, LF, NUL or another control character.
    #[error("the credential file `{0}` holds a control character, which no header can carry")]
    ControlCharacter(String),
}

impl CredentialError {
    /// A fixed label for logs and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            CredentialError::Missing(_) => "missing",
            CredentialError::Outside(_) => "outside",
            CredentialError::Unreadable { .. } => "unreadable",
            CredentialError::Empty(_) => "empty",
            CredentialError::ControlCharacter(_) => "control_character",
        }
    }
}

/// A value as its file has it, without one trailing newline. Wiped when dropped; no `Debug`.
#[derive(PartialEq, Eq)]
pub(super) struct Raw(pub(super) Zeroizing<Vec<u8>>);

/// Reads `file` below `dir`. Symbolic links are followed as long as they stay below `dir`, which
/// is how projected volumes swap `..data`.
pub(super) fn read_value(dir: &Path, file: &str) -> Result<Raw, CredentialError> {
    let bytes = match open(dir, file).and_then(|open| read(&open)) {
        Ok(bytes) => bytes,
        Err(error) => return Err(explain(file, &error)),
    };
    let mut value = Zeroizing::new(bytes);
    if value.last() == Some(&b'\n') {
        value.pop();
        if value.last() == Some(&b'\r') {
            value.pop();
        }
    }
    if value.is_empty() {
        return Err(CredentialError::Empty(file.to_owned()));
    }
    if value.iter().any(u8::is_ascii_control) {
        return Err(CredentialError::ControlCharacter(file.to_owned()));
    }
    Ok(Raw(value))
}

fn open(dir: &Path, file: &str) -> io::Result<File> {
    let path = Path::new(file);
    let plain = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if !plain || file.is_empty() {
        return Err(nix::errno::Errno::EXDEV.into());
    }
    let dir: OwnedFd = File::open(dir)?.into();
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    Ok(openat2(&dir, path, how)?.into())
}

fn read(file: &File) -> io::Result<Vec<u8>> {
    read_open(file, &file.metadata()?, MAX_VALUE_BYTES)
}

fn explain(file: &str, error: &io::Error) -> CredentialError {
    let file = file.to_owned();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => CredentialError::Missing(file),
        // What RESOLVE_BENEATH says of a path or link that leads out (openat2(2)).
        Some(libc::EXDEV) => CredentialError::Outside(file),
        _ => CredentialError::Unreadable {
            file,
            problem: error.to_string(),
        },
    }
}
