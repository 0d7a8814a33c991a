//! The writer thread: swaps buffers, writes batches, keeps what it may not lose.

use std::io::{ErrorKind, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{GATHER, Shared, lock};

/// How often a failed write is tried again, and reported.
const RETRY: Duration = Duration::from_millis(250);
/// How often a lasting failure is logged.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);
/// Buffers above this size are given back after a burst.
const KEEP_CAPACITY: usize = 256 * 1024;

struct Output {
    to: Box<dyn Write + Send>,
    complained: Option<Instant>,
}

pub(super) fn run(shared: &Shared, outputs: Vec<Box<dyn Write + Send>>) {
    let mut outputs: Vec<Output> = outputs
        .into_iter()
        .map(|to| Output {
            to,
            complained: None,
        })
        .collect();
    let mut spare = Vec::new();
    loop {
        let closing = shared.closing.load(Ordering::Acquire);
        if !closing {
            if !shared.pending.load(Ordering::Acquire) {
                std::thread::park();
                continue;
            }
            // Let a batch gather: under load this thread wakes a hundred times a second.
            std::thread::sleep(GATHER);
        }
        drain(shared, &mut outputs, &mut spare);
        if closing {
            return;
        }
    }
}

fn drain(shared: &Shared, outputs: &mut [Output], spare: &mut Vec<u8>) {
    // Before the buffers are looked at: a line added after this wakes the thread again.
    shared.pending.store(false, Ordering::Release);
    for shard in &shared.shards {
        {
            let mut lines = lock(&shard.lines);
            if lines.is_empty() {
                continue;
            }
            std::mem::swap(&mut *lines, spare);
        }
        write_batch(shared, outputs, spare);
        spare.clear();
        spare.shrink_to(KEEP_CAPACITY);
    }
}

fn write_batch(shared: &Shared, outputs: &mut [Output], batch: &[u8]) {
    let lines = batch.iter().filter(|b| **b == b'\n').count() as u64;
    let mut lost = false;
    for output in outputs {
        let mut rest = batch;
        loop {
            match write_some(&mut output.to, rest) {
                Ok(()) => break,
                Err((written, error)) => {
                    rest = &rest[written..];
                    shared.write_errors.fetch_add(1, Ordering::Relaxed);
                    complain(output, &error);
                    if !shared.fail_closed || shared.closing.load(Ordering::Acquire) {
                        lost = true;
                        break;
                    }
                    // Fail closed: the batch is kept, and nobody may decide until it is out.
                    shared.stuck.store(true, Ordering::Release);
                    std::thread::sleep(RETRY);
                }
            }
        }
    }
    shared.stuck.store(false, Ordering::Release);
    let counter = if lost { &shared.shed } else { &shared.written };
    counter.fetch_add(lines, Ordering::Relaxed);
}

/// Writes all of `bytes`, or says how many got out before the error.
fn write_some(to: &mut dyn Write, bytes: &[u8]) -> Result<(), (usize, std::io::Error)> {
    let mut done = 0;
    while done < bytes.len() {
        match to.write(&bytes[done..]) {
            Ok(0) => return Err((done, ErrorKind::WriteZero.into())),
            Ok(n) => done += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // A pipe that its other end made non-blocking, and that is full.
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(GATHER),
            Err(error) => return Err((done, error)),
        }
    }
    to.flush().map_err(|error| (done, error))
}

fn complain(output: &mut Output, error: &std::io::Error) {
    let now = Instant::now();
    let due = output
        .complained
        .is_none_or(|at| now.duration_since(at) >= COMPLAIN_EVERY);
    if due {
        output.complained = Some(now);
        tracing::error!(error = %error, "audit lines can't be written");
    }
}
