use std::io;
use std::path::PathBuf;

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that belongs into a layer can't be read.
    #[error("read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// What is neither a file, a folder nor a symbolic link has no place in an image.
    #[error("{} is neither a file nor a folder nor a symbolic link", .0.display())]
    Kind(PathBuf),
    /// A path that leads out of the image, or to nowhere.
    #[error("`{}` is no path of an image: give one from the root, without `..`", .0.display())]
    Path(PathBuf),
    /// One path is to be two things.
    #[error("{} is in the layer already, as something else", .0.display())]
    Twice(PathBuf),
    /// A time that no calendar has.
    #[error("{0} seconds since 1970 are no time that an image can have")]
    Time(u64),
    /// The archive can't be written.
    #[error("write the archive")]
    Write(#[from] io::Error),
}
