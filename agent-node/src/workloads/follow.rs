//! Keeps the identity table fresh: woken by the state folder, by a miss, and by a timer.

use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::Workloads;
use super::source::WorkloadSource;
use super::state_dir::StateDir;
use super::table::Builder;

/// Without any event: finds what a watcher can miss (folder replaced, watch limit reached).
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Two scans are at least this far apart, so that misses and bursts of ADDs cost little.
const MIN_GAP: Duration = Duration::from_millis(20);
/// Where inotify puts names of changed files; 64 of the longest fit.
const EVENT_BYTES: usize = 16 * 1024;

/// Fills a [`Workloads`] table from a state folder and a source of facts.
pub struct Follower {
    workloads: Workloads,
    dir: StateDir,
    source: Box<dyn WorkloadSource>,
    builder: Builder,
}

impl Follower {
    /// Reads everything once, so that pods that are there already are known from the start.
    pub fn start(
        workloads: &Workloads,
        state_dir: &Path,
        source: Box<dyn WorkloadSource>,
    ) -> Follower {
        let mut follower = Follower {
            workloads: workloads.clone(),
            dir: StateDir::new(state_dir),
            source,
            builder: Builder::default(),
        };
        follower.refresh();
        follower
    }

    /// Follows changes for as long as it is polled.
    pub async fn run(mut self) {
        let mut timer = interval(LOOK_EVERY);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut events: Option<EventStream<[u8; EVENT_BYTES]>> = None;
        loop {
            if events.is_none() {
                events = watch(self.dir.path());
            }
            tokio::select! {
                _ = timer.tick() => {}
                () = self.workloads.missed() => {}
                event = next(&mut events) => if !event { events = None },
            }
            let begun = Instant::now();
            self.refresh();
            sleep_until(begun + MIN_GAP).await;
        }
    }

    /// Reads what has changed, and publishes a new table when that makes a difference.
    pub fn refresh(&mut self) {
        self.source.refresh();
        let Some(attachments) = self.dir.scan() else {
            return;
        };
        let source = &self.source;
        if let Some(table) = self.builder.build(&attachments, |pod| source.facts(pod)) {
            tracing::debug!(pods = table.len(), "identity table has changed");
            self.workloads.publish(table);
        }
    }
}

/// A watch on the folder; `None` when there is no folder yet or no watch to be had, and then the
/// timer does.
fn watch(dir: &Path) -> Option<EventStream<[u8; EVENT_BYTES]>> {
    let inotify = Inotify::init().ok()?;
    let mask = WatchMask::CLOSE_WRITE
        | WatchMask::MOVED_TO
        | WatchMask::MOVED_FROM
        | WatchMask::DELETE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF;
    inotify.watches().add(dir, mask).ok()?;
    inotify.into_event_stream([0; EVENT_BYTES]).ok()
}

/// Waits for the next event; false when the watch has ended and must be made anew.
async fn next(events: &mut Option<EventStream<[u8; EVENT_BYTES]>>) -> bool {
    let Some(events) = events else {
        return std::future::pending().await;
    };
    match events.next().await {
        Some(Ok(event)) => !event.mask.intersects(
            inotify::EventMask::IGNORED
                | inotify::EventMask::DELETE_SELF
                | inotify::EventMask::MOVE_SELF,
        ),
        _ => false,
    }
}
