//! A packet capture on one interface, by tcpdump. Owns the capturing process and its file.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use crate::place::Place;
use crate::process::Process;

/// A running capture.
pub struct Capture {
    place: Place,
    process: Process,
    file: PathBuf,
}

/// A finished capture.
pub struct Captured {
    place: Place,
    file: PathBuf,
}

impl Capture {
    /// Starts to capture what `filter` (pcap's language; empty = everything) matches on `interface`; returns once it
    /// captures.
    ///
    /// # Errors
    /// When tcpdump doesn't start.
    pub fn start(place: &Place, name: &str, interface: &str, filter: &str) -> Result<Capture> {
        let log = place.log(name);
        let _ = fs::remove_file(&log);
        let file = log.with_extension("pcap");
        let path = file.to_string_lossy().into_owned();
        let line = [
            "tcpdump",
            "-i",
            interface,
            "-n",
            "-p",
            "-s",
            "0",
            "-U",
            "--immediate-mode",
            "-Z",
            "root",
            "-w",
            &path,
            filter,
        ];
        let used = if filter.is_empty() {
            &line[..line.len() - 1]
        } else {
            &line[..]
        };
        let mut process = place.spawn(name, used, &[])?;
        process.wait_for_output("listening on", Duration::from_secs(10))?;
        Ok(Capture {
            place: place.clone(),
            process,
            file,
        })
    }

    /// Ends the capture, after what is under way has arrived.
    ///
    /// # Errors
    /// When tcpdump doesn't end.
    pub fn stop(self) -> Result<Captured> {
        std::thread::sleep(Duration::from_millis(200));
        self.process.stop(Signal::SIGINT, Duration::from_secs(10))?;
        Ok(Captured {
            place: self.place,
            file: self.file,
        })
    }
}

impl Captured {
    /// One line for each packet that matches `filter` (empty = all of them).
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn packets(&self, filter: &str) -> Result<Vec<String>> {
        let path = self.file.to_string_lossy();
        let mut line = vec!["tcpdump", "-n", "-e", "-r", &path];
        if !filter.is_empty() {
            line.push(filter);
        }
        let out = self.place.run(&line)?.success()?;
        Ok(out.stdout.lines().map(str::to_owned).collect())
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// All captured bytes.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        fs::read(&self.file).with_context(|| format!("read {}", self.file.display()))
    }
}
