//! Builds the identity table from attachments and facts. Pure: no file, no clock.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use agent_core::attachment::Attachment;
use agent_core::identity::Workload;
use tokio_util::sync::CancellationToken;

use super::source::{PodFacts, PodRef};
use super::{Identified, Table};

/// Remembers what the last table was made of, so that the next one keeps what is the same.
#[derive(Default)]
pub(super) struct Builder {
    attached: HashMap<AttachmentKey, Attached>,
    next_generation: u64,
    /// What was complained about, so that each is logged once.
    complaints: Vec<Complaint>,
}

/// One attachment of one container; a new one at the same address is another identity.
type AttachmentKey = (String, String, Ipv4Addr);

struct Attached {
    gone: CancellationToken,
    identified: Option<Arc<Identified>>,
}

/// Why an attachment has no identity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Complaint {
    /// Several attachments claim this address.
    TwoClaims(Ipv4Addr, Vec<String>),
    /// Nothing is known about this pod (`namespace/name`).
    NoFacts(Ipv4Addr, String),
}

impl Builder {
    /// The table for these attachments. Tokens of attachments that are gone, or that may not keep
    /// their identity, are cancelled; `None` when the table would be what it was.
    pub(super) fn build(
        &mut self,
        attachments: &[Arc<Attachment>],
        facts: impl Fn(PodRef<'_>) -> Option<PodFacts>,
    ) -> Option<Table> {
        let mut claims: HashMap<Ipv4Addr, Vec<&Attachment>> = HashMap::new();
        for attachment in attachments {
            claims
                .entry(attachment.fake_ip)
                .or_default()
                .push(attachment);
        }
        let mut table = Table::default();
        let mut complaints = Vec::new();
        let mut next = HashMap::with_capacity(self.attached.len());
        let mut changed = false;
        for (ip, claims) in claims {
            let [attachment] = claims[..] else {
                complaints.push(Complaint::TwoClaims(ip, names(&claims)));
                continue;
            };
            let key = key(attachment);
            let before = self.attached.remove(&key);
            let Some(workload) = workload(attachment, &facts) else {
                let name = format!("{}/{}", attachment.pod.namespace, attachment.pod.name);
                complaints.push(Complaint::NoFacts(ip, name));
                // Facts that are lost take the identity away, and with it what was let through.
                if let Some(before) = before {
                    changed |= before.identified.is_some();
                    before.gone.cancel();
                }
                continue;
            };
            let (gone, identified) = match before {
                Some(before) => (before.gone, before.identified),
                None => (CancellationToken::new(), None),
            };
            let identified = match identified.filter(|known| known.workload == workload) {
                Some(known) => known,
                None => {
                    changed = true;
                    self.next_generation += 1;
                    Arc::new(Identified {
                        workload,
                        generation: self.next_generation,
                        ifindex: attachment.ifindex,
                        gone: gone.clone(),
                    })
                }
            };
            table.insert(ip, identified.clone());
            next.insert(
                key,
                Attached {
                    gone,
                    identified: Some(identified),
                },
            );
        }
        // What is left was deleted, or shares its address with another claim now.
        let left = std::mem::replace(&mut self.attached, next);
        changed |= !left.is_empty();
        for attached in left.into_values() {
            attached.gone.cancel();
        }
        self.complain(complaints);
        changed.then_some(table)
    }

    fn complain(&mut self, mut complaints: Vec<Complaint>) {
        complaints.sort_unstable();
        for complaint in &complaints {
            if self.complaints.binary_search(complaint).is_ok() {
                continue;
            }
            match complaint {
                Complaint::TwoClaims(ip, pods) => {
                    tracing::error!(fake_ip = %ip, pods = ?pods, "two attachments claim one address; all of them are denied");
                }
                Complaint::NoFacts(ip, pod) => {
                    tracing::warn!(fake_ip = %ip, pod = %pod, "nothing is known about this pod's service account and labels; it is denied until they are (from the API server, or the workloads file)");
                }
            }
        }
        self.complaints = complaints;
    }

    #[cfg(test)]
    pub(super) fn complaints(&self) -> &[Complaint] {
        &self.complaints
    }
}

fn key(attachment: &Attachment) -> AttachmentKey {
    (
        attachment.container_id.clone(),
        attachment.ifname.clone(),
        attachment.fake_ip,
    )
}

fn names(claims: &[&Attachment]) -> Vec<String> {
    let mut names: Vec<String> = claims
        .iter()
        .map(|claim| format!("{}/{}", claim.pod.namespace, claim.pod.name))
        .collect();
    names.sort_unstable();
    names
}

fn workload(
    attachment: &Attachment,
    facts: &impl Fn(PodRef<'_>) -> Option<PodFacts>,
) -> Option<Workload> {
    let pod = &attachment.pod;
    let facts = facts(PodRef {
        namespace: &pod.namespace,
        name: &pod.name,
        uid: &pod.uid,
    })?;
    Some(Workload {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        service_account: facts.service_account,
        labels: facts.labels,
        namespace_labels: facts.namespace_labels,
        fake_ip: attachment.fake_ip,
    })
}
