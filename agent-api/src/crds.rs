//! The definitions of both kinds as YAML files, for people and for `chart/crds/`. The Rust types are their only source.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

use crate::class::AgentNetworkClass;
use crate::policy::AgentNetworkPolicy;

/// One file of `chart/crds/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrdFile {
    /// The file's name.
    pub name: String,
    /// One YAML document.
    pub text: String,
}

/// A definition that can't be written as YAML.
#[derive(Debug, thiserror::Error)]
#[error("{name} can't be written as YAML: {why}")]
pub struct CrdError {
    name: String,
    why: String,
}

/// The definitions.
pub fn definitions() -> [CustomResourceDefinition; 2] {
    [AgentNetworkPolicy::crd(), AgentNetworkClass::crd()]
}

/// The definitions as files: the same build always gives the same bytes.
///
/// # Errors
/// Only when the YAML library refuses a definition.
pub fn files() -> Result<Vec<CrdFile>, CrdError> {
    definitions().iter().map(file).collect()
}

fn file(definition: &CustomResourceDefinition) -> Result<CrdFile, CrdError> {
    let name = format!("{}.yaml", definition.spec.names.plural);
    let yaml = serde_json::to_value(definition)
        .map_err(|error| error.to_string())
        .and_then(|mut tree| {
            tidy(&mut tree);
            serde_saphyr::to_string(&tree).map_err(|error| error.to_string())
        })
        .map_err(|why| CrdError {
            name: name.clone(),
            why,
        })?;
    Ok(CrdFile {
        text: format!(
            "# Written by `cargo xtask crds` from the types in agent-api; change those.\n{yaml}"
        ),
        name,
    })
}

/// The lines of doc comments are those of the source, while `kubectl explain` breaks lines itself. And kube lets null
/// be a port, which no rule expects; without that the API server takes a null for a field that isn't there, as everywhere.
fn tidy(tree: &mut Value) {
    match tree {
        Value::Object(map) => {
            if map.contains_key("x-kubernetes-int-or-string") {
                map.remove("nullable");
            }
            for (key, value) in map {
                match value {
                    Value::String(text) if key == "description" => *text = text.replace('\n', " "),
                    _ => tidy(value),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(tidy),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests;
