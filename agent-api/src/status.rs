//! What the status of both kinds has in common.

#![expect(
    unreachable_pub,
    reason = "KubeSchema derives from copies of the types inside of functions"
)]

use std::fmt;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// How many of the nodes that have to follow an object do.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCount {
    /// The nodes that have to follow.
    #[serde(default)]
    #[schemars(schema_with = "schema::count")]
    pub total: i64,
    /// The nodes that do.
    #[serde(default)]
    #[schemars(schema_with = "schema::count")]
    pub ready: i64,
    /// ready/total, as kubectl get shows it.
    #[serde(default)]
    #[schemars(schema_with = "schema::summary")]
    pub summary: String,
}

impl NodeCount {
    /// The count with its summary.
    pub fn new(ready: i64, total: i64) -> Self {
        Self {
            total,
            ready,
            summary: format!("{ready}/{total}"),
        }
    }
}

impl fmt::Display for NodeCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ready, self.total)
    }
}
