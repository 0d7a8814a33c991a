//! `CNI_ARGS`: which pod the container belongs to, as Kubernetes' runtimes say it.

use agent_core::attachment::PodRef;

/// A list that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArgsError {
    /// A part without `=`.
    #[error("CNI_ARGS holds \"{0}\", which is not KEY=VALUE")]
    NotAPair(String),
    /// A key that is neither Kubernetes' nor declared ignorable.
    #[error("CNI_ARGS holds the unknown key \"{0}\" (IgnoreUnknown is not set)")]
    UnknownKey(String),
    /// The pod's name or namespace is missing: without them nobody could say whose traffic it is.
    #[error("CNI_ARGS does not name the pod: K8S_POD_NAMESPACE and K8S_POD_NAME are needed")]
    NoPod,
}

/// Reads `KEY=VALUE;KEY=VALUE`.
///
/// # Errors
/// The list is malformed or names no pod.
pub(crate) fn parse(text: &str) -> Result<PodRef, ArgsError> {
    let mut pod = PodRef {
        namespace: String::new(),
        name: String::new(),
        uid: String::new(),
    };
    let mut ignore_unknown = false;
    let mut unknown = None;
    for part in text
        .split(';')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| ArgsError::NotAPair(short(part)))?;
        match key {
            "K8S_POD_NAMESPACE" => value.clone_into(&mut pod.namespace),
            "K8S_POD_NAME" => value.clone_into(&mut pod.name),
            "K8S_POD_UID" => value.clone_into(&mut pod.uid),
            // the sandbox: CNI_CONTAINERID says the same
            "K8S_POD_INFRA_CONTAINER_ID" => {}
            "IgnoreUnknown" => {
                ignore_unknown = matches!(value.to_ascii_lowercase().as_str(), "1" | "true");
            }
            other => {
                unknown.get_or_insert_with(|| short(other));
            }
        }
    }
    if let Some(key) = unknown.filter(|_| !ignore_unknown) {
        return Err(ArgsError::UnknownKey(key));
    }
    if pod.namespace.is_empty() || pod.name.is_empty() {
        return Err(ArgsError::NoPod);
    }
    Ok(pod)
}

fn short(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_arguments_name_the_pod() {
        let pod = parse(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=agents;K8S_POD_NAME=coder-0;K8S_POD_INFRA_CONTAINER_ID=c0;K8S_POD_UID=u-1;X=y",
        )
        .unwrap();
        assert_eq!(
            (pod.namespace.as_str(), pod.name.as_str(), pod.uid.as_str()),
            ("agents", "coder-0", "u-1")
        );
    }

    #[test]
    fn an_unknown_key_needs_ignore_unknown() {
        let pod = "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b";
        assert_eq!(
            parse(&format!("{pod};X=y")).unwrap_err(),
            ArgsError::UnknownKey("X".into())
        );
        assert!(parse(&format!("X=y;{pod};IgnoreUnknown=true")).is_ok());
        assert!(parse(&format!("X=y;{pod};IgnoreUnknown=0")).is_err());
    }

    #[test]
    fn no_pod_no_attachment() {
        assert_eq!(parse(""), Err(ArgsError::NoPod));
        assert_eq!(parse("K8S_POD_NAME=b"), Err(ArgsError::NoPod));
        assert!(matches!(parse("K8S_POD_NAME"), Err(ArgsError::NotAPair(_))));
    }
}
