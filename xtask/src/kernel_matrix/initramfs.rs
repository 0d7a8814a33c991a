//! The initramfs: busybox, the modules that reach the real root, and the script that does.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use super::kernels::Kernel;

/// What the root needs; what a kernel has built in is no module.
const MODULES: &[&str] = &["virtio_pci", "virtiofs", "overlay"];

const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;

/// Writes the archive for a kernel. `script` is run as process 1 of the real root.
pub(super) fn write(to: &Path, kernel: &Kernel, script: &Path) -> Result<()> {
    let mut archive = Archive::default();
    for dir in ["bin", "proc", "sys", "dev", "mods", "host", "new", "rw"] {
        archive.add(dir, DIRECTORY | 0o755, &[]);
    }
    let busybox = crate::setup::which("busybox").context("busybox (package busybox-static)")?;
    archive.add(
        "bin/busybox",
        REGULAR | 0o755,
        &fs::read(&busybox).with_context(|| format!("read {}", busybox.display()))?,
    );
    let mut load = String::new();
    for (name, bytes) in modules(kernel)? {
        let path = format!("mods/{name}");
        archive.add(&path, REGULAR | 0o644, &bytes);
        load.push_str(&format!("$b insmod /{path}\n"));
    }
    let init = INIT
        .replace("@LOAD@", &load)
        .replace(
            "@MODULES@",
            &kernel.modules.join("lib/modules").to_string_lossy(),
        )
        .replace("@SCRIPT@", &script.to_string_lossy());
    archive.add("init", REGULAR | 0o755, init.as_bytes());
    fs::write(to, archive.finish()).with_context(|| format!("write {}", to.display()))
}

/// Modules with what they depend on, in the order of loading, uncompressed.
fn modules(kernel: &Kernel) -> Result<Vec<(String, Vec<u8>)>> {
    let mut found: Vec<(String, Vec<u8>)> = Vec::new();
    for module in MODULES {
        let output = Command::new("modprobe")
            .arg("-d")
            .arg(&kernel.modules)
            .args(["-S", &kernel.release, "--show-depends", module])
            .output()
            .context("start modprobe (package kmod)")?;
        let text = String::from_utf8_lossy(&output.stdout);
        for path in text.lines().filter_map(|line| line.strip_prefix("insmod ")) {
            let path = Path::new(path.trim());
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let name = file.trim_end_matches(".xz").to_owned();
            if !found.iter().any(|(have, _)| *have == name) {
                found.push((name, read(path)?));
            }
        }
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("ko") => fs::read(path).with_context(|| format!("read {}", path.display())),
        Some("xz") => {
            let output = Command::new("xz").arg("-dc").arg(path).output();
            let output = output.context("start xz (package xz-utils)")?;
            if !output.status.success() {
                bail!("xz can't read {}", path.display());
            }
            Ok(output.stdout)
        }
        _ => bail!("{} is compressed in a way not known here", path.display()),
    }
}

/// Mounts this machine's root below a tmpfs, and goes there.
const INIT: &str = r"#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
@LOAD@
$b mount -t virtiofs -o ro root /host || { echo 'the root could not be mounted'; $b poweroff -f; }
$b mount -t tmpfs -o size=70% rw /rw
$b mkdir /rw/upper /rw/work
$b mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work root /new || $b poweroff -f
$b mkdir -p /new/usr/lib/modules
$b mount --bind /new@MODULES@ /new/usr/lib/modules
for d in proc sys dev; do $b mount --move /$d /new/$d; done
exec $b switch_root /new /bin/bash @SCRIPT@
";

/// A cpio archive of the format `newc`.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let fields = [
            self.entries, // inode
            mode,
            0, // owner
            0, // group
            1, // links
            0, // time
            content.len() as u32,
            0, // device
            0,
            0, // its own device
            0,
            name.len() as u32 + 1,
            0, // checksum
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_read_by_cpio_as_it_was_written() {
        use std::{io::Write, process::Stdio};
        if crate::setup::which("busybox").is_none() {
            assert!(std::env::var_os("CI").is_none(), "busybox is missing");
            return;
        }
        let mut archive = Archive::default();
        archive.add("bin", DIRECTORY | 0o755, &[]);
        archive.add("bin/odd", REGULAR | 0o755, b"abcde");
        archive.add("init", REGULAR | 0o644, b"");
        let mut cpio = Command::new("busybox")
            .args(["cpio", "-t", "-v"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = cpio.stdin.take().unwrap();
        stdin.write_all(&archive.finish()).unwrap();
        drop(stdin);
        let output = cpio.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let names: Vec<&str> = text
            .lines()
            .filter_map(|l| l.split(' ').next_back())
            .collect();
        assert_eq!(names, ["bin", "bin/odd", "init"], "{text}");
        assert!(text.contains("-rwxr-xr-x"), "{text}");
    }
}
