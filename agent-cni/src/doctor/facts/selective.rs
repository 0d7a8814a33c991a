//! What a selective configuration needs besides: the labels, and the network of the pods that are not ours.

use std::path::PathBuf;

use agent_core::workloads::WorkloadsFile;

use super::{chain, cni::Cni, seen_at};
use crate::{
    delegate,
    doctor::{check::Seen, options::Options},
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Selective {
    /// The file with the labels.
    pub(crate) workloads_file: PathBuf,
    /// How many entries it has.
    pub(crate) entries: Seen<usize>,
    /// The primary network's file.
    pub(crate) primary: Seen<PathBuf>,
    /// Its plugins that are not installed.
    pub(crate) missing: Vec<String>,
    /// Capabilities that its plugins want and our configuration does not declare.
    pub(crate) undeclared: Vec<String>,
}

impl Selective {
    /// Reads it; nothing when every pod is ours.
    pub(crate) fn read(cni: &Cni, options: &Options) -> Option<Self> {
        let conf = &cni.conf();
        let selective = conf.selective.as_ref()?;
        let file = options.on_host(&selective.workloads_file);
        let entries = seen_at(file.display(), std::fs::read(&file)).and_then(|bytes| {
            WorkloadsFile::parse(&bytes)
                .map(|file| file.len())
                .map_err(|error| format!("{}: {}", file.display(), chain(&error)))
        });
        let found = delegate::primary_of(conf, &options.on_host(&conf.primary.conf_dir));
        let missing = found
            .iter()
            .flat_map(|primary| &primary.kinds)
            .filter(|kind| !options.host_cni_bin.join(kind).is_file());
        let declared = cni.capabilities();
        let undeclared = found
            .iter()
            .flat_map(|primary| primary.capabilities.difference(&declared));
        Some(Self {
            undeclared: undeclared.cloned().collect(),
            entries,
            missing: missing.cloned().collect(),
            primary: found
                .map(|primary| primary.path)
                .map_err(|error| chain(&error)),
            workloads_file: file,
        })
    }
}
