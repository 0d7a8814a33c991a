//! Owns one world: the mount, pid, network, uts and ipc namespaces in which a whole node and everything around it
//! lives, and the one process that holds them.
//!
//! The holder is PID 1 of the world and reads a pipe that only this process can write. However this process ends
//! (return, panic, Ctrl-C, SIGKILL), the pipe closes, the holder ends, and the kernel ends every process, mount,
//! link and network namespace of the world with it. Nothing of it has a name outside, so worlds run side by side.
//! What runs inside is the business of [`crate::node`] and [`crate::outside`].

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};

use crate::cgroup;
use crate::place::Place;
use crate::procfs;

/// The folder under which every world keeps its files while it lives.
pub const WORLDS: &str = "/tmp/agent-network-e2e";

/// Run by the world's PID 1: its own `/etc`, `/opt`, `/var`, `/run`, `/sys` and bpffs, then wait for the pipe.
const HOLDER: &str = r#"
set -e
W=$1
mount -t tmpfs tmpfs "$W/scratch"
for d in etc opt var; do
  mkdir "$W/scratch/$d.upper" "$W/scratch/$d.work"
  mount -t overlay overlay -o "lowerdir=/$d,upperdir=$W/scratch/$d.upper,workdir=$W/scratch/$d.work" "/$d"
done
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/lock
mkdir "$W/scratch/cgroup"
mount --rbind /sys/fs/cgroup "$W/scratch/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$W/scratch/cgroup" /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
rm -rf /var/lib/tke-agent-network /etc/cni /opt/cni
mkdir -p /etc/cni/net.d /opt/cni/bin
hostname "$2"
printf '127.0.0.1 localhost %s\n' "$2" > /etc/hosts
ip link set lo up
echo ready
read -r word || true
if [ "$word" = keep ]; then while :; do sleep 3600 & wait $! || true; done; fi
kill -9 -1 2>/dev/null || true
for group in /sys/fs/cgroup/agent-network-"${W##*/}" /sys/fs/cgroup/*/agent-network-"${W##*/}"; do
  for try in 1 2 3 4 5 6 7 8 9 10; do
    [ -d "$group" ] || break
    find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
  done
done
umount -l "$W/scratch" 2>/dev/null || true
rm -rf --one-file-system "$W"
"#;

/// A world; dropping it removes everything in it.
pub struct World {
    dir: PathBuf,
    holder: Child,
    pipe: Option<ChildStdin>,
    pid1: i32,
    kept: bool,
}

