//! The state directory, read as it is: unlike the plugin, doctor sets nothing aside.

use std::{
    fs,
    path::{Path, PathBuf},
};

use agent_core::{
    attachment::Attachment,
    node::{FILE_NAME, NodeState},
    node_settings::TakenSettings,
};

use agent_datapath::footprint::{Places, UnfitStateDir, VERSION_RECORD};

use super::{chain, seen_at};
use crate::{
    clock, doctor::check::Seen, file, lock::LockFile, netconf::DEFAULT_PIN_DIR, state::StateDir,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct State {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// The node's choices.
    pub(crate) node: Seen<NodeState>,
    /// Attachments of this boot that no verb is working on.
    pub(crate) attachments: Vec<Attachment>,
    /// Attachments of another boot.
    pub(crate) of_another_boot: Vec<String>,
    /// Files that hold no attachment, and why not.
    pub(crate) garbage: Vec<(String, String)>,
    /// Files that were set aside.
    pub(crate) aside: Vec<String>,
    /// `<containerid>_<ifname>` of attachments that a verb is working on.
    pub(crate) busy: Vec<String>,
    /// The same of verbs that died.
    pub(crate) dead: Vec<String>,
    /// Why the directory could not be read, when it could not.
    pub(crate) unread: Option<String>,
    /// Why it is not fit to be one, where it is read all the same.
    pub(crate) unfit: Option<UnfitStateDir>,
    /// What the node has taken over of its class, where it follows one.
    pub(crate) settings: Seen<Option<TakenSettings>>,
    /// What the installer recorded about itself, where it did.
    pub(crate) version: Seen<Option<String>>,
}

impl State {
    /// Reads it.
    pub(crate) fn read(path: &Path) -> Self {
        let mut state = Self {
            path: path.to_owned(),
            node: node(path),
            attachments: Vec::new(),
            of_another_boot: Vec::new(),
            garbage: Vec::new(),
            aside: Vec::new(),
            busy: Vec::new(),
            dead: Vec::new(),
            unread: None,
            unfit: Places {
                state_dir: path.to_owned(),
                ..Places::below(Path::new("/"))
            }
            .unfit_state_dir(),
            settings: settings(path),
            version: version(path),
        };
        // before the attachments: one that ends meanwhile is in the list, one that begins meanwhile is passed over
        let pending = names(&path.join("pending")).unwrap_or_default();
        (state.dead, state.busy) = pending
            .into_iter()
            .partition(|name| is_dead(&path.join("pending").join(name)));
        match names(path) {
            Ok(names) => names.iter().for_each(|name| state.file(name)),
            Err(why) => state.unread = Some(why),
        }
        state.attachments.sort_by_key(|a| a.fake_ip);
        state
    }

    fn file(&mut self, name: &str) {
        if name.contains(".corrupt-") {
            self.aside.push(name.to_owned());
        }
        if name == FILE_NAME || StateDir::is_not_an_attachment(name) {
            return;
        }
        let read = file::read_own(&self.path.join(name));
        let parsed = match read {
            // removed since the directory was listed
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => Err(error.to_string()),
            Ok(bytes) => Attachment::parse(&bytes).map_err(|error| chain(&error)),
        };
        match parsed {
            Ok(found) if found.file_name() != name => self
                .garbage
                .push((name.to_owned(), "it names another container".to_owned())),
            Ok(found) if found.boot_id != clock::boot_id() => {
                self.of_another_boot.push(name.to_owned());
            }
            Ok(found) if self.is_busy(&found) => {}
            Ok(found) => self.attachments.push(found),
            Err(why) => self.garbage.push((name.to_owned(), why)),
        }
    }

    fn is_busy(&self, attachment: &Attachment) -> bool {
        let name = attachment.file_name();
        self.busy
            .iter()
            .any(|one| name.strip_suffix(".json") == Some(one))
    }

    /// Where the pins are, or would be.
    pub(crate) fn pin_dir(&self) -> PathBuf {
        match &self.node {
            Ok(node) => PathBuf::from(&node.pin_dir),
            Err(_) => PathBuf::from(DEFAULT_PIN_DIR),
        }
    }
}

/// Whether nobody holds the lock, although its file is there.
fn is_dead(lock: &Path) -> bool {
    matches!(LockFile::try_existing(lock), Ok(Some(_)))
}

fn node(path: &Path) -> Seen<NodeState> {
    let file = path.join(FILE_NAME);
    let bytes = seen_at(file.display(), file::read_own(&file))?;
    NodeState::parse(&bytes).map_err(|error| format!("{}: {}", file.display(), chain(&error)))
}

fn settings(path: &Path) -> Seen<Option<TakenSettings>> {
    let file = path.join(TakenSettings::FILE);
    let bytes = match file::read_own(&file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => seen_at(file.display(), other)?,
    };
    let taken = TakenSettings::parse(&bytes);
    taken
        .map(Some)
        .map_err(|error| format!("{}: {}", file.display(), chain(&error)))
}

/// The installer's record is its own business; here only the version in it counts.
fn version(path: &Path) -> Seen<Option<String>> {
    let file = path.join(VERSION_RECORD);
    let bytes = match file::read_own(&file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => seen_at(file.display(), other)?,
    };
    let value: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", file.display()))?;
    let version = value.get("version").and_then(serde_json::Value::as_str);
    version
        .map(|version| Some(version.to_owned()))
        .ok_or_else(|| format!("{}: it has no version", file.display()))
}

fn names(path: &Path) -> Seen<Vec<String>> {
    let mut names = Vec::new();
    for entry in seen_at(path.display(), fs::read_dir(path))? {
        let entry = seen_at(path.display(), entry)?;
        names.extend(entry.file_name().into_string());
    }
    names.sort();
    Ok(names)
}
