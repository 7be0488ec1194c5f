//! ResourceQuota: what a write uses is charged to the namespace's quotas in the transaction that writes the object, and
//! what a deletion frees is given back in the one that removes it. So a quota cannot be overdrawn, and nothing leaks.

use std::sync::Arc;

use api::quantity::Quantity;
use api::quota::{Amounts, Counted, amounts, unsaid};
use api::{ApiError, Object, ObjectExt as _};
use serde_json::Value;

use super::{Attributes, Operation};
use crate::server::ApiServer;
use crate::storage::{Beside, Cache, Stored};

/// The quotas as they must be once the object is `new` instead of `old`; refuses what exceeds them.
pub(crate) async fn charge(
    server: &ApiServer,
    attributes: &Attributes<'_>,
    old: Option<&Object>,
    new: Option<&Object>,
) -> Result<Vec<Beside>, ApiError> {
    if !server.admission.is_on("ResourceQuota") {
        return Ok(Vec::new());
    }
    let info = &attributes.served.info;
    let quotas = server.registry.stored("", "resourcequotas").and_then(|served| served.cache.as_ref());
    let (true, Some(quotas), Some(counted)) = (info.namespaced, quotas, Counted::new(&info.group, &info.plural)) else {
        return Ok(Vec::new());
    };
    // Neither charged nor overlooked.
    quotas.snapshot().check_prefix(&format!("{}/", attributes.namespace))?;
    if of_namespace(quotas, attributes.namespace).is_empty() {
        // One that is too new to be seen limits nothing yet.
        return Ok(Vec::new());
    }
    server.feed.current().await.map_err(crate::server::store_error)?;
    let mut charged = Vec::new();
    for quota in &of_namespace(quotas, attributes.namespace) {
        // No quota pays for itself.
        if attributes.is("", "resourcequotas") && quota.name() == attributes.name {
            continue;
        }
        if let Some(changed) = account(attributes, counted, quota, old, new)? {
            let key = format!("{}{}", quotas.prefix, quota.key);
            charged.push(Beside { key, revision: quota.revision, value: api::object::canonical(&changed).into() });
        }
    }
    Ok(charged)
}

fn of_namespace(quotas: &Cache, namespace: &str) -> Vec<Arc<Stored>> {
    let snapshot = quotas.snapshot();
    let start: Arc<str> = format!("{namespace}/").into();
    let from = snapshot.objects.range(start..).map(|(_, quota)| quota);
    from.take_while(|quota| quota.namespace() == namespace).cloned().collect()
}

/// One quota with its new usage, if that changes.
fn account(
    attributes: &Attributes<'_>,
    counted: Counted<'_>,
    stored: &Arc<Stored>,
    old: Option<&Object>,
    new: Option<&Object>,
) -> Result<Option<Object>, ApiError> {
    let mut quota = stored.decode();
    let (hard, mut used) = (amounts(&quota, &["status", "hard"]), amounts(&quota, &["status", "used"]));
    let limited: Vec<&str> = hard.keys().map(String::as_str).filter(|name| counted.uses(name)).collect();
    let in_scope = |object: &&Object| counted.is_in_scope(&quota, object);
    let (old, new) = (old.filter(in_scope), new.filter(in_scope));
    if limited.is_empty() || (old.is_none() && new.is_none()) {
        return Ok(None);
    }
    if let (Operation::Create, Some(new)) = (attributes.operation, new) {
        if let Some(why) = unsaid(new, &limited).filter(|_| attributes.is("", "pods")) {
            return Err(attributes.forbidden(format!("failed quota: {}: {why}", quota.name())));
        }
        if limited.iter().any(|name| !used.contains_key(*name)) {
            let names = limited.join(",");
            return Err(attributes.forbidden(format!("status unknown for quota: {}, resources: {names}", quota.name())));
        }
    }
    let change = changes(&limited, counted, old, new);
    if change.is_empty() {
        return Ok(None);
    }
    let sum = |name: &str, amount: Quantity| used.get(name).copied().unwrap_or(Quantity::ZERO).plus(amount);
    let over = |(name, amount): &(&String, &Quantity)| {
        amount.is_positive() && hard.get(*name).is_some_and(|most| sum(name, **amount) > *most)
    };
    let exceeded: Vec<&str> = change.iter().filter(over).map(|(name, _)| name.as_str()).collect();
    if !exceeded.is_empty() && attributes.subresource != "status" {
        return Err(attributes.forbidden(format!(
            "exceeded quota: {}, requested: {}, used: {}, limited: {}",
            quota.name(),
            told(&change, &exceeded),
            told(&used, &exceeded),
            told(&hard, &exceeded)
        )));
    }
    for (name, amount) in &change {
        let known = used.get(name).copied().unwrap_or(Quantity::ZERO);
        used.insert(name.clone(), known.plus(*amount).max(Quantity::ZERO));
    }
    let used = used.iter().map(|(name, amount)| (name.clone(), Value::String(amount.to_string()))).collect();
    quota.at_mut(&["status"]).insert("used".into(), Value::Object(used));
    Ok(Some(quota))
}

/// By how much usage of what is limited changes.
fn changes(limited: &[&str], counted: Counted<'_>, old: Option<&Object>, new: Option<&Object>) -> Amounts {
    let usage = |object: Option<&Object>| object.map(|object| counted.usage(object)).unwrap_or_default();
    let (before, after) = (usage(old), usage(new));
    let amount = |of: &Amounts, name: &str| of.get(name).copied().unwrap_or(Quantity::ZERO);
    let change = limited.iter().map(|name| ((*name).to_owned(), amount(&after, name).minus(amount(&before, name))));
    change.filter(|(_, amount)| !amount.is_zero()).collect()
}

/// `cpu=1,pods=2`
fn told(all: &Amounts, names: &[&str]) -> String {
    let shown = names.iter().filter_map(|name| Some(format!("{name}={}", all.get(*name)?)));
    shown.collect::<Vec<_>>().join(",")
}
