//! From YAML text to policy objects. Owns splitting a stream into documents and the sentences for what can't be read.

use crate::API_VERSION;
use crate::policy::AgentNetworkPolicy;

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

/// Reads all policies of a YAML stream (documents are separated by `---`; JSON is YAML too).
///
/// # Errors
/// The first document that is no `AgentNetworkPolicy`, with line and field.
pub fn parse_manifests(text: &str) -> Result<Vec<AgentNetworkPolicy>, ManifestError> {
    let policies: Vec<AgentNetworkPolicy> = serde_saphyr::from_multiple(text)
        .map_err(|error| ManifestError::Yaml(error.to_string()))?;
    for policy in &policies {
        if policy.api_version != API_VERSION || policy.kind != "AgentNetworkPolicy" {
            return Err(ManifestError::OtherKind {
                name: policy.metadata.name.clone(),
                api_version: policy.api_version.clone(),
                kind: policy.kind.clone(),
            });
        }
    }
    Ok(policies)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODING: &str = include_str!("../../chart/examples/coding-agent.yaml");
    const MULTI: &str = include_str!("../../chart/examples/multi-agent.yaml");

    #[test]
    fn the_examples_of_the_chart_are_read() {
        let policies = parse_manifests(&format!("{CODING}\n---\n{MULTI}")).unwrap();
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
        let error =
            parse_manifests(&CODING.replace("host: git.example.com", "hots: a")).unwrap_err();
        assert!(error.to_string().contains("hots"), "{error}");
    }

    #[test]
    fn another_kind_is_told_what_to_write() {
        let text = CODING.replace("kind: AgentNetworkPolicy", "kind: NetworkPolicy");
        let error = parse_manifests(&text).unwrap_err().to_string();
        assert!(
            error.contains("coding-agent-network") && error.contains(API_VERSION),
            "{error}"
        );
    }

    #[test]
    fn values_from_the_environment_are_refused() {
        let text = CODING.replace("valueFrom:", "valueFromEnv:");
        assert!(parse_manifests(&text).is_err());
    }

    #[test]
    fn metadata_that_kubernetes_adds_is_ignored() {
        let text = CODING.replace("metadata:\n", "metadata:\n  uid: x\n  generation: 3\n");
        assert_eq!(parse_manifests(&text).unwrap().len(), 1);
    }
}
