//! What is remembered of a pod that the primary network has: which configuration it was added with, and what came of it.
//!
//! Written before the first plugin is called, so that a DEL goes where the ADD went, whatever becomes of us, of the pod's
//! labels, or of the files in net.d.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use agent_core::attachment::{PodRef, is_container_id, is_interface_name};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::list::List;
use crate::{
    clock,
    command::Target,
    state::{self, StateDir, StateError},
};

const FOLDER: &str = "delegated";
const SCHEMA_VERSION: u32 = 1;

/// See the module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    schema_version: u32,
    /// The container.
    pub(super) container_id: String,
    /// The interface.
    pub(super) ifname: String,
    /// The pod's network namespace at ADD.
    pub(super) netns: String,
    /// `CNI_ARGS` at ADD.
    pub(super) args: String,
    /// The pod.
    pub(super) pod: PodRef,
    /// Where the configuration was read, for people.
    pub(super) source: PathBuf,
    /// The configuration.
    pub(super) list: List,
    /// What the runtime passed for capabilities.
    pub(super) runtime_config: Map<String, Value>,
    /// The last plugin's result; absent until all have succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) result: Option<Value>,
    created: String,
    boot_id: String,
}

impl Record {
    /// A record of an ADD that begins.
    pub(super) fn new(
        target: &Target,
        netns: &str,
        args: &str,
        pod: PodRef,
        source: PathBuf,
        list: List,
        runtime_config: Map<String, Value>,
    ) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            container_id: target.container_id.clone(),
            ifname: target.ifname.clone(),
            netns: netns.to_owned(),
            args: args.to_owned(),
            pod,
            source,
            list,
            runtime_config,
            result: None,
            created: clock::timestamp(),
            boot_id: clock::boot_id(),
        }
    }

    /// Whose it is.
    pub(super) fn target(&self) -> Target {
        Target {
            container_id: self.container_id.clone(),
            ifname: self.ifname.clone(),
        }
    }

    /// True when the links of the time of the ADD can still be there.
    pub(super) fn is_of_this_boot(&self) -> bool {
        self.boot_id == clock::boot_id()
    }

    fn parse(bytes: &[u8], name: &str) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if record.schema_version != SCHEMA_VERSION {
            return Err(format!("it has schema version {}", record.schema_version));
        }
        let sound = is_container_id(&record.container_id) && is_interface_name(&record.ifname);
        if !sound || file(&record.target()) != name {
            return Err("it names another container".into());
        }
        Ok(record)
    }
}

/// The records of a state directory.
#[derive(Debug)]
pub(super) struct Records {
    dir: StateDir,
}

impl Records {
    /// Whether a pod was ever given away on this node.
    pub(super) fn exist(state: &Path) -> bool {
        state.join(FOLDER).exists()
    }

    /// Those below a state directory; makes nothing.
    pub(super) fn of(state: &StateDir) -> Self {
        Self {
            dir: StateDir::look(&state.path().join(FOLDER)),
        }
    }

    /// Reads one. A file that cannot be read as one is set aside and counts as none.
    ///
    /// # Errors
    /// It is there and cannot be opened.
    pub(super) fn get(&self, target: &Target) -> Result<Option<Record>, StateError> {
        self.read(&file(target))
    }

    fn read(&self, name: &str) -> Result<Option<Record>, StateError> {
        let path = self.dir.path().join(name);
        self.dir.read(&path, &|bytes| Record::parse(bytes, name))
    }

    /// Reads all.
    ///
    /// # Errors
    /// The directory is there and cannot be read.
    pub(super) fn all(&self) -> Result<Vec<Record>, StateError> {
        let path = self.dir.path();
        let entries = match fs::read_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(state::doing("read", path))?,
        };
        let mut records = Vec::new();
        for entry in entries {
            let name = entry.map_err(state::doing("read", path))?.file_name();
            if let Some(name) = name.to_str().filter(|name| name.ends_with(".json")) {
                records.extend(self.read(name)?);
            }
        }
        Ok(records)
    }

    /// Writes one, so that it is there completely or not at all.
    ///
    /// # Errors
    /// A step of writing failed.
    pub(super) fn save(&self, record: &Record) -> Result<(), StateError> {
        let path = self.dir.path();
        fs::create_dir_all(path).map_err(state::doing("make", path))?;
        let bytes = serde_json::to_vec_pretty(record)
            .map_err(io::Error::other)
            .map_err(state::doing("write", path))?;
        self.dir.replace(&file(&record.target()), &bytes)
    }

    /// Removes one; fine when it is gone.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(super) fn remove(&self, target: &Target) -> Result<(), StateError> {
        state::remove(&self.dir.path().join(file(target)))
    }
}

fn file(target: &Target) -> String {
    format!("{}.json", state::stem(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let target = Target {
            container_id: "c1".into(),
            ifname: "eth0".into(),
        };
        let list =
            List::parse(br#"{"cniVersion": "1.0.0", "name": "n", "type": "bridge"}"#).unwrap();
        let pod = PodRef {
            namespace: "a".into(),
            name: "b".into(),
            uid: String::new(),
        };
        Record::new(
            &target,
            "/run/netns/c1",
            "",
            pod,
            "10-n.conf".into(),
            list,
            Map::new(),
        )
    }

    #[test]
    fn what_is_written_is_read_back_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::of(&StateDir::look(dir.path()));
        assert!(records.all().unwrap().is_empty());
        let record = record();
        records.save(&record).unwrap();
        assert_eq!(records.get(&record.target()).unwrap(), Some(record.clone()));
        assert_eq!(records.all().unwrap(), std::slice::from_ref(&record));
        records.remove(&record.target()).unwrap();
        records.remove(&record.target()).unwrap();
        assert_eq!(records.get(&record.target()).unwrap(), None);
    }

    #[test]
    fn garbage_and_other_containers_records_are_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::of(&StateDir::look(dir.path()));
        records.save(&record()).unwrap();
        let folder = dir.path().join(FOLDER);
        fs::copy(folder.join("c1_eth0.json"), folder.join("c2_eth0.json")).unwrap();
        fs::write(folder.join("c3_eth0.json"), "{").unwrap();
        assert_eq!(records.all().unwrap().len(), 1);
        let aside = fs::read_dir(&folder).unwrap().count();
        assert_eq!(aside, 3, "nothing is lost");
    }
}
