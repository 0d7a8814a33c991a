//! The state file of one attachment: one pod interface that `ADD` made. Owns the format, not the files.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::identity::is_object_name;
use crate::mac::MacAddr;

/// The only schema version that this build writes and reads.
pub const SCHEMA_VERSION: u32 = 1;

/// The pod that an attachment belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID; empty when the runtime did not pass `K8S_POD_UID`.
    #[serde(default)]
    pub uid: String,
}

/// How the node redirects pods' traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// TC and SK_LOOKUP programs.
    Ebpf,
    /// The documented iptables rules.
    IptablesCompat,
}

impl Mode {
    /// The name used in state files, values and audit lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::IptablesCompat => "iptables-compat",
        }
    }
}

/// What `ADD` made for one pod interface, as `DEL`, `CHECK`, `GC` and the proxy read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// Format of the file; [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_IFNAME`: the interface's name inside the pod.
    pub ifname: String,
    /// `CNI_NETNS`: path of the pod's network namespace.
    pub netns: String,
    /// The pod.
    pub pod: PodRef,
    /// The pod's address.
    pub fake_ip: Ipv4Addr,
    /// Ethernet address of the pod's interface.
    pub mac: MacAddr,
    /// Name of the host's side of the veth pair.
    pub host_veth: String,
    /// Interface index of the host's side, valid during the boot named by `boot_id`.
    pub ifindex: u32,
    /// How the node redirected when the pod was attached; for people. A node changes its mode with its pods, and leaves
    /// their files as they are: what holds is in `node.json`, and nothing is decided by this.
    pub mode: Mode,
    /// When `ADD` was called, RFC 3339.
    pub created: String,
    /// `/proc/sys/kernel/random/boot_id` at `ADD`: links and indexes of another boot are gone.
    pub boot_id: String,
}

/// Why bytes are no attachment.
#[derive(Debug, thiserror::Error)]
pub enum AttachmentError {
    /// The file is empty, as after a power cut.
    #[error("the state file is empty")]
    Empty,
    /// The bytes are not the JSON object that version 1 describes.
    #[error("the state file is not a version {SCHEMA_VERSION} attachment")]
    NotAnAttachment(#[source] serde_json::Error),
    /// Another version of this software wrote it.
    #[error(
        "the state file has schema version {0}, this build reads {SCHEMA_VERSION}; install the version that wrote it, or recreate the pod"
    )]
    SchemaVersion(u64),
    /// A field holds what `ADD` never writes.
    #[error("field `{field}` of the state file holds `{value}`, which is not {expected}")]
    Field {
        /// The field's name in the file.
        field: &'static str,
        /// What it holds, shortened.
        value: String,
        /// What it should hold.
        expected: &'static str,
    },
}

impl AttachmentError {
    /// A fixed label for logs and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::NotAnAttachment(_) => "not_an_attachment",
            Self::SchemaVersion(_) => "schema_version",
            Self::Field { .. } => "field",
        }
    }
}

#[derive(Deserialize)]
struct Versioned {
    #[serde(rename = "schemaVersion")]
    schema_version: u64,
}

impl Attachment {
    /// Reads a state file. Unknown fields are let through, so that an older build can still undo what a newer one made.
    ///
    /// # Errors
    /// Empty, truncated or foreign bytes, another schema version, and fields that `ADD` never writes.
    pub fn parse(bytes: &[u8]) -> Result<Self, AttachmentError> {
        if bytes.iter().all(|b| b.is_ascii_whitespace() || *b == 0) {
            return Err(AttachmentError::Empty);
        }
        let versioned: Versioned =
            serde_json::from_slice(bytes).map_err(AttachmentError::NotAnAttachment)?;
        if versioned.schema_version != u64::from(SCHEMA_VERSION) {
            return Err(AttachmentError::SchemaVersion(versioned.schema_version));
        }
        let attachment: Self =
            serde_json::from_slice(bytes).map_err(AttachmentError::NotAnAttachment)?;
        attachment.validate()?;
        Ok(attachment)
    }

