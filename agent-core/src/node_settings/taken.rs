//! What a node has taken over of its class: `settings` in the state directory. The installer writes it, and reads it again
//! while there is no `nodes.json`; ZeroProxy reads it, and tells the controller.

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use super::{ClassSettings, Connectivity, FailMode, NodeSettingsError, NodeSettingsFile};

/// The settings that a node goes by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TakenSettings {
    /// Format of the file; [`super::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The node.
    pub node: String,
    /// Its class.
    pub class: String,
    /// The range that the class gives the node.
    #[serde(rename = "fakeIPCIDR")]
    pub fake_ip_cidr: Ipv4Net,
    /// The range that the node's pods have until the last of them is gone, when it is another.
    #[serde(
        rename = "stagedBehind",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub staged_behind: Option<Ipv4Net>,
    /// Why nobody says this any more; absent while `nodes.json` does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_because: Option<String>,
    /// What the class says. While it is only kept, nothing in it opens anything.
    pub settings: ClassSettings,
}

impl TakenSettings {
    /// Name of the file in the state directory; those that end with `.json` are attachments.
    pub const FILE: &'static str = "settings";

    /// What `file` says for `node`; `None` when no class is for it.
    pub fn of(file: &NodeSettingsFile, node: &str) -> Option<Self> {
        let (entry, class) = file.node(node)?;
        Some(Self {
            schema_version: super::SCHEMA_VERSION,
            node: node.to_owned(),
            class: entry.class.clone(),
            fake_ip_cidr: entry.fake_ip_cidr,
            staged_behind: None,
            kept_because: None,
            settings: class.clone(),
        })
    }

    /// The same while nobody says it any more: what is dangerous to go on with for want of an answer is off.
    #[must_use]
    pub fn kept(mut self, why: String) -> Self {
        self.settings.fail_mode = FailMode::Closed;
        self.settings.default_connectivity = Connectivity::Zero;
        self.kept_because = Some(why);
        self
    }

    /// Whether the class said the same, whatever came of it on the node.
    pub fn same_word(&self, other: &Self) -> bool {
        let word = |one: &Self| Self {
            staged_behind: None,
            kept_because: None,
            ..one.clone()
        };
        word(self) == word(other)
    }

    /// Reads the file's content.
    ///
    /// # Errors
    /// It is no JSON of this shape, or another version's.
    pub fn parse(bytes: &[u8]) -> Result<Self, NodeSettingsError> {
        let taken: Self = serde_json::from_slice(bytes).map_err(NodeSettingsError::Syntax)?;
        match taken.schema_version {
            super::SCHEMA_VERSION => Ok(taken),
            other => Err(NodeSettingsError::SchemaVersion(other)),
        }
    }

    /// The file's content: the same settings always give the same bytes.
    pub fn to_json(&self) -> String {
        // strings, numbers and maps with text keys always serialise
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"schemaVersion":1,"classes":{"lax":{"proxyPort":18080,"dnsPort":18053,"failMode":"Open","defaultConnectivity":"Passthrough","mode":"auto"}},"nodes":{"n1":{"class":"lax","fakeIPCIDR":"169.254.3.0/24"}}}"#;

    fn taken() -> TakenSettings {
        let file = NodeSettingsFile::parse(FILE.as_bytes()).unwrap();
        assert_eq!(TakenSettings::of(&file, "n2"), None);
        TakenSettings::of(&file, "n1").unwrap()
    }

    #[test]
    fn what_is_written_is_read_and_nothing_less_is() {
        let text = taken().to_json();
        assert_eq!(TakenSettings::parse(text.as_bytes()).unwrap(), taken());
        for end in 0..text.trim_end().len() {
            assert!(TakenSettings::parse(&text.as_bytes()[..end]).is_err());
        }
        let newer = text.replace("\"schemaVersion\": 1", "\"schemaVersion\": 2");
        assert!(TakenSettings::parse(newer.as_bytes()).is_err());
    }

    #[test]
    fn what_is_only_kept_opens_nothing() {
        assert_eq!(taken().settings.fail_mode, FailMode::Open);
        let kept = taken().kept("nodes.json is gone".into());
        assert_eq!(kept.settings.fail_mode, FailMode::Closed);
        assert_eq!(kept.settings.default_connectivity, Connectivity::Zero);
        assert_eq!(kept.fake_ip_cidr, taken().fake_ip_cidr);
        assert_eq!(kept.kept_because.as_deref(), Some("nodes.json is gone"));
        assert!(!kept.same_word(&taken()), "it opens less");
        let mut staged = taken();
        staged.staged_behind = Some(staged.fake_ip_cidr);
        assert!(staged.same_word(&taken()));
    }
}
