//! Entering a network namespace for the time of one closure.
//!
//! A namespace is opened once and used by its descriptor from then on, so that a path that is replaced meanwhile
//! cannot lead to another pod. Threads that entered a namespace end there: they are never given back to anyone.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::sched::{CloneFlags, setns};

use crate::error::NetError;

/// An open network namespace.
#[derive(Debug)]
pub struct Netns {
    path: PathBuf,
    file: File,
    device: u64,
    inode: u64,
}

impl Netns {
    /// Opens the namespace at `path`.
    ///
    /// # Errors
    /// `NamespaceGone` when there is nothing at the path; `NotAPodNamespace` when it is not a network namespace.
    pub fn open(path: &Path) -> Result<Self, NetError> {
        let gone = |source| NetError::NamespaceGone {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(gone)?;
        let metadata = file.metadata().map_err(gone)?;
        let netns = Self {
            path: path.to_owned(),
            file,
            device: metadata.dev(),
            inode: metadata.ino(),
        };
        netns.run(|| ())?;
        Ok(netns)
    }

    /// Opens the namespace at `path`, which must not be the one the calling thread is in.
    ///
    /// # Errors
    /// As [`Netns::open`], and `NotAPodNamespace` for the node's own namespace.
    pub fn open_pod(path: &Path) -> Result<Self, NetError> {
        let netns = Self::open(path)?;
        if netns.is_current()? {
            return Err(NetError::NotAPodNamespace {
                path: path.to_owned(),
                problem: "is the node's own network namespace (hostNetwork pods need no CNI)",
            });
        }
        Ok(netns)
    }

    /// True when the calling thread is in this namespace.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn is_current(&self) -> Result<bool, NetError> {
        let own = std::fs::metadata("/proc/thread-self/ns/net")
            .map_err(|source| NetError::refused("read the node's own network namespace", source))?;
        Ok(own.dev() == self.device && own.ino() == self.inode)
    }

    /// The inode that names this namespace for as long as it lives.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` on a thread of its own inside the namespace and waits for it.
    ///
    /// # Errors
    /// `NotAPodNamespace` when the kernel says that the file is not a network namespace; `Refused` when entering is
    /// not permitted or no thread can be made.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetError> {
        let enter = || match setns(&self.file, CloneFlags::CLONE_NEWNET) {
            Ok(()) => Ok(work()),
            Err(nix::errno::Errno::EINVAL) => Err(NetError::NotAPodNamespace {
                path: self.path.clone(),
                problem: "is not a network namespace",
            }),
            Err(errno) => Err(NetError::refused(
                format!("enter network namespace {}", self.path.display()),
                errno.into(),
            )),
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("netns".into())
                .spawn_scoped(scope, enter)
                .map_err(|source| NetError::refused("start a thread", source))?;
            thread.join().unwrap_or_else(|_| {
                Err(NetError::refused(
                    format!("work in network namespace {}", self.path.display()),
                    io::Error::other("the thread panicked"),
                ))
            })
        })
    }

    /// As [`Netns::run`], for asynchronous work, on a runtime of its own.
    ///
    /// # Errors
    /// As [`Netns::run`], and what `work` answers.
    pub fn run_async<T, F>(&self, work: impl FnOnce() -> F + Send) -> Result<T, NetError>
    where
        T: Send,
        F: Future<Output = Result<T, NetError>>,
    {
        self.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .build()
                .map_err(|source| NetError::refused("start an event loop", source))?;
            runtime.block_on(work())
        })?
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Runs `work` inside the network namespace at `path`, on a thread of its own.
///
/// # Errors
/// As [`Netns::open`] and [`Netns::run`].
pub fn in_namespace<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> Result<T, NetError> {
    Netns::open(path)?.run(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_to_nothing_is_a_namespace_that_is_gone() {
        let error = Netns::open(Path::new("/nonexistent/netns")).unwrap_err();
        assert_eq!(error.reason(), "namespace_gone");
    }

    #[test]
    fn a_file_that_is_no_namespace_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Netns::open(file.path()).unwrap_err();
        assert_eq!(error.reason(), "not_a_pod_namespace");
    }

    #[test]
    fn a_namespace_of_another_kind_is_refused() {
        let error = Netns::open(Path::new("/proc/self/ns/mnt")).unwrap_err();
        assert_eq!(error.reason(), "not_a_pod_namespace");
    }

    #[test]
    fn the_own_namespace_is_no_pod_namespace() {
        let error = Netns::open_pod(Path::new("/proc/self/ns/net")).unwrap_err();
        assert!(
            error.to_string().contains("own network namespace"),
            "{error}"
        );
    }
}
