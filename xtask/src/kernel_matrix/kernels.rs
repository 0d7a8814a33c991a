//! Debian's packaged kernels, unpacked into the cache and never installed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    str::FromStr,
};

use anyhow::{Context, Result, bail};

use crate::{apt::Apt, run, setup};

/// Suites that can be relied on; nothing of testing or unstable.
const SUITES: &[&str] = &[
    "bullseye",
    "bookworm",
    "bookworm-backports",
    "trixie",
    "trixie-backports",
];
/// The one suite that has a series' newest release; other series are looked for in all of them.
const HOMES: &[(Series, &str)] = &[
    (Series::Of(5, 10), "bullseye"),
    (Series::Of(6, 1), "bookworm"),
    (Series::Of(6, 12), "trixie"),
];
/// The flavour for virtual machines: the smallest package with the same network code.
const FLAVOUR: &str = "-cloud-amd64";

/// Which kernel is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Series {
    /// The newest release of a series such as 5.10.
    Of(u64, u64),
    /// The newest of all.
    Newest,
}

impl Series {
    /// The suites to look in. An index is ten megabytes.
    fn suites(&self) -> &'static [&'static str] {
        HOMES
            .iter()
            .find(|(series, _)| series == self)
            .map_or(SUITES, |(_, suite)| std::slice::from_ref(suite))
    }
}

impl FromStr for Series {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "newest" {
            return Ok(Self::Newest);
        }
        let numbers = text.split_once('.');
        let parsed = numbers.and_then(|(a, b)| Some(Self::Of(a.parse().ok()?, b.parse().ok()?)));
        parsed.with_context(|| {
            format!("\"{text}\" is no kernel series; write it like 5.10, or newest")
        })
    }
}

impl std::fmt::Display for Series {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Of(major, minor) => write!(f, "{major}.{minor}"),
            Self::Newest => f.write_str("newest"),
        }
    }
}

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    /// As `uname -r` says it.
    pub(super) release: String,
    /// What QEMU boots.
    pub(super) image: PathBuf,
    /// The folder that has `lib/modules/<release>`.
    pub(super) modules: PathBuf,
}

/// Brings each series into the cache; what is there already costs nothing unless `update`.
pub(super) fn obtain(wanted: &[Series], update: bool) -> Result<Vec<Kernel>> {
    let cache = setup::cache()?.join("kernels");
    fs::create_dir_all(&cache).with_context(|| format!("create {}", cache.display()))?;
    let cached = |series: &Series| -> Option<Kernel> {
        let release = fs::read_to_string(cache.join(format!("{series}.release"))).ok()?;
        unpacked(&cache, release.trim()).ok()
    };
    let missing: Vec<&Series> = wanted
        .iter()
        .filter(|series| update || cached(series).is_none())
        .collect();
    if !missing.is_empty() {
        let suites: BTreeSet<&str> = missing
            .iter()
            .flat_map(|series| series.suites())
            .copied()
            .collect();
        let suites = Vec::from_iter(suites);
        println!("xtask: Debian's kernels of {}", suites.join(", "));
        let apt = Apt::new(&cache.join("apt"), &suites)?;
        for series in missing {
            fetch(&apt, &cache, series)?;
        }
    }
    let mut kernels = Vec::new();
    for series in wanted {
        kernels.push(
            cached(series)
                .with_context(|| format!("kernel {series} is not in {}", cache.display()))?,
        );
    }
    // the newest may be one of the others
    kernels.dedup_by(|a, b| a.release == b.release);
    Ok(kernels)
}

fn fetch(apt: &Apt, cache: &Path, series: &Series) -> Result<()> {
    let names = apt.names("linux-image-")?;
    let release = newest(&names, series).with_context(|| {
        format!(
            "Debian has no kernel {series} in {}; others are in `apt-cache search linux-image`",
            series.suites().join(", ")
        )
    })?;
    if unpacked(cache, &release).is_err() {
        println!("xtask: unpacking Debian's kernel {release}");
        unpack(apt, cache, &release)?;
    }
    fs::write(cache.join(format!("{series}.release")), &release)?;
    Ok(())
}

