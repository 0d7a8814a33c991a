//! From YAML text to policy objects. Owns splitting a stream into documents and the sentences for what can't be read.

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::API_VERSION;
use crate::compile::NamedPolicy;
use crate::policy::PolicySpec;

/// A text that holds no policies.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The YAML or its fields are wrong.
    #[error("not an AgentNetworkPolicy: {0}")]
    Yaml(String),
    /// An object of another kind or version.
    #[error(
        "{name}: apiVersion is `{api_version}` and kind `{kind}`; write `{API_VERSION}` and `AgentNetworkPolicy`"
    )]
    OtherKind {
        /// The object's name.
        name: String,
        /// What its apiVersion says.
        api_version: String,
        /// What its kind says.
        kind: String,
    },
}

/// A policy in a file: what Kubernetes adds to the metadata, and the status, are ignored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Manifest {
    api_version: String,
    kind: String,
    metadata: Metadata,
    spec: PolicySpec,
    #[serde(default, rename = "status")]
    _status: IgnoredAny,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: Option<String>,
}

/// Reads all policies of a YAML stream (documents are separated by `---`; JSON is YAML too). A policy that names no
/// namespace is in `default_namespace`.
///
/// # Errors
/// The first document that is no `AgentNetworkPolicy`, with line and field.
pub fn parse_manifests(
    text: &str,
    default_namespace: &str,
) -> Result<Vec<NamedPolicy>, ManifestError> {
    let manifests: Vec<Manifest> = serde_saphyr::from_multiple(text)
        .map_err(|error| ManifestError::Yaml(error.to_string()))?;
    manifests
        .into_iter()
        .map(|manifest| {
            if manifest.api_version != API_VERSION || manifest.kind != "AgentNetworkPolicy" {
                return Err(ManifestError::OtherKind {
                    name: manifest.metadata.name,
                    api_version: manifest.api_version,
                    kind: manifest.kind,
                });
            }
            let Metadata { name, namespace } = manifest.metadata;
            Ok(NamedPolicy {
                namespace: namespace.unwrap_or_else(|| default_namespace.to_owned()),
                name,
                spec: manifest.spec,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SYSTEM_NAMESPACE;

    fn read(text: &str) -> Result<Vec<NamedPolicy>, ManifestError> {
        parse_manifests(text, SYSTEM_NAMESPACE)
    }

    const CODING: &str = include_str!("../../chart/examples/coding-agent.yaml");
    const MULTI: &str = include_str!("../../chart/examples/multi-agent.yaml");

    #[test]
    fn the_examples_of_the_chart_are_read() {
        let policies = read(&format!("{CODING}\n---\n{MULTI}")).unwrap();
        assert_eq!(policies.len(), 2);
        assert_eq!(
            policies[0].spec.egress.credential[0].value_from.key,
            "REPO_TOKEN"
        );
        assert_eq!(
            policies[1].spec.ingress.deny[0].caller,
            "sa:agent-workloads:untrusted-agent"
        );
    }

    #[test]
    fn a_misspelt_field_is_named() {
        let error = read(&CODING.replace("host: git.example.com", "hots: a")).unwrap_err();
        assert!(error.to_string().contains("hots"), "{error}");
    }

    #[test]
    fn another_kind_is_told_what_to_write() {
        let text = CODING.replace("kind: AgentNetworkPolicy", "kind: NetworkPolicy");
        let error = read(&text).unwrap_err().to_string();
        assert!(
            error.contains("coding-agent-network") && error.contains(API_VERSION),
            "{error}"
        );
    }

    #[test]
    fn values_from_the_environment_are_refused() {
        let text = CODING.replace("valueFrom:", "valueFromEnv:");
        assert!(read(&text).is_err());
    }

    #[test]
    fn what_kubernetes_adds_is_ignored() {
        let text = CODING.replace("metadata:\n", "metadata:\n  uid: x\n  generation: 3\n");
        let text = format!("{text}status: {{phase: Active, nodes: {{total: 1}}}}\n");
        assert_eq!(read(&text).unwrap().len(), 1);
    }
}
