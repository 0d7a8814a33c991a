//! The proxy's local endpoints, as a person on the node asks them: by curl.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Node, PROXY};
use crate::place::Finished;

impl Node {
    /// `GET` of a local endpoint; a status of 400 and more is a failed command.
    ///
    /// # Errors
    /// Only when curl can't be started.
    pub fn get(&self, path: &str) -> Result<Finished> {
        let url = format!("http://{PROXY}{path}");
        self.place()
            .run(&["curl", "-sS", "--fail-with-body", "--max-time", "5", &url])
    }

    /// The active policy's version, empty while there is none.
    ///
    /// # Errors
    /// When the endpoint doesn't answer.
    pub fn policy_version(&self) -> Result<String> {
        let answer = self.get("/policy/version")?.success()?;
        let body: Value =
            serde_json::from_str(&answer.stdout).with_context(|| answer.to_string())?;
        Ok(body["version"].as_str().unwrap_or_default().to_owned())
    }

    /// Replaces the policy document and waits until the proxy has it; returns the new version.
    ///
    /// # Errors
    /// When the proxy doesn't take it within ten seconds.
    pub fn apply_policy(&self, document: &Value) -> Result<String> {
        let before = self.policy_version()?;
        self.write_policy(document)?;
        let deadline = Instant::now() + crate::patience::patience(Duration::from_secs(10));
        while Instant::now() < deadline {
            let now = self.policy_version()?;
            if now != before {
                return Ok(now);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!(
            "the proxy still has policy {before}: {}",
            self.proxy()?.log_text()
        )
    }

    /// All metrics as text.
    ///
    /// # Errors
    /// When the endpoint doesn't answer.
    pub fn metrics(&self) -> Result<String> {
        Ok(self.get("/metrics")?.success()?.stdout)
    }

    /// The sum of a metric's samples whose labels include `labels` (as written, for example `reason="udp"`).
    ///
    /// # Errors
    /// When the endpoint doesn't answer.
    pub fn metric(&self, name: &str, labels: &[&str]) -> Result<f64> {
        let text = self.metrics()?;
        let samples = text.lines().filter(|l| {
            l.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| l.contains(label))
        });
        Ok(samples
            .filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok())
            .sum())
    }
}
