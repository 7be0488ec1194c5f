//! The ranges that services get their addresses from, as an object beside those that users add.
//!
//! It is made again if it is deleted, and gets its second range when the server does. Else it is left as it is, even where the
//! server is configured otherwise: services have addresses of it.

use std::sync::Arc;

use api::{ApiError, Object, ObjectExt as _};
use serde_json::{Value, json};

use crate::server::ApiServer;

const GROUP: &str = "networking.k8s.io";
const PLURAL: &str = "servicecidrs";
const NAME: &str = "kubernetes";

pub(super) async fn ensure(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    let ranges: Vec<String> = server.config.service_cluster_ip_range.iter().map(|range| range.to_string()).collect();
    let ranges = json!(ranges);
    let status = json!({"conditions": [{
        "type": "Ready", "status": "True", "reason": "", "message": "Kubernetes default Service CIDR is ready",
        "lastTransitionTime": crate::handlers::now(),
    }]});
    let Some(known) = server.cached(GROUP, PLURAL, NAME) else {
        let object = json!({"metadata": {"name": NAME}, "spec": {"cidrs": ranges}, "status": status});
        return super::ensure(server, GROUP, PLURAL, "", object).await;
    };
    match step(&known, &ranges) {
        Step::None => Ok(()),
        Step::Warn => {
            tracing::warn!(configured = %ranges, "the default ServiceCIDR does not match the configured ranges");
            Ok(())
        }
        Step::AddSecond => set(server, "", &["spec", "cidrs"], ranges).await,
        Step::SayReady => set(server, "status", &["status"], status).await,
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    None,
    /// It is of another configuration.
    Warn,
    AddSecond,
    SayReady,
}

fn step(known: &Object, ranges: &Value) -> Step {
    let of = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (now, wanted) = (known.at(&["spec", "cidrs"]).map(of).unwrap_or_default(), of(ranges));
    if (now.len(), wanted.len()) == (1, 2) && now.first() == wanted.first() {
        return Step::AddSecond;
    }
    let conditions = known.at(&["status", "conditions"]).map(of).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.get("type") == Some(&json!("Ready")));
    let is_said = ready.is_some_and(|ready| ready.get("status") != Some(&json!("Unknown")));
    match (known.is_terminating(), now == wanted) {
        (true, _) => Step::None,
        (false, false) => Step::Warn,
        (false, true) if is_said => Step::None,
        (false, true) => Step::SayReady,
    }
}

async fn set(server: &Arc<ApiServer>, subresource: &str, path: &[&str], value: Value) -> Result<(), ApiError> {
    let change = |current: &Object| {
        let mut new = current.clone();
        if let Some((last, parents)) = path.split_last() {
            new.at_mut(parents).insert((*last).to_owned(), value.clone());
        }
        Ok(new)
    };
    super::writer(server, GROUP, PLURAL, subresource)?.update("", NAME, change).await.map(|_| ())
}

/// Makes it again when it has gone.
pub(super) async fn keep(server: Arc<ApiServer>) {
    let Some(cache) = server.registry.stored(GROUP, PLURAL).and_then(|served| served.cache.clone()) else { return };
    loop {
        let Ok((mut place, _)) = cache.watch_from(None) else { return };
        while let Ok(changes) = place.next().await {
            if changes.iter().any(|change| change.deleted && &*change.object.key == NAME)
                && let Err(error) = ensure(&server).await
            {
                tracing::warn!(%error, "the default ServiceCIDR is not made again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_range_is_added_and_nothing_else_changed() {
        const FOUR: &str = "10.96.0.0/16";
        const SIX: &str = "fd00:96::/112";
        check(&[FOUR], "True", &[FOUR], Step::None);
        check(&[FOUR], "", &[FOUR], Step::SayReady);
        check(&[FOUR], "False", &[FOUR], Step::None);
        check(&[FOUR], "Unknown", &[FOUR], Step::SayReady);
        check(&[FOUR], "True", &[FOUR, SIX], Step::AddSecond);
        check(&[FOUR], "True", &[SIX, FOUR], Step::Warn);
        check(&[FOUR, SIX], "True", &[FOUR], Step::Warn);
        check(&[FOUR, SIX], "True", &[SIX, FOUR], Step::Warn);
    }

    #[track_caller]
    fn check(known: &[&str], ready: &str, configured: &[&str], want: Step) {
        let conditions = if ready.is_empty() { json!([]) } else { json!([{"type": "Ready", "status": ready}]) };
        let object = json!({"metadata": {}, "spec": {"cidrs": known}, "status": {"conditions": conditions}});
        assert_eq!(step(object.as_object().unwrap(), &json!(configured)), want, "{known:?} {ready} {configured:?}");
    }
}
