//! Lease-based leader election: of several replicas of a component one leads, the others wait.
//!
//! Upstream's protocol and timings, so that Ferry's components and upstream's can stand by for each other. A holder is judged dead by
//! how long its lease has not changed on this machine's clock, never by the times written in it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::Drain;

const LEASE_DURATION: Duration = Duration::from_secs(15);
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// Held while leading. Dropping it stops the renewal, after which another replica takes over when the lease runs out.
pub struct Leadership {
    lost: Drain,
    candidate: Candidate,
    renewal: JoinHandle<()>,
}

impl Leadership {
    /// Fires when leadership is lost or the process drains: what runs under this leadership must stop then.
    pub fn lost(&self) -> Drain {
        self.lost.clone()
    }

    /// Gives the lease up, so that the next replica need not wait for it to run out. Call it when all work has stopped.
    pub async fn release(self) {
        self.renewal.abort();
        if let Err(error) = self.candidate.release().await {
            tracing::debug!(lease = self.candidate.name, %error, "lease not released, it will run out");
        }
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

/// Resolves when `identity` leads, or with `None` when `drain` fires first.
pub async fn lead(
    client: kube::Client,
    namespace: &str,
    name: &str,
    identity: &str,
    drain: Drain,
) -> Option<Leadership> {
    let candidate =
        Candidate { leases: Api::namespaced(client, namespace), name: name.to_owned(), identity: identity.to_owned() };
    let mut observed = Observed::default();
    drain.run_until_cancelled(candidate.acquire(&mut observed)).await?;
    tracing::info!(lease = name, identity, "leading");
    let lost = drain.child_token();
    let renewal = tokio::spawn({
        let (candidate, lost) = (candidate.clone(), lost.clone());
        async move {
            candidate.renew(observed).await;
            lost.cancel();
        }
    });
    Some(Leadership { lost, candidate, renewal })
}

#[derive(Clone)]
struct Candidate {
    leases: Api<Lease>,
    name: String,
    identity: String,
}

/// The lease as last seen, and since when it looks like that.
#[derive(Default)]
struct Observed {
    spec: Option<LeaseSpec>,
    since: Option<Instant>,
}

impl Observed {
    fn see(&mut self, spec: Option<&LeaseSpec>, now: Instant) {
        if self.spec.as_ref() != spec || self.since.is_none() {
            self.spec = spec.cloned();
            self.since = Some(now);
        }
    }

    /// Whether someone other than `identity` holds the lease and may still be alive.
    fn held_by_other(&self, identity: &str, now: Instant) -> bool {
        let Some((spec, since)) = self.spec.as_ref().zip(self.since) else { return false };
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let duration = seconds.map_or(LEASE_DURATION, Duration::from_secs);
        !holder.is_empty() && holder != identity && now < since + duration
    }
}

impl Candidate {
    async fn acquire(&self, observed: &mut Observed) {
        loop {
            match self.try_acquire_or_renew(observed).await {
                Ok(true) => return,
                Ok(false) => (),
                Err(error) => tracing::debug!(lease = self.name, %error, "lease not acquired"),
            }
            // Jitter keeps candidates that started together from colliding for ever.
            tokio::time::sleep(RETRY_PERIOD.mul_f64(1.0 + 0.2 * rand::random::<f64>())).await;
        }
    }

    /// Returns when the lease could not be renewed for [`RENEW_DEADLINE`], or someone else holds it.
    async fn renew(&self, mut observed: Observed) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep_until(Instant::now() + RETRY_PERIOD).await;
            let deadline = renewed + RENEW_DEADLINE;
            match tokio::time::timeout_at(deadline, self.try_acquire_or_renew(&mut observed)).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => {
                    tracing::warn!(lease = self.name, "leadership taken by another");
                    return;
                }
                Ok(Err(error)) if Instant::now() < deadline => {
                    tracing::debug!(lease = self.name, %error, "lease not renewed");
                }
                Ok(Err(_)) | Err(_) => {
                    tracing::warn!(lease = self.name, "leadership lost, the lease could not be renewed in time");
                    return;
                }
            }
        }
    }

    async fn try_acquire_or_renew(&self, observed: &mut Observed) -> kube::Result<bool> {
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else {
            let spec = self.spec(None, Timestamp::now());
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..Default::default() };
            let lease = Lease { metadata, spec: Some(spec) };
            let created = self.leases.create(&PostParams::default(), &lease).await?;
            observed.see(created.spec.as_ref(), Instant::now());
            return Ok(true);
        };
        observed.see(lease.spec.as_ref(), Instant::now());
        if observed.held_by_other(&self.identity, Instant::now()) {
            return Ok(false);
        }
        lease.spec = Some(self.spec(lease.spec.as_ref(), Timestamp::now()));
        let updated = self.leases.replace(&self.name, &PostParams::default(), &lease).await?;
        observed.see(updated.spec.as_ref(), Instant::now());
        Ok(true)
    }

    fn spec(&self, old: Option<&LeaseSpec>, now: Timestamp) -> LeaseSpec {
        let mine = old.filter(|old| old.holder_identity.as_deref() == Some(&self.identity));
        let transitions = old.and_then(|old| old.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(LEASE_DURATION.as_secs() as i32),
            acquire_time: mine.and_then(|mine| mine.acquire_time.clone()).or(Some(MicroTime(now))),
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(if old.is_none() || mine.is_some() { transitions } else { transitions + 1 }),
            ..Default::default()
        }
    }

    async fn release(&self) -> kube::Result<()> {
        let mut lease = self.leases.get(&self.name).await?;
        let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(&self.identity))
        else {
            return Ok(());
        };
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        self.leases.replace(&self.name, &PostParams::default(), &lease).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::FakeApi;

    async fn candidate(api: &FakeApi, identity: &str, drain: &Drain) -> Option<Leadership> {
        lead(api.client(identity), "kube-system", "scheduler", identity, drain.clone()).await
    }

    fn holder(api: &FakeApi) -> (String, i64) {
        let spec = api.object("scheduler").unwrap()["spec"].clone();
        (spec["holderIdentity"].as_str().unwrap().to_owned(), spec["leaseTransitions"].as_i64().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_candidate_leads_only_when_the_first_is_gone() {
        let (api, drain) = (FakeApi::default(), Drain::new());
        let first = candidate(&api, "a", &drain).await.unwrap();
        assert_eq!(holder(&api), ("a".into(), 0));
        let waiting = tokio::time::timeout(Duration::from_secs(120), candidate(&api, "b", &drain)).await;
        assert!(waiting.is_err(), "the first renews, so the second never gets in");
        first.release().await;
        let second = candidate(&api, "b", &drain).await.unwrap();
        assert_eq!(holder(&api), ("b".into(), 1));

        let start = Instant::now();
        drop(second); // Crashed: nothing is released, the lease runs out.
        let _third = candidate(&api, "c", &drain).await.unwrap();
        assert!(start.elapsed() >= LEASE_DURATION);
        assert_eq!(holder(&api), ("c".into(), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_is_lost_when_it_cannot_be_renewed_in_time() {
        let (api, drain) = (FakeApi::default(), Drain::new());
        let leading = candidate(&api, "a", &drain).await.unwrap();
        let start = Instant::now();
        api.set_down(true);
        leading.lost().cancelled().await;
        assert!(start.elapsed() >= RENEW_DEADLINE && start.elapsed() < LEASE_DURATION);
    }

    #[tokio::test(start_paused = true)]
    async fn draining_ends_the_wait_and_the_leadership() {
        let (api, drain) = (FakeApi::default(), Drain::new());
        let leading = candidate(&api, "a", &drain).await.unwrap();
        let waiting = tokio::spawn({
            let (api, drain) = (api.clone(), drain.clone());
            async move { candidate(&api, "b", &drain).await.is_none() }
        });
        drain.cancel();
        assert!(waiting.await.unwrap());
        leading.lost().cancelled().await;
    }
}
