//! Refusals as a container runtime or an unprivileged user meets them, for the calling thread and what it starts.

use nix::libc;

/// Makes every bpf(2) call fail with an error number, by a real seccomp filter.
#[expect(unsafe_code, reason = "nix installs no seccomp filter")]
pub(crate) fn bpf_calls(errno: i32) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let number_of_the_call = 0;
    let mut filter = [
        statement(
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            0,
            0,
            number_of_the_call,
        ),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_bpf as u32,
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | errno as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program and its statements live until the call returns; the kernel copies them.
    let done = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Takes every capability from the calling thread.
#[expect(unsafe_code, reason = "nix sets no capabilities")]
pub(crate) fn all_capabilities() {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let none = [[0u32; 3]; 2];
    // SAFETY: header and data have the layout of version 3, and live until the call returns.
    let done = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}
