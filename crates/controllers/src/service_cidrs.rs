//! Keeps a range of service addresses while services need it, and says whether addresses are given out of it.
//!
//! A range that is deleted may go when others hold all of its addresses, or when nobody has an address of this range alone.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::addresses::Range;
use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, WorkQueue};
use jiff::Timestamp;
use k8s_openapi::api::networking::v1::IPAddress;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use crate::controller::{Context, Controller};
use crate::guarded::{Guard, Guarded, ServiceCidr};
use crate::meta;

/// Only these are of services.
const MANAGED: &str = "ipaddress.kubernetes.io/managed-by=ipallocator.k8s.io";
const MANAGER: &str = "service-cidr-controller";
/// By then every API server knows that a deleted range is not to be used.
const DELETION_GRACE: Duration = Duration::from_secs(10);

/// Status, reason and message of `Ready`.
const READY: [&str; 3] = ["True", "", "Kubernetes Service CIDR is ready"];
const TERMINATING: [&str; 3] = [
    "False",
    "Terminating",
    "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR",
];

pub(crate) struct ServiceCidrs {
    client: kube::Client,
    ranges: Informer<Guarded<ServiceCidr>>,
    addresses: Informer<IPAddress>,
}

impl Controller for ServiceCidrs {
    const ACCOUNT: &'static str = "service-cidrs-controller";
    const WORKERS: usize = 5;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let ranges = context.informers.of::<Guarded<ServiceCidr>>();
        let addresses = context.informers.selected::<IPAddress>(MANAGED, "");
        ranges.subscribe({
            let (ranges, queue) = (ranges.clone(), queue.clone());
            move |change| {
                queue.add(Key::of(&**change.object()));
                // A new one may hold what another waits for.
                if matches!(change, Change::Added(_)) {
                    waiting(&ranges).for_each(|range| queue.add(Key::of(&*range)));
                }
            }
        });
        addresses.subscribe({
            let ranges = ranges.clone();
            move |change| {
                let address = meta::name(&**change.object()).parse::<IpAddr>();
                let concerned = |range: &Arc<_>| address.as_ref().is_ok_and(|address| holds(range, *address));
                if !matches!(change, Change::Updated { .. }) {
                    waiting(&ranges).filter(concerned).for_each(|range| queue.add(Key::of(&*range)));
                }
            }
        });
        Self { client: context.client.clone(), ranges, addresses }
    }
}

/// Those that are deleted and still there.
fn waiting(ranges: &Informer<Guarded<ServiceCidr>>) -> impl Iterator<Item = Arc<Guarded<ServiceCidr>>> {
    ranges.list().into_iter().filter(|range| range.guard() == Guard::RemoveIfUnused)
}

fn parts(range: &Guarded<ServiceCidr>) -> impl Iterator<Item = Range> {
    range.list("/spec/cidrs").iter().filter_map(|part| Range::lenient(part.as_str()?))
}

fn holds(range: &Guarded<ServiceCidr>, address: IpAddr) -> bool {
    parts(range).any(|part| part.has_host(address))
}

/// Whether nobody would miss it: `all` are the ranges there are, it among them.
fn may_go(
    range: &Guarded<ServiceCidr>,
    all: &[Arc<Guarded<ServiceCidr>>],
    mut addresses: impl Iterator<Item = IpAddr>,
) -> bool {
    let others = || all.iter().filter(|other| meta::name(&***other) != meta::name(range));
    let is_within = |part: Range| {
        let wider = |other: Range| other.bits <= part.bits && other.contains(part.address);
        others().any(|other| parts(other).any(wider))
    };
    parts(range).all(is_within)
        || !addresses.any(|address| holds(range, address) && !others().any(|other| holds(other, address)))
}

/// How long a deleted one is kept at least.
fn grace(range: &Guarded<ServiceCidr>, now: Timestamp) -> Option<Duration> {
    let deleted = kube::Resource::meta(range).deletion_timestamp.as_ref()?.0;
    let since = Duration::try_from(now.duration_since(deleted)).unwrap_or_default();
    DELETION_GRACE.checked_sub(since).filter(|left| !left.is_zero())
}

