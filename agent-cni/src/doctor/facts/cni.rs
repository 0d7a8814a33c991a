//! The plugin's binary, and every network configuration that the runtime could choose.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use agent_datapath::footprint::{CONF, CONF_VERSION_KEY};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{chain, seen_at};
use crate::{
    doctor::{check::Seen, options::Options},
    file,
    netconf::{self, NetConf},
    setup,
};

/// The plugin's name, which is its binary's.
const PLUGIN: &str = "agent-cni";
/// What libcni and the runtimes read, by the end of a file's name.
const READ: [&str; 3] = ["conf", "conflist", "json"];

/// See the module.
#[derive(Debug)]
pub(crate) struct Cni {
    /// The binary that the runtime calls.
    pub(crate) binary: PathBuf,
    /// What it is.
    pub(crate) installed: Seen<Binary>,
    /// The SHA-256 of the program that runs now.
    pub(crate) own: Seen<String>,
    /// The configurations, in the order in which a runtime looks at them.
    pub(crate) confs: Seen<Vec<ConfFile>>,
    /// Where they are.
    pub(crate) conf_dir: PathBuf,
    /// Whether a directory has our configuration's name.
    pub(crate) conf_is_dir: bool,
}

/// The binary at its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Binary {
    /// There is none.
    Missing,
    /// There is one.
    There {
        /// Its SHA-256.
        sha256: String,
        /// Whether it can be called.
        executable: bool,
    },
}

/// One configuration.
#[derive(Debug)]
pub(crate) struct ConfFile {
    /// Its name.
    pub(crate) name: String,
    /// Whose it is.
    pub(crate) content: Content,
    /// Which version of ours wrote it, where it says so.
    pub(crate) version: Option<String>,
    /// What our part of it asks the runtime for.
    pub(crate) capabilities: BTreeSet<String>,
}

/// What a configuration holds.
#[derive(Debug)]
pub(crate) enum Content {
    /// No configuration, and why.
    Broken(String),
    /// A network of others: its plugins' types, and the networks that its address management hands out.
    Others(Vec<String>, Vec<ipnet::Ipv4Net>),
    /// Ours, or why it cannot be used.
    Ours(Box<Seen<NetConf>>),
}

impl Cni {
    /// Reads it.
    pub(crate) fn read(options: &Options) -> Self {
        let binary = options.host_cni_bin.join(PLUGIN);
        let own = Path::new("/proc/self/exe");
        Self {
            installed: installed(&binary),
            binary,
            own: seen_at(own.display(), hash(own)),
            confs: confs(&options.host_cni_conf),
            conf_dir: options.host_cni_conf.clone(),
            conf_is_dir: options.host_cni_conf.join(CONF).is_dir(),
        }
    }
}

impl Cni {
    /// The configuration that the runtime calls us with; the defaults when there is none that can be used.
    pub(crate) fn conf(&self) -> NetConf {
        self.ours()
            .map_or_else(NetConf::defaults, |(_, conf)| conf.clone())
    }

    /// The capabilities that it declares.
    pub(crate) fn capabilities(&self) -> BTreeSet<String> {
        self.ours()
            .map(|(file, _)| file.capabilities.clone())
            .unwrap_or_default()
    }

    fn ours(&self) -> Option<(&ConfFile, &NetConf)> {
        self.confs
            .iter()
            .flatten()
            .find_map(|file| match &file.content {
                Content::Ours(conf) => Some((file, conf.as_ref().as_ref().ok()?)),
                _ => None,
            })
    }
}

fn installed(binary: &Path) -> Seen<Binary> {
    let metadata = match fs::metadata(binary) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Binary::Missing),
        other => seen_at(binary.display(), other)?,
    };
    Ok(Binary::There {
        sha256: seen_at(binary.display(), hash(binary))?,
        executable: metadata.is_file() && metadata.permissions().mode() & 0o111 != 0,
    })
}

