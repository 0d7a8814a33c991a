//! Reads what `/proc` says about processes: children, start time, resident memory. Owns no process.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The only child of `parent`, waiting up to five seconds for it to appear.
///
/// # Errors
/// When there is none in time.
pub fn only_child(parent: i32) -> Result<i32> {
    let deadline = Instant::now() + crate::patience::patience(Duration::from_secs(5));
    loop {
        if let Some(pid) = children(parent).first() {
            return Ok(*pid);
        }
        if Instant::now() > deadline {
            bail!("process {parent} has no child");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The processes whose parent is `parent`, oldest first.
pub fn children(parent: i32) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut found: Vec<i32> = entries
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| stat_field(*pid, 1).is_ok_and(|ppid| ppid == parent as u64))
        .collect();
    found.sort_unstable();
    found
}

/// When `pid` started, in clock ticks since boot: together with the number it names one process for good.
///
/// # Errors
/// When there is no such process.
pub fn start_time(pid: i32) -> Result<u64> {
    stat_field(pid, 19)
}

/// Resident memory of `pid` in KiB: now, and the highest it has been.
///
/// # Errors
/// When there is no such process.
pub fn resident_kib(pid: i32) -> Result<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> Result<u64> {
        let line = status
            .lines()
            .find(|l| l.starts_with(name))
            .context("no such field")?;
        Ok(line
            .split_whitespace()
            .nth(1)
            .context("no value")?
            .parse()?)
    };
    Ok((field("VmRSS:")?, field("VmHWM:")?))
}

/// Field `n` of `/proc/PID/stat`, counted from the state, which follows the parenthesised name.
fn stat_field(pid: i32, n: usize) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(')').context("malformed stat")?;
    let field = rest.split_whitespace().nth(n).context("short stat")?;
    Ok(field.parse()?)
}
