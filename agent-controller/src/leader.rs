//! One of several replicas leads: whoever holds the Lease. Owns taking, keeping and giving it back; what a leader does is
//! others' business.
//!
//! A holder that can't renew stops leading before anybody else may take over. Time is measured by this process's own
//! clock from the moment that a change was seen, so clocks of several nodes need not agree.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::app::chain;
use crate::metrics::Metrics;

/// The Lease's name.
pub(crate) const LEASE: &str = "agent-network-controller";

/// Takes part in the election.
pub(crate) struct Elector {
    pub(crate) api: Api<Lease>,
    pub(crate) identity: String,
    /// How long a holder that says nothing keeps it.
    pub(crate) duration: Duration,
    pub(crate) metrics: Arc<Metrics>,
}

/// What was seen of the Lease, and when it last changed.
struct Observed {
    lease: Lease,
    changed: Instant,
}

/// What to do about the Lease now.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// It is ours, or nobody's: write it.
    Hold,
    /// Another one's.
    Wait,
}

impl Elector {
    /// Takes part until `stop`; `leading` says whether this replica leads. Gives the Lease back at the end.
    pub(crate) async fn run(self, leading: watch::Sender<bool>, stop: CancellationToken) {
        let mut observed: Option<Observed> = None;
        let mut renewed: Option<Instant> = None;
        // A third of the time: two attempts may fail before anybody else takes over.
        let pause = self.duration / 6;
        loop {
            // What a leader may still take for granted; at the end of it, it has to be looked at again.
            let left = |at: Option<Instant>| {
                at.map(|at| (at + self.duration * 2 / 3).saturating_duration_since(Instant::now()))
            };
            let patience = left(renewed).filter(|left| !left.is_zero());
            let patience = patience.unwrap_or(Duration::MAX).min(self.duration / 3);
            let round = timeout(patience, self.round(&mut observed));
            let held = tokio::select! {
                held = round => held,
                () = stop.cancelled() => break,
            };
            match held {
                Ok(Ok(true)) => renewed = Some(Instant::now()),
                Ok(Ok(false)) => renewed = None,
                Ok(Err(error)) => {
                    self.metrics.error("lease");
                    tracing::warn!(error = %chain(&error), "the Lease can't be read or written");
                }
                Err(_) => {
                    self.metrics.error("lease");
                    tracing::warn!("the API server doesn't answer about the Lease");
                }
            }
            // Stops well before others may take over, and a call that is under way has time to end.
            let leads = renewed.is_some_and(|at| at.elapsed() < self.duration * 2 / 3);
            leading.send_if_modified(|was| {
                if *was != leads {
                    tracing::info!(leader = leads, identity = %self.identity, "leadership");
                }
                std::mem::replace(was, leads) != leads
            });
            self.metrics.leader.set(i64::from(leads));
            let pause = pause.mul_f64(0.8 + 0.4 * fastrand::f64());
            let pause = left(renewed.filter(|_| leads)).map_or(pause, |left| pause.min(left));
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.cancelled() => break,
            }
        }
        leading.send_replace(false);
        self.metrics.leader.set(0);
        if renewed.is_some() {
            self.give_back(observed).await;
        }
    }

    /// Reads the Lease, and writes it when that is due; says whether it is ours.
    async fn round(&self, observed: &mut Option<Observed>) -> Result<bool, kube::Error> {
        let now = Instant::now();
        match self.api.get_opt(LEASE).await? {
            None => {
                let lease = self.written(None);
                let created = self.api.create(&PostParams::default(), &lease).await;
                self.taken(created, observed)
            }
            Some(lease) => {
                let same = observed.as_ref().is_some_and(|o| {
                    o.lease.metadata.resource_version == lease.metadata.resource_version
                });
                if !same {
                    *observed = Some(Observed {
                        lease,
                        changed: now,
                    });
                }
                let Some(seen) = observed.as_ref() else {
                    return Ok(false);
                };
                if step(
                    seen.lease.spec.as_ref(),
                    &self.identity,
                    seen.changed.elapsed(),
                ) == Step::Wait
                {
                    return Ok(false);
                }
                let lease = self.written(Some(&seen.lease));
                let replaced = self
                    .api
                    .replace(LEASE, &PostParams::default(), &lease)
                    .await;
                self.taken(replaced, observed)
            }
        }
    }

    /// A conflict means that another one was quicker.
    fn taken(
        &self,
        result: Result<Lease, kube::Error>,
        observed: &mut Option<Observed>,
    ) -> Result<bool, kube::Error> {
        match result {
            Ok(lease) => {
                self.metrics.write("lease");
                let changed = Instant::now();
                *observed = Some(Observed { lease, changed });
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The Lease with us as its holder.
    fn written(&self, before: Option<&Lease>) -> Lease {
        let now = MicroTime(Timestamp::now());
        let spec = before
            .and_then(|lease| lease.spec.clone())
            .unwrap_or_default();
        let ours = spec.holder_identity.as_deref() == Some(&self.identity);
        let transitions =
            spec.lease_transitions.unwrap_or(0) + i32::from(!ours && before.is_some());
        Lease {
            metadata: ObjectMeta {
                name: Some(LEASE.to_owned()),
                resource_version: before.and_then(|l| l.metadata.resource_version.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: i32::try_from(self.duration.as_secs()).ok(),
                acquire_time: if ours {
                    spec.acquire_time
                } else {
                    Some(now.clone())
                },
                renew_time: Some(now),
                lease_transitions: Some(transitions),
                ..spec
            }),
        }
    }

    /// Lets the next replica lead at once. Failing is no harm: the Lease runs out.
    async fn give_back(&self, observed: Option<Observed>) {
        let Some(Observed { mut lease, .. }) = observed else {
            return;
        };
        lease.metadata.managed_fields = None;
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
        }
        let params = PostParams::default();
        let given = timeout(
            Duration::from_secs(2),
            self.api.replace(LEASE, &params, &lease),
        )
        .await;
        match given {
            Ok(Ok(_)) => tracing::info!("the Lease is given back"),
            Ok(Err(error)) => tracing::warn!(error = %error, "the Lease is not given back"),
            Err(_) => tracing::warn!("the Lease is not given back in time"),
        }
    }
}

/// Whether `identity` may write a Lease that hasn't changed for `unchanged`.
fn step(spec: Option<&LeaseSpec>, identity: &str, unchanged: Duration) -> Step {
    let Some(spec) = spec else {
        return Step::Hold;
    };
    match spec.holder_identity.as_deref() {
        None | Some("") => Step::Hold,
        Some(holder) if holder == identity => Step::Hold,
        Some(_) => {
            let seconds = spec.lease_duration_seconds.unwrap_or(0);
            let duration = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            if unchanged > duration {
                Step::Hold
            } else {
                Step::Wait
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(holder: &str) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn anothers_lease_is_waited_for_until_it_has_run_out() {
        let at = Duration::from_secs;
        for (spec, unchanged, expected) in [
            (None, at(0), Step::Hold),
            (Some(spec("me")), at(0), Step::Hold),
            (Some(spec("")), at(0), Step::Hold),
            (Some(spec("other")), at(0), Step::Wait),
            (Some(spec("other")), at(15), Step::Wait),
            (Some(spec("other")), at(16), Step::Hold),
        ] {
            assert_eq!(step(spec.as_ref(), "me", unchanged), expected, "{spec:?}");
        }
    }
}
