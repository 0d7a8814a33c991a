//! Container images as OCI archives (image-spec 1.1): what `ctr images import`, `skopeo` and `podman load` take. No
//! daemon, no registry, no root.
//!
//! The same content gives the same bytes: entries are sorted, owned by root, and have the one time that the caller names;
//! JSON objects have sorted keys. Owns the format; what is in which image is the caller's.

mod error;
mod image;
mod layer;

pub use error::Error;
pub use image::{Config, Image, Platform, write};
pub use layer::Layer;
