//! A machine's folder in the cache, which goes with the machine: also when this program was killed, at its next start.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// How the folders' names begin.
const PREFIX: &str = "vm-";
/// Held as long as the machine's process lives; the kernel lets go of it however that ends.
const LOCK: &str = "lock";
/// Held while a folder is made or looked at, so that none is taken for abandoned before it has its lock.
const LOCK_OF_ALL: &str = "vm.lock";
/// Where the machine's root is shown, in a mount namespace that isn't ours.
pub(super) const ROOT: &str = "root";

/// A folder of this run, not below /tmp: the guest has a /tmp of its own.
pub(super) struct Work {
    pub(super) dir: PathBuf,
    _lock: File,
}

impl Work {
    pub(super) fn new(cache: &Path, release: &str) -> Result<Work> {
        let dir = cache.join(format!("{PREFIX}{}-{release}", std::process::id()));
        let _all = lock_of_all(cache)?;
        // of another process that had this number
        remove(&dir).with_context(|| format!("remove {}", dir.display()))?;
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let lock = File::create(dir.join(LOCK))?;
        lock.lock()?;
        Ok(Work { dir, _lock: lock })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = remove(&self.dir);
    }
}

/// Removes the folders whose processes are gone.
///
/// # Errors
/// When one can't be looked at or removed.
pub(super) fn remove_abandoned(cache: &Path) -> Result<()> {
    let _all = lock_of_all(cache)?;
    for entry in fs::read_dir(cache)? {
        let entry = entry?;
        let dir = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) || !dir.is_dir() {
            continue;
        }
        match File::open(dir.join(LOCK)).map(|lock| lock.try_lock()) {
            Ok(Err(TryLockError::WouldBlock)) => continue,
            Ok(Err(TryLockError::Error(error))) => return Err(error).context("lock"),
            Ok(Ok(())) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("open {}", dir.display())),
        }
        println!("xtask: removing {}, which nobody uses", dir.display());
        remove(&dir).with_context(|| format!("remove {}", dir.display()))?;
    }
    Ok(())
}

fn lock_of_all(cache: &Path) -> Result<File> {
    let path = cache.join(LOCK_OF_ALL);
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    file.lock()
        .with_context(|| format!("lock {}", path.display()))?;
    Ok(file)
}

/// Removes a folder with its files. Nothing below [`ROOT`] is touched: if this machine's own root were still to be seen
/// there, that would be an error.
fn remove(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name() == ROOT {
            fs::remove_dir(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_dir(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of this test's own, gone with the value.
    struct Cache(PathBuf);

    impl Cache {
        fn new(name: &str) -> Cache {
            let dir = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            Cache(dir)
        }
    }

    impl Drop for Cache {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_a_folder_whose_process_is_gone_is_removed() {
        let cache = Cache::new("abandoned");
        let used = Work::new(&cache.0, "6.1").unwrap();
        fs::create_dir(used.dir.join(ROOT)).unwrap();
        for name in ["vm-1-5.10", "vm-2-before-there-was-a-lock", "kernels"] {
            fs::create_dir_all(cache.0.join(name).join(ROOT)).unwrap();
        }
        fs::write(cache.0.join("vm-1-5.10").join(LOCK), "").unwrap();
        fs::write(cache.0.join("vm-1-5.10/console.log"), "").unwrap();
        remove_abandoned(&cache.0).unwrap();
        assert!(used.dir.exists() && cache.0.join("kernels").exists());
        let left = |name: &str| cache.0.join(name).exists();
        assert!(!left("vm-1-5.10") && !left("vm-2-before-there-was-a-lock"));
        let dir = used.dir.clone();
        drop(used);
        assert!(!dir.exists());
    }

    #[test]
    fn a_root_that_is_still_shown_is_not_removed_with_the_folder() {
        let cache = Cache::new("shown");
        let dir = cache.0.join("vm-1-5.10");
        fs::create_dir_all(dir.join(ROOT).join("etc")).unwrap();
        assert!(remove_abandoned(&cache.0).is_err());
        assert!(dir.join(ROOT).join("etc").exists());
    }
}