fn hash(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hasher.update(&buffer[..read]),
        }
    }
    Ok(hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

fn confs(dir: &Path) -> Seen<Vec<ConfFile>> {
    let mut names = Vec::new();
    for entry in seen_at(dir.display(), fs::read_dir(dir))? {
        let entry = seen_at(dir.display(), entry)?;
        names.extend(entry.file_name().into_string());
    }
    names.retain(|name| {
        let end = Path::new(name).extension().and_then(|end| end.to_str());
        end.is_some_and(|end| READ.contains(&end)) && dir.join(name).is_file()
    });
    // as libcni sorts: by bytes
    names.sort();
    Ok(names
        .into_iter()
        .map(|name| {
            let path = dir.join(&name);
            ConfFile {
                content: content(&path),
                version: version(&path),
                capabilities: capabilities(&path),
                name,
            }
        })
        .collect())
}

/// The version in our part of a configuration, or of our list.
fn version(path: &Path) -> Option<String> {
    let value: Value = serde_json::from_slice(&file::read(path).ok()?).ok()?;
    let listed = value.get("plugins").and_then(Value::as_array);
    let mut parts = std::iter::once(&value).chain(listed.into_iter().flatten());
    let version = parts.find_map(|part| part.get(CONF_VERSION_KEY)?.as_str());
    version.map(str::to_owned)
}

/// What our part of a configuration, or of our list, declares as wanted.
fn capabilities(path: &Path) -> BTreeSet<String> {
    let value: Value = match file::read(path).map(|bytes| serde_json::from_slice(&bytes)) {
        Ok(Ok(value)) => value,
        _ => return BTreeSet::new(),
    };
    let listed = value.get("plugins").and_then(Value::as_array);
    std::iter::once(&value)
        .chain(listed.into_iter().flatten())
        .filter(|part| part["type"] == PLUGIN)
        .filter_map(|part| part.get("capabilities")?.as_object())
        .flatten()
        .filter(|(_, wanted)| **wanted == Value::Bool(true))
        .map(|(name, _)| name.clone())
        .collect()
}

fn content(path: &Path) -> Content {
    match file::read(path) {
        Ok(bytes) => parse(&bytes),
        Err(error) => Content::Broken(error.to_string()),
    }
}

fn parse(bytes: &[u8]) -> Content {
    let value: Value = match serde_json::from_slice(bytes) {
        Ok(value) => value,
        Err(error) => return Content::Broken(format!("it is not JSON: {error}")),
    };
    let kind = |plugin: &Value| Some(plugin.get("type")?.as_str()?.to_owned());
    let kinds: Vec<String> = match value.get("plugins").and_then(Value::as_array) {
        Some(plugins) => plugins.iter().filter_map(kind).collect(),
        None => kind(&value).into_iter().collect(),
    };
    if kinds.is_empty() {
        return Content::Broken("it names no plugin".to_owned());
    }
    if !kinds.iter().any(|kind| kind == PLUGIN) {
        let mut pools = Vec::new();
        subnets(&value, &mut pools);
        return Content::Others(kinds, pools);
    }
    let ours = setup::plugin_of(bytes)
        .map_err(|error| format!("{error:#}"))
        .and_then(|plugin| netconf::parse(&plugin).map_err(|error| chain(&error)));
    Content::Ours(Box::new(ours))
}

/// Every `"subnet"` in a configuration, as host-local and its relatives write it.
fn subnets(value: &Value, found: &mut Vec<ipnet::Ipv4Net>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                match value.as_str() {
                    Some(text) if key == "subnet" => {
                        found.extend(text.parse::<ipnet::Ipv4Net>().map(|net| net.trunc()));
                    }
                    _ => subnets(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| subnets(value, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_ours_others_or_broken() {
        for (text, is) in [
            (
                r#"{"cniVersion": "1.1.0", "name": "a", "type": "agent-cni"}"#,
                "ours",
            ),
            (
                r#"{"cniVersion": "1.1.0", "name": "a", "plugins": [{"type": "agent-cni"}, {"type": "portmap"}]}"#,
                "ours",
            ),
            (
                r#"{"cniVersion": "1.1.0", "name": "a", "type": "agent-cni", "mtu": 1}"#,
                "unusable",
            ),
            (r#"{"name": "a", "type": "multus"}"#, "others"),
            (r#"{"name": "a", "plugins": []}"#, "broken"),
            ("{", "broken"),
            ("[]", "broken"),
        ] {
            let found = match parse(text.as_bytes()) {
                Content::Broken(_) => "broken",
                Content::Others(..) => "others",
                Content::Ours(conf) if conf.is_err() => "unusable",
                Content::Ours(_) => "ours",
            };
            assert_eq!(found, is, "{text}");
        }
    }

    #[test]
    fn only_what_our_own_part_declares_as_wanted_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("00-agent-cni.conflist");
        for (text, wanted) in [
            (
                r#"{"type": "agent-cni", "capabilities": {"portMappings": true, "dns": false}}"#,
                vec!["portMappings"],
            ),
            (
                r#"{"plugins": [{"type": "agent-cni", "capabilities": {"dns": true}}, {"type": "portmap", "capabilities": {"portMappings": true}}]}"#,
                vec!["dns"],
            ),
            (r#"{"type": "agent-cni"}"#, vec![]),
            ("[", vec![]),
        ] {
            fs::write(&path, text).unwrap();
            let found: Vec<String> = capabilities(&path).into_iter().collect();
            assert_eq!(found, wanted, "{text}");
        }
    }

    #[test]
    fn the_pools_of_a_primary_are_found_wherever_they_are() {
        let text = r#"{"name": "a", "plugins": [{"type": "bridge", "ipam": {"type": "host-local",
            "ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00::/64"}]]}}, {"type": "x", "ipam": {"subnet": "10.1.0.0/16"}}]}"#;
        let Content::Others(kinds, pools) = parse(text.as_bytes()) else {
            panic!("not ours");
        };
        assert_eq!(kinds, ["bridge", "x"]);
        let wanted = ["10.244.1.0/24", "10.1.0.0/16"].map(|net| net.parse().unwrap());
        assert_eq!(pools, wanted);
    }

    #[test]
    fn files_come_in_the_order_of_their_bytes_and_only_those_that_are_read() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "10-b.conflist",
            "00-agent-cni.conf",
            "00-Z.conf",
            "x.json",
            "00-a.conf.tmp",
            "readme",
        ] {
            fs::write(dir.path().join(name), "{}").unwrap();
        }
        fs::create_dir(dir.path().join("00-dir.conf")).unwrap();
        let names: Vec<_> = confs(dir.path())
            .unwrap()
            .into_iter()
            .map(|one| one.name)
            .collect();
        assert_eq!(
            names,
            ["00-Z.conf", "00-agent-cni.conf", "10-b.conflist", "x.json"]
        );
        assert!(confs(&dir.path().join("none")).is_err());
    }
}
