//! The state directory: attachments, reservations of running ADDs, released addresses, the node's choices.
//!
//! ```text
//! node.json                     the node's choices
//! version, install.json         what is installed, and what the installer says of itself
//! settings                      what the node has taken over of its class; the installer's
//! <containerid>_<ifname>.json   one per attachment; complete, or not there
//! delegated/<containerid>_<ifname>.json  pods that the primary network has; `delegate`'s
//! pending/<containerid>_<ifname>  lock of a running verb on that attachment; an ADD's holds its reservation
//! released                      addresses with the second they were released
//! sysctls                       values from before us
//! allocation.lock, node.lock
//! *.corrupt-<seconds>           what could not be read, set aside
//! ```
//!
//! The attachments are the truth about addresses. A reservation is only as old as the process that holds its lock, so
//! it needs no fsync: a power cut takes process, links and reservation together.

use std::{
    fs, io,
    io::{Read, Seek, Write},
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use agent_core::{
    attachment::{Attachment, file_name},
    node::NodeState,
};
use agent_datapath::footprint::INSTALL_STATUS;
use serde::{Deserialize, Serialize};

use crate::{clock, command::Target, file, lock::LockFile};

mod released;

/// The state directory, made when it was not there.
#[derive(Debug, Clone)]
pub(crate) struct StateDir {
    path: PathBuf,
}

/// The state directory could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub(crate) struct StateError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// What an ADD has claimed before anything exists, so that whoever finds its remains can remove them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Reservation {
    /// The container.
    pub(crate) container_id: String,
    /// The interface.
    pub(crate) ifname: String,
    /// The claimed address.
    pub(crate) fake_ip: Ipv4Addr,
    /// The host's end of the veth to be.
    pub(crate) host_veth: String,
}

/// The lock of one attachment.
#[derive(Debug)]
pub(crate) struct Pending {
    lock: LockFile,
}

/// The lock under which addresses are chosen, released and forgotten.
#[derive(Debug)]
pub(crate) struct AllocationLock {
    _lock: LockFile,
}

