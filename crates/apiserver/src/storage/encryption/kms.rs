//! Envelope encryption with a key that another process guards: KMS v2 over a unix socket.
//!
//! The plugin encrypts one seed, with which everything is sealed until its key changes; it is asked again only for seeds
//! that others have made. While it does not answer, reads of known seeds go on for ever and writes for three minutes; a value with
//! an unknown seed is unreadable until it does.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use prost::Message;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use super::cipher::{self, Cipher, CipherError, Gcm, SEED, Seed};

const HEALTHY_INTERVAL: Duration = Duration::from_secs(60);
const UNHEALTHY_INTERVAL: Duration = Duration::from_secs(10);
/// For how long an answer about health is good.
const HEALTHY_TTL: Duration = Duration::from_secs(20);
const UNHEALTHY_TTL: Duration = Duration::from_secs(3);
const WRITE_TTL: Duration = Duration::from_secs(180);
const MAX_KEY_ID: usize = 1 << 10;
const MAX_SOURCE: usize = 1 << 10;
const MAX_ANNOTATIONS: usize = 32 << 10;
/// As many seeds as there were starts of API servers; more than this are not kept.
const MAX_SEEDS: usize = 4096;
const SEED_TYPE: i32 = 1;
/// For how long a plugin that did not answer is not asked for another seed: many values must not wait one after the other.
const AWAY_PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum KmsError {
    #[error("failed to decrypt DEK, error: {0}")]
    Decrypt(String),
    #[error("{0}")]
    Invalid(String),
    #[error("kmsv2 Provider {0} is not healthy, error: {1}")]
    Unhealthy(String, String),
    #[error("failed to perform status section of the healthz check for KMS Provider {0}, error: {1}")]
    Status(String, String),
    #[error("encryptedDEKSource of KMS Provider {0} expired")]
    Expired(String),
    #[error(transparent)]
    Cipher(#[from] Arc<CipherError>),
}

/// Whether a seed that could not be decrypted before is asked for again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    Once,
    Again,
}

/// Why a call failed.
struct CallError {
    message: String,
    /// There was no answer.
    is_away: bool,
}

/// Seeds that could not be decrypted, and when the plugin last did not answer.
#[derive(Default)]
struct Failures {
    seeds: HashMap<Vec<u8>, KmsError>,
    away: Option<(Instant, KmsError)>,
}

impl KmsError {
    /// Another attempt may have another outcome.
    pub(super) fn is_transient(&self) -> bool {
        !matches!(self, Self::Invalid(_) | Self::Cipher(_))
    }
}

impl From<CipherError> for KmsError {
    fn from(error: CipherError) -> Self {
        Self::Cipher(Arc::new(error))
    }
}

#[derive(Clone, PartialEq, Message)]
struct Nothing {}

#[derive(Clone, PartialEq, Message)]
struct StatusResponse {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    healthz: String,
    #[prost(string, tag = "3")]
    key_id: String,
}

#[derive(Clone, PartialEq, Message)]
struct DecryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct DecryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    plaintext: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct EncryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    plaintext: Vec<u8>,
    #[prost(string, tag = "2")]
    uid: String,
}

#[derive(Clone, PartialEq, Message)]
struct EncryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "3")]
    annotations: BTreeMap<String, Vec<u8>>,
}

/// A value as it is stored.
#[derive(Clone, PartialEq, Message)]
struct EncryptedObject {
    #[prost(bytes = "vec", tag = "1")]
    data: Vec<u8>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(bytes = "vec", tag = "3")]
    source: Vec<u8>,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: BTreeMap<String, Vec<u8>>,
    #[prost(int32, tag = "5")]
    source_type: i32,
}

/// What values were sealed with: a seed, or in old ones a key.
enum Sealed {
    Seed(Seed),
    Key(Cipher),
}

/// With what is written now.
struct Current {
    seed: Arc<Sealed>,
    /// All but the data.
    envelope: EncryptedObject,
    until: Instant,
}

/// One provider. Its health is followed until this is dropped.
pub(super) struct Kms {
    pub(super) name: String,
    channel: Channel,
    timeout: Duration,
    current: ArcSwapOption<Current>,
    /// By the envelope without its data.
    seeds: Mutex<HashMap<Vec<u8>, Arc<Sealed>>>,
    failures: Mutex<Failures>,
    health: tokio::sync::Mutex<Health>,
}

/// Ends the following.
pub(super) struct Followed {
    pub(super) kms: Arc<Kms>,
    _stop: DropGuard,
}

