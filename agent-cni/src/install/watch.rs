//! When to look again: every second or two, because not everything that can be broken tells of it, and at once when something
//! happens in the runtime's directories. Every second a runtime could read another network's configuration first.

use std::{path::PathBuf, sync::Arc, thread, time::Duration};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

/// What happens in a storm is looked at together; also the pace against somebody who undoes what we do.
const CALM: Duration = Duration::from_millis(100);

/// Why the wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// It is time, or something happened.
    Look,
    /// The process shall end.
    End,
}

/// Waits between passes.
#[derive(Debug)]
pub(crate) struct Watch {
    directories: Vec<PathBuf>,
    changes: Option<Arc<Inotify>>,
    changed: Arc<Notify>,
    terminate: Signal,
    interrupt: Signal,
}

impl Watch {
    /// Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// Signals cannot be waited for. Without inotify the timer does alone.
    pub(crate) fn new(directories: Vec<PathBuf>) -> std::io::Result<Self> {
        let changed = Arc::new(Notify::new());
        let changes = match follow(&changed) {
            Ok(changes) => Some(changes),
            Err(error) => {
                tracing::warn!(%error, "no inotify: the timer does alone");
                None
            }
        };
        Ok(Self {
            directories,
            changes,
            changed,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits until it is time to look again, after `every` at the latest, or to end.
    pub(crate) async fn next(&mut self, every: Duration) -> Wake {
        let deadline = Instant::now() + every;
        self.listen();
        tokio::select! {
            _ = self.terminate.recv() => return Wake::End,
            _ = self.interrupt.recv() => return Wake::End,
            () = sleep_until(deadline) => return Wake::Look,
            () = self.changed.notified() => {}
        }
        tokio::select! {
            _ = self.terminate.recv() => Wake::End,
            _ = self.interrupt.recv() => Wake::End,
            () = sleep(CALM) => Wake::Look,
        }
    }

    /// Adds the watches again: a directory that was made anew is another one. What is watched already stays so.
    fn listen(&self) {
        let Some(changes) = &self.changes else { return };
        let events = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ATTRIB;
        for directory in &self.directories {
            // one that is not there is the preflight's business
            let _ = changes.add_watch(directory, events);
        }
    }
}

/// A thread that waits for the kernel and wakes the installer; it ends with the process. What exactly happened does not
/// matter: the pass compares everything.
fn follow(changed: &Arc<Notify>) -> std::io::Result<Arc<Inotify>> {
    let changes = Arc::new(Inotify::init(InitFlags::IN_CLOEXEC)?);
    let (source, changed) = (Arc::clone(&changes), Arc::clone(changed));
    thread::Builder::new()
        .name("inotify".into())
        .spawn(move || {
            while source.read_events().is_ok() {
                changed.notify_one();
            }
        })?;
    Ok(changes)
}
