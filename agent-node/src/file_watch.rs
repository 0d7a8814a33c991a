//! Notices that a file's content has changed, however it was changed.
//!
//! A projected volume swaps a symlink, an editor renames, a script writes in place, a file appears
//! late: all are found by looking at the content again, on a timer, cheaply. Doesn't know what the
//! content means.

use std::fs::{File, Metadata};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a look at the file found.
#[derive(Debug)]
pub enum Look {
    /// The content is what it was (or the file is still missing in the same way).
    Same,
    /// The content is new.
    Changed(Vec<u8>),
    /// The file can't be read; reported once, until it can be read or fails in another way.
    Failed(io::Error),
}

/// One watched file.
#[derive(Debug)]
pub struct FileWatch {
    path: PathBuf,
    max_bytes: u64,
    full_read_every: Duration,
    hasher: RandomState,
    stamp: Option<Stamp>,
    content: Option<u64>,
    failed: Option<(io::ErrorKind, Option<i32>)>,
    last_read: Option<Instant>,
}

/// What changes when a file is replaced or written to; the clock's grain is why content is
/// compared now and then too.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileWatch {
    /// Watches `path`; a file larger than `max_bytes` is an error. The content is compared at least
    /// every `full_read_every`, also when size and times look the same.
    pub fn new(path: &Path, max_bytes: u64, full_read_every: Duration) -> FileWatch {
        FileWatch {
            path: path.to_owned(),
            max_bytes,
            full_read_every,
            hasher: RandomState::new(),
            stamp: None,
            content: None,
            failed: None,
            last_read: None,
        }
    }

    /// The watched path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks at the file as of `now`.
    pub fn look(&mut self, now: Instant) -> Look {
        match self.try_look(now) {
            Ok(look) => look,
            Err(error) => {
                let seen = Some((error.kind(), error.raw_os_error()));
                self.stamp = None;
                if self.failed == seen {
                    return Look::Same;
                }
                self.failed = seen;
                self.content = None;
                Look::Failed(error)
            }
        }
    }

    fn try_look(&mut self, now: Instant) -> io::Result<Look> {
        let recent = self
            .last_read
            .is_some_and(|at| now.saturating_duration_since(at) < self.full_read_every);
        if recent && self.stamp.is_some() {
            let stamp = Stamp::of(&std::fs::metadata(&self.path)?);
            if self.stamp == Some(stamp) {
                return Ok(Look::Same);
            }
        }
        let (stamp, bytes) = read_file(&self.path, self.max_bytes)?;
        self.last_read = Some(now);
        self.stamp = Some(stamp);
        self.failed = None;
        let hash = self.hasher.hash_one(&bytes);
        if self.content == Some(hash) {
            return Ok(Look::Same);
        }
        self.content = Some(hash);
        Ok(Look::Changed(bytes))
    }
}

/// Reads a regular file of at most `max_bytes`; never waits for a writer on a FIFO.
///
/// # Errors
/// As opening and reading do; `InvalidInput` for what isn't a regular file, `FileTooLarge`.
fn read_file(path: &Path, max_bytes: u64) -> io::Result<(Stamp, Vec<u8>)> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)?;
    let metadata = file.metadata()?;
    Ok((
        Stamp::of(&metadata),
        read_open(&file, &metadata, max_bytes)?,
    ))
}

/// Reads what an open file holds, with the same limits as [`FileWatch`].
///
/// # Errors
/// As reading does; `InvalidInput` for what isn't a regular file, `FileTooLarge`.
pub fn read_open(file: &File, metadata: &Metadata, max_bytes: u64) -> io::Result<Vec<u8>> {
    if !metadata.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a regular file",
        ));
    }
    let too_large = || {
        io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is larger than {max_bytes} bytes"),
        )
    };
    if metadata.len() > max_bytes {
        return Err(too_large());
    }
    // Room for one byte more than the file has, so that its end is seen without growing.
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0) + 1);
    file.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(too_large());
    }
    Ok(bytes)
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn watch(path: &Path) -> FileWatch {
        FileWatch::new(path, 1024, Duration::from_secs(5))
    }

    fn changed(look: Look) -> Option<Vec<u8>> {
        match look {
            Look::Changed(bytes) => Some(bytes),
            _ => None,
        }
    }

    #[test]
    fn a_file_that_appears_late_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.json");
        let mut watch = watch(&path);
        let now = Instant::now();
        assert!(matches!(watch.look(now), Look::Failed(_)));
        assert!(matches!(watch.look(now), Look::Same));
        std::fs::write(&path, b"one").unwrap();
        assert_eq!(changed(watch.look(now)).unwrap(), b"one");
        assert!(matches!(watch.look(now), Look::Same));
    }

    #[test]
    fn a_swapped_data_symlink_is_seen_and_equal_content_is_not() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [("..1", "old"), ("..2", "old"), ("..3", "new")] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("key"), text).unwrap();
        }
        let swap = |to: &str| {
            symlink(to, dir.path().join("..tmp")).unwrap();
            std::fs::rename(dir.path().join("..tmp"), dir.path().join("..data")).unwrap();
        };
        swap("..1");
        symlink("..data/key", dir.path().join("key")).unwrap();
        let mut watch = watch(&dir.path().join("key"));
        let now = Instant::now();
        assert_eq!(changed(watch.look(now)).unwrap(), b"old");
        swap("..2");
        assert!(matches!(watch.look(now), Look::Same));
        swap("..3");
        assert_eq!(changed(watch.look(now)).unwrap(), b"new");
    }

    #[test]
    fn a_removed_file_that_comes_back_with_the_same_content_counts_as_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"x").unwrap();
        let mut watch = watch(&path);
        let now = Instant::now();
        assert!(changed(watch.look(now)).is_some());
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(watch.look(now), Look::Failed(_)));
        std::fs::write(&path, b"x").unwrap();
        assert!(changed(watch.look(now)).is_some());
    }

    #[test]
    fn folders_fifos_and_huge_files_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let now = Instant::now();
        assert!(matches!(watch(dir.path()).look(now), Look::Failed(_)));
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(watch(&fifo).look(now), Look::Failed(_)));
        let big = dir.path().join("big");
        std::fs::write(&big, vec![b'x'; 1025]).unwrap();
        assert!(matches!(watch(&big).look(now), Look::Failed(_)));
    }
}
