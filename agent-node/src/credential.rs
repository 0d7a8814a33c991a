//! The only reader of secrets: files below the credentials folder, followed by content.
//!
//! Owns values from the file to the header value, in memory that is wiped when it is given back.
//! A value leaves this module only as a sensitive header value; nothing here has `Debug`. A file
//! that can't be used is an error, never a request without its credential. Values that are in use
//! are read again several times a second, so a rotated Secret is used without restart or reload.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use agent_core::policy::CredentialRef;
use arc_swap::ArcSwap;

mod read;
mod secret;

pub use read::CredentialError;
pub use secret::Secret;

use read::{Raw, read_value};

/// How often files in use are read again; the promise is one second.
const READ_EVERY: Duration = Duration::from_millis(250);
/// A credential that nobody asked for this long is forgotten, and its memory wiped.
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// The store; clones share it.
#[derive(Clone)]
pub struct CredentialStore(Arc<Shared>);

struct Shared {
    dir: Box<Path>,
    /// Read by workers, one atomic load and one look-up.
    slots: ArcSwap<HashMap<CredentialRef, Arc<Slot>>>,
    /// Taken by whoever adds a slot or reads files; never on the way of a known credential.
    files: Mutex<HashMap<String, Result<Raw, CredentialError>>>,
}

/// One way of using one file.
struct Slot {
    current: ArcSwap<Result<Secret, CredentialError>>,
    used: AtomicBool,
}

impl CredentialStore {
    /// A store of the files below `dir`. Its thread ends when the last clone is gone.
    ///
    /// # Errors
    /// When the thread can't be started. A missing folder is no error: each use of it is.
    pub fn start(dir: &Path) -> std::io::Result<CredentialStore> {
        let store = CredentialStore::new(dir);
        let shared = Arc::downgrade(&store.0);
        std::thread::Builder::new()
            .name("credentials".into())
            .spawn(move || follow(&shared))?;
        Ok(store)
    }

    fn new(dir: &Path) -> CredentialStore {
        CredentialStore(Arc::new(Shared {
            dir: dir.into(),
            slots: ArcSwap::default(),
            files: Mutex::default(),
        }))
    }

    /// The secret for `reference`, as its file has it now (at most [`READ_EVERY`] old).
    ///
    /// The first use of a reference reads the file; the others cost one atomic load.
    ///
    /// # Errors
    /// When the file is missing, empty, unreadable, outside the folder, or holds what no header
    /// can; the request must not be sent.
    pub fn get(&self, reference: &CredentialRef) -> Result<Secret, CredentialError> {
        if let Some(slot) = self.0.slots.load().get(reference) {
            return slot.get();
        }
        self.add(reference)
    }

    fn add(&self, reference: &CredentialRef) -> Result<Secret, CredentialError> {
        let shared = &*self.0;
        let mut files = shared.lock();
        // Another worker may have added it while this one waited.
        if let Some(slot) = shared.slots.load().get(reference) {
            return slot.get();
        }
        let raw = files
            .entry(reference.file.clone())
            .or_insert_with(|| read_value(&shared.dir, &reference.file));
        let slot = Arc::new(Slot {
            current: ArcSwap::from_pointee(render(reference, raw)),
            used: AtomicBool::new(true),
        });
        let result = slot.get();
        let mut slots = HashMap::clone(&shared.slots.load());
        slots.insert(reference.clone(), slot);
        shared.slots.store(Arc::new(slots));
        result
    }

    /// The files in use that can't be read now: by reference, never by value.
    pub fn unavailable(&self) -> Vec<(String, CredentialError)> {
        let slots = self.0.slots.load();
        let mut bad: Vec<(String, CredentialError)> = slots
            .iter()
            .filter_map(|(reference, slot)| match &**slot.current.load() {
                Ok(_) => None,
                Err(error) => Some((reference.file.clone(), error.clone())),
            })
            .collect();
        bad.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        bad.dedup_by(|a, b| a.0 == b.0);
        bad
    }

    /// Those among `files` that can't be read now, whether a request has needed them or not.
    pub fn check<'a>(
        &self,
        files: impl IntoIterator<Item = &'a String>,
    ) -> Vec<(String, CredentialError)> {
        let read = files
            .into_iter()
            .map(|file| (file, read_value(&self.0.dir, file)));
        read.filter_map(|(file, value)| Some((file.clone(), value.err()?)))
            .collect()
    }

    /// Reads the files in use again.
    fn refresh(&self) {
        let shared = &*self.0;
        let mut files = shared.lock();
        for (file, known) in files.iter_mut() {
            let fresh = read_value(&shared.dir, file);
            if fresh == *known {
                continue;
            }
            match &fresh {
                Ok(_) => tracing::info!(credential.file = %file, "credential has changed"),
                Err(error) => {
                    tracing::error!(credential.file = %file, error = %crate::telemetry::chain(error), "credential can't be used; requests that need it get 502");
                }
            }
            *known = fresh;
            for (reference, slot) in shared.slots.load().iter() {
                if reference.file == *file {
                    slot.current.store(Arc::new(render(reference, known)));
                }
            }
        }
    }

    /// Forgets what was not used since the last call.
    fn forget_unused(&self) {
        let shared = &*self.0;
        let mut files = shared.lock();
        let mut slots = HashMap::clone(&shared.slots.load());
        slots.retain(|_, slot| slot.used.swap(false, Ordering::Relaxed));
        files.retain(|file, _| slots.keys().any(|reference| reference.file == *file));
        shared.slots.store(Arc::new(slots));
    }
}

impl Shared {
    /// A panic while holding the lock leaves a map of whole entries.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Result<Raw, CredentialError>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn get(&self) -> Result<Secret, CredentialError> {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        Result::clone(&self.current.load())
    }
}

fn render(
    reference: &CredentialRef,
    raw: &Result<Raw, CredentialError>,
) -> Result<Secret, CredentialError> {
    match raw {
        Ok(raw) => Secret::render(reference, raw),
        Err(error) => Err(error.clone()),
    }
}

fn follow(shared: &Weak<Shared>) {
    let mut swept = Instant::now();
    loop {
        std::thread::sleep(READ_EVERY);
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let store = CredentialStore(shared);
        store.refresh();
        if swept.elapsed() >= FORGET_AFTER {
            swept = Instant::now();
            store.forget_unused();
        }
    }
}

#[cfg(test)]
mod tests;
