//! `cargo xtask images`: the container images, as OCI archives, without a daemon, a registry or root.
//!
//! What is in which image is a table in `recipe`. The programs are static (musl), so an image holds what they need and
//! nothing else: no shell, no package manager. Beside each archive lies its bill of materials. Times in an archive are
//! the commit's, and paths of this machine stay out of the programs: the same commit with the same Debian packages gives
//! the same digests.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use oci_archive::{Config, Image, Layer, Platform};

use crate::{build_ebpf, setup};

mod certificates;
mod packages;
mod programs;
mod recipe;
mod sbom;

use packages::Unpacked;
use programs::Programs;
use recipe::Recipe;

/// What `cargo xtask images` takes.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where the archives go [default: target/images]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// What they are to run on; with both, each archive holds both
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "amd64"
    )]
    arch: Vec<Arch>,
    /// The registry and folder in the images' names
    #[arg(long, value_name = "NAME", default_value = "localhost/agent-network")]
    registry: String,
    /// The images' tag [default: v and the version]
    #[arg(long)]
    tag: Option<String>,
    /// Take the development build that the tests run, with the system's C library beside it: made in seconds, for trying out
    #[arg(long)]
    dev: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Arch {
    Amd64,
    Arm64,
}

impl From<Arch> for Platform {
    fn from(arch: Arch) -> Platform {
        match arch {
            Arch::Amd64 => Platform::Amd64,
            Arch::Arm64 => Platform::Arm64,
        }
    }
}

/// Builds the programs and writes an archive for each image.
///
/// # Errors
/// When a build fails, a Debian package can't be had, or there is no room.
pub(crate) fn images(options: &Options) -> Result<()> {
    let mut platforms: Vec<Platform> = options.arch.iter().copied().map(Platform::from).collect();
    platforms.sort_unstable();
    platforms.dedup();
    if options.dev && platforms != [Platform::Amd64] {
        bail!("--dev takes this machine's own build: leave out --arch, or --dev");
    }
    let tag = match &options.tag {
        Some(tag) => tag.clone(),
        None => concat!("v", env!("CARGO_PKG_VERSION")).to_owned(),
    };
    recipe::reference(&options.registry, "image", &tag)?;
    build_ebpf::build()?;
    let out = match &options.out {
        Some(out) => out.clone(),
        None => workspace().join("target/images"),
    };
    fs::create_dir_all(&out).with_context(|| format!("create {}", out.display()))?;
    let seconds = commit_time()?;
    let mut built = Vec::new();
    for &platform in &platforms {
        built.push(match options.dev {
            true => programs::development()?,
            false => programs::released(platform)?,
        });
    }
    for recipe in recipe::ALL {
        let reference = recipe::reference(&options.registry, recipe.name, &tag)?;
        let mut images = Vec::new();
        for programs in &built {
            let packages = packages::unpacked(recipe, programs)?;
            let bill = sbom::of(recipe, programs, &packages, &tag)?;
            let file = out.join(format!(
                "{}-{}.cdx.json",
                recipe.name,
                programs.platform.name()
            ));
            fs::write(&file, bill).with_context(|| format!("write {}", file.display()))?;
            images.push(image(recipe, programs, &packages, &tag)?);
        }
        let archive = out.join(format!("{}.tar", recipe.name));
        save(&reference, &images, seconds, &archive)
            .with_context(|| format!("write {}", archive.display()))?;
        let size = fs::metadata(&archive)?.len() / 1_000_000;
        println!("xtask: {reference} is {} ({size} MB)", archive.display());
    }
    println!(
        "xtask: import them on a node with: ctr -n k8s.io images import {}/NAME.tar",
        out.display()
    );
    Ok(())
}

/// One image: Debian's packages below, ours above, so that a new version of ours is a new layer and no more.
fn image(recipe: &Recipe, programs: &Programs, packages: &Unpacked, tag: &str) -> Result<Image> {
    let mut layers = Vec::new();
    if let Some(layer) = packages.layer()? {
        layers.push(layer);
    }
    layers.push(ours(recipe, programs, packages)?);
    Ok(Image {
        platform: programs.platform,
        config: Config {
            entrypoint: vec![format!("/{}", recipe.program)],
            cmd: recipe.arguments.iter().map(|&a| a.to_owned()).collect(),
            env: vec!["PATH=/usr/sbin:/usr/bin:/sbin:/bin:/".to_owned()],
            user: recipe.user.to_owned(),
            labels: recipe.labels(tag, &commit()?),
        },
        layers,
    })
}

fn ours(recipe: &Recipe, programs: &Programs, packages: &Unpacked) -> Result<Layer> {
    let mut layer = Layer::new();
    layer.folder("/tmp", 0o1777)?;
    layer.file("/etc/passwd", 0o644, recipe::PASSWD)?;
    layer.file("/etc/group", 0o644, recipe::GROUP)?;
    if recipe.certificates {
        let bundle = certificates::bundle(&packages.root().join("usr/share/ca-certificates"))?;
        layer.file("/etc/ssl/certs/ca-certificates.crt", 0o644, bundle)?;
    }
    let program = programs.folder.join(recipe.program);
    layer.program(&format!("/{}", recipe.program), &program)?;
    Ok(layer)
}

/// Writes beside the final name first: whoever imports meanwhile sees a whole archive.
fn save(reference: &str, images: &[Image], seconds: u64, archive: &Path) -> Result<()> {
    let staged = archive.with_extension("tar.staged");
    let mut file = BufWriter::new(File::create(&staged)?);
    oci_archive::write(reference, images, seconds, &mut file)?;
    file.flush()?;
    Ok(fs::rename(&staged, archive)?)
}

/// The time of the commit, or what `SOURCE_DATE_EPOCH` says (<https://reproducible-builds.org/specs/source-date-epoch/>).
fn commit_time() -> Result<u64> {
    if let Some(seconds) = std::env::var_os("SOURCE_DATE_EPOCH") {
        let seconds = seconds.to_str().and_then(|s| s.parse().ok());
        return seconds.context("SOURCE_DATE_EPOCH is no number of seconds since 1970");
    }
    let seconds = git(&["log", "-1", "--format=%ct"])?;
    seconds.parse().context("git knows no time of the commit")
}

fn commit() -> Result<String> {
    git(&["rev-parse", "HEAD"])
}

fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .current_dir(workspace())
        .args(arguments)
        .output()
        .context("start git")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("git {} failed: {}", arguments.join(" "), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Where Debian's packages are kept.
fn cache() -> Result<PathBuf> {
    Ok(setup::cache()?.join("images"))
}
