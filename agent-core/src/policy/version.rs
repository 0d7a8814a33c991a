//! The version of a policy document: a hash of its content. Owns what counts as content: everything but the version.

use std::io;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::policy::document::RuntimePolicy;

/// `sha256:` and the hash of the document's canonical JSON without `version`, in hexadecimal.
pub(crate) fn of(document: &RuntimePolicy) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Content<'a> {
        schema_version: u32,
        policies: &'a [crate::policy::document::PolicyHeader],
        rules: &'a [crate::policy::document::Rule],
        sensitive_cidrs: &'a [crate::policy::cidr::IpCidr],
    }
    let mut hasher = io::BufWriter::with_capacity(64 * 1024, HashWriter(Sha256::new()));
    let content = Content {
        schema_version: document.schema_version,
        policies: &document.policies,
        rules: &document.rules,
        sensitive_cidrs: &document.sensitive_cidrs,
    };
    // Strings, numbers and lists always serialise, and the hasher takes every write.
    let _ = serde_json::to_writer(&mut hasher, &content);
    let digest = match hasher.into_inner() {
        Ok(HashWriter(hasher)) => hasher.finalize(),
        Err(_) => Sha256::new().finalize(),
    };
    let mut text = String::with_capacity(7 + 64);
    text.push_str("sha256:");
    for byte in digest {
        text.push(char::from(b"0123456789abcdef"[usize::from(byte >> 4)]));
        text.push(char::from(b"0123456789abcdef"[usize::from(byte & 15)]));
    }
    text
}

struct HashWriter(Sha256);

impl io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
