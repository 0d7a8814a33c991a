//! One virtual machine: the file server for its root, QEMU, and what comes out of the serial lines.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{
    initramfs,
    kernels::Kernel,
    outcome::Heard,
    work::{ROOT, Work},
};
use crate::setup;

/// Enough for a node with its servers, and for what is written over the root.
const MEMORY: &str = "2048M";
/// `no_timer_check`: where this machine is busy, the timer's interrupt may come too late for the kernel, which panics.
/// What follows leaves out what costs an emulated machine much and the data path nothing.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 panic=-1 no_timer_check quiet mitigations=off init_on_alloc=0 no5lvl apparmor=0 audit=0 nokaslr random.trust_cpu=on";
/// The guest's clock goes by what its processor has done, four nanoseconds for an instruction, and only while it waits by
/// the time outside: however busy this machine is, the tests see one and the same slow machine, and no deadline
/// passes while nobody could do anything.
const CLOCK: &str = "shift=2,sleep=on";
/// Where Debian keeps it: with QEMU up to bookworm, in a package of its own later.
const FILE_SERVERS: &[&str] = &["/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd"];

/// Shows the machine's root at one place, without the kernel's own file systems, and serves it. The mounts are private
/// and end with the process.
const SERVE: &str = r#"
set -e
mkdir "$1/$3"
mount --rbind / "$1/$3"
for d in proc sys dev run; do umount -R -l "$1/$3/$d" 2>/dev/null || true; done
mount -o remount,bind,ro "$1/$3"
exec "$2" --socket-path="$1/socket" -o source="$1/$3" -o sandbox=chroot -o cache=always -o xattr
"#;

/// Boots a kernel, lets it run the script, and returns all that it said; `progress` is called with each line that comes
/// and those before it.
///
/// # Errors
/// When the machine can't be started, or hasn't ended after `limit`; what it said until then is in the message.
pub(super) fn run(
    kernel: &Kernel,
    script: &str,
    limit: Duration,
    progress: &dyn Fn(&[String]),
) -> Result<Heard> {
    let work = Work::new(&setup::cache()?, &kernel.release)?;
    let script_file = work.dir.join("guest.sh");
    fs::write(&script_file, script)?;
    let image = work.dir.join("initramfs");
    initramfs::write(&image, kernel, &script_file)?;
    let _files = FileServer::start(&work.dir)?;
    let console = work.dir.join("console.log");
    let mut qemu = Killed(qemu(kernel, &image, &work.dir, &console)?);
    let heard = listen(&mut qemu.0, limit, progress);
    let console = tail(&fs::read(&console).unwrap_or_default());
    let (lines, ended) = heard?;
    if !ended {
        println!(
            "xtask: the machine has not ended after {} s",
            limit.as_secs()
        );
    }
    Ok(Heard { lines, console })
}

fn qemu(kernel: &Kernel, initramfs: &Path, work: &Path, console: &Path) -> Result<Child> {
    let mut command = mortal("qemu-system-x86_64");
    command
        .args(["-accel", "tcg,thread=single", "-cpu", "max"])
        .args(["-icount", CLOCK])
        // with such a clock processors take turns, and wait for each other's locks by turns
        .args(["-smp", "1", "-m", MEMORY])
        .arg("-object")
        .arg(format!(
            "memory-backend-memfd,id=memory,size={MEMORY},share=on"
        ))
        .args(["-numa", "node,memdev=memory"])
        .arg("-chardev")
        .arg(format!("socket,id=root,path={}/socket", work.display()))
        .args(["-device", "vhost-user-fs-pci,chardev=root,tag=root"])
        .args(["-nodefaults", "-no-reboot", "-display", "none"])
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .args(["-serial", "stdio"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", KERNEL_ARGUMENTS])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0);
    command
        .spawn()
        .context("start qemu-system-x86_64 (packages util-linux and qemu-system-x86)")
}

/// A command that ends when this process does, however that ends: neither Ctrl-C nor a kill leaves a machine behind.
fn mortal(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]);
    command
}

/// Reads until the machine ends. Answers whether it ended by itself.
fn listen(
    qemu: &mut Child,
    limit: Duration,
    progress: &dyn Fn(&[String]),
) -> Result<(Vec<String>, bool)> {
    let output = qemu.stdout.take().context("qemu has no output")?;
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if send.send(line).is_err() {
                return;
            }
        }
    });
    let deadline = Instant::now() + limit;
    let mut lines = Vec::new();
    loop {
        match receive.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                lines.push(line);
                progress(&lines);
            }
            Err(RecvTimeoutError::Disconnected) => return Ok((lines, true)),
            Err(RecvTimeoutError::Timeout) => return Ok((lines, false)),
        }
    }
}

/// The end of a console.
fn tail(bytes: &[u8]) -> String {
    let from = bytes.len().saturating_sub(4_000);
    String::from_utf8_lossy(&bytes[from..]).replace('\r', "")
}

/// Ends with this value.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct FileServer {
    _process: Killed,
}

impl FileServer {
    fn start(work: &Path) -> Result<FileServer> {
        let program = FILE_SERVERS
            .iter()
            .find(|path| Path::new(path).exists())
            .with_context(|| {
                format!(
                    "none of {} is there: install qemu-system-common (bookworm) or virtiofsd",
                    FILE_SERVERS.join(", ")
                )
            })?;
        let log = work.join("virtiofsd.log");
        let file = fs::File::create(&log)?;
        let child = mortal("unshare")
            .args([
                "--mount",
                "--propagation",
                "private",
                "bash",
                "-c",
                SERVE,
                "serve",
            ])
            .arg(work)
            .arg(program)
            .arg(ROOT)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .context("start unshare (package util-linux)")?;
        let mut process = Killed(child);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !work.join("socket").exists() {
            if process.0.try_wait()?.is_some() || Instant::now() > deadline {
                let said = fs::read_to_string(&log).unwrap_or_default();
                bail!(
                    "virtiofsd doesn't serve this machine's root: {}",
                    said.trim()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(FileServer { _process: process })
    }
}
