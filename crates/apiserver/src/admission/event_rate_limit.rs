//! EventRateLimit: who tells too much is asked to be quiet, by the server, namespace, user or object.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use api::{ApiError, Object, ObjectExt as _};
use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;

use super::{Attributes, Operation, Plugin};
use crate::server::ApiServer;

const DEFAULT_CACHE: usize = 4096;

pub(super) struct EventRateLimit {
    limits: Vec<Limit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Server,
    Namespace,
    User,
    SourceAndObject,
}

struct Limit {
    by: By,
    per_second: f64,
    burst: f64,
    size: usize,
    buckets: Mutex<Buckets>,
}

#[derive(Default)]
struct Buckets {
    /// What is left, and when that was true.
    by_key: HashMap<String, (f64, Instant)>,
    /// In the order they came; the oldest is forgotten first.
    order: VecDeque<String>,
}

impl EventRateLimit {
    pub(super) fn plugin(configuration: Option<&Value>) -> Result<Box<dyn Plugin>, String> {
        let limits = configuration.and_then(|whole| whole.get("limits")?.as_array()).cloned().unwrap_or_default();
        if limits.is_empty() {
            return Err("limits: Invalid value: []: must not be empty".into());
        }
        let limits = limits
            .iter()
            .enumerate()
            .map(|(index, limit)| Limit::read(limit).map_err(|why| format!("limits[{index}].{why}")));
        Ok(Box::new(Self { limits: limits.collect::<Result<_, _>>()? }))
    }
}

impl Limit {
    fn read(limit: &Value) -> Result<Self, String> {
        let number = |field: &str| limit.get(field).and_then(Value::as_i64).unwrap_or(0);
        let positive = |field: &str| match number(field) {
            value if value > 0 => Ok(value as f64),
            value => Err(format!("{field}: Invalid value: {value}: must be positive")),
        };
        let by = match limit.get("type").and_then(Value::as_str).unwrap_or_default() {
            "Server" => By::Server,
            "Namespace" => By::Namespace,
            "User" => By::User,
            "SourceAndObject" => By::SourceAndObject,
            other => return Err(format!("type: Unsupported value: {other:?}")),
        };
        let size = match usize::try_from(number("cacheSize")) {
            Ok(0) => DEFAULT_CACHE,
            Ok(size) => size,
            Err(_) => return Err("cacheSize: must not be negative".into()),
        };
        let (burst, per_second) = (positive("burst")?, positive("qps")?);
        Ok(Self { by, per_second, burst, size, buckets: Mutex::default() })
    }

    fn key(&self, attributes: &Attributes<'_>, event: &Object) -> String {
        match self.by {
            By::Server => String::new(),
            By::Namespace => attributes.namespace.to_owned(),
            By::User => attributes.user().map(|user| user.name.clone()).unwrap_or_default(),
            By::SourceAndObject => {
                // The newer kind of event names the same in other words.
                let about = if event.contains_key("involvedObject") { "involvedObject" } else { "regarding" };
                let object = ["kind", "namespace", "name", "uid", "apiVersion"];
                let source = [event.text(&["source", "component"]), event.text(&["source", "host"])];
                source.concat() + &object.map(|field| event.text(&[about, field])).concat()
            }
        }
    }

    fn take(&self, key: &str, now: Instant) -> Result<(), String> {
        let mut buckets = self.buckets.lock();
        if !buckets.by_key.contains_key(key) {
            if buckets.order.len() >= self.size
                && let Some(oldest) = buckets.order.pop_front()
            {
                buckets.by_key.remove(&oldest);
            }
            buckets.order.push_back(key.to_owned());
            buckets.by_key.insert(key.to_owned(), (self.burst, now));
        }
        let Some((left, at)) = buckets.by_key.get_mut(key) else { return Ok(()) };
        *left = (*left + now.saturating_duration_since(*at).as_secs_f64() * self.per_second).min(self.burst);
        *at = now;
        if *left < 1.0 {
            return Err(format!("limit reached on type {:?} for key {key}", self.by));
        }
        *left -= 1.0;
        Ok(())
    }
}

#[async_trait]
impl Plugin for EventRateLimit {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let events = attributes.is("", "events") || attributes.is("events.k8s.io", "events");
        events && attributes.operation != Operation::Delete && !attributes.dry_run && attributes.context.is_some()
    }

    async fn validate(&self, _: &Arc<ApiServer>, attributes: &Attributes<'_>, event: &Object) -> Result<(), ApiError> {
        let now = Instant::now();
        let refused = self.limits.iter().filter_map(|limit| limit.take(&limit.key(attributes, event), now).err());
        let refused: Vec<String> = refused.collect();
        match refused.as_slice() {
            [] => Ok(()),
            [one] => Err(ApiError::too_many_requests(one.clone(), 0)),
            several => Err(ApiError::too_many_requests(format!("[{}]", several.join(", ")), 0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_bucket_empties_and_fills() {
        let limit = Limit::read(&json!({"type": "Namespace", "qps": 2, "burst": 3, "cacheSize": 2})).unwrap();
        let start = Instant::now();
        for _ in 0..3 {
            limit.take("a", start).unwrap();
        }
        assert_eq!(limit.take("a", start), Err("limit reached on type Namespace for key a".into()));
        limit.take("b", start).unwrap();
        limit.take("a", start + Duration::from_millis(500)).unwrap();
        limit.take("a", start + Duration::from_millis(500)).unwrap_err();
        // More keys than are kept: the oldest starts anew.
        limit.take("c", start).unwrap();
        limit.take("a", start + Duration::from_millis(500)).unwrap();
    }

    #[test]
    fn limits_must_limit() {
        assert!(EventRateLimit::plugin(None).is_err());
        assert!(EventRateLimit::plugin(Some(&json!({"limits": [{"type": "Server", "qps": 0, "burst": 1}]}))).is_err());
        assert!(EventRateLimit::plugin(Some(&json!({"limits": [{"type": "Planet", "qps": 1, "burst": 1}]}))).is_err());
        assert!(EventRateLimit::plugin(Some(&json!({"limits": [{"type": "Server", "qps": 1, "burst": 1}]}))).is_ok());
    }
}
