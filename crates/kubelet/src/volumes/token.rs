//! Service-account tokens for projected volumes: asked for through TokenRequest, renewed at 80 % of their life.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount, ServiceAccountTokenProjection};
use kube::Api;
use kube::api::PostParams;

use super::VolumeError;
use crate::clock::{after, until};
use crate::spec;

const DEFAULT_LIFE_SECONDS: i64 = 3600;
/// Long-lived tokens are renewed at least this often.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);

struct Token {
    text: String,
    renew_at: Timestamp,
}

/// The tokens of one pod, by volume and path.
#[derive(Default)]
pub(crate) struct Tokens {
    known: HashMap<(String, String), Token>,
}

impl Tokens {
    /// When the first of them should be renewed.
    pub(crate) fn renew_at(&self) -> Option<Timestamp> {
        self.known.values().map(|token| token.renew_at).min()
    }

    pub(crate) async fn get(
        &mut self,
        client: &kube::Client,
        pod: &Pod,
        volume: &str,
        source: &ServiceAccountTokenProjection,
        now: Timestamp,
    ) -> Result<String, VolumeError> {
        let key = (volume.to_owned(), source.path.clone());
        if let Some(token) = self.known.get(&key).filter(|token| now < token.renew_at) {
            return Ok(token.text.clone());
        }
        let token = request(client, pod, source, now).await?;
        let text = token.text.clone();
        self.known.insert(key, token);
        Ok(text)
    }
}

async fn request(
    client: &kube::Client,
    pod: &Pod,
    source: &ServiceAccountTokenProjection,
    now: Timestamp,
) -> Result<Token, VolumeError> {
    let account = spec::spec(pod).service_account_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("default");
    let bound = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
    };
    let asked = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(source.audience.iter().filter(|audience| !audience.is_empty()).cloned().collect()),
            expiration_seconds: Some(source.expiration_seconds.unwrap_or(DEFAULT_LIFE_SECONDS)),
            bound_object_ref: Some(bound),
        }),
        ..Default::default()
    };
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), spec::namespace(pod));
    let answer = api.create_token_request(account, &PostParams::default(), &asked).await;
    let answer = answer.map_err(|error| VolumeError::Token(Box::new(error)))?.status.unwrap_or_default();
    let life = answer.expiration_timestamp.map_or(Duration::from_secs(3600), |expires| until(now, expires.0));
    Ok(Token { text: answer.token.unwrap_or_default(), renew_at: after(now, (life * 4 / 5).min(MAX_AGE)) })
}
