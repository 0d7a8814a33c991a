//! Prints the demo: headings, what each side saw, what failed, and at the end the markers that were proved.

use std::time::Duration;

use super::Marker;
use crate::place::Finished;

/// Width of the column that names who saw something.
const WHO: usize = 9;

/// The demo's voice and its memory of what was proved.
pub(crate) struct Narrator {
    step: u32,
    failures: Vec<String>,
    proved: Vec<Marker>,
}

impl Narrator {
    pub(crate) fn new() -> Narrator {
        Narrator {
            step: 0,
            failures: Vec::new(),
            proved: Vec::new(),
        }
    }

    pub(crate) fn heading(&mut self, text: &str) {
        println!("\n{}. {text}", self.step);
        self.step += 1;
    }

    /// What one side saw; long texts are indented under it.
    pub(crate) fn saw(&self, who: &str, what: &str) {
        for (i, line) in what.trim_end().lines().enumerate() {
            let who = if i == 0 { who } else { "" };
            println!("   {who:<WHO$} {line}");
        }
    }

    /// A command in a pod and the end of what it printed.
    pub(crate) fn ran(&self, who: &str, done: &Finished) {
        self.saw(who, &format!("$ {}", done.command));
        let text = done.all();
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim_end)
            .filter(|l| !l.is_empty())
            .collect();
        for line in lines.iter().rev().take(12).rev() {
            self.saw("", &format!("  {line}"));
        }
    }

    /// Records a marker. Only the code that has just checked it calls this.
    pub(crate) fn proved(&mut self, marker: Marker) {
        println!("   => {}", marker.as_str());
        if !self.proved.contains(&marker) {
            self.proved.push(marker);
        }
    }

    pub(crate) fn failed(&mut self, error: &anyhow::Error) {
        println!("   FAILED: {error:#}");
        self.failures
            .push(format!("step {}: {error:#}", self.step - 1));
    }

    /// The closing lines; whether everything held.
    pub(crate) fn close(&self, took: Duration) -> bool {
        println!("\nProved in {:.1} s:", took.as_secs_f64());
        for marker in &self.proved {
            println!("{}", marker.as_str());
        }
        let missing = Marker::ALL
            .iter()
            .filter(|m| !self.proved.contains(m))
            .count();
        if missing == 0 && self.failures.is_empty() {
            return true;
        }
        println!("\nNot everything held ({missing} markers missing):");
        for failure in &self.failures {
            println!("  {failure}");
        }
        false
    }
}
