//! Debian's packages of an image, with what they depend on, unpacked and never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use oci_archive::{Layer, Platform};

use super::programs::Programs;
use super::recipe::Recipe;
use crate::{apt::Apt, run};

/// The suites: stable, with what became urgent meanwhile.
const SUITES: &[&str] = &["trixie", "trixie-updates", "trixie-security"];
/// The C library of a program that isn't static.
const C_LIBRARY: &[&str] = &["libc6", "libgcc-s1"];
/// What nothing in an image reads; `copyright` stays, as licences ask for it.
const UNREAD: &[&str] = &[
    "usr/share/bash-completion",
    "usr/share/bug",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/gcc",
    "usr/lib/systemd",
    "usr/share/i18n",
    "usr/sbin/update-ca-certificates",
    "etc/ca-certificates",
];

/// A Debian package.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    /// What `dpkg` says of it, for scanners that look what an image is made of.
    control: String,
}

/// Packages, unpacked into one folder.
pub(super) struct Unpacked {
    folder: PathBuf,
    pub(super) packages: Vec<Package>,
    platform: Platform,
}

/// Downloads and unpacks what a recipe wants.
///
/// # Errors
/// When this is no Debian, or a package can't be had.
pub(super) fn unpacked(recipe: &Recipe, programs: &Programs) -> Result<Unpacked> {
    let mut wanted: Vec<&str> = recipe.packages.to_vec();
    if !programs.is_static {
        wanted.extend(C_LIBRARY);
    }
    let platform = programs.platform;
    let folder = super::cache()?.join(format!("{}-{}", recipe.name, platform.name()));
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let mut unpacked = Unpacked {
        folder,
        packages: Vec::new(),
        platform,
    };
    fs::create_dir_all(unpacked.root())?;
    if wanted.is_empty() && !recipe.certificates {
        return Ok(unpacked);
    }
    println!(
        "xtask: Debian packages of {} for {}",
        recipe.name,
        platform.name()
    );
    let apt = Apt::of(
        &super::cache()?.join(platform.name()),
        SUITES,
        Some(platform.name()),
    )?;
    let mut archives = Vec::new();
    if !wanted.is_empty() {
        archives = apt.closure(&wanted)?;
    }
    if recipe.certificates {
        // They are only read: what would install them (openssl, debconf, perl) is no part of the image.
        archives.push(apt.download("ca-certificates", &unpacked.folder)?);
    }
    for archive in archives {
        unpacked.add(&archive)?;
    }
    unpacked.packages.sort_unstable();
    Ok(unpacked)
}

impl Unpacked {
    /// Where the files are.
    pub(super) fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// The files as a layer; none when there are no packages.
    ///
    /// # Errors
    /// When they can't be read.
    pub(super) fn layer(&self) -> Result<Option<Layer>> {
        let mut layer = Layer::new();
        layer.tree(&self.root(), is_wanted)?;
        // Where programs look for libraries, which Debian's base-files and libc6 leave to the installation.
        for (link, target) in [
            ("bin", "usr/bin"),
            ("sbin", "usr/sbin"),
            ("lib", "usr/lib"),
            ("lib64", "usr/lib64"),
        ] {
            if layer.has(&format!("/{target}")) && !layer.has(&format!("/{link}")) {
                layer.link(&format!("/{link}"), target)?;
            }
        }
        for package in &self.packages {
            layer.file(
                &format!("/var/lib/dpkg/status.d/{}", package.name),
                0o644,
                package.control.as_str(),
            )?;
        }
        Ok((!self.packages.is_empty()).then_some(layer))
    }

    fn add(&mut self, archive: &Path) -> Result<()> {
        run(Command::new("dpkg-deb")
            .arg("-x")
            .arg(archive)
            .arg(self.root()))
        .with_context(|| format!("unpack {}", archive.display()))?;
        let output = Command::new("dpkg-deb").arg("-f").arg(archive).output()?;
        if !output.status.success() {
            bail!("dpkg-deb can't read {}", archive.display());
        }
        let control = String::from_utf8(output.stdout).context("a control file is UTF-8")?;
        let field = |name: &str| {
            let mut lines = control.lines();
            let value = lines.find_map(|l| l.strip_prefix(name)?.strip_prefix(": "));
            value
                .map(str::to_owned)
                .with_context(|| format!("{} has no {name}", archive.display()))
        };
        self.packages.push(Package {
            name: field("Package")?,
            version: field("Version")?,
            control: control.clone(),
        });
        Ok(())
    }

    /// `pkg:deb/debian/…`, as bills of materials name packages (<https://github.com/package-url/purl-spec>).
    pub(super) fn purl(&self, package: &Package) -> String {
        let Package { name, version, .. } = package;
        let version = version
            .replace('+', "%2B")
            .replace(':', "%3A")
            .replace('~', "%7E");
        format!(
            "pkg:deb/debian/{}@{version}?arch={}",
            name.replace('+', "%2B"),
            self.platform.name()
        )
    }
}

fn is_wanted(path: &Path) -> bool {
    if UNREAD.iter().any(|unread| path.starts_with(unread)) {
        return false;
    }
    // the roots are put into one file
    if path.starts_with("usr/share/ca-certificates") {
        return false;
    }
    // the C library's tables of character sets
    if path.components().any(|part| part.as_os_str() == "gconv") {
        return false;
    }
    match path.strip_prefix("usr/share/doc") {
        Ok(file) => file.components().count() < 2 || path.ends_with("copyright"),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_libraries_and_licences_stay_and_what_nobody_reads_does_not() {
        for wanted in [
            "usr/sbin/iptables-nft",
            "usr/lib/x86_64-linux-gnu/libc.so.6",
            "usr/share/doc/iptables",
            "usr/share/doc/iptables/copyright",
            "etc/protocols",
        ] {
            assert!(is_wanted(Path::new(wanted)), "{wanted}");
        }
        for unread in [
            "usr/share/man/man8/iptables.8.gz",
            "usr/share/doc/iptables/changelog.gz",
            "usr/share/doc/iptables/html/index.html",
            "usr/lib/x86_64-linux-gnu/gconv/BIG5.so",
            "usr/share/ca-certificates/mozilla/A.crt",
        ] {
            assert!(!is_wanted(Path::new(unread)), "{unread}");
        }
    }
}
