//! Who may change the node: one installer, or a rollback. Both would undo each other's work for ever.
//!
//! ```text
//! <state directory>.installer/
//!   lock    held while a pass or a rollback is at work
//!   owner   who has the say: the installer or the rollback that started last
//!   say     held for the instants in which `owner` is written, and those in which the CNI configuration is
//!   alive   a shared lock of every installer that runs
//! ```
//!
//! A rollback takes the say before it waits for a pass that is at work: under `say`, together with the configuration's
//! removal. The pass writes the configuration under `say` too, and only as the owner, so it never brings it back.
//!
//! An installer that finds another owner does nothing any more, and is not ready: it was rolled back, or a newer one
//! has started. Only an explicit start takes the say. The directory is beside the state directory because a rollback
//! removes that one; a rollback removes this one too, unless an installer still runs: for that one it must stay.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use agent_datapath::footprint::Places;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::{
    clock,
    error::{CniError, Code},
    file,
    lock::LockFile,
};

/// A pass takes less than a second; one that takes longer waits for a verb of the plugin.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);
/// The lock of a pass, or a rollback.
const LOCK: &str = "lock";
/// The lock of `owner` and of the configuration.
const SAY: &str = "say";

/// What somebody is who may change the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// `agent-cni install`.
    Installer,
    /// `agent-cni rollback`.
    Rollback,
}

/// The content of `owner`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    /// What it is.
    pub(crate) role: Role,
    /// Which of its kind.
    pub(crate) id: String,
    /// Its version.
    pub(crate) version: String,
    /// Since when.
    pub(crate) since: String,
}

/// The claim could not be made or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    /// A file could not be used.
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
    /// Another one works for too long.
    #[error(
        "another agent-cni install or rollback has been at work for {} seconds; see who has {}", PATIENCE.as_secs(), .0.display()
    )]
    Busy(PathBuf),
}

/// The claim of this process.
#[derive(Debug)]
pub(crate) struct Claim {
    dir: PathBuf,
    owner: Owner,
    alive: Option<Flock<File>>,
}

/// Whether this process still has the say.
#[derive(Debug)]
pub(crate) enum Standing {
    /// It has, and the lock is held: nobody else changes the node meanwhile.
    Mine(LockFile),
    /// A rollback, or a pass of another installer, is at work.
    Busy,
    /// Somebody else has.
    Lost(Owner),
}

/// What a pass asks before it changes something: whether its installer has the say still.
#[derive(Debug, Clone)]
pub(crate) struct Say {
    dir: PathBuf,
    id: String,
}

/// Who has the say while the configuration is written.
#[derive(Debug)]
pub(crate) enum Kept {
    /// This installer, until the lock is let go.
    Mine(LockFile),
    /// Somebody else, since this pass began.
    Lost(Owner),
}

impl Claim {
    /// Nobody's claim yet: nothing is made.
    pub(crate) fn new(places: &Places, role: Role) -> Self {
        let id = short(&format!(
            "{} {} {:?}",
            std::process::id(),
            clock::boot_id(),
            Instant::now()
        ));
        Self {
            dir: places.claim_dir(),
            owner: Owner {
                role,
                id,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                since: clock::timestamp(),
            },
            alive: None,
        }
    }

    /// Takes the say, waiting for a pass or a rollback that is at work. The lock is held.
    ///
    /// # Errors
    /// A file cannot be made, or the wait was too long.
    pub(crate) fn take(places: &Places, role: Role) -> Result<(Self, LockFile), ClaimError> {
        let mut claim = Self::new(places, role);
        let lock = claim.wait()?;
        Ok((claim, lock))
    }

    /// Takes the say at once, whoever is at work: a pass that runs writes no configuration from here on. Until the lock
    /// is let go nobody else takes the say.
    ///
    /// # Errors
    /// A file cannot be made, or somebody stopped in the middle of writing the configuration.
    pub(crate) fn seize(&self) -> Result<LockFile, ClaimError> {
        let say = wait_for(&self.dir, SAY)?;
        self.write_owner()?;
        Ok(say)
    }

    /// Waits for whoever is at work, and takes the say, also from one who took it meanwhile. The lock is held.
    ///
    /// # Errors
    /// A file cannot be made, or the wait was too long.
    pub(crate) fn wait(&mut self) -> Result<LockFile, ClaimError> {
        let lock = wait_for(&self.dir, LOCK)?;
        self.live()?;
        drop(self.seize()?);
        Ok(lock)
    }

    /// What a pass has to ask.
    pub(crate) fn say(&self) -> Say {
        Say {
            dir: self.dir.clone(),
            id: self.owner.id.clone(),
        }
    }

