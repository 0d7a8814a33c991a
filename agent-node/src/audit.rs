//! Audit lines: from the thread that decided to standard output and a file.
//!
//! Owns the bounded buffers between workers and the one writer thread. A worker serialises into a
//! buffer of its own, so recording costs one uncontended lock and no allocation; the writer swaps
//! full buffers for empty ones and writes them whole. Doesn't own the record's shape; that is
//! `agent_core::audit`.

use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use agent_core::audit::AuditRecord;

use crate::config::AuditConfig;

mod file;
mod writer;

pub use file::RotatedFile;

/// What one thread may have waiting. Past it lines are shed, or decisions refused.
pub const SHARD_BYTES: usize = 4 * 1024 * 1024;
/// How long the writer lets lines gather after the first of a batch.
const GATHER: Duration = Duration::from_millis(10);
/// How long the outputs may take for the last lines: a pipe that nobody reads never takes them.
const FINISH_WITHIN: Duration = Duration::from_secs(2);

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(0) };
}

/// Where audit lines go; clones share it.
#[derive(Clone)]
pub struct AuditSink(Arc<Shared>);

struct Shared {
    shards: Box<[Shard]>,
    shard_bytes: usize,
    pending: AtomicBool,
    closing: AtomicBool,
    fail_closed: bool,
    /// The writer could not write its last batch, and keeps it.
    stuck: AtomicBool,
    writer: OnceLock<Thread>,
    shed: AtomicU64,
    written: AtomicU64,
    write_errors: AtomicU64,
}

/// One thread's lines; on a cache line of its own, because only that thread writes it.
#[repr(align(128))]
#[derive(Default)]
struct Shard {
    lines: Mutex<Vec<u8>>,
}

/// The writer; dropping it without [`AuditWriter::finish`] leaves the thread running.
pub struct AuditWriter {
    sink: AuditSink,
    thread: JoinHandle<()>,
}

/// Why the audit sink can't start.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The file can't be opened.
    #[error("open the audit file {}", path.display())]
    Open {
        /// Which file.
        path: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Standard output is closed.
    #[error("write audit lines to standard output; open it, or set `audit.stdout` to false")]
    Stdout(#[source] std::io::Error),
    /// No thread.
    #[error("start the audit writer")]
    Thread(#[source] std::io::Error),
}

/// What has happened to lines since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AuditCounts {
    /// Lines handed to the system.
    pub written: u64,
    /// Lines given up because a buffer was full or a write failed.
    pub shed: u64,
    /// Writes that failed.
    pub write_errors: u64,
}

impl AuditSink {
    /// Opens the outputs and starts the writer, with one buffer for each of `workers` and one for
    /// the rest of the process.
    ///
    /// # Errors
    /// When the file can't be opened or the thread not started.
    pub fn start(
        config: &AuditConfig,
        workers: u16,
    ) -> Result<(AuditSink, AuditWriter), AuditError> {
        let mut outputs: Vec<Box<dyn Write + Send>> = Vec::new();
        if config.stdout {
            // A descriptor of its own: the standard library's handle buffers by line.
            let stdout = std::io::stdout().as_fd().try_clone_to_owned();
            outputs.push(Box::new(File::from(stdout.map_err(AuditError::Stdout)?)));
        }
        if let Some(path) = &config.file {
            let file = RotatedFile::open(path, config.rotate_bytes, config.keep);
            outputs.push(Box::new(file.map_err(|source| AuditError::Open {
                path: path.clone(),
                source,
            })?));
        }
        AuditSink::with_outputs(outputs, config.fail_closed, workers, SHARD_BYTES)
    }

    fn with_outputs(
        outputs: Vec<Box<dyn Write + Send>>,
        fail_closed: bool,
        workers: u16,
        shard_bytes: usize,
    ) -> Result<(AuditSink, AuditWriter), AuditError> {
        let shards = (0..=workers).map(|_| Shard::default()).collect();
        let sink = AuditSink(Arc::new(Shared {
            shards,
            shard_bytes,
            pending: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            fail_closed,
            stuck: AtomicBool::new(false),
            writer: OnceLock::new(),
            shed: AtomicU64::new(0),
            written: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
        }));
        let shared = sink.0.clone();
        let thread = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || writer::run(&shared, outputs))
            .map_err(AuditError::Thread)?;
        // Only set here, so it can't be set already.
        let _ = sink.0.writer.set(thread.thread().clone());
        let writer = AuditWriter {
            sink: sink.clone(),
            thread,
        };
        Ok((sink, writer))
    }

    /// Gives the calling thread the buffer of `worker`; other threads share one.
    pub fn use_worker_buffer(worker: u16) {
        SHARD.set(usize::from(worker) + 1);
    }

    /// Writes one line. Never waits for the outputs: a line that finds no room is shed and counted.
    pub fn record(&self, record: &AuditRecord) {
        let shared = &*self.0;
        let shard = &shared.shards[SHARD.get() % shared.shards.len()];
        {
            let mut lines = lock(&shard.lines);
            let before = lines.len();
            let whole = before < shared.shard_bytes && record.write_line(&mut lines).is_ok();
            if !whole {
                lines.truncate(before);
                shared.shed.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        if !shared.pending.swap(true, Ordering::AcqRel)
            && let Some(writer) = shared.writer.get()
        {
            writer.unpark();
        }
    }

    /// Whether a decision may be taken: always, unless `audit.failClosed` is on and the line that
    /// it must leave could be lost. Ask before letting anything through.
    pub fn accepting(&self) -> bool {
        let shared = &*self.0;
        if !shared.fail_closed {
            return true;
        }
        if shared.stuck.load(Ordering::Acquire) {
            return false;
        }
        let shard = &shared.shards[SHARD.get() % shared.shards.len()];
        lock(&shard.lines).len() < shared.shard_bytes / 2
    }

    /// What has happened to lines since the start.
    pub fn counts(&self) -> AuditCounts {
        AuditCounts {
            written: self.0.written.load(Ordering::Relaxed),
            shed: self.0.shed.load(Ordering::Relaxed),
            write_errors: self.0.write_errors.load(Ordering::Relaxed),
        }
    }
}

impl AuditWriter {
    /// Writes what is buffered and ends the thread.
    pub fn finish(self) {
        self.sink.0.closing.store(true, Ordering::Release);
        self.thread.thread().unpark();
        let deadline = Instant::now() + FINISH_WITHIN;
        while !self.thread.is_finished() {
            if Instant::now() >= deadline {
                tracing::error!("the audit outputs don't take the last lines; they are lost");
                return;
            }
            std::thread::sleep(GATHER);
        }
        if self.thread.join().is_err() {
            tracing::error!("the audit writer ended by a panic");
        }
    }
}

/// A panic while holding the lock leaves at worst half a line, which `record` cuts off.
fn lock(lines: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
