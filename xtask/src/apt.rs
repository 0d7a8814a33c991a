//! Packages of other Debian suites, downloaded by an apt of one's own: the machine's mirror, keys and settings (a
//! proxy), nothing added to its sources, nothing installed. apt checks the signed index and each package's hash.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::run;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// An apt whose files are all below one folder.
pub(crate) struct Apt {
    conf: PathBuf,
    archives: PathBuf,
}

impl Apt {
    /// Configures it for `suites`, and reads their indexes.
    ///
    /// # Errors
    /// When this is no Debian, or a suite can't be reached.
    pub(crate) fn new(work: &Path, suites: &[&str]) -> Result<Apt> {
        Apt::of(work, suites, None)
    }

    /// As [`Apt::new`], for another architecture than the machine's (Debian's names).
    ///
    /// # Errors
    /// As [`Apt::new`].
    pub(crate) fn of(work: &Path, suites: &[&str], architecture: Option<&str>) -> Result<Apt> {
        for dir in [
            "lists/partial",
            "cache/archives/partial",
            "etc/preferences.d",
        ] {
            fs::create_dir_all(work.join(dir)).with_context(|| format!("create {dir}"))?;
        }
        let mirror = mirror()?;
        let sources: String = suites
            .iter()
            // no translations, no AppStream metadata: they are half of all bytes
            .map(|suite| {
                // Debian's fixes of security faults are an archive of their own, beside the other.
                let archive = match suite.ends_with("-security") {
                    true => format!("{}-security", mirror.trim_end_matches('/')),
                    false => mirror.clone(),
                };
                format!("deb [signed-by={KEYRING} target=Packages] {archive} {suite} main\n")
            })
            .collect();
        fs::write(work.join("etc/sources.list"), sources)?;
        let dir = work.display();
        let conf = work.join("etc/apt.conf");
        let architecture = architecture.map_or_else(String::new, |name| {
            format!("APT::Architecture \"{name}\"; APT::Architectures {{ \"{name}\"; }};\n")
        });
        fs::write(
            &conf,
            format!(
                "Dir \"{dir}\"; Dir::State \"{dir}\"; Dir::State::Lists \"{dir}/lists\"; \
                 Dir::State::status \"/dev/null\"; Dir::Cache \"{dir}/cache\"; Dir::Etc \"{dir}/etc\";\n\
                 Dir::Etc::main \"/etc/apt/apt.conf\"; Dir::Etc::parts \"/etc/apt/apt.conf.d\";\n\
                 Acquire::Languages \"none\"; APT::Sandbox::User \"root\";\n{architecture}"
            ),
        )?;
        let apt = Apt {
            conf,
            archives: work.join("cache/archives"),
        };
        run(apt
            .command("apt-get")
            .args(["-q", "update"])
            .stdout(Stdio::null()))?;
        Ok(apt)
    }

    /// Downloads `package` or `package=version` into `folder`, and returns the file.
    ///
    /// # Errors
    /// When there is none, or it can't be reached.
    pub(crate) fn download(&self, package: &str, folder: &Path) -> Result<PathBuf> {
        let mut command = self.command("apt-get");
        command
            .current_dir(folder)
            .args(["-q", "download", package]);
        run(command.stdout(Stdio::null()))?;
        let name = package.split('=').next().unwrap_or_default();
        let begins = format!("{name}_");
        fs::read_dir(folder)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| {
                path.file_name()
                    .is_some_and(|n| n.to_string_lossy().starts_with(&begins))
            })
            .with_context(|| format!("apt-get downloaded no {name}"))
    }

    /// Downloads `packages` and all that they depend on, and returns the files. What was downloaded before and is still the
    /// newest is used again.
    ///
    /// # Errors
    /// When there is none, or it can't be reached.
    pub(crate) fn closure(&self, packages: &[&str]) -> Result<Vec<PathBuf>> {
        let install = |apt: &Apt| {
            let mut command = apt.command("apt-get");
            command.args(["-qq", "-y", "--no-install-recommends"]);
            command
        };
        // one line a package: 'URI' file size hash
        let mut uris = install(self);
        uris.args(["--print-uris", "-o", "Dir::Cache=/nonexistent", "install"]);
        let output = uris.args(packages).output().context("start apt-get")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("apt-get finds no {}: {}", packages.join(" "), said.trim());
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let files = text.lines().filter_map(|line| line.split(' ').nth(1));
        let files: Vec<PathBuf> = files.map(|name| self.archives.join(name)).collect();
        let mut download = install(self);
        download.args(["--download-only", "install"]).args(packages);
        run(download.stdout(Stdio::null()))?;
        Ok(files)
    }

    /// The packages whose names begin so.
    ///
    /// # Errors
    /// When apt-cache doesn't run.
    pub(crate) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let output = self
            .command("apt-cache")
            .args(["pkgnames", prefix])
            .output()
            .context("start apt-cache")?;
        if !output.status.success() {
            bail!("apt-cache pkgnames failed ({})", output.status);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().map(str::to_owned).collect())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &self.conf);
        command
    }
}

/// Where the machine gets its own packages.
fn mirror() -> Result<String> {
    let output = Command::new("apt-get")
        .args([
            "indextargets",
            "--format",
            "$(REPO_URI)",
            "Created-By: Packages",
        ])
        .output()
        .context("start apt-get (this needs Debian)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .find(|uri| !uri.contains("security"))
        .map(str::to_owned)
        .context("apt-get knows no Debian mirror")
}