/// The newest release of a series among package names.
fn newest(names: &[String], series: &Series) -> Option<String> {
    let of_series = |numbers: &[u64]| match series {
        Series::Newest => true,
        Series::Of(major, minor) => numbers.starts_with(&[*major, *minor]),
    };
    names
        .iter()
        .filter_map(|name| name.strip_prefix("linux-image-"))
        // the meta package `cloud-amd64` names no release
        .filter(|release| release.ends_with(FLAVOUR) && release.starts_with(|c: char| c.is_ascii_digit()))
        .filter(|release| of_series(&numbers_in(release)))
        .max_by_key(|release| numbers_in(release))
        .map(str::to_owned)
}

/// The numbers of a release before its flavour, in their order.
fn numbers_in(release: &str) -> Vec<u64> {
    release
        .trim_end_matches(FLAVOUR)
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

fn unpack(apt: &Apt, cache: &Path, release: &str) -> Result<()> {
    let work = cache.join(format!("{release}.new"));
    let _ = fs::remove_dir_all(&work);
    let debs = work.join("debs");
    fs::create_dir_all(&debs)?;
    // from 7.x on the image is split
    let split = format!("linux-binary-{release}");
    let packages = if apt.names(&split)?.contains(&split) {
        vec![split, format!("linux-modules-{release}")]
    } else {
        vec![format!("linux-image-{release}")]
    };
    for package in packages {
        let deb = apt.download(&package, &debs)?;
        run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&work))?;
    }
    fs::remove_dir_all(&debs)?;
    let modules = modules_root(&work, release)?;
    run(Command::new("depmod").arg("-b").arg(&modules).arg(release))?;
    let finished = cache.join(release);
    let _ = fs::remove_dir_all(&finished);
    fs::rename(&work, &finished).with_context(|| format!("create {}", finished.display()))
}

/// `lib/modules` in older packages, `usr/lib/modules` in newer ones.
fn modules_root(dir: &Path, release: &str) -> Result<PathBuf> {
    [dir.join("usr"), dir.to_owned()]
        .into_iter()
        .find(|root| root.join("lib/modules").join(release).is_dir())
        .with_context(|| format!("{} has no modules of {release}", dir.display()))
}

fn unpacked(cache: &Path, release: &str) -> Result<Kernel> {
    let dir = cache.join(release);
    let modules = modules_root(&dir, release)?;
    let image = [
        dir.join(format!("boot/vmlinuz-{release}")),
        modules.join("lib/modules").join(release).join("vmlinuz"),
    ];
    let Some(image) = image.into_iter().find(|path| path.is_file()) else {
        bail!("{} has no kernel image", dir.display());
    };
    Ok(Kernel {
        release: release.to_owned(),
        image,
        modules,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_a_series_is_found_by_its_numbers() {
        let names: Vec<String> = [
            "linux-image-cloud-amd64",
            "linux-image-5.10.0-9-cloud-amd64",
            "linux-image-5.10.0-32-cloud-amd64",
            "linux-image-5.10.0-40-amd64",
            "linux-image-6.1.0-50-cloud-amd64",
            "linux-image-6.12.9+deb13-cloud-amd64",
            "linux-image-6.12.117+deb13-cloud-amd64",
            "linux-image-6.12.200+deb13-cloud-amd64-unsigned",
            "linux-image-7.3.4+deb13-cloud-amd64",
        ]
        .map(str::to_owned)
        .into();
        for (series, wanted) in [
            ("5.10", "5.10.0-32-cloud-amd64"),
            ("6.1", "6.1.0-50-cloud-amd64"),
            ("6.12", "6.12.117+deb13-cloud-amd64"),
            ("newest", "7.3.4+deb13-cloud-amd64"),
        ] {
            let found = newest(&names, &series.parse().unwrap());
            assert_eq!(found.as_deref(), Some(wanted), "{series}");
        }
        assert_eq!(newest(&names, &Series::Of(5, 1)), None);
    }

    #[test]
    fn a_series_with_a_home_is_looked_for_nowhere_else() {
        assert_eq!(Series::Of(5, 10).suites(), ["bullseye"]);
        assert_eq!(Series::Of(6, 18).suites(), SUITES);
        assert_eq!(Series::Newest.suites(), SUITES);
        assert!(HOMES.iter().all(|(_, home)| SUITES.contains(home)));
    }

    #[test]
    fn a_series_reads_as_it_is_written() {
        for text in ["5.10", "newest"] {
            assert_eq!(text.parse::<Series>().unwrap().to_string(), text);
        }
        assert!("5".parse::<Series>().is_err() && "5.x".parse::<Series>().is_err());
    }
}