#[async_trait]
impl Reconciler for ServiceCidrs {
    const NAME: &'static str = "service-cidr-controller";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let Some(range) = self.ranges.get(key) else { return Ok(Next::OnChange) };
        match range.guard() {
            Guard::Add => range.set_guard(&self.client, true).await?,
            Guard::Keep if meta::is_deleting(&*range) => (),
            Guard::Keep => self.say(&range, READY).await?,
            Guard::RemoveIfUnused => {
                let addresses = self.addresses.list();
                let addresses = addresses.iter().filter_map(|address| meta::name(&**address).parse().ok());
                if !may_go(&range, &self.ranges.list(), addresses) {
                    self.say(&range, TERMINATING).await?;
                } else if let Some(left) = grace(&range, Timestamp::now()) {
                    return Ok(Next::After(left));
                } else {
                    range.set_guard(&self.client, false).await?;
                }
            }
        }
        Ok(Next::OnChange)
    }
}

impl ServiceCidrs {
    async fn say(
        &self,
        range: &Guarded<ServiceCidr>,
        [status, reason, message]: [&str; 3],
    ) -> Result<(), ReconcileError> {
        let is_said = |known: &Value| {
            let field = |name| known.get(name).and_then(Value::as_str).unwrap_or_default();
            [field("type"), field("status"), field("reason"), field("message")] == ["Ready", status, reason, message]
        };
        if range.list("/status/conditions").iter().any(is_said) {
            return Ok(());
        }
        let name = meta::name(range);
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let patch = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name},
            "status": {"conditions": [{
                "type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": now,
            }]},
        });
        let api = Api::<Guarded<ServiceCidr>>::all_with(self.client.clone(), &());
        match api.patch_status(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_goes_when_nobody_needs_it() {
        check("10.0.0.0/24", &[], &[], true);
        check("10.0.0.0/24", &[], &["10.0.0.1"], false);
        check("10.0.0.0/24", &[], &["10.0.1.1", "fd00::1"], true);
        check("10.0.0.0/24 fd00::/112", &[], &["fd00::1"], false);
        // Another has the same, or more.
        check("10.0.0.0/24", &["10.0.0.0/24"], &["10.0.0.1"], true);
        check("10.0.0.0/24", &["10.0.0.0/16"], &["10.0.0.1"], true);
        check("10.0.0.0/24 fd00::/112", &["10.0.0.0/16"], &["10.0.0.1"], true);
        check("10.0.0.0/24 fd00::/112", &["10.0.0.0/16"], &["10.0.0.1", "fd00::1"], false);
        check("10.0.0.0/24 fd00::/112", &["10.0.0.0/16", "fd00::/64"], &["10.0.0.1", "fd00::1"], true);
        // Another has some of it.
        check("10.0.0.0/24", &["10.0.0.0/28"], &["10.0.0.1"], true);
        check("10.0.0.0/24", &["10.0.0.0/28"], &["10.0.0.15"], false);
    }

    #[test]
    fn a_deleted_range_is_kept_for_a_while() {
        let mut range = range("a", "10.0.0.0/24");
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(grace(&range, at("2026-01-01T00:00:00Z")), None);
        kube::Resource::meta_mut(&mut range).deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at("2026-01-01T00:00:00Z")));
        assert_eq!(grace(&range, at("2026-01-01T00:00:04Z")), Some(Duration::from_secs(6)));
        assert_eq!(grace(&range, at("2026-01-01T00:00:10Z")), None);
    }

    fn range(name: &str, parts: &str) -> Guarded<ServiceCidr> {
        let parts: Vec<&str> = parts.split(' ').collect();
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"cidrs": parts}})).unwrap()
    }

    #[track_caller]
    fn check(own: &str, others: &[&str], addresses: &[&str], want: bool) {
        let own = range("own", own);
        let others = others.iter().enumerate().map(|(index, other)| range(&format!("other{index}"), other));
        let all: Vec<_> = std::iter::once(own.clone()).chain(others).map(Arc::new).collect();
        let got = may_go(&own, &all, addresses.iter().map(|address| address.parse().unwrap()));
        assert_eq!(got, want, "{own:?} {addresses:?}");
    }
}
