//! Images and the archive around them: blobs by their digest, a manifest for each platform, an index.

use std::collections::BTreeMap;
use std::io::Write;

use flate2::{Compression, GzBuilder};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::{Error, Layer};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The name that containerd imports an image by, and the one of the specification.
const NAMES: [&str; 2] = [
    "io.containerd.image.name",
    "org.opencontainers.image.ref.name",
];

/// What an image runs on, by Go's names (`GOARCH`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Platform {
    /// x86-64.
    Amd64,
    /// 64-bit Arm.
    Arm64,
}

impl Platform {
    /// As image configurations and Debian write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Platform::Amd64 => "amd64",
            Platform::Arm64 => "arm64",
        }
    }
}

/// How a container of the image runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// What is started.
    pub entrypoint: Vec<String>,
    /// Arguments, when the container gives none.
    pub cmd: Vec<String>,
    /// `NAME=value`.
    pub env: Vec<String>,
    /// `uid` or `uid:gid`; empty: root.
    pub user: String,
    /// `org.opencontainers.image.…` and others.
    pub labels: BTreeMap<String, String>,
}

/// An image for one platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// What it runs on.
    pub platform: Platform,
    /// How it runs.
    pub config: Config,
    /// Its files, the lowest layer first.
    pub layers: Vec<Layer>,
}

/// Writes the archive of `images`, one for each platform, known as `reference` (`registry/name:tag`). Every time in it
/// is `seconds` since 1970, which the caller takes from the commit, so that the same content has the same digest.
///
/// # Errors
/// When `out` can't be written.
pub fn write(
    reference: &str,
    images: &[Image],
    seconds: u64,
    out: impl Write,
) -> Result<(), Error> {
    let mut blobs = Blobs::default();
    let mut manifests = Vec::new();
    for image in images {
        manifests.push(blobs.image(image, seconds)?);
    }
    // More than one platform: the name belongs to the index of them.
    let mut named = match manifests.as_slice() {
        [one] => one.clone(),
        _ => blobs.json(INDEX, &index(&manifests)),
    };
    let annotations: serde_json::Map<String, Value> = NAMES
        .iter()
        .map(|&name| (name.to_owned(), json!(reference)))
        .collect();
    named["annotations"] = Value::Object(annotations);

    let mut tar = Builder::new(out);
    append(
        &mut tar,
        "oci-layout",
        br#"{"imageLayoutVersion":"1.0.0"}"#,
        seconds,
    )?;
    append(
        &mut tar,
        "index.json",
        index(&[named]).to_string().as_bytes(),
        seconds,
    )?;
    for (digest, blob) in &blobs.by_digest {
        append(&mut tar, &format!("blobs/sha256/{digest}"), blob, seconds)?;
    }
    tar.into_inner()?.flush()?;
    Ok(())
}

fn index(manifests: &[Value]) -> Value {
    json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
}

/// What the archive holds, by digest in hexadecimal.
#[derive(Default)]
struct Blobs {
    by_digest: BTreeMap<String, Vec<u8>>,
}

impl Blobs {
    /// Adds an image's layers, configuration and manifest; returns the manifest's descriptor.
    fn image(&mut self, image: &Image, seconds: u64) -> Result<Value, Error> {
        let mut layers = Vec::new();
        let mut plain = Vec::new();
        for layer in &image.layers {
            let mut tar = Vec::new();
            layer.write(&mut tar, seconds)?;
            plain.push(format!("sha256:{}", digest(&tar)));
            // no name, no time and no system in gzip's own header
            let mut gzip = GzBuilder::new().write(Vec::new(), Compression::default());
            gzip.write_all(&tar)?;
            layers.push(self.add(LAYER, gzip.finish()?));
        }
        let created = created(seconds)?;
        let Config {
            entrypoint,
            cmd,
            env,
            user,
            labels,
        } = &image.config;
        let mut config = json!({"Entrypoint": entrypoint, "Env": env, "Labels": labels});
        if !cmd.is_empty() {
            config["Cmd"] = json!(cmd);
        }
        if !user.is_empty() {
            config["User"] = json!(user);
        }
        let config = self.json(
            CONFIG,
            &json!({
                "created": created,
                "architecture": image.platform.name(),
                "os": "linux",
                "config": config,
                "rootfs": {"type": "layers", "diff_ids": plain},
            }),
        );
        let mut manifest = self.json(
            MANIFEST,
            &json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}),
        );
        manifest["platform"] = json!({"architecture": image.platform.name(), "os": "linux"});
        Ok(manifest)
    }

    fn json(&mut self, media_type: &str, value: &Value) -> Value {
        self.add(media_type, value.to_string().into_bytes())
    }

    /// Adds a blob and returns its descriptor.
    fn add(&mut self, media_type: &str, blob: Vec<u8>) -> Value {
        let digest = digest(&blob);
        let descriptor = json!({
            "mediaType": media_type,
            "digest": format!("sha256:{digest}"),
            "size": blob.len(),
        });
        self.by_digest.insert(digest, blob);
        descriptor
    }
}