#[derive(Default)]
struct Health {
    last: Option<(Instant, Result<(), KmsError>)>,
    version: String,
}

impl Kms {
    /// Asks once and then follows. A plugin that is not there yet is no error: it may come.
    pub(super) async fn start(name: String, endpoint: &str, timeout: Duration) -> Followed {
        let path = PathBuf::from(endpoint.trim_start_matches("unix:").trim_start_matches("//"));
        // An `@` stands for an abstract socket, as upstream has it.
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
        let (current, seeds, failures, health) = Default::default();
        let kms = Arc::new(Self { name, channel, timeout, current, seeds, failures, health });
        let stop = CancellationToken::new();
        let mut healthy = kms.is_healthy().await;
        let follow = {
            let kms = kms.clone();
            async move {
                loop {
                    tokio::time::sleep(if healthy { HEALTHY_INTERVAL } else { UNHEALTHY_INTERVAL }).await;
                    healthy = kms.is_healthy().await;
                }
            }
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(follow));
        Followed { kms, _stop: stop.drop_guard() }
    }

    async fn is_healthy(&self) -> bool {
        let result = self.check().await;
        if let Err(error) = &result {
            tracing::warn!(%error, "KMS plugin failed its health check");
        }
        result.is_ok()
    }

    async fn call<Q: Message + 'static, A: Message + Default + 'static>(
        &self,
        method: &'static str,
        question: Q,
    ) -> Result<A, CallError> {
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        let asked = async {
            client.ready().await.map_err(|error| CallError { message: error.to_string(), is_away: true })?;
            let path = http::uri::PathAndQuery::from_static(method);
            let codec = tonic_prost::ProstCodec::<Q, A>::default();
            let answer = client.unary(tonic::Request::new(question), path, codec).await;
            answer.map(tonic::Response::into_inner).map_err(|status| CallError {
                message: format!("rpc error: code = {:?} desc = {}", status.code(), status.message()),
                is_away: matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded),
            })
        };
        let late = |_| CallError {
            message: "rpc error: code = DeadlineExceeded desc = context deadline exceeded".to_owned(),
            is_away: true,
        };
        tokio::time::timeout(self.timeout, asked).await.map_err(late)?
    }

    /// Whether the plugin is well; what it said a moment ago is good enough. Takes a new seed where its key has changed.
    pub(super) async fn check(&self) -> Result<(), KmsError> {
        let mut health = self.health.lock().await;
        if let Some((asked, answer)) = &health.last
            && asked.elapsed() < if answer.is_ok() { HEALTHY_TTL } else { UNHEALTHY_TTL }
        {
            return answer.clone();
        }
        let answer = self.ask(&mut health.version).await;
        health.last = Some((Instant::now(), answer.clone()));
        answer
    }

    async fn ask(&self, version: &mut String) -> Result<(), KmsError> {
        let status = self.call("/v2.KeyManagementService/Status", Nothing {}).await;
        let status: StatusResponse = status.map_err(|error| KmsError::Status(self.name.clone(), error.message))?;
        let mut wrong = Vec::new();
        if status.healthz != "ok" {
            wrong.push(format!("got unexpected healthz status: {}", status.healthz));
        }
        if !matches!(status.version.as_str(), "v2" | "v2beta1") {
            wrong.push(format!("expected KMSv2 API version v2, got {}", status.version));
        } else if version.is_empty() {
            version.clone_from(&status.version);
        } else if *version != status.version {
            wrong.push(format!(
                "KMSv2 API version should not change after the initial status response version {version}, got {}",
                status.version
            ));
        }
        match key_id_error(&status.key_id) {
            Some(why) => wrong.push(format!("got invalid KMSv2 KeyID: {why}")),
            None => wrong.extend(self.take_seed(&status.key_id).await.err()),
        }
        match wrong.as_slice() {
            [] => Ok(()),
            [one] => Err(KmsError::Unhealthy(self.name.clone(), one.clone())),
            several => Err(KmsError::Unhealthy(self.name.clone(), format!("[{}]", several.join(", ")))),
        }
    }

    /// Goes on with the seed there is if it was encrypted with this key, otherwise has a new one encrypted.
    async fn take_seed(&self, key_id: &str) -> Result<(), String> {
        // Before the call, so that this is the most it can last.
        let until = Instant::now() + WRITE_TTL;
        if let Some(current) = self.current.load_full().filter(|current| current.envelope.key_id == key_id) {
            let (seed, envelope) = (current.seed.clone(), current.envelope.clone());
            self.current.store(Some(Arc::new(Current { seed, envelope, until })));
            return Ok(());
        }
        let uid = uuid::Uuid::new_v4().to_string();
        let fail = |why: String| format!("failed to rotate DEK uid={uid:?}, errGen={why}");
        let plaintext = cipher::random::<SEED>().map_err(|error| fail(error.to_string()))?;
        let seed = Seed::new(&plaintext).map_err(|error| fail(error.to_string()))?;
        let request = EncryptRequest { plaintext: plaintext.to_vec(), uid: uid.clone() };
        let encrypted = self.call("/v2.KeyManagementService/Encrypt", request).await;
        let encrypted: EncryptResponse =
            encrypted.map_err(|error| fail(format!("failed to encrypt DEK, error: {}", error.message)))?;
        if encrypted.key_id != key_id {
            return Err(fail("the key changed between status and encryption".into()));
        }
        let EncryptResponse { ciphertext, key_id, annotations } = encrypted;
        let envelope =
            EncryptedObject { data: Vec::new(), key_id, source: ciphertext, annotations, source_type: SEED_TYPE };
        envelope_error(&envelope).map_or(Ok(()), |why| Err(fail(why)))?;
        let seed = Arc::new(Sealed::Seed(seed));
        self.remember(envelope.encode_to_vec(), seed.clone());
        self.current.store(Some(Arc::new(Current { seed, envelope, until })));
        Ok(())
    }

    fn remember(&self, key: Vec<u8>, seed: Arc<Sealed>) {
        let mut seeds = self.seeds.lock();
        if seeds.len() >= MAX_SEEDS {
            seeds.clear();
        }
        seeds.insert(key, seed);
    }

    pub(super) fn seal(&self, plain: &[u8], path: &[u8]) -> Result<Vec<u8>, KmsError> {
        let current = self.current.load_full().ok_or_else(|| KmsError::Expired(self.name.clone()))?;
        if Instant::now() > current.until {
            return Err(KmsError::Expired(self.name.clone()));
        }
        let data = match &*current.seed {
            Sealed::Seed(seed) => seed.seal(plain, path)?,
            Sealed::Key(key) => key.seal(plain, path)?,
        };
        Ok(EncryptedObject { data, ..current.envelope.clone() }.encode_to_vec())
    }

    async fn decrypt_seed(&self, envelope: &EncryptedObject) -> Result<Sealed, KmsError> {
        let request = DecryptRequest {
            ciphertext: envelope.source.clone(),
            uid: uuid::Uuid::new_v4().to_string(),
            key_id: envelope.key_id.clone(),
            annotations: envelope.annotations.clone(),
        };
        let answer = self.call("/v2.KeyManagementService/Decrypt", request).await;
        let DecryptResponse { plaintext } = answer.map_err(|CallError { message, is_away }| {
            let error = KmsError::Decrypt(message);
            if is_away {
                self.failures.lock().away = Some((Instant::now(), error.clone()));
            }
            error
        })?;
        Ok(match envelope.source_type {
            SEED_TYPE => Sealed::Seed(Seed::new(&plaintext)?),
            _ => Sealed::Key(Cipher::Gcm(Gcm::new(&plaintext)?)),
        })
    }

    /// The error of the last attempt, where there should not be another one now.
    fn failed_before(&self, key: &[u8], ask: Ask) -> Result<(), KmsError> {
        let failures = self.failures.lock();
        if let Some((_, error)) = failures.away.as_ref().filter(|(since, _)| since.elapsed() < AWAY_PAUSE) {
            return Err(error.clone());
        }
        let known = failures.seeds.get(key).filter(|_| ask == Ask::Once);
        known.map_or(Ok(()), |error| Err(error.clone()))
    }

    fn note_failure(&self, key: &[u8], error: &KmsError) {
        let mut failures = self.failures.lock();
        if failures.seeds.len() >= MAX_SEEDS {
            failures.seeds.clear();
        }
        failures.seeds.insert(key.to_vec(), error.clone());
    }

    /// The text, and whether it was sealed with another key than what is written now.
    pub(super) async fn open(&self, sealed: &[u8], path: &[u8], ask: Ask) -> Result<(Bytes, bool), KmsError> {
        let mut envelope = EncryptedObject::decode(sealed).map_err(|error| KmsError::Invalid(error.to_string()))?;
        let data = std::mem::take(&mut envelope.data);
        let wrong =
            if data.is_empty() { Some("encrypted data is empty".to_owned()) } else { envelope_error(&envelope) };
        wrong.map_or(Ok(()), |why| Err(KmsError::Invalid(why)))?;
        let key = envelope.encode_to_vec();
        let known = self.seeds.lock().get(&key).cloned();
        let seed = match known {
            Some(seed) => seed,
            None => {
                self.failed_before(&key, ask)?;
                let seed = self.decrypt_seed(&envelope).await.inspect_err(|error| self.note_failure(&key, error));
                let seed = Arc::new(seed?);
                self.failures.lock().seeds.remove(&key);
                self.remember(key, seed.clone());
                seed
            }
        };
        let plain = match &*seed {
            Sealed::Seed(seed) => seed.open(&data, path)?,
            Sealed::Key(key) => key.open(&data, path)?,
        };
        let current = self.current.load();
        let same = |current: &Arc<Current>| {
            current.envelope.key_id == envelope.key_id && current.envelope.source_type == envelope.source_type
        };
        Ok((plain.into(), !current.as_ref().is_some_and(same)))
    }
}

