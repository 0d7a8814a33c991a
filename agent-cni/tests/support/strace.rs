//! SIGKILL before the N-th system call of a set: N goes from one until the process comes to its end, so that every
//! instant between two changes is one of the rounds.

use std::{
    os::unix::process::ExitStatusExt,
    process::{Command, ExitStatus},
};

use super::Node;

/// System calls that change files, links and rules. Others change nothing that outlives the process.
pub(crate) const CHANGES: &str = "rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,write,fsync,fchmod,ftruncate,\
    copy_file_range,sendfile,sendto";
/// Loading and attaching programs.
pub(crate) const PROGRAMS: &str = "bpf";

/// A command that runs `program` inside the node and kills it before its N-th call of `calls`.
pub(crate) fn kill_before(node: &Node, calls: &str, nth: usize, program: &str) -> Command {
    let mut command = node.command("strace");
    command.args([
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        &format!("trace={calls}"),
        "-e",
        &format!("inject={calls}:signal=KILL:when={nth}"),
        "--",
        program,
    ]);
    command.env("AGENT_CNI_LOG", "error");
    command
}

/// Whether the program was killed; strace ends as its tracee did.
pub(crate) fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(9) || status.code() == Some(137)
}

/// Every how many calls a kill is tried: `usual`, or what `AGENT_NETWORK_KILL_STRIDE` says, for a thorough run by hand.
pub(crate) fn stride(usual: usize) -> usize {
    std::env::var("AGENT_NETWORK_KILL_STRIDE")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(usual)
        .max(1)
}

/// Calls `round` with 1, 1 + stride, … until it says that the process came to its end; answers how often it was killed.
pub(crate) fn through_all(stride: usize, mut round: impl FnMut(usize) -> bool) -> usize {
    let mut killed = 0;
    for nth in (1..).step_by(stride) {
        assert!(nth < 5_000, "the process never comes to its end");
        if !round(nth) {
            return killed;
        }
        killed += 1;
    }
    killed
}
