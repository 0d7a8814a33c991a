//! Reading a file that may be anything by now: a pipe that nobody writes to would be waited for without end, and a file
//! of any size would be taken into memory.

use std::{
    fs::{File, FileType, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

/// State files and configurations have some kilobytes; the largest is a list of a node's pods.
const LIMIT: u64 = 4 << 20;

/// Reads a file of ours, which is never a symbolic link.
///
/// # Errors
/// `InvalidData`, with the reason, for what is no file of ours; else what the system says.
pub(crate) fn read_own(path: &Path) -> io::Result<Vec<u8>> {
    match open(path, nix::libc::O_NOFOLLOW) {
        // open(2): what O_NOFOLLOW says of a link
        Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => {
            Err(unusable("it is a symbolic link"))
        }
        other => all(&other?),
    }
}

/// Reads a file that others write, perhaps behind a symbolic link, as those of projected volumes are.
///
/// # Errors
/// As [`read_own`].
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    all(&open(path, 0)?)
}

/// Not waiting for the other end of a pipe.
fn open(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY | flags)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            // open(2): a socket, or a device that is not there
            Some(nix::libc::ENXIO | nix::libc::ENODEV) => unusable("it is no file"),
            _ => error,
        })
}

fn all(file: &File) -> io::Result<Vec<u8>> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(unusable(what(metadata.file_type())));
    }
    let mut bytes = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIMIT {
        return Err(unusable("it is larger than 4 MiB"));
    }
    Ok(bytes)
}

fn what(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "it is a directory"
    } else if kind.is_fifo() {
        "it is a pipe"
    } else {
        "it is no file"
    }
}

fn unusable(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::{fs::symlink, net::UnixListener};

    #[test]
    fn what_is_no_file_of_reasonable_size_is_told_apart_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "content").unwrap();
        assert_eq!(read_own(&at("file")).unwrap(), b"content");
        symlink(at("file"), at("link")).unwrap();
        assert_eq!(read(&at("link")).unwrap(), b"content");
        symlink(at("loop"), at("loop")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        File::create(at("huge")).unwrap().set_len(3 << 30).unwrap();
        for (name, why) in [
            ("link", "it is a symbolic link"),
            ("loop", "it is a symbolic link"),
            ("directory", "it is a directory"),
            ("pipe", "it is a pipe"),
            ("socket", "it is no file"),
            ("huge", "it is larger than 4 MiB"),
        ] {
            let error = read_own(&at(name)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{name}");
            assert_eq!(error.to_string(), why, "{name}");
        }
        let error = read_own(&at("absent")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
