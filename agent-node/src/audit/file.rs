//! An append-only file that is rotated at a size: `audit.log`, `audit.log.1`, `audit.log.2`, …

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The file, open for appending.
#[derive(Debug)]
pub struct RotatedFile {
    path: PathBuf,
    max_bytes: u64,
    keep: u32,
    file: File,
    size: u64,
    /// Whether the last byte written ended a line; a file is only rotated between lines.
    between_lines: bool,
}

impl RotatedFile {
    /// Opens or creates `path`; at `max_bytes` it is renamed, and `keep` older ones stay.
    ///
    /// # Errors
    /// As opening a file does.
    pub fn open(path: &Path, max_bytes: u64, keep: u32) -> io::Result<RotatedFile> {
        let file = append_to(path)?;
        let size = file.metadata()?.len();
        Ok(RotatedFile {
            path: path.to_owned(),
            max_bytes,
            keep,
            file,
            size,
            between_lines: true,
        })
    }

    fn rotate(&mut self) -> io::Result<()> {
        if self.keep == 0 {
            self.file.set_len(0)?;
        } else {
            for i in (1..self.keep).rev() {
                rename_if_there(&self.numbered(i), &self.numbered(i + 1))?;
            }
            rename_if_there(&self.path, &self.numbered(1))?;
            self.file = append_to(&self.path)?;
        }
        self.size = 0;
        Ok(())
    }

    fn numbered(&self, i: u32) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(format!(".{i}"));
        PathBuf::from(name)
    }
}

impl Write for RotatedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let first_line = memchr::memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1);
        let room = self.max_bytes.saturating_sub(self.size);
        if self.between_lines && self.size > 0 && first_line as u64 > room {
            self.rotate()?;
        }
        // As many whole lines as fit, but at least one.
        let room = self.max_bytes.saturating_sub(self.size);
        let room = usize::try_from(room).map_or(bytes.len(), |room| room.min(bytes.len()));
        let fits = memchr::memrchr(b'\n', &bytes[..room]).map_or(0, |at| at + 1);
        let written = self.file.write(&bytes[..fits.max(first_line)])?;
        self.size += written as u64;
        if written > 0 {
            self.between_lines = bytes[written - 1] == b'\n';
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    File::options()
        .create(true)
        .append(true)
        .mode(0o640)
        .open(path)
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_rotated_between_lines_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let mut file = RotatedFile::open(&path, 20, 2).unwrap();
        for i in 0..8 {
            file.write_all(format!("line {i:02}\n").as_bytes()).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("audit.log"), "line 06\nline 07\n");
        assert_eq!(read("audit.log.1"), "line 04\nline 05\n");
        assert_eq!(read("audit.log.2"), "line 02\nline 03\n");
        assert!(!dir.path().join("audit.log.3").exists());
    }

    #[test]
    fn one_large_batch_is_cut_at_line_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let mut file = RotatedFile::open(&path, 10, 9).unwrap();
        file.write_all(b"aaaa\nbbbb\ncccc\na line longer than the limit\nd\n")
            .unwrap();
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("audit.log.3"), "aaaa\nbbbb\n");
        assert_eq!(read("audit.log.2"), "cccc\n");
        assert_eq!(read("audit.log.1"), "a line longer than the limit\n");
        assert_eq!(read("audit.log"), "d\n");
    }

    #[test]
    fn an_existing_file_is_appended_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        std::fs::write(&path, "old\n").unwrap();
        let mut file = RotatedFile::open(&path, 4096, 1).unwrap();
        file.write_all(b"new\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old\nnew\n");
    }
}
