//! Kernel, limits, rights, clock.

use std::time::Duration;

use agent_core::{attachment::Mode, time::Timestamp};

use crate::doctor::{
    check::{Check, Finding},
    facts::Facts,
};

/// With room to spare: the maps take some MiB, and a few more for each processor.
const MEMLOCK_NEEDED: u64 = 64 << 20;
/// 2026-01-01: no clock of a node that runs this version is right before it.
const NOT_BEFORE: u64 = 1_767_225_600;
/// How far ahead a file may be dated: clocks are set by less than this all the time.
const AHEAD: u64 = 300;

const CAP_NET_ADMIN: (u32, &str) = (12, "CAP_NET_ADMIN");
const CAP_NET_RAW: (u32, &str) = (13, "CAP_NET_RAW");
const CAP_SYS_ADMIN: (u32, &str) = (21, "CAP_SYS_ADMIN");
const CAP_SYS_RESOURCE: u32 = 24;

/// The node's mode; ebpf while nothing is chosen.
fn mode(facts: &Facts) -> Mode {
    facts
        .state
        .node
        .as_ref()
        .map_or(Mode::Ebpf, |node| node.mode)
}

fn holds(capabilities: u64, number: u32) -> bool {
    capabilities >> number & 1 == 1
}

/// Can this kernel do what the node's mode needs? Tried, not concluded from its version.
pub(super) fn kernel(facts: &Facts) -> Finding {
    let mut check = Check::new("kernel");
    let release = &facts.machine.release;
    let mode = mode(facts);
    let against = match mode {
        Mode::Ebpf => &facts.machine.against_ebpf,
        Mode::IptablesCompat => &facts.machine.against_compat,
    };
    for (found, remedy) in against {
        check.fail(format!("Linux {release}: {found}"), remedy.clone());
    }
    let fine = match (mode, facts.machine.against_ebpf.first()) {
        (Mode::Ebpf, _) => format!("Linux {release} runs mode ebpf"),
        (Mode::IptablesCompat, None) => {
            format!("Linux {release} runs mode iptables-compat, and could run ebpf")
        }
        (Mode::IptablesCompat, Some((why, _))) => {
            format!("Linux {release} runs mode iptables-compat; not ebpf, because {why}")
        }
    };
    check.finish(fine)
}

/// The kernel's own types.
pub(super) fn btf(facts: &Facts) -> Finding {
    let mut check = Check::new("btf");
    if check.see("BTF", &facts.machine.btf) == Some(&false) && mode(facts) == Mode::Ebpf {
        check.warn(
            "/sys/kernel/btf/vmlinux is missing: programs load, but tools cannot show what they do",
            "mount /sys here; when it is missing on the node itself, use a kernel with CONFIG_DEBUG_INFO_BTF",
        );
    }
    check.finish("the kernel's types can be read")
}

/// Where pins can be.
pub(super) fn bpffs(facts: &Facts) -> Finding {
    let mut check = Check::new("bpffs");
    let dir = &facts.machine.pin_dir;
    if mode(facts) == Mode::IptablesCompat {
        return check.finish("not needed in mode iptables-compat");
    }
    if check.see(dir, &facts.machine.bpffs) == Some(&false) {
        check.fail(
            format!("{dir} is not on a bpf file system"),
            "mount -t bpf bpf /sys/fs/bpf on the node; in a pod, mount the node's /sys/fs/bpf",
        );
    }
    check.finish(format!("{dir} is on a bpf file system"))
}

/// The limit that maps count against on kernels before 5.11.
pub(super) fn memlock(facts: &Facts) -> Finding {
    let mut check = Check::new("memlock");
    let machine = &facts.machine;
    if mode(facts) == Mode::IptablesCompat {
        return check.finish("not needed in mode iptables-compat");
    }
    let counted = check.see("the memory lock limit", &machine.memlock_counted);
    if counted == Some(&false) {
        return check.finish("this kernel does not count maps against the memory lock limit");
    }
    let may_raise = machine
        .capabilities
        .as_ref()
        .is_ok_and(|held| holds(*held, CAP_SYS_RESOURCE));
    let limit = check
        .see("the memory lock limit", &machine.memlock)
        .copied();
    if let Some(limit) = limit.filter(|limit| *limit < MEMLOCK_NEEDED && !may_raise) {
        check.fail(
            format!("maps count against the memory lock limit, which is {limit} bytes"),
            "set LimitMEMLOCK=infinity for the runtime's service (ulimit -l unlimited), or give the container CAP_SYS_RESOURCE",
        );
    }
    check.finish("the memory lock limit has room for the maps")
}

/// What this process may do, which is what the installer beside it may do.
pub(super) fn capabilities(facts: &Facts) -> Finding {
    let mut check = Check::new("capabilities");
    let needed: &[(u32, &str)] = match mode(facts) {
        Mode::Ebpf => &[CAP_NET_ADMIN, CAP_SYS_ADMIN],
        Mode::IptablesCompat => &[CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN],
    };
    if let Some(held) = check.see("capabilities", &facts.machine.capabilities) {
        let missing: Vec<_> = needed
            .iter()
            .filter(|(number, _)| !holds(*held, *number))
            .map(|(_, name)| *name)
            .collect();
        if !missing.is_empty() {
            check.fail(
                format!("this process does not have {}", missing.join(", ")),
                "run it as root without a reduced capability set; in a pod, privileged: true",
            );
        }
    }
    let names: Vec<_> = needed.iter().map(|(_, name)| *name).collect();
    check.finish(format!("{} are there", names.join(", ")))
}

/// Certificates, audit lines and cool-downs need a right clock.
pub(super) fn clock(facts: &Facts) -> Finding {
    let mut check = Check::new("clock");
    let now = facts.machine.now;
    const SET: &str = "set the node's clock, and keep it with chrony, ntpd or systemd-timesyncd";
    if now < NOT_BEFORE {
        check.fail("the clock is years behind", SET);
    }
    // of one form and one zone, so their order is the texts'
    let soon = Timestamp::from_duration(Duration::from_secs(now + AHEAD)).to_string();
    for attachment in &facts.state.attachments {
        if attachment.created > soon {
            check.fail(
                format!(
                    "{} was attached at {}, which is yet to come: the clock was set back",
                    attachment.pod.name, attachment.created
                ),
                format!("{SET}; recreate the pod when the clock is right already"),
            );
        }
    }
    match &facts.machine.clock_kept {
        Ok(true) => {}
        Ok(false) => check.warn(
            "nothing keeps the clock (the kernel calls it unsynchronised)",
            SET,
        ),
        Err(why) => check.warn(
            format!("cannot tell whether anything keeps the clock: {why}"),
            "",
        ),
    }
    check.finish("the clock is kept")
}

/// The table of tracked connections, without room in which nothing new gets through.
pub(super) fn conntrack(facts: &Facts) -> Finding {
    let mut check = Check::new("conntrack");
    let Some((count, most)) = facts.machine.conntrack else {
        return check.finish("the kernel tracks no connections");
    };
    let found = format!("{count} of {most} tracked connections");
    const MEND: &str = "raise net.netfilter.nf_conntrack_max, or find who holds them: conntrack -L";
    if count * 100 >= most * 95 {
        check.fail(
            format!("{found}: new connections to Services are dropped"),
            MEND,
        );
    } else if count * 100 >= most * 80 {
        check.warn(format!("{found}: little room is left"), MEND);
    }
    check.finish(found)
}