impl StateDir {
    /// Opens the directory, making it when it is not there.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let state = Self {
            path: path.to_owned(),
        };
        fs::create_dir_all(state.pending_dir()).map_err(doing("make", &state.pending_dir()))?;
        Ok(state)
    }

    /// The directory as it is, for looking only: makes nothing.
    pub(crate) fn look(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// True for files of the directory that are no attachment's.
    pub(crate) fn is_not_an_attachment(name: &str) -> bool {
        [agent_core::node::FILE_NAME, INSTALL_STATUS].contains(&name) || !name.ends_with(".json")
    }

    /// Where sysctl values from before are kept.
    pub(crate) fn sysctl_record(&self) -> PathBuf {
        self.path.join("sysctls")
    }

    /// The directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn pending_dir(&self) -> PathBuf {
        self.path.join("pending")
    }

    /// Takes the lock of one attachment, waiting for a verb that runs on it.
    ///
    /// # Errors
    /// The lock file cannot be made.
    pub(crate) fn lock_attachment(&self, target: &Target) -> Result<Pending, StateError> {
        let path = self.pending_dir().join(stem(target));
        LockFile::acquire(&path)
            .map(|lock| Pending { lock })
            .map_err(doing("lock", &path))
    }

    /// As [`Self::lock_attachment`]; `None` when a verb runs on it.
    ///
    /// # Errors
    /// The lock file cannot be made.
    pub(crate) fn try_lock_attachment(
        &self,
        target: &Target,
    ) -> Result<Option<Pending>, StateError> {
        let path = self.pending_dir().join(stem(target));
        LockFile::try_acquire(&path)
            .map(|lock| lock.map(|lock| Pending { lock }))
            .map_err(doing("lock", &path))
    }

    /// Whether a verb is at work on an attachment. Answers yes when it cannot be told.
    pub(crate) fn is_busy(&self, target: &Target) -> bool {
        let path = self.pending_dir().join(stem(target));
        path.exists() && !matches!(LockFile::try_existing(&path), Ok(Some(_)))
    }

    /// Takes the lock for allocation.
    ///
    /// # Errors
    /// The lock file cannot be made.
    pub(crate) fn lock_allocation(&self) -> Result<AllocationLock, StateError> {
        let path = self.path.join("allocation.lock");
        LockFile::acquire(&path)
            .map(|lock| AllocationLock { _lock: lock })
            .map_err(doing("lock", &path))
    }

    /// Takes the lock under which the node's own network is set up.
    ///
    /// # Errors
    /// The lock file cannot be made.
    pub(crate) fn lock_node(&self) -> Result<LockFile, StateError> {
        let path = self.path.join("node.lock");
        LockFile::acquire(&path).map_err(doing("lock", &path))
    }

    /// Keeps the node's mode as it is for as long as the lock is held, together with others who need that.
    ///
    /// # Errors
    /// The lock file cannot be made.
    pub(crate) fn keep_mode(&self) -> Result<LockFile, StateError> {
        let path = self.mode_lock();
        LockFile::share(&path).map_err(doing("lock", &path))
    }

    /// Takes the lock under which the node's mode changes, waiting for every ADD that runs.
    ///
    /// # Errors
    /// The lock file cannot be made.
    pub(crate) fn change_mode(&self) -> Result<LockFile, StateError> {
        let path = self.mode_lock();
        LockFile::acquire(&path).map_err(doing("lock", &path))
    }

    fn mode_lock(&self) -> PathBuf {
        self.path.join("mode.lock")
    }

    /// Reads one attachment. A file that cannot be read as one is set aside and counts as none.
    ///
    /// # Errors
    /// The file is there and cannot be opened.
    pub(crate) fn attachment(&self, target: &Target) -> Result<Option<Attachment>, StateError> {
        let path = self
            .path
            .join(file_name(&target.container_id, &target.ifname));
        self.read(&path, &|bytes| {
            Attachment::parse(bytes)
                .map_err(|error| error.to_string())
                .and_then(|attachment| {
                    let named = attachment.container_id == target.container_id
                        && attachment.ifname == target.ifname;
                    named
                        .then_some(attachment)
                        .ok_or_else(|| "it names another container".into())
                })
        })
    }

    /// Reads every attachment; what cannot be read as one is set aside.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(crate) fn attachments(&self) -> Result<Vec<Attachment>, StateError> {
        let mut attachments = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(doing("read", &self.path))? {
            let name = entry.map_err(doing("read", &self.path))?.file_name();
            let Some(name) = name.to_str() else { continue };
            if Self::is_not_an_attachment(name) {
                continue;
            }
            let read = self.read(&self.path.join(name), &|bytes| {
                Attachment::parse(bytes)
                    .map_err(|error| error.to_string())
                    .and_then(|found| {
                        (found.file_name() == name)
                            .then_some(found)
                            .ok_or_else(|| "it names another container".into())
                    })
            });
            attachments.extend(read?);
        }
        Ok(attachments)
    }

    /// Writes an attachment so that it is there completely or not at all, also after a power cut.
    ///
    /// # Errors
    /// A step of writing failed; the old state holds then.
    pub(crate) fn save_attachment(&self, attachment: &Attachment) -> Result<(), StateError> {
        self.replace(&attachment.file_name(), attachment.to_json().as_bytes())
    }

    /// Removes an attachment's file; fine when it is gone.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn remove_attachment(&self, target: &Target) -> Result<(), StateError> {
        remove(
            &self
                .path
                .join(file_name(&target.container_id, &target.ifname)),
        )
    }

    /// Reads the node's choices; garbage is set aside and counts as none.
    ///
    /// # Errors
    /// The file is there and cannot be opened.
    pub(crate) fn node(&self) -> Result<Option<NodeState>, StateError> {
        self.read(&self.path.join(agent_core::node::FILE_NAME), &|bytes| {
            NodeState::parse(bytes).map_err(|error| error.to_string())
        })
    }

    /// Writes the node's choices.
    ///
    /// # Errors
    /// A step of writing failed; the old choices hold then.
    pub(crate) fn save_node(&self, node: &NodeState) -> Result<(), StateError> {
        self.replace(agent_core::node::FILE_NAME, node.to_json().as_bytes())
    }

    /// Every lock file with its reservation, where it has one that can be read.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(crate) fn reservations(&self) -> Result<Vec<(String, Option<Reservation>)>, StateError> {
        let directory = self.pending_dir();
        let mut reservations = Vec::new();
        for entry in fs::read_dir(&directory).map_err(doing("read", &directory))? {
            let entry = entry.map_err(doing("read", &directory))?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            // one that vanishes meanwhile is done
            let reservation = file::read_own(&entry.path())
                .ok()
                .and_then(|bytes| serde_json::from_slice(&bytes).ok());
            reservations.push((name, reservation));
        }
        Ok(reservations)
    }

    /// Takes the lock of a reservation whose process is gone; `None` when it is still at work or done.
    ///
    /// # Errors
    /// The file cannot be locked.
    pub(crate) fn take_over(&self, name: &str) -> Result<Option<Pending>, StateError> {
        let path = self.pending_dir().join(name);
        LockFile::try_existing(&path)
            .map(|lock| lock.map(|lock| Pending { lock }))
            .map_err(doing("lock", &path))
    }

    /// Whether a lock file of this name is there.
    pub(crate) fn is_reserved(&self, name: &str) -> bool {
        self.pending_dir().join(name).exists()
    }

    /// Released addresses with the second of their release.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub(crate) fn released(
        &self,
        _held: &AllocationLock,
    ) -> Result<Vec<(Ipv4Addr, u64)>, StateError> {
        let path = self.path.join(released::FILE_NAME);
        let text = file::read_own(&path).and_then(|bytes| {
            String::from_utf8(bytes)
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text"))
        });
        match text {
            Ok(text) => Ok(released::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.set_aside(&path, &error.to_string());
                Ok(Vec::new())
            }
            Err(source) => Err(doing("read", &path)(source)),
        }
    }

    /// Notes that an address was released just now.
    ///
    /// # Errors
    /// The list cannot be written.
    pub(crate) fn release(
        &self,
        held: &AllocationLock,
        address: Ipv4Addr,
    ) -> Result<(), StateError> {
        let mut list = self.released(held)?;
        released::add(&mut list, address, clock::now_seconds());
        let path = self.path.join(released::FILE_NAME);
        let temporary = self.path.join("released.tmp");
        // no fsync: after a power cut there is no pod whose connections could be mistaken for another's
        fs::write(&temporary, released::format(&list))
            .and_then(|()| fs::rename(&temporary, &path))
            .map_err(doing("write", &path))
    }

    /// Proves that state can be written.
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn probe(&self) -> Result<(), StateError> {
        let path = self.path.join(format!("probe-{}.tmp", std::process::id()));
        fs::write(&path, b"probe").map_err(doing("write", &path))?;
        remove(&path)
    }

    /// Reads a file; garbage is set aside and counts as none.
    ///
    /// # Errors
    /// It is there and cannot be opened.
    pub(crate) fn read<T>(
        &self,
        path: &Path,
        parse: &dyn Fn(&[u8]) -> Result<T, String>,
    ) -> Result<Option<T>, StateError> {
        let bytes = match file::read_own(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.set_aside(path, &error.to_string());
                return Ok(None);
            }
            Err(source) => return Err(doing("read", path)(source)),
        };
        match parse(&bytes) {
            Ok(value) => Ok(Some(value)),
            Err(why) => {
                self.set_aside(path, &why);
                Ok(None)
            }
        }
    }

    /// Renames what cannot be read. When even that fails (read-only), it is passed over all the same.
    fn set_aside(&self, path: &Path, why: &str) {
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".corrupt-{}", clock::now_seconds()));
        let moved = fs::rename(path, &aside)
            .err()
            .map(|error| error.to_string());
        tracing::warn!(
            file = %path.display(), reason = why, not_moved = moved,
            "state file cannot be used; it is set aside"
        );
    }

    /// Temporary file, fsync, rename, fsync of the directory.
    ///
    /// # Errors
    /// A step of writing failed; what was there before is there then.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), StateError> {
        let path = self.path.join(name);
        let temporary = self.path.join(format!("{name}.tmp"));
        let write = || -> io::Result<()> {
            let mut file = fs::File::create(&temporary)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            fs::File::open(&self.path)?.sync_all()
        };
        write().map_err(|source| {
            // a disk that is full should not stay so because of us
            let _ = fs::remove_file(&temporary);
            doing("write", &path)(source)
        })
    }
}

