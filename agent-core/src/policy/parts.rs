//! A policy document in parts, for when it is larger than what carries it: a ConfigMap holds 1 MiB.
//!
//! Owns the format. A document that fits is written as it is. Of one that doesn't, `policy.json` holds an [`Index`], and
//! `policy-1.json`, `policy-2.json` … hold the document's text, cut in pieces, each behind a line that says of which version
//! it is. Parts arrive one by one: whoever reads them keeps what it has until all are of the version of the index.

use serde::{Deserialize, Serialize};

use crate::policy::document::SCHEMA_VERSION;

/// What stands in `policy.json` when the document is in parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Index {
    /// Format of the document; [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The document's version.
    pub version: String,
    /// How many parts it has; the first is number 1.
    pub parts: u32,
}

/// The line before a part's text.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Label {
    version: String,
    part: u32,
}

/// No index is longer, and every document that has a rule is no index.
const MAX_INDEX: usize = 512;
/// No label is longer.
pub const MAX_LABEL: usize = 512;

/// Why parts make no document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// The part belongs to another version: it, or the index, is still on its way.
    #[error("part {part} is of version {has}, and the index of {wants}")]
    OtherVersion {
        /// The part's number.
        part: u32,
        /// Its version.
        has: String,
        /// The index's version.
        wants: String,
    },
    /// The part doesn't begin with its label.
    #[error("part {0} has no label")]
    NoLabel(u32),
    /// Another part than the file's name says.
    #[error("the file of part {wants} holds part {has}")]
    OtherPart {
        /// What it holds.
        has: u32,
        /// What it should hold.
        wants: u32,
    },
}

/// The name of the file that part `number` is projected to, beside `policy.json`.
pub fn file_name(number: u32) -> String {
    format!("policy-{number}.json")
}

/// The texts of `policy.json` and of the parts, none of them longer than `most` bytes (which is at least 4 KiB): the
/// document alone when it fits.
pub fn split(document: String, version: &str, most: usize) -> Vec<String> {
    let most = most.max(4096);
    if document.len() <= most {
        return vec![document];
    }
    let room = most - MAX_LABEL;
    let mut pieces = Vec::new();
    let mut rest = document.as_str();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(floor_char_boundary(rest, room));
        pieces.push(piece);
        rest = after;
    }
    let index = Index {
        schema_version: SCHEMA_VERSION,
        version: version.to_owned(),
        parts: u32::try_from(pieces.len()).unwrap_or(u32::MAX),
    };
    let labelled = (1..).zip(pieces).map(|(part, piece)| {
        let version = version.to_owned();
        format!("{}\n{piece}", json(&Label { version, part }))
    });
    std::iter::once(json(&index)).chain(labelled).collect()
}

fn floor_char_boundary(text: &str, most: usize) -> usize {
    let mut at = most.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn json(value: &impl Serialize) -> String {
    // Strings and numbers always serialise.
    serde_json::to_string(value).unwrap_or_default()
}

impl Index {
    /// The index, when `policy.json` holds one; a document is none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MAX_INDEX {
            return None;
        }
        let index: Self = serde_json::from_slice(bytes).ok()?;
        (index.schema_version == SCHEMA_VERSION && index.parts > 0).then_some(index)
    }

    /// The piece of the document in a part's text; its first [`MAX_LABEL`] bytes are enough to learn whether it is the
    /// right one.
    ///
    /// # Errors
    /// When it is another one.
    pub fn piece<'a>(&self, number: u32, text: &'a [u8]) -> Result<&'a [u8], PartError> {
        let head = text.get(..MAX_LABEL).unwrap_or(text);
        let end = head.iter().position(|byte| *byte == b'\n');
        let end = end.ok_or(PartError::NoLabel(number))?;
        let label: Label =
            serde_json::from_slice(&text[..end]).map_err(|_| PartError::NoLabel(number))?;
        if label.part != number {
            return Err(PartError::OtherPart {
                has: label.part,
                wants: number,
            });
        }
        if label.version != self.version {
            return Err(PartError::OtherVersion {
                part: number,
                has: label.version,
                wants: self.version.clone(),
            });
        }
        Ok(&text[end + 1..])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn join(texts: &[String]) -> Vec<u8> {
        let index = Index::parse(texts[0].as_bytes()).unwrap();
        assert_eq!(usize::try_from(index.parts).unwrap() + 1, texts.len());
        let numbered = (1..).zip(&texts[1..]);
        numbered
            .flat_map(|(number, text)| index.piece(number, text.as_bytes()).unwrap().to_vec())
            .collect()
    }

    #[test]
    fn a_document_that_fits_is_left_as_it_is() {
        let document = r#"{"schemaVersion":1,"policies":[],"rules":[]}"#;
        assert_eq!(split(document.to_owned(), "v", 4096), [document]);
        assert_eq!(Index::parse(document.as_bytes()), None);
    }

    #[test]
    fn a_part_of_another_version_is_named_and_not_taken() {
        let texts = split("x".repeat(10_000), "sha256:1", 4096);
        let index = Index::parse(texts[0].as_bytes()).unwrap();
        let old = split("x".repeat(10_000), "sha256:0", 4096);
        let error = index.piece(2, old[2].as_bytes()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "part 2 is of version sha256:0, and the index of sha256:1"
        );
        assert!(matches!(
            index.piece(1, texts[2].as_bytes()),
            Err(PartError::OtherPart { has: 2, wants: 1 })
        ));
        for text in ["", "no label", "{}\nx"] {
            assert_eq!(
                index.piece(1, text.as_bytes()),
                Err(PartError::NoLabel(1)),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_cut_is_whole_again(text in "\\PC{1400,6000}", most in 4096usize..5000) {
            let texts = split(text.clone(), "v", most);
            prop_assert!(texts.iter().all(|t| t.len() <= most));
            if texts.len() == 1 {
                prop_assert_eq!(&texts[0], &text);
            } else {
                prop_assert_eq!(join(&texts), text.into_bytes());
            }
        }
    }
}
