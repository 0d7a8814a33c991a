//! A background process in a place: its log, its signals, its end. Dropping it kills it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::patience::patience;
use crate::procfs;

/// A running background process.
pub struct Process {
    name: String,
    /// `nsenter`, which forks to enter the pid namespace; the program itself is its only child.
    wrapper: Child,
    pid: i32,
    log: PathBuf,
    detached: bool,
}

impl Process {
    pub(crate) fn new(name: &str, mut wrapper: Child, log: PathBuf) -> Result<Process> {
        let deadline = Instant::now() + patience(Duration::from_secs(5));
        let pid = loop {
            if let Some(pid) = procfs::children(wrapper.id() as i32).first() {
                break *pid;
            }
            if let Some(status) = wrapper.try_wait()? {
                let said = fs::read_to_string(&log).unwrap_or_default();
                bail!("{name} ended at once ({status}): {}", said.trim());
            }
            if Instant::now() > deadline {
                bail!("{name} didn't start");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        Ok(Process {
            name: name.to_owned(),
            wrapper,
            pid,
            log,
            detached: false,
        })
    }

    /// The program's pid, as seen from outside the world.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Everything that it has printed.
    pub fn log_text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Where its output goes.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Whether it is still there.
    pub fn is_running(&mut self) -> bool {
        matches!(self.wrapper.try_wait(), Ok(None))
    }

    /// Sends a signal to the program.
    ///
    /// # Errors
    /// When it is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.pid), signal)?;
        if matches!(signal, Signal::SIGCONT | Signal::SIGKILL) {
            // nsenter stops when its child does, and would not see its end
            kill(Pid::from_raw(self.wrapper.id() as i32), Signal::SIGCONT)?;
        }
        Ok(())
    }

    /// Waits until its output has `text`.
    ///
    /// # Errors
    /// When it ends, or the time runs out, without.
    pub fn wait_for_output(&mut self, text: &str, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + patience(limit);
        loop {
            if self.log_text().contains(text) {
                return Ok(());
            }
            if !self.is_running() {
                bail!("{} ended: {}", self.name, self.log_text().trim());
            }
            if Instant::now() > deadline {
                bail!(
                    "{} didn't print {text:?} in {limit:?}: {}",
                    self.name,
                    self.log_text().trim()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends `signal` and waits for the end; returns the exit code (-1 when a signal ended it).
    ///
    /// # Errors
    /// When it hasn't ended within `limit`.
    pub fn stop(mut self, signal: Signal, limit: Duration) -> Result<i32> {
        let _ = self.signal(signal);
        let deadline = Instant::now() + patience(limit);
        loop {
            if let Some(status) = self.wrapper.try_wait()? {
                return Ok(status.code().unwrap_or(-1));
            }
            if Instant::now() > deadline {
                bail!("{} still runs {limit:?} after {signal}", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Lets it outlive this value (its world still ends it).
    pub fn detach(mut self) {
        self.detached = true;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.detached {
            return;
        }
        if matches!(self.wrapper.try_wait(), Ok(None)) {
            let _ = self.signal(Signal::SIGKILL);
            let _ = self.wrapper.wait();
        }
    }
}
