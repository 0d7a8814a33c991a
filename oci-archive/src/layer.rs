//! A layer: the files of an image, collected in memory and written in the order of their paths.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use tar::{Builder, EntryType, Header};
use walkdir::WalkDir;

use crate::Error;

/// The files of a layer. Everything belongs to root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// By path from the root, without the leading slash; folders come before what is in them.
    entries: BTreeMap<PathBuf, Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// Permission bits; of no meaning for a link.
    mode: u32,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Folder,
    File(Vec<u8>),
    Link(PathBuf),
}

impl Layer {
    /// A layer without files.
    #[must_use]
    pub fn new() -> Layer {
        Layer::default()
    }

    /// Adds a folder. Folders above what is added come by themselves, with 0755.
    ///
    /// # Errors
    /// When `path` is no path of an image, or is something else already.
    pub fn folder(&mut self, path: &str, mode: u32) -> Result<&mut Layer, Error> {
        self.add(Path::new(path), mode, What::Folder)
    }

    /// Adds a file with this content.
    ///
    /// # Errors
    /// As [`Layer::folder`].
    pub fn file(
        &mut self,
        path: &str,
        mode: u32,
        content: impl Into<Vec<u8>>,
    ) -> Result<&mut Layer, Error> {
        self.add(Path::new(path), mode, What::File(content.into()))
    }

    /// Adds a symbolic link to `target`.
    ///
    /// # Errors
    /// As [`Layer::folder`].
    pub fn link(&mut self, path: &str, target: &str) -> Result<&mut Layer, Error> {
        self.add(Path::new(path), 0o777, What::Link(target.into()))
    }

    /// Adds the program `source` as `path`, with 0755.
    ///
    /// # Errors
    /// When it can't be read, and as [`Layer::folder`].
    pub fn program(&mut self, path: &str, source: &Path) -> Result<&mut Layer, Error> {
        let content = fs::read(source).map_err(unread(source))?;
        self.file(path, 0o755, content)
    }

    /// Adds everything below `root` whose path (from `root`) `wanted` takes, with the permissions that it has there.
    ///
    /// # Errors
    /// When something can't be read or is of no kind that an image has, and as [`Layer::folder`].
    pub fn tree(
        &mut self,
        root: &Path,
        wanted: impl Fn(&Path) -> bool,
    ) -> Result<&mut Layer, Error> {
        for found in WalkDir::new(root).min_depth(1) {
            let found = found.map_err(|error| Error::Read {
                path: error.path().unwrap_or(root).to_owned(),
                source: error.into(),
            })?;
            let path = found.path();
            let Ok(inside) = path.strip_prefix(root) else {
                return Err(Error::Path(path.to_owned()));
            };
            if !wanted(inside) {
                continue;
            }
            let kind = found.file_type();
            let what = if kind.is_dir() {
                What::Folder
            } else if kind.is_symlink() {
                What::Link(fs::read_link(path).map_err(unread(path))?)
            } else if kind.is_file() {
                What::File(fs::read(path).map_err(unread(path))?)
            } else {
                return Err(Error::Kind(path.to_owned()));
            };
            let meta = found.metadata().map_err(|error| Error::Read {
                path: path.to_owned(),
                source: error.into(),
            })?;
            self.add(
                &Path::new("/").join(inside),
                meta.permissions().mode() & 0o7777,
                what,
            )?;
        }
        Ok(self)
    }

    /// Whether this path is in it.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        inside(Path::new(path)).is_ok_and(|path| self.entries.contains_key(&path))
    }

    /// The layer as a tar archive, each entry of the time `seconds` (since 1970).
    ///
    /// # Errors
    /// When `out` can't be written.
    pub(crate) fn write(&self, out: impl Write, seconds: u64) -> io::Result<()> {
        let mut tar = Builder::new(out);
        for (path, entry) in &self.entries {
            let mut header = Header::new_gnu();
            header.set_mode(entry.mode);
            header.set_mtime(seconds);
            header.set_uid(0);
            header.set_gid(0);
            match &entry.what {
                What::Folder => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_size(0);
                    tar.append_data(&mut header, path, io::empty())?;
                }
                What::File(content) => {
                    header.set_entry_type(EntryType::Regular);
                    header.set_size(content.len() as u64);
                    tar.append_data(&mut header, path, content.as_slice())?;
                }
                What::Link(target) => {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_size(0);
                    tar.append_link(&mut header, path, target)?;
                }
            }
        }
        tar.into_inner()?.flush()
    }

    fn add(&mut self, path: &Path, mode: u32, what: What) -> Result<&mut Layer, Error> {
        let path = inside(path)?;
        for above in path.ancestors().skip(1) {
            if above.as_os_str().is_empty() {
                continue;
            }
            let entry = self.entries.entry(above.to_owned());
            let folder = entry.or_insert(Entry {
                mode: 0o755,
                what: What::Folder,
            });
            if folder.what != What::Folder {
                return Err(Error::Twice(above.to_owned()));
            }
        }
        match self.entries.entry(path) {
            Slot::Vacant(slot) => {
                slot.insert(Entry { mode, what });
            }
            // Packages share folders; a mode that was asked for counts more than one that came by itself.
            Slot::Occupied(mut slot) if slot.get().what == What::Folder && what == What::Folder => {
                slot.get_mut().mode = mode;
            }
            Slot::Occupied(slot) => return Err(Error::Twice(slot.key().clone())),
        }
        Ok(self)
    }
}