    /// Looks who has the say, for one pass of an installer. A claim that somebody removed is made again: a rollback
    /// leaves it while an installer runs.
    ///
    /// # Errors
    /// A file cannot be made or read.
    pub(crate) fn standing(&mut self) -> Result<Standing, ClaimError> {
        let Some(lock) = self.try_lock()? else {
            return Ok(Standing::Busy);
        };
        self.live()?;
        let _say = wait_for(&self.dir, SAY)?;
        match owner(&self.dir)? {
            Some(owner) if owner.id == self.owner.id => Ok(Standing::Mine(lock)),
            Some(owner) => Ok(Standing::Lost(owner)),
            None => {
                self.write_owner()?;
                Ok(Standing::Mine(lock))
            }
        }
    }

    /// Lets go of the claim when the process ends. What a rollback left for this installer goes with it, and so does the
    /// claim on a node of which nothing was taken over.
    pub(crate) fn end(mut self, places: &Places) {
        self.alive = None;
        let Ok(Some(_lock)) = self.try_lock() else {
            return;
        };
        let rolled_back =
            owner(&self.dir).is_ok_and(|owner| owner.is_some_and(|o| o.role == Role::Rollback));
        if (rolled_back || !is_taken_over(places)) && others_are_gone(&self.dir) {
            let _ = fs::remove_dir_all(&self.dir);
            if let Some(above) = places.state_dir.parent() {
                let _ = fs::remove_dir(above);
            }
        }
    }

    fn try_lock(&self) -> Result<Option<LockFile>, ClaimError> {
        try_lock(&self.dir, LOCK)
    }

    /// Shares the lock that says that an installer runs; a rollback does not.
    fn live(&mut self) -> Result<(), ClaimError> {
        let path = self.dir.join("alive");
        if self.owner.role == Role::Rollback
            || self
                .alive
                .as_ref()
                .is_some_and(|alive| crate::lock::is_at(alive, &path))
        {
            return Ok(());
        }
        let file = crate::lock::open(&path).map_err(failed("make", &path))?;
        let alive = Flock::lock(file, FlockArg::LockShared)
            .map_err(|(_, errno)| failed("lock", &path)(errno.into()))?;
        self.alive = Some(alive);
        Ok(())
    }

    fn write_owner(&self) -> Result<(), ClaimError> {
        let path = self.dir.join("owner");
        let temporary = self.dir.join("owner.tmp");
        // strings always serialise
        let text = serde_json::to_string(&self.owner).unwrap_or_default();
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, &path))
            .map_err(failed("write", &path))
    }
}

impl Say {
    /// Who took the say from this installer, if somebody did. Garbage and an absent claim are nobody's.
    ///
    /// # Errors
    /// The claim cannot be read.
    pub(crate) fn lost(&self) -> Result<Option<Owner>, ClaimError> {
        Ok(owner(&self.dir)?.filter(|owner| owner.id != self.id))
    }

    /// Keeps everybody else from taking the say, for as long as the lock is held.
    ///
    /// # Errors
    /// A file cannot be made or read.
    pub(crate) fn keep(&self) -> Result<Kept, ClaimError> {
        let say = wait_for(&self.dir, SAY)?;
        Ok(match self.lost()? {
            Some(owner) => Kept::Lost(owner),
            None => Kept::Mine(say),
        })
    }
}

fn wait_for(dir: &Path, name: &str) -> Result<LockFile, ClaimError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(lock) = try_lock(dir, name)? {
            return Ok(lock);
        }
        if Instant::now() > deadline {
            return Err(ClaimError::Busy(dir.join(name)));
        }
        thread::sleep(POLL);
    }
}

fn try_lock(dir: &Path, name: &str) -> Result<Option<LockFile>, ClaimError> {
    fs::create_dir_all(dir).map_err(failed("make", dir))?;
    let path = dir.join(name);
    match LockFile::try_acquire(&path) {
        // a rollback removed the directory in this moment
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map_err(failed("lock", &path)),
    }
}

/// Refuses what would build the node up again while a rollback has the say: a runtime that has not noticed yet that the
/// configuration is gone.
///
/// # Errors
/// Code 11: the runtime tries again, with the configuration that is there then.
pub(crate) fn refuse_if_rolled_back(state_dir: &Path) -> Result<(), CniError> {
    let places = Places {
        state_dir: state_dir.to_owned(),
        ..Places::below(Path::new("/"))
    };
    // unreadable is no reason: ADD has checks of its own
    match rolled_back_since(&places) {
        Some(since) => Err(CniError::new(
            Code::TryAgainLater,
            format!(
                "agent-network was rolled back on this node ({since}); run agent-cni install to take it over again"
            ),
        )),
        None => Ok(()),
    }
}

