//! Takes out of an answer what a pod must not be told (DNS rebinding).
//!
//! An address in a sensitive range, in a Fake IP CIDR, on loopback or of the node itself is no
//! place that the proxy would connect to, and to a client that believes it a way to be fooled. The
//! keys of Encrypted ClientHello are taken out too: the proxy refuses TLS whose name it can't see,
//! so a client that used them would fail where it now succeeds.
//!
//! Untouched answers, which nearly all are, pass as the bytes they came in. Only a message that
//! has to change is decoded and written anew, by hickory-proto.

use std::net::IpAddr;

use hickory_proto::op::Message;
use hickory_proto::rr::rdata::svcb::{SVCB, SvcParamKey, SvcParamValue};
use hickory_proto::rr::{RData, Record};
use thiserror::Error;

use super::answer::{Answer, NotAnAnswer, Question};

/// An answer that had to change.
#[derive(Debug)]
pub(crate) struct Scrubbed {
    /// What is left.
    pub(crate) answer: Answer,
    /// Records of the answer section that were taken out.
    pub(crate) removed: usize,
    /// No address is left, and there was one.
    pub(crate) emptied: bool,
}

/// Why an answer that must change can't be: the pod gets SERVFAIL.
#[derive(Debug, Error)]
pub(crate) enum ScrubError {
    /// hickory-proto reads more strictly than the pass-through does.
    #[error("decode the answer to take addresses out")]
    Decode(#[source] hickory_proto::serialize::binary::DecodeError),
    /// What is left can't be written.
    #[error("encode the answer without the denied addresses")]
    Encode(#[source] hickory_proto::ProtoError),
    /// What was written can't be read.
    #[error("read the changed answer")]
    Reread(#[source] NotAnAnswer),
}

/// Takes out of `answer` what `denied` says of its addresses. `None`: it may pass as it is.
///
/// # Errors
/// [`ScrubError`] when it must change and can't.
pub(crate) fn scrub(
    answer: &Answer,
    question: &Question,
    denied: impl Fn(IpAddr) -> bool,
) -> Result<Option<Scrubbed>, ScrubError> {
    let hit = |address: &IpAddr| denied(*address);
    let addresses_denied = answer.addresses.iter().any(hit) || answer.glue.iter().any(hit);
    if !addresses_denied && !answer.has_service_binding {
        return Ok(None);
    }
    let mut message = Message::from_vec(&answer.message).map_err(ScrubError::Decode)?;
    let mut changes = Changes::default();
    let before = message.answers.len();
    for section in [
        &mut message.answers,
        &mut message.authorities,
        &mut message.additionals,
    ] {
        section.retain_mut(|record| keep(record, &denied, &mut changes));
    }
    if !changes.any {
        return Ok(None);
    }
    let removed = before - message.answers.len();
    // The signatures no longer cover what is there.
    message.metadata.authentic_data = false;
    let bytes = message.to_vec().map_err(ScrubError::Encode)?;
    let changed = Answer::reread(&bytes, question).map_err(ScrubError::Reread)?;
    Ok(Some(Scrubbed {
        removed,
        emptied: !answer.addresses.is_empty() && changed.addresses.is_empty(),
        answer: Answer {
            ttl: answer.ttl,
            ..changed
        },
    }))
}

/// The addresses that HTTPS and SVCB records of `answer` hint at: a client may dial them without
/// asking for an address record.
pub(crate) fn hinted_addresses(answer: &Answer) -> Vec<IpAddr> {
    if !answer.has_service_binding {
        return Vec::new();
    }
    let Ok(message) = Message::from_vec(&answer.message) else {
        return Vec::new();
    };
    message
        .answers
        .iter()
        .filter_map(service_binding)
        .flat_map(hints)
        .collect()
}

#[derive(Default)]
struct Changes {
    any: bool,
}

/// Whether the record stays; service bindings are changed in place.
fn keep(record: &mut Record, denied: &impl Fn(IpAddr) -> bool, changes: &mut Changes) -> bool {
    let stays = match &mut record.data {
        RData::A(address) => !denied(address.0.into()),
        RData::AAAA(address) => !denied(address.0.into()),
        RData::HTTPS(binding) => clean(&mut binding.0, denied, changes),
        RData::SVCB(binding) => clean(binding, denied, changes),
        _ => true,
    };
    changes.any |= !stays;
    stays
}

/// Takes hints and keys out of a service binding. False: without them it would say something
/// else, because the client was told that it must understand them.
fn clean(binding: &mut SVCB, denied: &impl Fn(IpAddr) -> bool, changes: &mut Changes) -> bool {
    let before = binding.svc_params.len();
    let mut removed = Vec::new();
    binding.svc_params.retain(|(key, value)| {
        let stays = match value {
            SvcParamValue::EchConfigList(_) => false,
            SvcParamValue::Ipv4Hint(hint) => !hint.0.iter().any(|a| denied(a.0.into())),
            SvcParamValue::Ipv6Hint(hint) => !hint.0.iter().any(|a| denied(a.0.into())),
            _ => true,
        };
        if !stays {
            removed.push(*key);
        }
        stays
    });
    changes.any |= before != binding.svc_params.len();
    !binding
        .svc_params
        .iter()
        .any(|(_, value)| is_mandatory(value, &removed))
}

fn is_mandatory(value: &SvcParamValue, removed: &[SvcParamKey]) -> bool {
    matches!(value, SvcParamValue::Mandatory(keys) if keys.0.iter().any(|key| removed.contains(key)))
}

fn service_binding(record: &Record) -> Option<&SVCB> {
    match &record.data {
        RData::HTTPS(binding) => Some(&binding.0),
        RData::SVCB(binding) => Some(binding),
        _ => None,
    }
}

fn hints(binding: &SVCB) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for (_, value) in &binding.svc_params {
        match value {
            SvcParamValue::Ipv4Hint(hint) => {
                addresses.extend(hint.0.iter().map(|a| IpAddr::V4(a.0)));
            }
            SvcParamValue::Ipv6Hint(hint) => {
                addresses.extend(hint.0.iter().map(|a| IpAddr::V6(a.0)));
            }
            _ => {}
        }
    }
    addresses
}

#[cfg(test)]
mod tests;
