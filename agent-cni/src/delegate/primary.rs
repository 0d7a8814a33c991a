//! Finding the primary network: the configuration that a runtime would take if ours were not there.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::list::{List, ListError, OURSELVES, type_of};
use crate::{
    error::CniError,
    file,
    netconf::{NetConf, Primary},
};

/// What libcni and the runtimes read.
const READ: [&str; 3] = ["conf", "conflist", "json"];

/// No primary network can be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrimaryError {
    /// The directory or a file cannot be read.
    #[error("cannot read {}", path.display())]
    Unread {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is none yet.
    #[error(
        "there is no primary network: {} holds no configuration after agent-cni's; install the cluster's CNI, or name its configuration as primary.file",
        .0.display()
    )]
    Missing(PathBuf),
    /// It cannot be used.
    #[error("the primary network's configuration {} cannot be used: {why}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        why: ListError,
    },
}

/// The primary network, for those who only look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PrimaryNetwork {
    /// Its configuration.
    pub(crate) path: PathBuf,
    /// Its plugins' types.
    pub(crate) kinds: Vec<String>,
    /// What its plugins want from the runtime. The runtime asks our configuration, so that it must say the same.
    pub(crate) capabilities: BTreeSet<String>,
}

/// The primary network that a configuration leads to; `conf_dir` stands for the configured directory, for those who see
/// it by another path.
///
/// # Errors
/// There is none, or it cannot be used.
pub(crate) fn primary_of(conf: &NetConf, conf_dir: &Path) -> Result<PrimaryNetwork, CniError> {
    let primary = Primary {
        conf_dir: conf_dir.to_owned(),
        ..conf.primary.clone()
    };
    let (path, list) = find(&primary, &conf.name)?;
    let kinds = list.plugins.iter().map(type_of);
    Ok(PrimaryNetwork {
        path,
        kinds: kinds.map(str::to_owned).collect(),
        capabilities: list.capabilities(),
    })
}

/// Finds and reads it. `network` is how ours is called.
///
/// # Errors
/// There is none, or it cannot be used. A broken one is never passed over: what comes after it is another network.
pub(super) fn find(primary: &Primary, network: &str) -> Result<(PathBuf, List), PrimaryError> {
    let dir = &primary.conf_dir;
    let names = names(dir)?;
    let ours: Vec<bool> = names.iter().map(|name| is_ours(&dir.join(name))).collect();
    let chosen = match &primary.file {
        Some(file) => Some(file),
        None => choose(&ours).and_then(|at| names.get(at)),
    };
    let path = dir.join(chosen.ok_or_else(|| PrimaryError::Missing(dir.clone()))?);
    let bytes = match file::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(PrimaryError::Missing(dir.clone()));
        }
        other => other.map_err(unread(&path))?,
    };
    let unusable = |why| PrimaryError::Unusable {
        path: path.clone(),
        why,
    };
    let mut list = List::parse(&bytes).map_err(unusable)?;
    if has_plugin_files(&bytes) {
        let own = dir.join(&list.name);
        for name in self::names(&own)?
            .iter()
            .filter(|name| name.ends_with(".conf"))
        {
            let file = own.join(name);
            let bytes = file::read(&file).map_err(unread(&file))?;
            list.append(&bytes).map_err(unusable)?;
        }
    }
    let mut us: Vec<String> = names
        .into_iter()
        .zip(ours)
        .filter_map(|(name, ours)| ours.then_some(name))
        .collect();
    us.push(network.to_owned());
    if list.leads_to(&us) {
        return Err(unusable(ListError::Ourselves));
    }
    Ok((path, list))
}

/// Which of the files, in the order of their names and told whether they are ours: the first after the first of ours that
/// is not ours; without one of ours (our configuration comes from elsewhere, such as Multus) the very first.
fn choose(ours: &[bool]) -> Option<usize> {
    let after = ours.iter().position(|ours| *ours).map_or(0, |at| at + 1);
    (after..ours.len()).find(|at| !ours[*at])
}

/// The configurations in the order in which a runtime looks at them. A directory that is not there has none.
fn names(dir: &Path) -> Result<Vec<String>, PrimaryError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(unread(dir))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(unread(dir))?.file_name().into_string());
    }
    names.retain(|name| {
        let end = Path::new(name).extension().and_then(|end| end.to_str());
        end.is_some_and(|end| READ.contains(&end)) && !dir.join(name).is_dir()
    });
    names.sort();
    Ok(names)
}

