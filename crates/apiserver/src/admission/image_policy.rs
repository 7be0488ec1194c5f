//! ImagePolicyWebhook: somebody else says which images may run.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{ApiError, Object, ObjectExt as _};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin};
use crate::auth::webhook::Cache;
use crate::outbound::Outbound;
use crate::server::ApiServer;

const FAILED_OPEN: &str = "imagepolicywebhook.image-policy.k8s.io/failed-open";
const LONGEST_TTL: i64 = 30 * 60;

pub(super) struct ImagePolicyWebhook {
    http: Outbound,
    allow_ttl: Duration,
    deny_ttl: Duration,
    /// Whom nobody can judge may run.
    default_allow: bool,
    /// `None` allows; a reason, perhaps an empty one, refuses.
    cache: Cache<Option<String>>,
}

impl ImagePolicyWebhook {
    pub(super) fn plugin(configuration: Option<&Value>) -> Result<Box<dyn Plugin>, String> {
        let own = configuration.and_then(|whole| whole.get("imagePolicy")?.as_object()).ok_or("no config specified")?;
        // Zero is the default, and one below zero keeps nothing.
        let seconds = |field: &str, otherwise: u64| match own.get(field).and_then(Value::as_i64).unwrap_or(0) {
            0 => Ok(Duration::from_secs(otherwise)),
            -1 => Ok(Duration::ZERO),
            value @ 1..=LONGEST_TTL => Ok(Duration::from_secs(value.unsigned_abs())),
            value => Err(format!("{field}: valid value is between 1s and 30m0s, got {value}s")),
        };
        let http = Outbound::from_kubeconfig(Path::new(own.text(&["kubeConfigFile"]))).map_err(|e| e.to_string())?;
        Ok(Box::new(Self {
            http,
            allow_ttl: seconds("allowTTL", 300)?,
            deny_ttl: seconds("denyTTL", 30)?,
            default_allow: own.get("defaultAllow") == Some(&Value::Bool(true)),
            cache: Cache::new(),
        }))
    }

    async fn refusal(&self, attributes: &Attributes<'_>, spec: &Value) -> Result<Option<String>, ApiError> {
        let (key, now) = (spec.to_string(), Instant::now());
        if let Some(known) = self.cache.get(&key, now) {
            return Ok(known);
        }
        let review = json!({"apiVersion": "imagepolicy.k8s.io/v1alpha1", "kind": "ImageReview", "spec": spec});
        let answer = match self.http.post(&review).await {
            Ok(answer) => answer,
            Err(error) if self.default_allow => {
                tracing::warn!(%error, "the image policy webhook failed; the image is allowed");
                if let Some(context) = attributes.context {
                    context.annotate(FAILED_OPEN.to_owned(), "true");
                }
                return Ok(None);
            }
            Err(error) => return Err(attributes.forbidden(error)),
        };
        let allowed = answer.pointer("/status/allowed") == Some(&Value::Bool(true));
        let reason = answer.pointer("/status/reason").and_then(Value::as_str).unwrap_or_default().to_owned();
        let refusal = (!allowed).then_some(reason);
        let ttl = if allowed { self.allow_ttl } else { self.deny_ttl };
        self.cache.put(key, refusal.clone(), now + ttl, now);
        Ok(refusal)
    }
}

fn spec_of(attributes: &Attributes<'_>, pod: &Object) -> Value {
    let lists: &[&str] = match attributes.subresource {
        "" => &["containers", "initContainers"],
        _ => &["ephemeralContainers"],
    };
    let containers = lists.iter().filter_map(|list| pod.at(&["spec", list])?.as_array()).flatten();
    let images: Vec<Value> = containers.map(|container| json!({"image": container.get("image")})).collect();
    let annotations = pod.at(&["metadata", "annotations"]).and_then(Value::as_object).into_iter().flatten();
    let annotations: Object = annotations
        .filter(|(key, _)| key.contains(".image-policy.k8s.io/"))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    json!({"containers": images, "annotations": annotations, "namespace": attributes.namespace})
}

#[async_trait]
impl Plugin for ImagePolicyWebhook {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let pods = attributes.is_of("", "pods") && matches!(attributes.subresource, "" | "ephemeralcontainers");
        pods && attributes.operation != Operation::Delete && attributes.context.is_some()
    }

    async fn validate(&self, _: &Arc<ApiServer>, attributes: &Attributes<'_>, pod: &Object) -> Result<(), ApiError> {
        match self.refusal(attributes, &spec_of(attributes, pod)).await?.as_deref() {
            None => Ok(()),
            Some("") => Err(attributes.forbidden("one or more images rejected by webhook backend")),
            Some(why) => {
                Err(attributes.forbidden(format!("image policy webhook backend denied one or more images: {why}")))
            }
        }
    }
}