fn key_id_error(key_id: &str) -> Option<String> {
    match key_id.len() {
        0 => Some("keyID is empty".into()),
        size if size > MAX_KEY_ID => Some(format!("keyID is {size} bytes, which exceeds the max size of {MAX_KEY_ID}")),
        _ => None,
    }
}

/// What is wrong with an envelope, whatever is in it.
fn envelope_error(envelope: &EncryptedObject) -> Option<String> {
    if !matches!(envelope.source_type, 0 | SEED_TYPE) {
        return Some(format!("unknown encryptedDEKSourceType: {}", envelope.source_type));
    }
    match envelope.source.len() {
        0 => return Some("failed to validate encrypted DEK source: encrypted DEK source is empty".into()),
        size if size > MAX_SOURCE => {
            return Some(format!(
                "failed to validate encrypted DEK source: encrypted DEK source is {size} bytes, which exceeds the max size of {MAX_SOURCE}"
            ));
        }
        _ => (),
    }
    if let Some(why) = key_id_error(&envelope.key_id) {
        return Some(format!("failed to validate key id: {why}"));
    }
    let size: usize = envelope.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > MAX_ANNOTATIONS {
        return Some(format!(
            "failed to validate annotations: total size of annotations is {size}, which exceeds the max size of {MAX_ANNOTATIONS}"
        ));
    }
    let odd = envelope.annotations.keys().find(|key| !is_qualified(key))?;
    Some(format!("failed to validate annotations: {odd:?} is no fully qualified domain name"))
}

