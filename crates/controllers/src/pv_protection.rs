//! Lets a deleted volume go once no claim is bound to it.

use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, WorkQueue};

use crate::controller::{Context, Controller};
use crate::guarded::{Guard, Guarded, Volume};

pub(crate) struct PvProtection {
    client: kube::Client,
    volumes: Informer<Guarded<Volume>>,
}

impl Controller for PvProtection {
    const ACCOUNT: &'static str = "pv-protection-controller";
    const WORKERS: usize = 1;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let volumes = context.informers.of::<Guarded<Volume>>();
        volumes.subscribe(move |change| {
            if !matches!(change, Change::Deleted(_)) && change.object().guard() != Guard::Keep {
                queue.add(Key::of(&**change.object()));
            }
        });
        Self { client: context.client.clone(), volumes }
    }
}

fn is_used(volume: &Guarded<Volume>) -> bool {
    volume.text("/status/phase") == "Bound"
}

#[async_trait]
impl Reconciler for PvProtection {
    const NAME: &'static str = "persistentvolume-protection";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let Some(volume) = self.volumes.get(key) else { return Ok(Next::OnChange) };
        match volume.guard() {
            Guard::Add => volume.set_guard(&self.client, true).await?,
            Guard::RemoveIfUnused if !is_used(&volume) => volume.set_guard(&self.client, false).await?,
            _ => (),
        }
        Ok(Next::OnChange)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_bound_volume_is_used() {
        for (phase, want) in [("Bound", true), ("Available", false), ("Released", false)] {
            let volume = json!({"metadata": {"name": "v"}, "status": {"phase": phase}});
            assert_eq!(is_used(&serde_json::from_value(volume).unwrap()), want, "{phase}");
        }
    }
}
