//! A repository with one commit that any git clones over HTTP, by the "dumb" protocol: plain files below the
//! repository's path (gitprotocol-http(5), "Discovering references").

use std::collections::BTreeMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha1::{Digest, Sha1};

/// The branch.
const BRANCH: &str = "main";
/// Who made the commit, and when; the same always, so that the commit has one name.
const AUTHOR: &str = "agent-network <agent-network@example.com> 1767225600 +0000";

/// The files of a repository, by path below it.
pub(super) struct Repository(BTreeMap<String, Vec<u8>>);

impl Repository {
    /// A repository whose README has this text.
    ///
    /// # Errors
    /// When compression fails.
    pub(super) fn new(readme: &str) -> std::io::Result<Repository> {
        let mut files = BTreeMap::new();
        let blob = add(&mut files, "blob", readme.as_bytes())?;
        let mut entry = b"100644 README\0".to_vec();
        entry.extend_from_slice(&blob);
        let tree = add(&mut files, "tree", &entry)?;
        let tree = hex(&tree);
        let text =
            format!("tree {tree}\nauthor {AUTHOR}\ncommitter {AUTHOR}\n\nA repository for tests\n");
        let commit = hex(&add(&mut files, "commit", text.as_bytes())?);
        files.insert("HEAD".into(), format!("ref: refs/heads/{BRANCH}\n").into());
        files.insert(
            "info/refs".into(),
            format!("{commit}\trefs/heads/{BRANCH}\n").into(),
        );
        files.insert("objects/info/packs".into(), Vec::new());
        Ok(Repository(files))
    }

    /// A file of it.
    pub(super) fn file(&self, path: &str) -> Option<&[u8]> {
        self.0.get(path).map(Vec::as_slice)
    }
}

/// Adds an object as git keeps it loose (gitformat-loose(5)), and returns its name.
fn add(
    files: &mut BTreeMap<String, Vec<u8>>,
    kind: &str,
    content: &[u8],
) -> std::io::Result<[u8; 20]> {
    let mut object = format!("{kind} {}\0", content.len()).into_bytes();
    object.extend_from_slice(content);
    let name: [u8; 20] = Sha1::digest(&object).into();
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
    zlib.write_all(&object)?;
    let text = hex(&name);
    let (folder, file) = text.split_at(2);
    files.insert(format!("objects/{folder}/{file}"), zlib.finish()?);
    Ok(name)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_the_names_that_git_gives_them() {
        let repository = Repository::new("hello\n").unwrap();
        // `printf 'hello\n' | git hash-object --stdin`
        assert!(
            repository
                .file("objects/ce/013625030ba8dba906f756967f9e9ca394464a")
                .is_some()
        );
        let refs = String::from_utf8(repository.file("info/refs").unwrap().to_vec()).unwrap();
        let (commit, branch) = refs.trim_end().split_once('\t').unwrap();
        assert_eq!(branch, "refs/heads/main");
        let (folder, file) = commit.split_at(2);
        assert!(
            repository
                .file(&format!("objects/{folder}/{file}"))
                .is_some()
        );
        assert_eq!(repository.0.len(), 6);
    }
}