/// Whether a configuration calls us, by itself or in a list. One that cannot be read is not ours.
fn is_ours(path: &Path) -> bool {
    let Some(value) = file::read(path)
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok())
    else {
        return false;
    };
    let calls_us = |plugin: &Value| plugin.get("type").and_then(Value::as_str) == Some(OURSELVES);
    let listed = value.get("plugins").and_then(Value::as_array);
    calls_us(&value) || listed.into_iter().flatten().any(calls_us)
}

/// Since libcni 1.3, lists may have further plugins in a directory of the network's name.
fn has_plugin_files(bytes: &[u8]) -> bool {
    let value: Value = serde_json::from_slice(bytes).unwrap_or_default();
    value.get("plugins").is_some()
        && !matches!(&value["loadOnlyInlinedPlugins"], Value::Bool(true))
        && value["loadOnlyInlinedPlugins"] != "true"
}

fn unread(path: &Path) -> impl FnOnce(io::Error) -> PrimaryError {
    let path = path.to_owned();
    move |source| PrimaryError::Unread { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = r#"{"cniVersion": "1.1.0", "name": "agents", "type": "agent-cni"}"#;

    fn theirs(name: &str) -> String {
        format!(r#"{{"cniVersion": "1.0.0", "name": "{name}", "plugins": [{{"type": "bridge"}}]}}"#)
    }

    fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn found(dir: &tempfile::TempDir, file: Option<&str>) -> Result<String, PrimaryError> {
        find(
            &Primary {
                conf_dir: dir.path().to_owned(),
                file: file.map(str::to_owned),
            },
            "agents",
        )
        .map(|(_, list)| list.name)
    }

    #[test]
    fn the_next_file_after_ours_is_the_primary() {
        assert_eq!(choose(&[true, false, false]), Some(1));
        assert_eq!(choose(&[false, true, true, false]), Some(3));
        assert_eq!(choose(&[false, false]), Some(0));
        assert_eq!(choose(&[false, true]), None);
        assert_eq!(choose(&[]), None);
    }

    #[test]
    fn a_list_with_us_in_it_is_ours_and_never_the_primary() {
        let list = r#"{"cniVersion": "1.1.0", "name": "agents", "plugins": [{"type": "agent-cni"}, {"type": "portmap"}]}"#;
        let dir = dir(&[
            ("00-agent-cni.conflist", list),
            ("05-agent-cni.conf", OURS),
            ("10-a.conflist", &theirs("a")),
            ("20-b.conflist", &theirs("b")),
            ("09-x.conf.tmp", "{"),
        ]);
        assert_eq!(found(&dir, None).unwrap(), "a");
        assert_eq!(found(&dir, Some("20-b.conflist")).unwrap(), "b");
        let error = found(&dir, Some("05-agent-cni.conf")).unwrap_err();
        assert!(
            error.to_string().contains("leads back to agent-cni"),
            "{error}"
        );
    }

    #[test]
    fn a_broken_one_is_not_passed_over() {
        let dir = dir(&[
            ("00-agent-cni.conf", OURS),
            ("10-a.conflist", "{"),
            ("20-b.conflist", &theirs("b")),
        ]);
        let error = found(&dir, None).unwrap_err();
        assert!(
            error.to_string().contains("10-a.conflist cannot be used"),
            "{error}"
        );
    }

    #[test]
    fn none_is_an_error_that_says_what_to_do() {
        let empty = dir(&[("00-agent-cni.conf", OURS)]);
        for file in [None, Some("10-a.conflist")] {
            let error = found(&empty, file).unwrap_err();
            assert!(
                error.to_string().contains("install the cluster's CNI"),
                "{error}"
            );
        }
    }

    #[test]
    fn plugins_in_files_of_their_own_are_the_last_of_the_list() {
        let dir = dir(&[("10-a.conflist", &theirs("a"))]);
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/10-t.conf"), r#"{"type": "tuning"}"#).unwrap();
        let primary = Primary {
            conf_dir: dir.path().to_owned(),
            file: None,
        };
        let (_, list) = find(&primary, "agents").unwrap();
        assert_eq!(list.plugins[1]["type"], "tuning");
        let only = r#"{"cniVersion": "1.1.0", "name": "a", "loadOnlyInlinedPlugins": true, "plugins": [{"type": "bridge"}]}"#;
        fs::write(dir.path().join("10-a.conflist"), only).unwrap();
        assert_eq!(find(&primary, "agents").unwrap().1.plugins.len(), 1);
    }
}
