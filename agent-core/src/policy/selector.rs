//! Kubernetes label selectors. Owns their meaning, as `metav1.LabelSelector` has it; an empty selector selects everything.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Labels as Kubernetes keeps them.
pub type Labels = BTreeMap<String, String>;

/// A label selector: every part must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelSelector {
    /// Labels that must be there with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: Labels,
    /// Requirements that must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelRequirement>,
}

/// One requirement of a selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelRequirement {
    /// The label's key.
    pub key: String,
    /// How the label is held against the values.
    pub operator: LabelOperator,
    /// The values of `In` and `NotIn`; empty for `Exists` and `DoesNotExist`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// The operators of `metav1.LabelSelectorRequirement`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LabelOperator {
    /// The label is there and has one of the values.
    In,
    /// The label is not there or has none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is not there.
    DoesNotExist,
}

/// A selector that cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// `In` and `NotIn` need something to compare with.
    #[error("label `{0}`: In and NotIn need at least one value")]
    NoValues(String),
    /// `Exists` and `DoesNotExist` compare nothing.
    #[error("label `{0}`: Exists and DoesNotExist take no values")]
    Values(String),
    /// A requirement without a key.
    #[error("a label's key is empty")]
    EmptyKey,
}

impl LabelSelector {
    /// True when the labels satisfy every part.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.match_labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
            && self
                .match_expressions
                .iter()
                .all(|requirement| requirement.matches(labels))
    }

    /// Refuses selectors that cannot be meant.
    ///
    /// # Errors
    /// The first requirement whose values do not go with its operator.
    pub fn validate(&self) -> Result<(), SelectorError> {
        if self.match_labels.keys().any(String::is_empty) {
            return Err(SelectorError::EmptyKey);
        }
        for requirement in &self.match_expressions {
            let needs_values = match requirement.operator {
                LabelOperator::In | LabelOperator::NotIn => true,
                LabelOperator::Exists | LabelOperator::DoesNotExist => false,
            };
            if requirement.key.is_empty() {
                return Err(SelectorError::EmptyKey);
            }
            if needs_values && requirement.values.is_empty() {
                return Err(SelectorError::NoValues(requirement.key.clone()));
            }
            if !needs_values && !requirement.values.is_empty() {
                return Err(SelectorError::Values(requirement.key.clone()));
            }
        }
        Ok(())
    }
}

impl LabelRequirement {
    /// True when the labels satisfy the requirement.
    pub fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            LabelOperator::In => value.is_some_and(|value| self.values.contains(value)),
            LabelOperator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            LabelOperator::Exists => value.is_some(),
            LabelOperator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(json: &str) -> LabelSelector {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn operators_mean_what_kubernetes_means() {
        let labels: Labels = [("app".to_owned(), "a".to_owned())].into();
        for (json, selected) in [
            ("{}", true),
            (r#"{"matchLabels":{"app":"a"}}"#, true),
            (r#"{"matchLabels":{"app":"b"}}"#, false),
            (r#"{"matchLabels":{"app":"a","x":"y"}}"#, false),
            (
                r#"{"matchExpressions":[{"key":"app","operator":"In","values":["b","a"]}]}"#,
                true,
            ),
            (
                r#"{"matchExpressions":[{"key":"x","operator":"In","values":["a"]}]}"#,
                false,
            ),
            (
                r#"{"matchExpressions":[{"key":"app","operator":"NotIn","values":["a"]}]}"#,
                false,
            ),
            (
                r#"{"matchExpressions":[{"key":"x","operator":"NotIn","values":["a"]}]}"#,
                true,
            ),
            (
                r#"{"matchExpressions":[{"key":"app","operator":"Exists"}]}"#,
                true,
            ),
            (
                r#"{"matchExpressions":[{"key":"app","operator":"DoesNotExist"}]}"#,
                false,
            ),
            (
                r#"{"matchExpressions":[{"key":"x","operator":"DoesNotExist"}]}"#,
                true,
            ),
        ] {
            assert_eq!(selector(json).matches(&labels), selected, "{json}");
        }
    }

    #[test]
    fn values_must_go_with_the_operator() {
        for (json, error) in [
            (
                r#"{"matchExpressions":[{"key":"a","operator":"In"}]}"#,
                SelectorError::NoValues("a".into()),
            ),
            (
                r#"{"matchExpressions":[{"key":"a","operator":"Exists","values":["x"]}]}"#,
                SelectorError::Values("a".into()),
            ),
            (r#"{"matchLabels":{"":"x"}}"#, SelectorError::EmptyKey),
        ] {
            assert_eq!(selector(json).validate(), Err(error));
        }
    }

    #[test]
    fn unknown_fields_are_refused() {
        assert!(serde_json::from_str::<LabelSelector>(r#"{"matchLabel":{}}"#).is_err());
    }
}