fn digest(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        // writing to a String doesn't fail
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The time as image configurations have it (RFC 3339).
fn created(seconds: u64) -> Result<String, Error> {
    let time = i64::try_from(seconds)
        .ok()
        .and_then(|s| Timestamp::from_second(s).ok());
    Ok(time.ok_or(Error::Time(seconds))?.to_string())
}

fn append(
    tar: &mut Builder<impl Write>,
    path: &str,
    content: &[u8],
    seconds: u64,
) -> Result<(), Error> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_mtime(seconds);
    header.set_size(content.len() as u64);
    Ok(tar.append_data(&mut header, path, content)?)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn image(platform: Platform, content: &str) -> Image {
        let mut layer = Layer::new();
        layer.file("/agent", 0o755, content).unwrap();
        Image {
            platform,
            config: Config {
                entrypoint: vec!["/agent".into()],
                user: "65532".into(),
                env: vec!["PATH=/bin".into()],
                ..Config::default()
            },
            layers: vec![layer],
        }
    }

    fn archive(images: &[Image]) -> BTreeMap<String, Vec<u8>> {
        let mut bytes = Vec::new();
        write("localhost/agent:1", images, 1_796_100_149, &mut bytes).unwrap();
        let mut again = Vec::new();
        write("localhost/agent:1", images, 1_796_100_149, &mut again).unwrap();
        assert!(bytes == again, "the same content gives the same bytes");
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (path, content)
        });
        entries.collect()
    }

    /// The JSON that a descriptor names, held against its digest and size.
    fn named(archive: &BTreeMap<String, Vec<u8>>, descriptor: &Value) -> Value {
        serde_json::from_slice(blob(archive, descriptor)).unwrap()
    }

    fn blob<'a>(archive: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
        let hash = descriptor["digest"]
            .as_str()
            .unwrap()
            .strip_prefix("sha256:")
            .unwrap();
        let blob = &archive[&format!("blobs/sha256/{hash}")];
        assert_eq!(
            (digest(blob), blob.len()),
            (
                hash.to_owned(),
                descriptor["size"].as_u64().unwrap() as usize
            )
        );
        blob
    }

    #[test]
    fn an_image_leads_from_the_index_to_its_files() {
        let archive = archive(&[image(Platform::Amd64, "x")]);
        assert_eq!(archive["oci-layout"], br#"{"imageLayoutVersion":"1.0.0"}"#);
        let index: Value = serde_json::from_slice(&archive["index.json"]).unwrap();
        let entry = &index["manifests"][0];
        assert_eq!(
            entry["annotations"]["io.containerd.image.name"],
            "localhost/agent:1"
        );
        let manifest = named(&archive, entry);
        let config = named(&archive, &manifest["config"]);
        assert_eq!(config["created"], "2026-12-01T04:42:29Z");
        assert_eq!(config["architecture"], "amd64");
        assert_eq!(config["config"]["User"], "65532");
        assert_eq!(config["config"]["Entrypoint"], json!(["/agent"]));

        let mut tar = Vec::new();
        flate2::read::GzDecoder::new(blob(&archive, &manifest["layers"][0]))
            .read_to_end(&mut tar)
            .unwrap();
        assert_eq!(
            config["rootfs"]["diff_ids"][0],
            format!("sha256:{}", digest(&tar))
        );
        let mut files = tar::Archive::new(tar.as_slice());
        let mut file = files.entries().unwrap().next().unwrap().unwrap();
        let mut content = String::new();
        file.read_to_string(&mut content).unwrap();
        assert_eq!(
            (&*file.path().unwrap().to_string_lossy(), &*content),
            ("agent", "x")
        );
    }

    #[test]
    fn images_of_two_platforms_have_an_index_of_their_own_that_bears_the_name() {
        let archive = archive(&[image(Platform::Amd64, "x"), image(Platform::Arm64, "y")]);
        let index: Value = serde_json::from_slice(&archive["index.json"]).unwrap();
        let entries = index["manifests"].as_array().unwrap();
        assert_eq!(
            (entries.len(), &entries[0]["mediaType"]),
            (1, &json!(INDEX))
        );
        let both = named(&archive, &entries[0]);
        let platforms: Vec<_> = both["manifests"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| {
                let config = named(&archive, &named(&archive, m)["config"]);
                assert_eq!(config["architecture"], m["platform"]["architecture"]);
                config["architecture"].as_str().unwrap().to_owned()
            })
            .collect();
        assert_eq!(platforms, ["amd64", "arm64"]);
    }
}
