//! The primary network's configuration as libcni reads it, and what each of its plugins gets on stdin. Pure.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::version::SpecVersion;

/// A plugin's own part of the configuration.
pub(super) type Plugin = Map<String, Value>;

/// A list of plugins; a single configuration is a list of one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct List {
    /// The network's name.
    pub(super) name: String,
    /// The version that the plugins are spoken to in.
    pub(super) cni_version: String,
    /// CHECK is switched off.
    #[serde(default)]
    pub(super) disable_check: bool,
    /// GC is switched off.
    #[serde(default, rename = "disableGC")]
    pub(super) disable_gc: bool,
    /// The plugins, in order.
    pub(super) plugins: Vec<Plugin>,
}

/// A configuration that cannot be a primary network's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ListError {
    /// Not JSON.
    #[error("it is not JSON ({0})")]
    NotJson(String),
    /// A key is missing or of another type.
    #[error("{0}")]
    Shape(&'static str),
    /// A version that is not spoken.
    #[error("cniVersion \"{0}\" is not spoken here; the primary network must use 0.3.1 or later")]
    Version(String),
    /// A plugin's type that is no file's name.
    #[error("\"{0}\" is not the name of a plugin")]
    Type(String),
    /// It would call us, who would call it, for ever.
    #[error("it leads back to agent-cni; name the real primary network's file as primary.file")]
    Ourselves,
}

/// Where Multus says which network it puts pods into first: a network's name or a configuration's path.
const MULTUS_MASTER: &str = "clusterNetwork";

/// Our own type.
pub(super) const OURSELVES: &str = "agent-cni";

