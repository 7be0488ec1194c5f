//! Tells each ResourceQuota what its namespace uses, when it is new or limits something else.
//!
//! From then on the API server keeps the account itself, in the transactions that write and remove objects. A pass reads the
//! quota, then what it counts, and writes on condition that the quota did not change meanwhile: so once the limits are known
//! to the API server, no write is counted twice or missed. The write that makes them known brings a second pass.

use api::quantity::Quantity;
use api::quota::{Amounts, Counted, add, amounts};
use api::{Object, ObjectExt as _};
use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, WorkQueue};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::{Api, DynamicObject, ListParams, PartialObjectMeta, PostParams};
use kube::core::ApiResource;
use serde_json::Value;

use crate::controller::{Context, Controller};
use crate::discovery;

/// What is measured; of everything else only the number matters.
const MEASURED: [&str; 3] = ["pods", "services", "persistentvolumeclaims"];

pub(crate) struct ResourceQuotas {
    client: kube::Client,
    quotas: Informer<ResourceQuota>,
}

impl Controller for ResourceQuotas {
    const ACCOUNT: &'static str = "resourcequota-controller";
    const WORKERS: usize = 5;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let quotas = context.informers.of::<ResourceQuota>();
        quotas.subscribe(move |change| {
            let due = match change {
                Change::Added(_) => true,
                Change::Updated { old, new } => differ(old, new),
                Change::Deleted(_) => false,
            };
            if due {
                queue.add(Key::of(&**change.object()));
            }
        });
        Self { client: context.client.clone(), quotas }
    }
}

/// What is asked for differs, or what the API server knows of it.
fn differ(old: &ResourceQuota, new: &ResourceQuota) -> bool {
    let hard = |quota: &ResourceQuota| quota.status.as_ref().and_then(|status| status.hard.clone());
    old.spec != new.spec || hard(old) != hard(new)
}

#[async_trait]
impl Reconciler for ResourceQuotas {
    const NAME: &'static str = "resourcequota";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        if self.quotas.get(key).is_none() {
            return Ok(Next::OnChange);
        }
        let resource = ApiResource::erase::<ResourceQuota>(&());
        let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), &key.namespace, &resource);
        // Upstream's role may list everything, but get nothing.
        let only = ListParams::default().fields(&format!("metadata.name={}", key.name));
        let Some(mut quota) = api.list(&only).await?.items.pop() else { return Ok(Next::OnChange) };
        let Some(seen) = quota.data.as_object().cloned() else { return Ok(Next::OnChange) };
        let mut used = Amounts::new();
        let hard = amounts(&seen, &["spec", "hard"]);
        for served in discovery::deletable(&self.client).await?.served.into_iter().filter(|served| served.namespaced) {
            let Some(counted) = Counted::new(&served.resource.group, &served.resource.plural) else { continue };
            let names: Vec<&str> = hard.keys().map(String::as_str).filter(|name| counted.uses(name)).collect();
            if !names.is_empty() {
                let objects = self.list(&key.namespace, &served.resource).await?;
                add(&mut used, &total(counted, &seen, &names, &objects));
            }
        }
        let status = status(&seen, &used);
        if seen.get("status").and_then(Value::as_object) != Some(&status) {
            let mut data = seen;
            data.insert("status".into(), Value::Object(status));
            quota.data = Value::Object(data);
            api.replace_status(&key.name, &PostParams::default(), &quota).await?;
        }
        Ok(Next::OnChange)
    }
}

impl ResourceQuotas {
    async fn list(&self, namespace: &str, resource: &ApiResource) -> Result<Vec<Object>, ReconcileError> {
        let all = ListParams::default();
        if resource.group.is_empty() && MEASURED.contains(&resource.plural.as_str()) {
            let list =
                Api::<DynamicObject>::namespaced_with(self.client.clone(), namespace, resource).list(&all).await?;
            return Ok(list.items.into_iter().filter_map(whole).collect());
        }
        let api = Api::<PartialObjectMeta<DynamicObject>>::namespaced_with(self.client.clone(), namespace, resource);
        Ok(api.list(&all).await?.items.iter().map(|_| Object::new()).collect())
    }
}

fn whole(object: DynamicObject) -> Option<Object> {
    match serde_json::to_value(object) {
        Ok(Value::Object(object)) => Some(object),
        _ => None,
    }
}

/// What these objects use of what the quota limits; zeros are told, too.
fn total(counted: Counted<'_>, quota: &Object, names: &[&str], objects: &[Object]) -> Amounts {
    let mut sum: Amounts = names.iter().map(|name| ((*name).to_owned(), Quantity::ZERO)).collect();
    for object in objects.iter().filter(|object| counted.is_in_scope(quota, object)) {
        add(&mut sum, &counted.usage(object));
    }
    sum.retain(|name, _| names.contains(&name.as_str()));
    sum
}

/// The limits as they are asked for, and the usage of what is known.
fn status(quota: &Object, used: &Amounts) -> Object {
    let mut status = Object::new();
    status.insert("hard".into(), quota.at(&["spec", "hard"]).cloned().unwrap_or_else(|| Value::Object(Object::new())));
    let used = used.iter().map(|(name, amount)| (name.clone(), Value::String(amount.to_string())));
    status.insert("used".into(), Value::Object(used.collect()));
    status
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn usage_is_summed_over_what_is_in_scope() {
        let pod = |deadline: Option<i64>, cpu: &str| json!({"spec": {"activeDeadlineSeconds": deadline, "containers": [{"resources": {"requests": {"cpu": cpu}}}]}});
        let pods = [pod(None, "100m"), pod(Some(5), "200m"), pod(None, "1")];
        check(json!({}), &pods, "cpu=1300m pods=3");
        check(json!({"scopes": ["NotTerminating"]}), &pods, "cpu=1100m pods=2");
        check(json!({"scopes": ["BestEffort"]}), &pods, "cpu=0 pods=0");
        check(json!({}), &[], "cpu=0 pods=0");
    }

    #[track_caller]
    fn check(spec: Value, pods: &[Value], want: &str) {
        let quota = json!({ "spec": spec });
        let pods: Vec<Object> = pods.iter().filter_map(Value::as_object).cloned().collect();
        let sum = total(Counted::new("", "pods").unwrap(), quota.as_object().unwrap(), &["cpu", "pods"], &pods);
        let told: Vec<String> = sum.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
        assert_eq!(told.join(" "), want, "{quota}");
    }
}
