//! The container images of the tests, made of built programs: archives that `ctr images import` takes. No registry,
//! nothing is pulled.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;

use crate::place::Place;

/// What a sandbox is held by.
pub const PAUSE: Image = Image {
    reference: "localhost/pause:1",
    entrypoint: "/pause",
    programs: &[("/pause", "pause")],
    shell: false,
};
/// What the test's pods run: `probe` and a shell.
pub const CLIENT: Image = Image {
    reference: "localhost/client:1",
    entrypoint: "/bin/sleep",
    programs: &[("/bin/probe", "probe")],
    shell: true,
};
/// The cluster's DNS server.
pub const COREDNS: Image = Image {
    reference: "localhost/coredns:1",
    entrypoint: "/coredns",
    programs: &[("/coredns", "coredns")],
    shell: false,
};

/// An image of one layer.
pub struct Image {
    /// The name that pods call it by.
    pub reference: &'static str,
    entrypoint: &'static str,
    /// Path in the image, and name of the program that build-bins.sh made.
    programs: &'static [(&'static str, &'static str)],
    shell: bool,
}

impl Image {
    /// Writes the archive into `dir`, from the programs in `bins`; returns its path.
    ///
    /// # Errors
    /// When a program is missing, or there is no room.
    pub fn archive(&self, place: &Place, bins: &Path, dir: &Path) -> Result<PathBuf> {
        let archive = dir.join(format!("{}.tar", self.reference.replace(['/', ':'], "-")));
        let mut line: Vec<String> = vec![
            "python3".into(),
            concat!(env!("CARGO_MANIFEST_DIR"), "/cluster/mkimage.py").into(),
            archive.to_string_lossy().into_owned(),
            self.reference.into(),
            json!({"Entrypoint": [self.entrypoint]}).to_string(),
        ];
        let programs = self.programs.iter();
        line.extend(programs.map(|(to, from)| format!("{to}={}", bins.join(from).display())));
        if self.shell {
            line.push("/bin/busybox=/bin/busybox".into());
            let names = ["sh", "sleep", "ip", "cat", "env", "hostname", "echo"];
            line.extend(names.map(|n| format!("/bin/{n}=->/bin/busybox")));
        }
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        place.run(&line)?.success()?;
        Ok(archive)
    }
}