/// At least two labels of DNS, as upstream asks of an annotation's name.
fn is_qualified(name: &str) -> bool {
    let label = |text: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        (1..=63).contains(&text.len()) && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    name.len() <= 253 && name.split('.').count() >= 2 && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_that_upstream_would_refuse_is_refused() {
        let right = || EncryptedObject { key_id: "1".into(), source: vec![1], source_type: 1, ..Default::default() };
        let annotated = |key: &str, size| BTreeMap::from([(key.to_owned(), vec![0; size])]);
        let check = |envelope: EncryptedObject, want: Option<&str>| {
            let found = envelope_error(&envelope);
            assert_eq!(found.is_some(), want.is_some(), "{found:?}");
            assert!(found.unwrap_or_default().contains(want.unwrap_or_default()), "{want:?}");
        };
        check(right(), None);
        check(EncryptedObject { annotations: annotated("a.example.com", 9), ..right() }, None);
        check(EncryptedObject { key_id: String::new(), ..right() }, Some("keyID is empty"));
        check(EncryptedObject { key_id: "x".repeat(1025), ..right() }, Some("keyID is 1025 bytes"));
        check(EncryptedObject { source: Vec::new(), ..right() }, Some("encrypted DEK source is empty"));
        check(EncryptedObject { source: vec![0; 1025], ..right() }, Some("exceeds the max size of 1024"));
        check(EncryptedObject { source_type: 2, ..right() }, Some("unknown encryptedDEKSourceType: 2"));
        check(EncryptedObject { annotations: annotated("plain", 9), ..right() }, Some("fully qualified"));
        check(
            EncryptedObject { annotations: annotated("a.b", 33 << 10), ..right() },
            Some("total size of annotations"),
        );
    }
}
