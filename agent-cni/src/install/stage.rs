//! Putting a file in its place so that nobody ever reads half of it: written beside its name, synced, compared,
//! renamed.
//!
//! A runtime that executes the plugin keeps the old file: a rename never meets "text file busy". A kill at any instant
//! leaves the old file or the new one, and at most the staged one beside it, which the next pass removes.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// The mode of a configuration: everybody may read it, it holds no secret.
pub(crate) const CONF_MODE: u32 = 0o644;
/// The mode of the plugin.
pub(crate) const BINARY_MODE: u32 = 0o755;
const BUFFER: usize = 1 << 16;

/// A file could not be put in its place.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StageError {
    /// A file operation failed.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Somebody made a directory of the file's name, and has something in it.
    #[error("{} is a directory that is not empty, where a file of agent-network's belongs", .0.display())]
    Directory(PathBuf),
    /// What was written is not what is read back.
    #[error("{} does not hold what was written to it", .0.display())]
    Corrupt(PathBuf),
}

/// A place for a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The directory.
    pub(crate) dir: PathBuf,
    /// The file's name.
    pub(crate) name: &'static str,
    /// Its name while it is being written.
    pub(crate) staged: &'static str,
    /// Its mode.
    pub(crate) mode: u32,
}

/// What a file must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// These bytes.
    Text(String),
    /// What this file holds, which has this hash.
    CopyOf {
        /// The file.
        source: PathBuf,
        /// SHA-256.
        hash: Hash,
    },
}

/// A SHA-256.
pub(crate) type Hash = [u8; 32];

/// What tells that a file was not touched since it was last read: any change of its content, name or mode changes the
/// time of change, which no program can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    dev: u64,
    ino: u64,
    size: u64,
    changed: (i64, i64),
}

/// A file that is looked at again and again; it is read only when it was touched.
#[derive(Debug)]
pub(crate) struct Watched {
    target: Target,
    content: Content,
    right: Option<Stamp>,
}

impl Watched {
    /// Watches nothing yet.
    pub(crate) fn new(target: Target, content: Content) -> Self {
        Self {
            target,
            content,
            right: None,
        }
    }

    /// Whether this is what the file must hold.
    pub(crate) fn must_hold(&self, content: &Content) -> bool {
        self.content == *content
    }

    /// From now on the file must hold something else.
    pub(crate) fn change(&mut self, content: Content) {
        self.content = content;
        self.right = None;
    }

    /// How the file differs from what it must be; `None` when it does not.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub(crate) fn difference(&mut self) -> Result<Option<String>, StageError> {
        let path = self.target.path();
        let metadata = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.right = None;
                return Ok(Some(format!("{} is missing", path.display())));
            }
            other => other.map_err(failed("look at", &path))?,
        };
        let stamp = Stamp::of(&metadata);
        if self.right == Some(stamp) {
            return Ok(None);
        }
        self.right = None;
        let differs = |how: &str| Ok(Some(format!("{} {how}", path.display())));
        if !metadata.is_file() {
            return differs("is no file");
        }
        if metadata.permissions().mode() & 0o777 != self.target.mode {
            return differs("has other permissions");
        }
        if metadata.len() == 0 {
            return differs("is empty");
        }
        if hash_of(&path)? != self.content.hash() {
            return differs("holds something else");
        }
        self.right = Some(stamp);
        Ok(None)
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// The old file is there then, or none.
    pub(crate) fn place(&self) -> Result<(), StageError> {
        let staged = self.target.dir.join(self.target.staged);
        let placed = self.write(&staged);
        if placed.is_err() {
            // a disk that is full should not stay so because of us
            let _ = fs::remove_file(&staged);
        }
        placed
    }

    /// Removes what a kill left beside the file.
    ///
    /// # Errors
    /// It is there and cannot be removed.
    pub(crate) fn sweep(&self) -> Result<(), StageError> {
        let staged = self.target.dir.join(self.target.staged);
        match fs::remove_file(&staged) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &staged)(error))
            }
            _ => Ok(()),
        }
    }

    fn write(&self, staged: &Path) -> Result<(), StageError> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(self.target.mode)
            .custom_flags(nix::libc::O_NOFOLLOW)
            .open(staged)
            .map_err(failed("write", staged))?;
        self.content.write_to(&mut file, staged)?;
        // the process's umask has no say
        file.set_permissions(fs::Permissions::from_mode(self.target.mode))
            .and_then(|()| file.sync_all())
            .map_err(failed("sync", staged))?;
        drop(file);
        if hash_of(staged)? != self.content.hash() {
            return Err(StageError::Corrupt(staged.to_owned()));
        }
        let path = self.target.path();
        match fs::rename(staged, &path) {
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                // empty, as a mount of a file that was not there makes one
                fs::remove_dir(&path).map_err(|_| StageError::Directory(path.clone()))?;
                fs::rename(staged, &path)
            }
            other => other,
        }
        .map_err(failed("replace", &path))?;
        File::open(&self.target.dir)
            .and_then(|dir| dir.sync_all())
            .map_err(failed("sync", &self.target.dir))
    }
}

