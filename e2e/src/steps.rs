//! Many findings in one expensive bring-up: each step is reported by name, a failed one doesn't keep the others from
//! being tried, and at the end any failure fails the test.

use std::time::Instant;

use anyhow::Result;

/// The steps of one test.
#[derive(Default)]
#[must_use = "steps that nobody finishes can't fail"]
pub struct Steps {
    part: String,
    failed: Vec<String>,
}

impl Steps {
    /// None yet.
    pub fn new() -> Steps {
        Steps::default()
    }

    /// Steps from here on are reported as of this part.
    pub fn part(&mut self, name: &str) {
        self.part = format!("{name}: ");
    }

    /// Does one step; `what` says what holds when it succeeds. Returns whether it did.
    pub fn step(&mut self, what: &str, f: impl FnOnce() -> Result<()>) -> bool {
        let what = format!("{}{what}", self.part);
        let started = Instant::now();
        let outcome = f();
        let seconds = started.elapsed().as_secs_f64();
        match &outcome {
            Ok(()) => eprintln!("ok      {seconds:5.1} s  {what}"),
            Err(error) => {
                eprintln!("FAILED  {seconds:5.1} s  {what}: {error:#}");
                self.failed.push(format!("{what}: {error:#}"));
            }
        }
        outcome.is_ok()
    }

    /// Ends the list.
    ///
    /// # Errors
    /// With the failed steps, when there are any.
    pub fn finish(self) -> Result<()> {
        anyhow::ensure!(
            self.failed.is_empty(),
            "{} steps failed:\n- {}",
            self.failed.len(),
            self.failed.join("\n- ")
        );
        Ok(())
    }
}