/// Since when a rollback has the say over the node, if one has.
pub(crate) fn rolled_back_since(places: &Places) -> Option<String> {
    let owner = owner(&places.claim_dir()).ok().flatten()?;
    (owner.role == Role::Rollback).then_some(owner.since)
}

/// Garbage counts as nobody: whoever comes next writes it anew.
fn owner(dir: &Path) -> Result<Option<Owner>, ClaimError> {
    let path = dir.join("owner");
    match file::read_own(&path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed("read", &path)(source)),
    }
}

/// Whether the state directory has anything of ours.
fn is_taken_over(places: &Places) -> bool {
    places.unfit_state_dir().is_none()
        && fs::read_dir(&places.state_dir).is_ok_and(|mut entries| entries.next().is_some())
}

fn others_are_gone(dir: &Path) -> bool {
    File::open(dir.join("alive"))
        .is_ok_and(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok())
}

fn short(text: &str) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(text.as_bytes())
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ClaimError {
    let path = path.to_owned();
    move |source| ClaimError::File {
        action,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(root: &Path) -> Places {
        fs::create_dir_all(root.join("var/lib/tke-agent-network")).unwrap();
        Places::below(root)
    }

    #[test]
    fn the_last_one_that_started_has_the_say() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let (mut first, lock) = Claim::take(&places, Role::Installer).unwrap();
        assert!(matches!(first.standing().unwrap(), Standing::Busy));
        drop(lock);
        assert!(matches!(first.standing().unwrap(), Standing::Mine(_)));
        let (mut second, lock) = Claim::take(&places, Role::Installer).unwrap();
        drop(lock);
        assert!(matches!(first.standing().unwrap(), Standing::Lost(_)));
        assert!(matches!(second.standing().unwrap(), Standing::Mine(_)));
    }

    #[test]
    fn a_rollback_ends_an_installers_say_and_refuses_adds() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let (mut installer, lock) = Claim::take(&places, Role::Installer).unwrap();
        drop(lock);
        assert!(refuse_if_rolled_back(&places.state_dir).is_ok());
        let (_rollback, lock) = Claim::take(&places, Role::Rollback).unwrap();
        drop(lock);
        let error = refuse_if_rolled_back(&places.state_dir).unwrap_err();
        assert_eq!(error.code, Code::TryAgainLater);
        let Standing::Lost(owner) = installer.standing().unwrap() else {
            panic!("still mine");
        };
        assert_eq!(owner.role, Role::Rollback);
        installer.end(&places);
        assert!(!places.claim_dir().exists());
        assert!(!root.path().join("var/lib/tke-agent-network").exists());
    }

    #[test]
    fn a_rollback_has_the_say_while_a_pass_is_at_work_and_nobody_takes_it_from_one_who_keeps_it() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let (mut installer, pass) = Claim::take(&places, Role::Installer).unwrap();
        let say = installer.say();
        let Kept::Mine(kept) = say.keep().unwrap() else {
            panic!("not mine");
        };
        let rollback = Claim::new(&places, Role::Rollback);
        std::thread::scope(|scope| {
            let seizing = scope.spawn(|| rollback.seize().unwrap());
            // whatever the other one does meanwhile
            assert!(say.lost().unwrap().is_none());
            drop(kept);
            drop(seizing.join().unwrap());
        });
        assert_eq!(say.lost().unwrap().unwrap().role, Role::Rollback);
        assert!(matches!(say.keep().unwrap(), Kept::Lost(_)));
        assert!(refuse_if_rolled_back(&places.state_dir).is_err());
        drop(pass);
        assert!(matches!(installer.standing().unwrap(), Standing::Lost(_)));
    }

    #[test]
    fn an_installer_that_took_nothing_over_leaves_no_claim() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let (claim, lock) = Claim::take(&places, Role::Installer).unwrap();
        drop(lock);
        claim.end(&places);
        assert!(!places.claim_dir().exists());
    }

    #[test]
    fn a_claim_that_somebody_removed_or_spoilt_is_made_again() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let (mut claim, lock) = Claim::take(&places, Role::Installer).unwrap();
        drop(lock);
        fs::remove_dir_all(places.claim_dir()).unwrap();
        assert!(matches!(claim.standing().unwrap(), Standing::Mine(_)));
        fs::write(places.claim_dir().join("owner"), [0xff; 9]).unwrap();
        assert!(matches!(claim.standing().unwrap(), Standing::Mine(_)));
        // the node is taken over
        fs::create_dir_all(places.state_dir.join("pending")).unwrap();
        claim.end(&places);
        assert!(places.claim_dir().exists());
    }
}
