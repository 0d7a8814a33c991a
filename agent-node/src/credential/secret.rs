//! A secret on its way into one header.

use std::sync::Arc;

use agent_core::policy::{CredentialFormat, CredentialRef};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::HeaderValue;
use memchr::memmem;
use zeroize::Zeroizing;

use super::read::{CredentialError, Raw};

/// What stands in a response header where the value stood.
const REDACTED: &[u8] = b"[redacted]";

/// A rendered credential. Clones share the memory, which is wiped with the last of them. It has no
/// `Debug` and no `Display`.
#[derive(Clone)]
pub struct Secret(Arc<Inner>);

struct Inner {
    header: HeaderValue,
    /// What must not come back: the header's value, and what it is made of. Longest first.
    needles: Vec<Zeroizing<Vec<u8>>>,
}

/// Wiped when the last header value that shares it is dropped.
struct Wiped(Zeroizing<Vec<u8>>);

impl AsRef<[u8]> for Wiped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Secret {
    pub(super) fn render(reference: &CredentialRef, raw: &Raw) -> Result<Secret, CredentialError> {
        let value = &raw.0;
        let mut needles = vec![value.clone()];
        let rendered = match reference.format {
            CredentialFormat::Raw => join(reference.prefix.as_bytes(), value),
            CredentialFormat::Basic => {
                let user = reference.username.as_deref().unwrap_or_default();
                let mut pair = join(user.as_bytes(), b":");
                // Reserved before the value goes in: growing would leave a copy behind.
                let mut whole = Zeroizing::new(Vec::with_capacity(pair.len() + value.len()));
                whole.append(&mut pair);
                whole.extend_from_slice(value);
                let encoded = Zeroizing::new(STANDARD.encode(&*whole).into_bytes());
                let scheme = match reference.prefix.as_str() {
                    "" => "Basic ",
                    prefix => prefix,
                };
                let rendered = join(scheme.as_bytes(), &encoded);
                needles.push(encoded);
                needles.push(whole);
                rendered
            }
        };
        needles.push(rendered.clone());
        needles.sort_unstable_by_key(|needle| std::cmp::Reverse(needle.len()));
        needles.dedup();
        let bytes = Bytes::from_owner(Wiped(rendered));
        let mut header = HeaderValue::from_maybe_shared(bytes)
            .map_err(|_| CredentialError::ControlCharacter(reference.file.clone()))?;
        header.set_sensitive(true);
        Ok(Secret(Arc::new(Inner { header, needles })))
    }

    /// The header's value, marked sensitive; a reference to the same memory.
    pub fn header_value(&self) -> HeaderValue {
        self.0.header.clone()
    }

    /// Whether `bytes` hold the value in any of its forms (plain, rendered, Basic).
    pub fn is_echoed_in(&self, bytes: &[u8]) -> bool {
        self.0
            .needles
            .iter()
            .any(|needle| memmem::find(bytes, needle).is_some())
    }

    /// `value` with every form of the secret replaced; `None` when it holds none.
    pub fn redact(&self, value: &HeaderValue) -> Option<HeaderValue> {
        if !self.is_echoed_in(value.as_bytes()) {
            return None;
        }
        let mut bytes = value.as_bytes().to_vec();
        for needle in &self.0.needles {
            bytes = replace(&bytes, needle);
        }
        // The parts that are left came from a header value, so this is one.
        Some(HeaderValue::from_bytes(&bytes).unwrap_or(HeaderValue::from_static("[redacted]")))
    }
}

fn join(a: &[u8], b: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut whole = Zeroizing::new(Vec::with_capacity(a.len() + b.len()));
    whole.extend_from_slice(a);
    whole.extend_from_slice(b);
    whole
}

fn replace(bytes: &[u8], needle: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut from = 0;
    for at in memmem::find_iter(bytes, needle) {
        out.extend_from_slice(&bytes[from..at]);
        out.extend_from_slice(REDACTED);
        from = at + needle.len();
    }
    out.extend_from_slice(&bytes[from..]);
    out
}
