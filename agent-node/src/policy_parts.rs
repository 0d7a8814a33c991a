//! Reads a policy document that is in parts (`agent_core::policy::parts`).
//!
//! Owns finding the parts beside the index, all of one projection: kubelet swaps a whole directory, and the parts are read
//! from the directory that the index is in, not from whatever the link leads to a moment later.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use agent_core::policy::parts::{self, Index, PartError};

use crate::file_watch::read_open;

/// A ConfigMap has at most 1 MiB; a folder on disk may have larger ones.
const MAX_PART_BYTES: u64 = 64 * 1024 * 1024;
/// As many parts as documents of the largest size need.
const MAX_PARTS: u32 = 256;

/// Why there is no document yet.
#[derive(Debug, thiserror::Error)]
pub enum PartsError {
    /// A part can't be read; it may still be on its way.
    #[error("part {number} can't be read: {source}")]
    Read {
        /// The part.
        number: u32,
        /// What the system said.
        source: io::Error,
    },
    /// A part is another one.
    #[error(transparent)]
    Part(#[from] PartError),
    /// The index says something that no controller writes.
    #[error("the index names {0} parts; at most {MAX_PARTS} are read")]
    TooMany(u32),
    /// The index has gone.
    #[error("the folder of the index can't be found: {0}")]
    Folder(io::Error),
}

/// The document's text, when all parts are there and of the version of the index.
///
/// # Errors
/// When one is missing or another one; reading again later may succeed.
pub fn read(index_file: &Path, index: &Index) -> Result<Vec<u8>, PartsError> {
    if index.parts > MAX_PARTS {
        return Err(PartsError::TooMany(index.parts));
    }
    let folder = folder_of(index_file).map_err(PartsError::Folder)?;
    // The labels first: they are short, and mostly it is they that say that a part isn't there yet.
    let mut files = Vec::new();
    for number in 1..=index.parts {
        let failed = |source| PartsError::Read { number, source };
        let (mut file, head) = open(&folder.join(parts::file_name(number))).map_err(failed)?;
        index.piece(number, &head)?;
        io::Seek::rewind(&mut file).map_err(failed)?;
        files.push((number, file));
    }
    let mut text = Vec::new();
    for (number, file) in files {
        let failed = |source| PartsError::Read { number, source };
        let metadata = file.metadata().map_err(failed)?;
        let bytes = read_open(&file, &metadata, MAX_PART_BYTES).map_err(failed)?;
        text.extend_from_slice(index.piece(number, &bytes)?);
    }
    Ok(text)
}

/// The folder that the index really lies in: in a projected volume that is `..<time>/`, to which `..data` leads now.
fn folder_of(index_file: &Path) -> io::Result<PathBuf> {
    let real = index_file.canonicalize()?;
    Ok(real.parent().unwrap_or(Path::new("/")).to_owned())
}

/// An open part, and as much of it as holds its label.
fn open(path: &Path) -> io::Result<(File, Vec<u8>)> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a regular file",
        ));
    }
    let mut head = Vec::with_capacity(parts::MAX_LABEL);
    (&file)
        .take(parts::MAX_LABEL as u64)
        .read_to_end(&mut head)?;
    Ok((file, head))
}
