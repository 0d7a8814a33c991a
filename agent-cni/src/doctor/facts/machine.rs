//! Kernel, limits, rights and clock: what does not depend on agent-network being there.

use std::{fs, path::Path};

use agent_core::attachment::Mode;
use agent_datapath::{
    inspect,
    probe::{self, Report},
};
use nix::sys::{
    resource::{Resource::RLIMIT_MEMLOCK, getrlimit},
    statfs::{BPF_FS_MAGIC, statfs},
};

use super::{seen, seen_at};
use crate::{clock, doctor::check::Seen};

/// The kernel's description of its own types.
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// See the module.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The kernel's version, for people.
    pub(crate) release: String,
    /// What is in the way of the eBPF mode, each with its remedy; nothing when it works.
    pub(crate) against_ebpf: Vec<(String, String)>,
    /// The same of the iptables-compat mode.
    pub(crate) against_compat: Vec<(String, String)>,
    /// Whether the kernel's types can be read.
    pub(crate) btf: Seen<bool>,
    /// Whether the pins' directory is on a bpf file system.
    pub(crate) bpffs: Seen<bool>,
    /// Where that is.
    pub(crate) pin_dir: String,
    /// The effective capabilities.
    pub(crate) capabilities: Seen<u64>,
    /// Whether maps count against the memory lock limit.
    pub(crate) memlock_counted: Seen<bool>,
    /// The hard memory lock limit, in bytes.
    pub(crate) memlock: Seen<u64>,
    /// Seconds since 1970.
    pub(crate) now: u64,
    /// Whether something keeps the clock.
    pub(crate) clock_kept: Seen<bool>,
    /// Tracked connections: how many there are, and how many there may be. None when nothing is tracked.
    pub(crate) conntrack: Option<(u64, u64)>,
}

impl Machine {
    /// Reads it.
    pub(crate) fn read(pin_dir: &Path) -> Self {
        let report = probe::probe(pin_dir);
        Self {
            release: fs::read_to_string("/proc/sys/kernel/osrelease")
                .map(|text| text.trim().to_owned())
                .unwrap_or_else(|error| format!("unknown ({error})")),
            against_ebpf: against(&report, Mode::Ebpf),
            against_compat: against(&report, Mode::IptablesCompat),
            btf: seen_at(BTF, Path::new(BTF).try_exists()),
            bpffs: bpffs(pin_dir),
            pin_dir: pin_dir.display().to_string(),
            capabilities: capabilities(),
            memlock_counted: seen(inspect::memlock_is_counted()),
            memlock: seen(getrlimit(RLIMIT_MEMLOCK)).map(|(_, hard)| hard),
            now: clock::now_seconds(),
            clock_kept: seen(inspect::clock_is_kept()),
            conntrack: number("nf_conntrack_count").zip(number("nf_conntrack_max")),
        }
    }
}

/// What was tried and did not work, and what that means.
fn against(report: &Report, mode: Mode) -> Vec<(String, String)> {
    report
        .against(mode)
        .iter()
        .map(|why| {
            let found = format!("{}: {}", why.feature.as_str(), why.said);
            (found, why.meaning.clone())
        })
        .collect()
}

/// Looks at the nearest directory that is there, as the plugin does before it pins anything.
fn bpffs(pin_dir: &Path) -> Seen<bool> {
    let nearest = pin_dir
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"));
    seen(statfs(nearest)).map(|found| found.filesystem_type() == BPF_FS_MAGIC)
}

fn capabilities() -> Seen<u64> {
    let status = seen_at("/proc/self/status", fs::read_to_string("/proc/self/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .ok_or("/proc/self/status has no CapEff")?;
    u64::from_str_radix(line.trim(), 16).map_err(|error| error.to_string())
}

fn number(name: &str) -> Option<u64> {
    let text = fs::read_to_string(Path::new("/proc/sys/net/netfilter").join(name)).ok()?;
    text.trim().parse().ok()
}
