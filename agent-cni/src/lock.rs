//! Advisory locks on files (flock): they end with the process that has them, however it ends.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};

/// A held lock. The file stays when it is dropped, unless [`LockFile::remove`] is called.
#[derive(Debug)]
pub(crate) struct LockFile {
    path: PathBuf,
    file: Flock<File>,
}

impl LockFile {
    /// Takes the lock, waiting for whoever has it.
    ///
    /// # Errors
    /// The file cannot be made or locked.
    pub(crate) fn acquire(path: &Path) -> io::Result<Self> {
        Self::wait(path, FlockArg::LockExclusive)
    }

    /// Takes the lock together with others who do the same, waiting for whoever has it alone.
    ///
    /// # Errors
    /// The file cannot be made or locked.
    pub(crate) fn share(path: &Path) -> io::Result<Self> {
        Self::wait(path, FlockArg::LockShared)
    }

    fn wait(path: &Path, how: FlockArg) -> io::Result<Self> {
        loop {
            let file = open(path)?;
            let file = Flock::lock(file, how).map_err(|(_, errno)| errno)?;
            if is_at(&file, path) {
                return Ok(Self {
                    path: path.to_owned(),
                    file,
                });
            }
            // the one before us removed the file: what was locked has no name any more
        }
    }

    /// Takes the lock, making the file where there is none; `None` when somebody has it.
    ///
    /// # Errors
    /// The file cannot be made or locked.
    pub(crate) fn try_acquire(path: &Path) -> io::Result<Option<Self>> {
        open(path)?;
        Self::try_existing(path)
    }

    /// Takes the lock of a file that is there and that nobody has; `None` when somebody does or it is gone.
    ///
    /// # Errors
    /// The file cannot be opened or locked.
    pub(crate) fn try_existing(path: &Path) -> io::Result<Option<Self>> {
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) if is_at(&file, path) => Ok(Some(Self {
                path: path.to_owned(),
                file,
            })),
            Ok(_) | Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(errno.into()),
        }
    }

    /// The open file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The file's name.
    pub(crate) fn file_name(&self) -> String {
        self.path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    /// Removes the file, then lets go of the lock. Those who wait for it notice and make a new one.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub(crate) fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

/// Opens a lock file, making it where there is none.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

/// Whether the open file still has this name.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(held), Ok(named)) = (file.metadata(), std::fs::metadata(path)) else {
        return false;
    };
    held.ino() == named.ino() && held.dev() == named.dev()
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        thread,
    };

    use super::*;

    #[test]
    fn a_lock_that_removes_its_file_still_excludes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let inside = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let lock = LockFile::acquire(&path).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        lock.remove().unwrap();
                    }
                });
            }
        });
        assert!(!path.exists());
    }

    #[test]
    fn a_shared_lock_is_taken_twice_and_keeps_others_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let first = LockFile::share(&path).unwrap();
        let second = LockFile::share(&path).unwrap();
        drop(first);
        assert!(LockFile::try_existing(&path).unwrap().is_none());
        drop(second);
        assert!(LockFile::try_existing(&path).unwrap().is_some());
    }

    #[test]
    fn a_held_lock_is_not_taken_twice_and_a_missing_file_is_not_made() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        assert!(LockFile::try_existing(&path).unwrap().is_none());
        let held = LockFile::acquire(&path).unwrap();
        assert!(LockFile::try_existing(&path).unwrap().is_none());
        drop(held);
        assert!(LockFile::try_existing(&path).unwrap().is_some());
    }
}
