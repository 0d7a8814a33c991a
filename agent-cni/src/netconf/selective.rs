//! The keys that make the network one for some pods only: which pods, how their labels are known, and whose network the
//! others get.

use std::path::PathBuf;

use agent_core::policy::LabelSelector;
use serde::Deserialize;

use super::ConfError;

/// Where runtimes look for networks.
const DEFAULT_CONF_DIR: &str = "/etc/cni/net.d";

/// Which pods are ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Selective {
    /// What their labels must satisfy.
    pub(crate) selector: LabelSelector,
    /// Where the labels of pods are written; the proxy's file.
    pub(crate) workloads_file: PathBuf,
}

/// Where the primary network's configuration is: the one that pods get that are not ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Primary {
    /// The directory.
    pub(crate) conf_dir: PathBuf,
    /// The file in it; when absent, the next one after ours.
    pub(crate) file: Option<String>,
}

impl Default for Primary {
    fn default() -> Self {
        Self {
            conf_dir: DEFAULT_CONF_DIR.into(),
            file: None,
        }
    }
}

/// The key `primary`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawPrimary {
    conf_dir: Option<PathBuf>,
    file: Option<String>,
}

/// Checks the selector and the file that go together.
pub(super) fn selective(
    selector: Option<LabelSelector>,
    workloads_file: Option<PathBuf>,
) -> Result<Option<Selective>, ConfError> {
    match (selector, workloads_file) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(ConfError::Invalid(
            "workloadsFile has no effect without workloadSelector".into(),
        )),
        (Some(_), None) => Err(ConfError::Invalid(
            "workloadSelector needs workloadsFile, the file with the pods' labels (ZeroProxy's workloadsFile)".into(),
        )),
        (Some(selector), Some(workloads_file)) => {
            selector
                .validate()
                .map_err(|error| ConfError::Invalid(format!("workloadSelector: {error}")))?;
            if !workloads_file.is_absolute() {
                return Err(ConfError::Invalid(format!(
                    "workloadsFile \"{}\" must be an absolute path",
                    workloads_file.display()
                )));
            }
            Ok(Some(Selective {
                selector,
                workloads_file,
            }))
        }
    }
}

/// Checks the primary network's place.
pub(super) fn primary(raw: Option<RawPrimary>) -> Result<Primary, ConfError> {
    let raw = raw.unwrap_or_default();
    if let Some(file) = &raw.file
        && (file.is_empty() || file.contains('/'))
    {
        return Err(ConfError::Invalid(format!(
            "primary.file \"{file}\" must be the name of a file in primary.confDir"
        )));
    }
    let conf_dir = raw.conf_dir.unwrap_or_else(|| DEFAULT_CONF_DIR.into());
    if !conf_dir.is_absolute() {
        return Err(ConfError::Invalid(format!(
            "primary.confDir \"{}\" must be an absolute path",
            conf_dir.display()
        )));
    }
    Ok(Primary {
        conf_dir,
        file: raw.file,
    })
}
