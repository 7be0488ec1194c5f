//! Lets a deleted VolumeAttributesClass go once no volume and no claim names it.
//!
//! It trusts its caches, as upstream does: a claim that names a class in the moment of its deletion may find it gone.

use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, WorkQueue};

use crate::controller::{Context, Controller};
use crate::guarded::{AttributesClass, Claim, Guard, Guarded, Kind, Volume};

const BY_CLASS: &str = "volumeAttributesClassName";

pub(crate) struct VacProtection {
    client: kube::Client,
    classes: Informer<Guarded<AttributesClass>>,
    volumes: Informer<Guarded<Volume>>,
    claims: Informer<Guarded<Claim>>,
}

impl Controller for VacProtection {
    const ACCOUNT: &'static str = "volumeattributesclass-protection-controller";
    const WORKERS: usize = 1;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let classes = context.informers.of::<Guarded<AttributesClass>>();
        classes.subscribe({
            let queue = queue.clone();
            move |change| {
                if !matches!(change, Change::Deleted(_)) && change.object().guard() != Guard::Keep {
                    queue.add(Key::of(&**change.object()));
                }
            }
        });
        let volumes = users(context, &classes, &queue);
        let claims = users(context, &classes, &queue);
        Self { client: context.client.clone(), classes, volumes, claims }
    }
}

/// Those who name classes; a class that waits is looked at when one of them changes.
fn users<T: Kind>(
    context: &Context,
    classes: &Informer<Guarded<AttributesClass>>,
    queue: &WorkQueue,
) -> Informer<Guarded<T>> {
    let users = context.informers.of::<Guarded<T>>();
    users.add_index(BY_CLASS, named);
    let (classes, queue) = (classes.clone(), queue.clone());
    users.subscribe(move |change| {
        let before = match change {
            Change::Added(_) => return,
            Change::Updated { old, .. } | Change::Deleted(old) => named(old),
        };
        let waits = |name: &String| {
            let class = classes.get(&Key::new("", name.as_str()));
            class.is_some_and(|class| class.guard() == Guard::RemoveIfUnused)
        };
        before.into_iter().filter(waits).for_each(|name| queue.add(Key::new("", name)));
    });
    users
}

/// The classes that a volume or claim has, wants, or is being changed to.
fn named<T: Kind>(user: &Guarded<T>) -> Vec<String> {
    let places = [
        "/spec/volumeAttributesClassName",
        "/status/currentVolumeAttributesClassName",
        "/status/modifyVolumeStatus/targetVolumeAttributesClassName",
    ];
    places.into_iter().map(|place| user.text(place).to_owned()).filter(|name| !name.is_empty()).collect()
}

#[async_trait]
impl Reconciler for VacProtection {
    const NAME: &'static str = "volumeattributesclass-protection";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let Some(class) = self.classes.get(key) else { return Ok(Next::OnChange) };
        let unused = || {
            self.volumes.by_index(BY_CLASS, &key.name).is_empty()
                && self.claims.by_index(BY_CLASS, &key.name).is_empty()
        };
        match class.guard() {
            Guard::Add => class.set_guard(&self.client, true).await?,
            Guard::RemoveIfUnused if unused() => class.set_guard(&self.client, false).await?,
            _ => (),
        }
        Ok(Next::OnChange)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_class_is_named_by_what_is_had_wanted_or_on_its_way() {
        let check = |rest: Value, want: &[&str]| {
            let mut claim = json!({"metadata": {"name": "c"}});
            claim.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            assert_eq!(named::<Claim>(&serde_json::from_value(claim).unwrap()), want, "{rest}");
        };
        check(json!({}), &[]);
        check(json!({"spec": {"volumeAttributesClassName": "a"}}), &["a"]);
        check(
            json!({"spec": {"volumeAttributesClassName": "b"}, "status": {
                "currentVolumeAttributesClassName": "a", "modifyVolumeStatus": {"targetVolumeAttributesClassName": "b"},
            }}),
            &["b", "a", "b"],
        );
    }
}
