//! `kubectl` as a cluster's administrator types it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::place::{Finished, Place};
use crate::process::Process;

/// The command, its credentials and its cache.
#[derive(Clone)]
pub struct Kubectl {
    place: Place,
    line: Vec<String>,
    kubeconfig: PathBuf,
}

impl Kubectl {
    pub(super) fn new(place: Place, bins: &Path, pki: &Path, dir: &Path) -> Kubectl {
        let kubeconfig = pki.join("admin.kubeconfig");
        let line = vec![
            bins.join("kubectl").to_string_lossy().into_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            // its default is below the home folder, which a world shares with the machine
            format!("--cache-dir={}", dir.join("kubectl-cache").display()),
        ];
        Kubectl {
            place,
            line,
            kubeconfig,
        }
    }

    /// The credentials, at the same path inside every world and outside.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs it.
    ///
    /// # Errors
    /// Only when it can't be started.
    pub fn run(&self, arguments: &[&str]) -> Result<Finished> {
        self.place.run(&self.line_with(arguments))
    }

    /// Runs it with `-o json`.
    ///
    /// # Errors
    /// When it fails.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let done = self
            .run(&[arguments, &["-o", "json"]].concat())?
            .success()?;
        serde_json::from_str(&done.stdout).with_context(|| format!("no JSON: {done}"))
    }

    /// Applies a manifest.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        let line = self.line_with(&["apply", "-f", "-"]);
        self.place
            .run_with(&line, &[], manifest.as_bytes(), 60)?
            .success()?;
        Ok(())
    }

    /// Waits for a condition of objects.
    ///
    /// # Errors
    /// When it doesn't come in 50 seconds; the message has the objects' events.
    pub fn wait(&self, namespace: &str, condition: &str, objects: &[&str]) -> Result<()> {
        let condition = format!("--for={condition}");
        let line = ["-n", namespace, "wait", &condition, "--timeout=50s"];
        let done = self.run(&[&line[..], objects].concat())?;
        if !done.ok() {
            let events =
                self.run(&["-n", namespace, "get", "events", "--sort-by=.lastTimestamp"])?;
            let pods = self.run(&["-n", namespace, "get", "pods", "-o", "wide"])?;
            anyhow::bail!("{done}\n{}\n{}", pods.stdout, events.stdout);
        }
        Ok(())
    }

    /// Runs a command in a pod.
    ///
    /// # Errors
    /// Only when kubectl can't be started.
    pub fn exec(&self, namespace: &str, pod: &str, command: &[&str]) -> Result<Finished> {
        self.run(&[&["-n", namespace, "exec", pod, "--"][..], command].concat())
    }

    /// Deletes objects and waits until they are gone.
    ///
    /// # Errors
    /// When they aren't, in a minute.
    pub fn delete(&self, namespace: &str, objects: &[&str]) -> Result<()> {
        self.run(&[&["-n", namespace, "delete", "--wait=true"][..], objects].concat())?
            .success()?;
        Ok(())
    }

    /// Starts it in the background.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn spawn(&self, name: &str, arguments: &[&str]) -> Result<Process> {
        self.place.spawn(name, &self.line_with(arguments), &[])
    }

    fn line_with<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        let mut line: Vec<&str> = self.line.iter().map(String::as_str).collect();
        line.extend(arguments);
        line
    }
}

/// Tries `f` until it succeeds.
///
/// # Errors
/// Its last error, when `limit` has passed.
pub fn eventually<T>(what: &str, limit: Duration, mut f: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        match f() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("not in {limit:?}: {what}"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}