/// `/usr/bin` as `usr/bin`.
fn inside(path: &Path) -> Result<PathBuf, Error> {
    let mut inside = PathBuf::new();
    for part in path.components() {
        match part {
            Component::RootDir => (),
            Component::Normal(name) if path.is_absolute() => inside.push(name),
            _ => return Err(Error::Path(path.to_owned())),
        }
    }
    if inside.as_os_str().is_empty() {
        return Err(Error::Path(path.to_owned()));
    }
    Ok(inside)
}

fn unread(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Read { path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn listed(layer: &Layer) -> Vec<(String, u32, EntryType)> {
        let mut bytes = Vec::new();
        layer.write(&mut bytes, 7).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                assert_eq!(
                    (header.mtime().unwrap(), header.uid().unwrap()),
                    (7, 0),
                    "{entry:?}",
                    entry = header
                );
                (
                    entry.path().unwrap().to_string_lossy().into_owned(),
                    header.mode().unwrap(),
                    header.entry_type(),
                )
            })
            .collect()
    }

    #[test]
    fn folders_above_come_by_themselves_and_before_what_is_in_them() {
        let mut layer = Layer::new();
        layer.file("/usr/sbin/a", 0o755, "x").unwrap();
        layer.folder("/tmp", 0o1777).unwrap();
        layer.link("/bin/b", "/usr/sbin/a").unwrap();
        assert_eq!(
            listed(&layer),
            [
                ("bin".into(), 0o755, EntryType::Directory),
                ("bin/b".into(), 0o777, EntryType::Symlink),
                ("tmp".into(), 0o1777, EntryType::Directory),
                ("usr".into(), 0o755, EntryType::Directory),
                ("usr/sbin".into(), 0o755, EntryType::Directory),
                ("usr/sbin/a".into(), 0o755, EntryType::Regular),
            ]
        );
        assert!(layer.has("/usr/sbin/a") && !layer.has("/usr/sbin/c"));
    }

    #[test]
    fn a_tree_is_taken_with_its_modes_and_what_is_not_wanted_stays_out() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("etc/secret")).unwrap();
        fs::write(dir.path().join("etc/run"), "x").unwrap();
        fs::set_permissions(dir.path().join("etc/run"), PermissionsExt::from_mode(0o750)).unwrap();
        fs::write(dir.path().join("etc/doc"), "x").unwrap();
        symlink("run", dir.path().join("etc/link")).unwrap();
        let mut layer = Layer::new();
        layer.tree(dir.path(), |path| path != "etc/doc").unwrap();
        let names: Vec<_> = listed(&layer).into_iter().map(|e| (e.0, e.1)).collect();
        assert_eq!(names.len(), 4, "{names:?}");
        assert!(names.contains(&("etc/run".into(), 0o750)));
        assert!(names.contains(&("etc/link".into(), 0o777)));
        assert!(!layer.has("/etc/doc"));
    }

    #[test]
    fn one_path_is_one_thing_and_none_leads_out() {
        let mut layer = Layer::new();
        layer.file("/a", 0o644, "x").unwrap();
        assert!(matches!(layer.file("/a", 0o644, "y"), Err(Error::Twice(_))));
        assert!(matches!(
            layer.file("/a/b", 0o644, ""),
            Err(Error::Twice(_))
        ));
        for wrong in ["a", "/../a", "/", ""] {
            let refused = layer.file(wrong, 0o644, "");
            assert!(matches!(refused, Err(Error::Path(_))), "{wrong}");
        }
        layer.folder("/d", 0o700).unwrap();
        layer.folder("/d", 0o1777).unwrap();
        assert!(listed(&layer).contains(&("d".into(), 0o1777, EntryType::Directory)));
    }
}