impl Pending {
    /// The file's name: which attachment is locked.
    pub(crate) fn name(&self) -> String {
        self.lock.file_name()
    }

    /// Writes the reservation. Call it with the allocation lock held, so that no other ADD reads half of it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn reserve(
        &self,
        _held: &AllocationLock,
        reservation: &Reservation,
    ) -> Result<(), StateError> {
        let bytes = serde_json::to_vec(reservation).unwrap_or_default();
        let mut file = self.lock.file();
        file.rewind()
            .and_then(|()| file.set_len(0))
            .and_then(|()| file.write_all(&bytes))
            .map_err(doing("write", Path::new(&self.name())))
    }

    /// The reservation in the file, where there is one.
    pub(crate) fn reservation(&self) -> Option<Reservation> {
        let mut file = self.lock.file();
        let mut bytes = Vec::new();
        file.rewind().ok()?;
        file.read_to_end(&mut bytes).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Removes reservation and lock.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub(crate) fn done(self) -> Result<(), StateError> {
        let name = self.name();
        self.lock
            .remove()
            .map_err(doing("remove", Path::new(&name)))
    }
}

/// How an attachment is called in file names.
pub(crate) fn stem(target: &Target) -> String {
    format!("{}_{}", target.container_id, target.ifname)
}

/// Removes a file; fine when it is gone.
///
/// # Errors
/// It cannot be removed.
pub(crate) fn remove(path: &Path) -> Result<(), StateError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(doing("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Names what was done to what.
pub(crate) fn doing(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    move |source| StateError {
        action,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests;