impl List {
    /// Reads a `.conf`, `.conflist` or `.json`.
    ///
    /// # Errors
    /// It is no configuration, or none that can be delegated to.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, ListError> {
        let mut object: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|error| ListError::NotJson(error.to_string()))?;
        let name = match object.get("name").and_then(Value::as_str) {
            Some(name) if is_network_name(name) => name.to_owned(),
            _ => return Err(ListError::Shape("it has no name")),
        };
        let cni_version = version(&object)?;
        let switch = |key: &str| match object.get(key) {
            Some(Value::Bool(on)) => *on,
            Some(Value::String(text)) => text.eq_ignore_ascii_case("true"),
            _ => false,
        };
        let (disable_check, disable_gc) = (switch("disableCheck"), switch("disableGC"));
        let plugins = match object.remove("plugins") {
            None => vec![object],
            Some(Value::Array(plugins)) => plugins
                .into_iter()
                .map(|plugin| match plugin {
                    Value::Object(plugin) => Ok(plugin),
                    _ => Err(ListError::Shape("a plugin in its list is no object")),
                })
                .collect::<Result<_, _>>()?,
            Some(_) => return Err(ListError::Shape("its plugins are no list")),
        };
        let list = Self {
            name,
            cni_version,
            disable_check,
            disable_gc,
            plugins,
        };
        list.validate()?;
        Ok(list)
    }

    /// Adds plugins that lie in files of their own.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), ListError> {
        let plugin =
            serde_json::from_slice(bytes).map_err(|error| ListError::NotJson(error.to_string()))?;
        self.plugins.push(plugin);
        self.validate()
    }

    fn validate(&self) -> Result<(), ListError> {
        if self.plugins.is_empty() {
            return Err(ListError::Shape("it has no plugins"));
        }
        for plugin in &self.plugins {
            match type_of(plugin) {
                "" => return Err(ListError::Shape("a plugin in it has no type")),
                OURSELVES => return Err(ListError::Ourselves),
                kind if kind.contains('/') || kind.starts_with('.') => {
                    return Err(ListError::Type(kind.to_owned()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a plugin of it calls us again: by a configuration inside its own, or by one of these names, of our network or
    /// of our files.
    pub(super) fn leads_to(&self, ours: &[String]) -> bool {
        self.plugins
            .iter()
            .any(|plugin| plugin.values().any(calls_us) || names_us(plugin, ours))
    }

    /// Whether the plugins are spoken to in this version or a later one.
    pub(super) fn speaks(&self, version: SpecVersion) -> bool {
        self.cni_version
            .parse::<SpecVersion>()
            .is_ok_and(|own| own >= version)
    }

    /// The capabilities that any of its plugins declares.
    pub(super) fn capabilities(&self) -> BTreeSet<String> {
        self.plugins.iter().flat_map(declared).cloned().collect()
    }

    /// What a plugin gets on stdin, as libcni builds it: every one the same name and version, the result so far, and what
    /// the runtime passes for the capabilities that this plugin declares.
    pub(super) fn stdin(
        &self,
        plugin: &Plugin,
        previous: Option<&Value>,
        runtime_config: &Map<String, Value>,
    ) -> Plugin {
        let mut conf = plugin.clone();
        conf.insert("name".into(), json!(self.name));
        conf.insert("cniVersion".into(), json!(self.cni_version));
        if let Some(previous) = previous {
            conf.insert("prevResult".into(), previous.clone());
        }
        let passed: Map<String, Value> = declared(plugin)
            .filter_map(|name| Some((name.clone(), runtime_config.get(name)?.clone())))
            .collect();
        if !passed.is_empty() {
            conf.insert("runtimeConfig".into(), Value::Object(passed));
        }
        conf
    }
}

/// The capabilities that a plugin declares.
fn declared(plugin: &Plugin) -> impl Iterator<Item = &String> {
    let capabilities = plugin.get("capabilities").and_then(Value::as_object);
    let on = capabilities.into_iter().flatten();
    on.filter(|(_, on)| **on == Value::Bool(true))
        .map(|(name, _)| name)
}

fn calls_us(value: &Value) -> bool {
    match value {
        Value::Object(object) => type_of(object) == OURSELVES || object.values().any(calls_us),
        Value::Array(values) => values.iter().any(calls_us),
        _ => false,
    }
}

fn names_us(plugin: &Plugin, ours: &[String]) -> bool {
    let master = plugin.get(MULTUS_MASTER).and_then(Value::as_str);
    master.is_some_and(|master| {
        let file = master.rsplit('/').next().unwrap_or(master);
        ours.iter().any(|name| name == master || name == file)
    })
}

/// A plugin's type; empty when it has none.
pub(super) fn type_of(plugin: &Plugin) -> &str {
    plugin.get("type").and_then(Value::as_str).unwrap_or("")
}

/// The newest version in `cniVersion` and `cniVersions` that is spoken here.
fn version(object: &Map<String, Value>) -> Result<String, ListError> {
    let single = object.get("cniVersion").and_then(Value::as_str);
    let several = object.get("cniVersions").and_then(Value::as_array);
    let all = single
        .into_iter()
        .chain(several.into_iter().flatten().filter_map(Value::as_str));
    let spoken = all
        .clone()
        .filter_map(|text| text.parse::<SpecVersion>().ok())
        .max();
    match spoken {
        Some(version) => Ok(version.as_str().to_owned()),
        None => {
            let first = all.clone().next();
            let text = first.unwrap_or("0.1.0 (no cniVersion)");
            Err(ListError::Version(text.chars().take(40).collect()))
        }
    }
}

/// libcni's rule; the name is part of a path.
fn is_network_name(name: &str) -> bool {
    name.bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphanumeric())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

/// A result in the form of another version: addresses name their family until 0.4.0.
pub(super) fn in_version(mut result: Value, version: SpecVersion) -> Value {
    let ips = result.get_mut("ips").and_then(Value::as_array_mut);
    for ip in ips.into_iter().flatten().filter_map(Value::as_object_mut) {
        if version >= SpecVersion::V1_0_0 {
            ip.remove("version");
        } else {
            let is_v6 = ip
                .get("address")
                .and_then(Value::as_str)
                .is_some_and(|address| address.contains(':'));
            ip.insert("version".into(), json!(if is_v6 { "6" } else { "4" }));
        }
    }
    if let Some(object) = result.as_object_mut() {
        object.insert("cniVersion".into(), json!(version.as_str()));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &Value) -> Result<List, ListError> {
        List::parse(value.to_string().as_bytes())
    }

    fn list() -> List {
        parse(&json!({
            "cniVersion": "1.0.0", "name": "primary",
            "plugins": [
                {"type": "bridge", "ipam": {"type": "host-local"}},
                {"type": "portmap", "capabilities": {"portMappings": true, "ips": false}},
            ],
        }))
        .unwrap()
    }

    #[test]
    fn every_plugin_gets_the_lists_name_version_and_the_result_so_far() {
        let list = list();
        let runtime = Map::from_iter([
            ("portMappings".to_owned(), json!([{"hostPort": 80}])),
            ("ips".to_owned(), json!(["192.0.2.1"])),
            ("bandwidth".to_owned(), json!({})),
        ]);
        let first = list.stdin(&list.plugins[0], None, &runtime);
        assert_eq!(
            Value::Object(first),
            json!({"name": "primary", "cniVersion": "1.0.0", "type": "bridge", "ipam": {"type": "host-local"}})
        );
        let previous = json!({"ips": []});
        let second = list.stdin(&list.plugins[1], Some(&previous), &runtime);
        assert_eq!(second["prevResult"], previous);
        assert_eq!(
            second["runtimeConfig"],
            json!({"portMappings": [{"hostPort": 80}]})
        );
    }

    #[test]
    fn the_capabilities_of_a_list_are_those_that_any_plugin_has_switched_on() {
        assert_eq!(
            list().capabilities(),
            BTreeSet::from(["portMappings".to_owned()])
        );
    }

    #[test]
    fn a_single_configuration_is_a_list_of_one() {
        let list =
            parse(&json!({"cniVersion": "0.3.1", "name": "n", "type": "ptp", "mtu": 1})).unwrap();
        assert_eq!(list.plugins.len(), 1);
        assert_eq!(list.plugins[0]["mtu"], 1);
        assert!(!list.speaks(SpecVersion::V0_4_0));
    }

    #[test]
    fn the_newest_version_of_several_that_is_spoken_is_taken() {
        let of = |value: Value| parse(&value).map(|list| list.cni_version);
        let plugin = json!([{"type": "x"}]);
        assert_eq!(
            of(json!({"name": "n", "cniVersion": "0.4.0", "cniVersions": ["0.3.1", "1.0.0", "9.0.0"], "plugins": plugin})).unwrap(),
            "1.0.0"
        );
        assert!(matches!(
            of(json!({"name": "n", "cniVersion": "0.2.0", "plugins": plugin})),
            Err(ListError::Version(_))
        ));
        assert!(matches!(
            of(json!({"name": "n", "plugins": plugin})),
            Err(ListError::Version(_))
        ));
    }

    #[test]
    fn what_is_no_primary_is_refused() {
        let plugins =
            |value: Value| parse(&json!({"cniVersion": "1.0.0", "name": "n", "plugins": value}));
        assert_eq!(
            plugins(json!([{"type": "agent-cni"}])),
            Err(ListError::Ourselves)
        );
        for value in [
            json!([]),
            json!({}),
            json!([1]),
            json!([{}]),
            json!([{"type": "../x"}]),
            json!([{"type": ".x"}]),
        ] {
            assert!(plugins(value.clone()).is_err(), "{value}");
        }
        for value in [
            json!([]),
            json!({"cniVersion": "1.0.0", "type": "x"}),
            json!({"cniVersion": "1.0.0", "name": "../n", "type": "x"}),
        ] {
            assert!(parse(&value).is_err(), "{value}");
        }
    }

    #[test]
    fn a_multus_whose_master_we_are_leads_back_to_us() {
        let ours = ["agents".to_owned(), "00-agent-cni.conf".to_owned()];
        let leads = |extra: Value| {
            let mut conf = json!({"cniVersion": "1.0.0", "name": "multus", "type": "multus"});
            let object = conf.as_object_mut().unwrap();
            object.extend(extra.as_object().unwrap().clone());
            parse(&conf).unwrap().leads_to(&ours)
        };
        assert!(leads(json!({"clusterNetwork": "agents"})));
        assert!(leads(
            json!({"clusterNetwork": "/host/etc/cni/net.d/00-agent-cni.conf"})
        ));
        assert!(leads(
            json!({"delegates": [{"name": "x", "plugins": [{"type": "agent-cni"}]}]})
        ));
        assert!(!leads(
            json!({"clusterNetwork": "/host/etc/cni/net.d/10-flannel.conflist"})
        ));
        assert!(!leads(
            json!({"delegates": [{"type": "flannel", "note": "agent-cni"}]})
        ));
    }

    #[test]
    fn a_result_is_told_in_the_callers_version() {
        let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "192.0.2.5/24"}, {"address": "fd00::5/64"}]});
        let old = in_version(result.clone(), SpecVersion::V0_3_1);
        assert_eq!(old["cniVersion"], "0.3.1");
        assert_eq!(old["ips"][0]["version"], "4");
        assert_eq!(old["ips"][1]["version"], "6");
        assert_eq!(in_version(old, SpecVersion::V1_0_0), result);
        assert_eq!(in_version(json!(null), SpecVersion::V0_3_1), Value::Null);
    }
}
