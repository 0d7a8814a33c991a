//! What this process is allowed, as far as `/proc` and `/sys` tell: it gives an EPERM its meaning.

use std::fs;

use aya::util::KernelVersion;
use nix::sys::resource::{Resource, getrlimit};

/// Bits of `CapEff`.
const CAPABILITIES: [(u32, &str); 3] = [
    (12, "CAP_NET_ADMIN"),
    (21, "CAP_SYS_ADMIN"),
    (39, "CAP_BPF"),
];

/// What is around the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Of the capabilities that we need, those that are missing.
    pub missing_capabilities: Vec<&'static str>,
    /// Whether a seccomp filter is in force.
    pub seccomp_filter: bool,
    /// Kernel lockdown other than `none`.
    pub lockdown: Option<String>,
    /// The limit on locked memory in bytes, where the kernel counts maps against it (before 5.11) and it isn't infinite.
    pub memory_lock_limit: Option<u64>,
}

impl Surroundings {
    /// Looks around. What can't be read is taken for unobstructed.
    pub(super) fn read() -> Self {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
        let counted = KernelVersion::current().is_ok_and(|v| v < KernelVersion::new(5, 11, 0));
        let limit = getrlimit(Resource::RLIMIT_MEMLOCK)
            .ok()
            .map(|(soft, _)| soft)
            .filter(|soft| counted && *soft != libc::RLIM_INFINITY);
        Self {
            memory_lock_limit: limit,
            ..Self::parse(&status, &lockdown)
        }
    }

    fn parse(status: &str, lockdown: &str) -> Self {
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
        };
        let effective = field("CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let missing_capabilities = effective.map_or_else(Vec::new, |bits| {
            CAPABILITIES
                .iter()
                .filter(|(bit, _)| bits & (1 << bit) == 0)
                .map(|(_, name)| *name)
                .collect()
        });
        let lockdown = lockdown
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
            .map(|(level, _)| level.to_owned())
            .filter(|level| level != "none");
        Self {
            missing_capabilities,
            seccomp_filter: field("Seccomp") == Some("2"),
            lockdown,
            memory_lock_limit: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_seccomp_and_lockdown_are_read_as_the_kernel_writes_them() {
        let status = "Name:\tx\nCapEff:\t0000000000201000\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        let found = Surroundings::parse(status, "none [integrity] confidentiality\n");
        assert_eq!(
            found,
            Surroundings {
                missing_capabilities: vec!["CAP_BPF"],
                seccomp_filter: true,
                lockdown: Some("integrity".into()),
                memory_lock_limit: None,
            }
        );
    }

    #[test]
    fn what_is_not_told_obstructs_nothing() {
        assert_eq!(Surroundings::parse("", ""), Surroundings::default());
        let all = "CapEff:\t000001ffffffffff\nSeccomp:\t0\n";
        assert_eq!(
            Surroundings::parse(all, "[none] integrity"),
            Surroundings::default()
        );
    }
}
