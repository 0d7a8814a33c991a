//! The canary secrets of one world, and the search for them in everything that anybody printed.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Secrets that only the upstreams and the credential files may know.
#[derive(Clone)]
pub struct Secrets {
    /// Bearer token of `api.example.com`.
    pub api_token: String,
    /// Password of `git.internal.example.com`.
    pub repo_token: String,
    /// `X-Api-Key` of `vector-db.internal.example.com`.
    pub rag_token: String,
    /// Bearer token of the proxy's `/reload`.
    pub reload_token: String,
}

impl Secrets {
    /// Draws new ones.
    ///
    /// # Errors
    /// When the kernel's random source can't be read.
    pub fn draw() -> Result<Secrets> {
        Ok(Secrets {
            api_token: canary()?,
            repo_token: canary()?,
            rag_token: canary()?,
            reload_token: canary()?,
        })
    }

    /// What git sends as `Authorization` for the private repository.
    pub fn repo_basic(&self) -> String {
        format!(
            "Basic {}",
            base64(format!("x-access-token:{}", self.repo_token).as_bytes())
        )
    }

    /// Every form in which one of the secrets could appear.
    pub fn forms(&self) -> Vec<String> {
        let mut forms = Vec::new();
        for secret in [
            &self.api_token,
            &self.repo_token,
            &self.rag_token,
            &self.reload_token,
        ] {
            forms.push(secret.clone());
            forms.push(base64(secret.as_bytes()));
            forms.push(secret.bytes().map(|b| format!("{b:02x}")).collect());
        }
        forms.push(base64(
            format!("x-access-token:{}", self.repo_token).as_bytes(),
        ));
        forms
    }

    /// The files below `dirs` that have one of the forms in them.
    ///
    /// # Errors
    /// When a file can't be read.
    pub fn found_in(&self, dirs: &[&Path]) -> Result<Vec<PathBuf>> {
        let forms = self.forms();
        let mut found = Vec::new();
        for dir in dirs {
            search(dir, &forms, &mut found)?;
        }
        Ok(found)
    }
}

fn canary() -> Result<String> {
    let mut bytes = [0u8; 16];
    fs::File::open("/dev/urandom")?
        .read_exact(&mut bytes)
        .context("read /dev/urandom")?;
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    Ok(format!("canary-{hex}"))
}

fn search(path: &Path, forms: &[String], found: &mut Vec<PathBuf>) -> Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path).with_context(|| format!("read {}", path.display()))? {
            search(&entry?.path(), forms, found)?;
        }
        return Ok(());
    }
    let Ok(bytes) = fs::read(path) else {
        return Ok(());
    }; // sockets
    if forms.iter().any(|f| contains(&bytes, f.as_bytes())) {
        found.push(path.to_owned());
    }
    Ok(())
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    let Some(&first) = needle.first() else {
        return false;
    };
    let mut rest = haystack;
    while let Some(at) = rest.iter().position(|b| *b == first) {
        if rest[at..].starts_with(needle) {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

/// Standard base64 with padding (RFC 4648, section 4).
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0u32, |w, b| w << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let index = (word >> (18 - 6 * i)) & 63;
            out.push(if i <= chunk.len() {
                ALPHABET[index as usize] as char
            } else {
                '='
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn a_secret_is_found_in_every_form() {
        let dir = tempfile::tempdir().unwrap();
        let secrets = Secrets::draw().unwrap();
        assert!(secrets.found_in(&[dir.path()]).unwrap().is_empty());
        for (i, form) in secrets.forms().iter().enumerate() {
            fs::write(dir.path().join(i.to_string()), format!("x{form}y")).unwrap();
        }
        assert_eq!(
            secrets.found_in(&[dir.path()]).unwrap().len(),
            secrets.forms().len()
        );
    }
}