impl World {
    /// Makes a world whose node is called `hostname`.
    ///
    /// # Errors
    /// When this process isn't root, or the kernel refuses a namespace or a mount.
    pub fn create(hostname: &str) -> Result<World> {
        if !nix::unistd::geteuid().is_root() {
            bail!("namespaces can't be made without root: run this as root");
        }
        reap_leftovers();
        let dir = make_dir(hostname)?;
        let mut holder = Command::new("unshare")
            .args([
                "--mount",
                "--pid",
                "--net",
                "--uts",
                "--ipc",
                "--fork",
                "--kill-child=KILL",
            ])
            .args([
                "--mount-proc",
                "--propagation",
                "private",
                "--",
                "bash",
                "-c",
                HOLDER,
                "holder",
            ])
            .arg(&dir)
            .arg(hostname)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(dir.join("logs/holder.log"))?)
            .process_group(0)
            .spawn()
            .context("start unshare (package util-linux)")?;
        let pipe = holder.stdin.take();
        let out = holder.stdout.take().context("the holder has no stdout")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        if line.trim() != "ready" {
            let why = fs::read_to_string(dir.join("logs/holder.log")).unwrap_or_default();
            let _ = holder.kill();
            let _ = holder.wait();
            let _ = fs::remove_dir_all(&dir);
            bail!(
                "the namespaces of a test node can't be made here: {}",
                why.trim()
            );
        }
        let pid1 = procfs::only_child(holder.id() as i32).context("find the world's PID 1")?;
        fs::write(
            dir.join("pid1"),
            format!("{pid1} {}\n", procfs::start_time(pid1)?),
        )?;
        Ok(World {
            dir,
            holder,
            pipe,
            pid1,
            kept: false,
        })
    }

    /// The world's folder, the same path inside and outside.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its name, which no other world has or had.
    pub fn name(&self) -> String {
        let name = self.dir.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// The folder with the output of everything that ran.
    pub fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }

    /// A path inside the world, as this process reaches it.
    pub fn inside(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid1))
    }

    /// The node: the world's first network namespace.
    pub fn node(&self) -> Place {
        Place::in_world(
            self.pid1,
            format!("/proc/{}/ns/net", self.pid1).into(),
            self.logs(),
        )
    }

    /// A further network namespace `name`, made when it isn't there; `/run/netns/name` inside the world.
    ///
    /// # Errors
    /// When `ip netns add` fails.
    pub fn namespace(&self, name: &str) -> Result<Place> {
        let path = self.inside(&format!("/run/netns/{name}"));
        if !path.exists() {
            self.node().run(&["ip", "netns", "add", name])?.success()?;
        }
        Ok(Place::in_world(self.pid1, path, self.logs()))
    }

    /// Puts a link between this world's node (`name`) and another's (`other_name`).
    ///
    /// # Errors
    /// When one of the names is taken.
    pub fn link(&self, name: &str, other: &World, other_name: &str) -> Result<()> {
        // in no world's process table has the other's PID 1 a number, so only the network is entered
        let out = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", self.pid1))
            .args([
                "ip", "link", "add", name, "type", "veth", "peer", "name", other_name,
            ])
            .args(["netns", &other.pid1.to_string()])
            .output()
            .context("start nsenter (package util-linux)")?;
        if !out.status.success() {
            bail!(
                "link {name} to {other_name}: {}",
                String::from_utf8_lossy(&out.stderr).trim()
            );
        }
        Ok(())
    }

    /// PID 1 of the world, as seen from outside.
    pub fn pid1(&self) -> i32 {
        self.pid1
    }

    /// Lets the world outlive this process. It is removed by [`remove`] later.
    ///
    /// # Errors
    /// When the holder is gone already.
    pub fn keep(mut self) -> Result<PathBuf> {
        let mut pipe = self.pipe.take().context("the world is closing")?;
        pipe.write_all(b"keep\n")?;
        self.kept = true;
        Ok(self.dir.clone())
    }

    fn save_logs_of_a_failure(&self) {
        let Ok(exe) = std::env::current_exe() else {
            return;
        };
        let Some(target) = exe.ancestors().find(|p| p.ends_with("target")) else {
            return;
        };
        let name = self.dir.file_name().unwrap_or_default();
        let to = target.join("e2e-failures").join(name);
        let copied = fs::create_dir_all(&to).is_ok()
            && Command::new("cp")
                .arg("-r")
                .arg(self.logs())
                .arg(&to)
                .status()
                .is_ok_and(|s| s.success());
        if copied {
            eprintln!("the logs of everything that ran are in {}", to.display());
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        if std::thread::panicking() {
            self.save_logs_of_a_failure();
        }
        drop(self.pipe.take());
        let deadline = Instant::now() + crate::patience::patience(Duration::from_secs(20));
        while Instant::now() < deadline {
            if !matches!(self.holder.try_wait(), Ok(None)) {
                cgroup::remove(&self.name());
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        cgroup::remove(&self.name());
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Removes a kept world.
///
/// # Errors
/// When `dir` isn't a world's folder, or a process of it doesn't end.
pub fn remove(dir: &Path) -> Result<()> {
    let (pid, start) =
        identity_of(dir).ok_or_else(|| anyhow!("{} isn't a kept world", dir.display()))?;
    if procfs::start_time(pid).is_ok_and(|now| now == start) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL)?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while procfs::start_time(pid).is_ok_and(|now| now == start) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))
}

/// Removes the folders and control groups of worlds whose holder was killed before it could tidy up.
pub fn reap_leftovers() {
    let Ok(entries) = fs::read_dir(WORLDS) else {
        return;
    };
    for dir in entries.filter_map(|e| e.ok().map(|e| e.path())) {
        let dead = match identity_of(&dir) {
            Some((pid, start)) => procfs::start_time(pid).map_or(true, |now| now != start),
            // being made right now, unless it is old
            None => fs::metadata(&dir)
                .and_then(|m| m.modified())
                .is_ok_and(|t| t.elapsed().is_ok_and(|age| age > Duration::from_secs(300))),
        };
        if dead {
            let _ = fs::remove_dir_all(&dir);
        }
    }
    cgroup::reap();
}

fn identity_of(dir: &Path) -> Option<(i32, u64)> {
    let text = fs::read_to_string(dir.join("pid1")).ok()?;
    let (pid, start) = text.trim().split_once(' ')?;
    Some((pid.parse().ok()?, start.parse().ok()?))
}

fn make_dir(hostname: &str) -> Result<PathBuf> {
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.subsec_nanos());
    let dir = Path::new(WORLDS).join(format!("{hostname}-{}-{nanos:09}", std::process::id()));
    for sub in ["scratch", "logs"] {
        fs::create_dir_all(dir.join(sub)).with_context(|| format!("make {}", dir.display()))?;
    }
    Ok(dir)
}