impl Target {
    /// The file.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.join(self.name)
    }
}

impl Content {
    fn hash(&self) -> Hash {
        match self {
            Self::Text(text) => Sha256::digest(text.as_bytes()).into(),
            Self::CopyOf { hash, .. } => *hash,
        }
    }

    fn write_to(&self, file: &mut File, path: &Path) -> Result<(), StageError> {
        match self {
            Self::Text(text) => file.write_all(text.as_bytes()),
            Self::CopyOf { source, .. } => {
                let mut source_file = File::open(source).map_err(failed("read", source))?;
                io::copy(&mut source_file, file).map(|_| ())
            }
        }
        .map_err(failed("write", path))
    }
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            dev: metadata.dev(),
            ino: metadata.ino(),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// A file's SHA-256.
///
/// # Errors
/// It cannot be read.
pub(crate) fn hash_of(path: &Path) -> Result<Hash, StageError> {
    let mut file = File::open(path).map_err(failed("read", path))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER];
    loop {
        match file.read(&mut buffer).map_err(failed("read", path))? {
            0 => return Ok(hasher.finalize().into()),
            read => hasher.update(&buffer[..read]),
        }
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StageError {
    let path = path.to_owned();
    move |source| StageError::File {
        action,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(dir: &Path) -> Watched {
        let target = Target {
            dir: dir.to_owned(),
            name: "00-agent-cni.conf",
            staged: "00-agent-cni.conf.staged",
            mode: CONF_MODE,
        };
        Watched::new(target, Content::Text("{}\n".into()))
    }

    type Spoil = fn(&Path);

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_was_placed_is_right_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = watched(dir.path());
        assert!(file.difference().unwrap().unwrap().ends_with("is missing"));
        file.place().unwrap();
        assert_eq!(file.difference().unwrap(), None);
        assert_eq!(names(dir.path()), ["00-agent-cni.conf"]);
    }

    #[test]
    fn every_way_to_spoil_it_is_seen_and_mended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("00-agent-cni.conf");
        let mut file = watched(dir.path());
        let ways: [(&str, Spoil); 6] = [
            ("is missing", |path| fs::remove_file(path).unwrap()),
            ("is empty", |path| fs::write(path, "").unwrap()),
            // as long as it was
            ("something else", |path| fs::write(path, "[]\n").unwrap()),
            ("other permissions", |path| {
                fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
            }),
            ("is no file", |path| {
                fs::remove_file(path).unwrap();
                std::os::unix::fs::symlink("/etc/hostname", path).unwrap();
            }),
            ("something else", |path| {
                fs::remove_file(path).unwrap();
                fs::write(path, "{ }\n").unwrap();
            }),
        ];
        for (says, spoil) in ways {
            file.place().unwrap();
            assert_eq!(file.difference().unwrap(), None);
            spoil(&path);
            let found = file.difference().unwrap().unwrap();
            assert!(found.contains(says), "{found}");
        }
        file.place().unwrap();
        assert_eq!(file.difference().unwrap(), None);
        // through a link nothing was written
        assert_ne!(fs::read_to_string("/etc/hostname").unwrap(), "{}\n");
    }

    #[test]
    fn a_directory_of_its_name_goes_when_it_is_empty_and_is_told_when_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("00-agent-cni.conf");
        let mut file = watched(dir.path());
        fs::create_dir_all(path.join("theirs")).unwrap();
        let found = file.difference().unwrap().unwrap();
        assert!(found.contains("is no file"), "{found}");
        let error = file.place().unwrap_err();
        assert!(matches!(error, StageError::Directory(_)), "{error}");
        assert_eq!(names(dir.path()), ["00-agent-cni.conf"]);
        fs::remove_dir(path.join("theirs")).unwrap();
        file.place().unwrap();
        assert_eq!(file.difference().unwrap(), None);
    }

    #[test]
    fn a_copy_that_is_not_what_it_should_be_never_gets_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        fs::write(&source, "truncated").unwrap();
        let target = Target {
            dir: dir.path().to_owned(),
            name: "agent-cni",
            staged: ".agent-cni.staged",
            mode: BINARY_MODE,
        };
        let content = Content::CopyOf {
            source,
            hash: [0; 32],
        };
        let error = Watched::new(target, content).place().unwrap_err();
        assert!(matches!(error, StageError::Corrupt(_)), "{error}");
        assert_eq!(names(dir.path()), ["source"]);
    }

    #[test]
    fn what_a_kill_left_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("00-agent-cni.conf.staged"), "{").unwrap();
        let file = watched(dir.path());
        file.sweep().unwrap();
        file.sweep().unwrap();
        assert!(names(dir.path()).is_empty());
    }
}
