//! Reads the attachments that agent-cni keeps, one file each; a file is parsed once per content.
//!
//! A file that isn't an attachment is logged and left alone: it is never trusted, and never stops
//! the others.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_core::attachment::Attachment;

use crate::file_watch::read_open;

/// Not an attachment, but in the same folder.
const NODE_FILE: &str = "node.json";
/// What the installer says of itself.
const INSTALL_FILE: &str = agent_core::install::FILE;
/// One attachment has about 500 bytes.
const MAX_ATTACHMENT_BYTES: u64 = 64 * 1024;
/// The largest pool of Fake IPs that a node can serve, and the end of what is read.
const MAX_FILES: usize = 65_536;
/// What Linux calls this boot; attachments of an earlier one have no interface any more.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The state folder, with what its files held at the last scan.
pub struct StateDir {
    path: PathBuf,
    boot_id: Option<String>,
    files: HashMap<OsString, Seen>,
    /// Whether the last scan failed, so that a lasting failure is logged once.
    failed: bool,
}

struct Seen {
    stamp: (u64, u64, i64, i64),
    attachment: Option<Arc<Attachment>>,
}

impl StateDir {
    /// The folder at `path`; nothing is read yet.
    pub fn new(path: &Path) -> StateDir {
        let boot_id = std::fs::read_to_string(BOOT_ID).ok();
        StateDir {
            path: path.to_owned(),
            boot_id: boot_id.map(|id| id.trim().to_owned()),
            files: HashMap::new(),
            failed: false,
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads what is new, and returns every attachment of this boot; `None` when the folder can't
    /// be read, so that what is known stays (a folder that doesn't exist has no attachments).
    pub fn scan(&mut self) -> Option<Vec<Arc<Attachment>>> {
        match self.try_scan() {
            Ok(all) => {
                self.failed = false;
                Some(all)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.files.clear();
                Some(Vec::new())
            }
            Err(error) => {
                if !self.failed {
                    tracing::error!(dir = %self.path.display(), error = %error, "CNI state can't be read; identities stay as they are");
                }
                self.failed = true;
                None
            }
        }
    }

    fn try_scan(&mut self) -> io::Result<Vec<Arc<Attachment>>> {
        let mut files = HashMap::with_capacity(self.files.len());
        for entry in std::fs::read_dir(&self.path)?.take(MAX_FILES) {
            let name = entry?.file_name();
            let Some(text) = name.to_str() else { continue };
            if !text.ends_with(".json")
                || text.starts_with('.')
                || [NODE_FILE, INSTALL_FILE].contains(&text)
            {
                continue;
            }
            match self.look(&name) {
                Ok(seen) => {
                    files.insert(name, seen);
                }
                // Deleted between the listing and now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(file = ?name, error = %error, "CNI state file can't be read");
                }
            }
        }
        self.files = files;
        let all = self.files.values();
        Ok(all.filter_map(|seen| seen.attachment.clone()).collect())
    }

    fn look(&self, name: &OsString) -> io::Result<Seen> {
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(self.path.join(name))?;
        let metadata = file.metadata()?;
        let stamp = stamp(&metadata);
        if let Some(seen) = self.files.get(name).filter(|seen| seen.stamp == stamp) {
            return Ok(Seen {
                stamp,
                attachment: seen.attachment.clone(),
            });
        }
        let bytes = read_open(&file, &metadata, MAX_ATTACHMENT_BYTES)?;
        Ok(Seen {
            stamp,
            attachment: self.accept(name, &bytes),
        })
    }

    fn accept(&self, name: &OsString, bytes: &[u8]) -> Option<Arc<Attachment>> {
        let attachment = match Attachment::parse(bytes) {
            Ok(attachment) => attachment,
            Err(error) => {
                tracing::warn!(file = ?name, error = %crate::telemetry::chain(&error), "a file in the CNI state folder is not an attachment; it is ignored");
                return None;
            }
        };
        if self.of_an_earlier_boot(&attachment) {
            tracing::warn!(file = ?name, pod.namespace = %attachment.pod.namespace, pod.name = %attachment.pod.name, "attachment is of an earlier boot; it is ignored");
            return None;
        }
        Some(Arc::new(attachment))
    }

    fn of_an_earlier_boot(&self, attachment: &Attachment) -> bool {
        match &self.boot_id {
            Some(now) => !attachment.boot_id.is_empty() && attachment.boot_id != *now,
            None => false,
        }
    }
}

fn stamp(metadata: &Metadata) -> (u64, u64, i64, i64) {
    (
        metadata.ino(),
        metadata.size(),
        metadata.ctime(),
        metadata.ctime_nsec(),
    )
}