    /// The file's content, ending with a newline.
    pub fn to_json(&self) -> String {
        // A struct of strings and numbers always serialises; an empty text would be refused by `parse`.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// `<containerid>_<ifname>.json`.
    pub fn file_name(&self) -> String {
        file_name(&self.container_id, &self.ifname)
    }

    /// Checks what `parse` checks beyond the JSON types; `ADD` calls it before it writes.
    ///
    /// # Errors
    /// The first field that holds something else than `ADD` writes.
    pub fn validate(&self) -> Result<(), AttachmentError> {
        let checks = [
            (
                "containerId",
                &self.container_id,
                is_container_id(&self.container_id),
                "a CNI container id",
            ),
            (
                "ifname",
                &self.ifname,
                is_interface_name(&self.ifname),
                "an interface name",
            ),
            (
                "hostVeth",
                &self.host_veth,
                is_interface_name(&self.host_veth),
                "an interface name",
            ),
            (
                "pod.namespace",
                &self.pod.namespace,
                is_object_name(&self.pod.namespace),
                "a namespace's name",
            ),
            (
                "pod.name",
                &self.pod.name,
                is_object_name(&self.pod.name),
                "a pod's name",
            ),
        ];
        for (field, value, fine, expected) in checks {
            if !fine {
                return Err(refuse(field, value, expected));
            }
        }
        if self.mac.is_unusable_as_source() {
            return Err(refuse(
                "mac",
                &self.mac.to_string(),
                "the address of one interface",
            ));
        }
        if self.fake_ip.is_unspecified()
            || self.fake_ip.is_loopback()
            || self.fake_ip.is_multicast()
        {
            return Err(refuse(
                "fakeIp",
                &self.fake_ip.to_string(),
                "a pod's address",
            ));
        }
        if self.ifindex == 0 {
            return Err(refuse("ifindex", "0", "an interface index"));
        }
        Ok(())
    }
}

/// The state file's name for an attachment of which only the CNI parameters are known.
pub fn file_name(container_id: &str, ifname: &str) -> String {
    format!("{container_id}_{ifname}.json")
}

fn refuse(field: &'static str, value: &str, expected: &'static str) -> AttachmentError {
    AttachmentError::Field {
        field,
        value: value.chars().take(80).collect(),
        expected,
    }
}

/// CNI specification 1.1, `CNI_CONTAINERID`: begins with an alphanumeric, then alphanumerics, `_`, `.` and `-`.
pub fn is_container_id(text: &str) -> bool {
    text.len() <= 200
        && text
            .bytes()
            .next()
            .is_some_and(|b| b.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

/// What Linux accepts as an interface name (`dev_valid_name`).
pub fn is_interface_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 15
        && text != "."
        && text != ".."
        && text
            .bytes()
            .all(|b| !b.is_ascii_whitespace() && b.is_ascii_graphic() && b != b'/' && b != b':')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn attachment() -> Attachment {
        Attachment {
            schema_version: SCHEMA_VERSION,
            container_id: "c0ffee".into(),
            ifname: "eth0".into(),
            netns: "/var/run/netns/cni-1".into(),
            pod: PodRef {
                namespace: "agents".into(),
                name: "coder-0".into(),
                uid: "u-1".into(),
            },
            fake_ip: Ipv4Addr::new(169, 254, 9, 2),
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            host_veth: "agve0".into(),
            ifindex: 7,
            mode: Mode::Ebpf,
            created: "2026-11-30T10:34:56.000000Z".into(),
            boot_id: "6c1a".into(),
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let text = attachment().to_json();
        assert_eq!(Attachment::parse(text.as_bytes()).unwrap(), attachment());
        assert_eq!(attachment().file_name(), "c0ffee_eth0.json");
        assert!(text.contains("\"fakeIp\": \"169.254.9.2\""), "{text}");
        assert!(text.contains("\"mode\": \"ebpf\""), "{text}");
    }

    #[test]
    fn every_truncation_is_refused() {
        let text = attachment().to_json();
        for end in 0..text.trim_end().len() {
            assert!(Attachment::parse(&text.as_bytes()[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn a_file_of_nothing_or_zeros_is_empty() {
        for bytes in [&b""[..], b"\n \n", &[0u8; 512]] {
            assert_eq!(Attachment::parse(bytes).unwrap_err().reason(), "empty");
        }
    }

    #[test]
    fn another_schema_version_says_which_one_is_read() {
        let text = attachment()
            .to_json()
            .replace("\"schemaVersion\": 1", "\"schemaVersion\": 2");
        let error = Attachment::parse(text.as_bytes()).unwrap_err();
        assert_eq!(error.reason(), "schema_version");
        assert!(error.to_string().contains("this build reads 1"), "{error}");
    }

    #[test]
    fn fields_that_add_never_writes_are_named() {
        for (from, to, field) in [
            ("c0ffee", "../etc", "containerId"),
            ("\"eth0\"", "\"a/b\"", "ifname"),
            ("agents", "", "pod.namespace"),
            ("169.254.9.2", "0.0.0.0", "fakeIp"),
            ("02:00:00:00:00:01", "ff:ff:ff:ff:ff:ff", "mac"),
            ("\"ifindex\": 7", "\"ifindex\": 0", "ifindex"),
        ] {
            let text = attachment().to_json().replace(from, to);
            let error = Attachment::parse(text.as_bytes()).unwrap_err();
            assert!(
                error.to_string().contains(&format!("`{field}`")),
                "{field}: {error}"
            );
        }
    }

    #[test]
    fn unknown_fields_of_the_same_version_are_let_through() {
        let text = attachment().to_json().replacen('{', "{\"later\": true,", 1);
        assert_eq!(Attachment::parse(text.as_bytes()).unwrap(), attachment());
    }

    proptest! {
        #[test]
        fn parsing_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = Attachment::parse(&bytes);
        }
    }
}
