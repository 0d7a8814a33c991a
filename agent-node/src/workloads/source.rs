//! Where the facts about a pod come from: what a policy selects by, beyond its name.

pub use agent_core::workloads::PodFacts;

/// A pod as the CNI state names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodRef<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its UID; a pod of the same name is another pod when this differs.
    pub uid: &'a str,
}

/// Knows service accounts and labels: a workloads file, or a watch on the API server.
pub trait WorkloadSource: Send + 'static {
    /// Takes in what has changed since the last call, and says whether anything has. Called from
    /// one task, often; must not block for longer than reading a small local file.
    fn refresh(&mut self) -> bool;

    /// What is known about `pod`; `None` when nothing is, and then the pod has no identity.
    fn facts(&self, pod: PodRef<'_>) -> Option<PodFacts>;
}
