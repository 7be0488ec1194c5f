//! Values at rest that only the holder of a key can read, as an EncryptionConfiguration says.
//!
//! [`Encryption`] is a store in front of the store: what passes through it is sealed on the way in and opened on the way out, so
//! that nobody else knows. There is none where nothing is configured. A value is bound to its key in the store.

mod cipher;
mod config;
mod kms;
mod reload;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures::StreamExt as _;
use store::{
    Batch, Event, EventKind, KeyValue, Lease, LeaseStatus, Op, OpResult, Range, RangeResult, Revision, Snapshot, Store,
    StoreError, Txn, TxnResult, Watch,
};
use tokio_util::sync::CancellationToken;

use self::cipher::{Cipher, CipherError, Gcm};
use self::config::{GroupResource, Kind, ProviderConfig, Rule};
use self::kms::{Ask, Followed, Kms, KmsError};
use super::PREFIX;
use super::unreadable;
use crate::file_watch::FileWatch;

/// What every sealed value begins with.
pub(super) const SEALED: &[u8] = b"k8s:enc:";

/// `--encryption-provider-config`
#[derive(Clone, Debug)]
pub struct EncryptionSettings {
    pub path: PathBuf,
    /// Changes of the file are taken over at once.
    pub reload: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum EncryptionError {
    #[error("error reading encryption provider configuration file {path:?}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Config(String),
}

/// Why a value cannot be opened. The texts are upstream's.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("no matching prefix found")]
    NoProvider,
    #[error("no matching key was found for the provided {0} transformer")]
    NoKey(&'static str),
    #[error("identity transformer tried to read encrypted data")]
    Identity,
    #[error(transparent)]
    Cipher(#[from] CipherError),
    #[error(transparent)]
    Kms(#[from] KmsError),
}

enum Provider {
    Identity,
    Keys { kind: Kind, keys: Vec<(String, Cipher)> },
    Kms(Followed),
}

impl Provider {
    fn prefix(&self) -> String {
        match self {
            Self::Identity => String::new(),
            Self::Keys { kind: Kind::AesGcm, .. } => "k8s:enc:aesgcm:v1:".into(),
            Self::Keys { kind: Kind::AesCbc, .. } => "k8s:enc:aescbc:v1:".into(),
            Self::Keys { kind: Kind::Secretbox, .. } => "k8s:enc:secretbox:v1:".into(),
            Self::Kms(followed) => format!("k8s:enc:kms:v2:{}:", followed.kms.name),
        }
    }

    /// The text, and whether it should be sealed anew.
    async fn open(&self, sealed: &[u8], path: &[u8], ask: Ask) -> Result<(Bytes, bool), OpenError> {
        match self {
            Self::Identity => Err(OpenError::Identity),
            Self::Kms(followed) => Ok(followed.kms.open(sealed, path, ask).await?),
            Self::Keys { kind, keys } => {
                let mut error = OpenError::NoKey(if *kind == Kind::Secretbox { "Secretbox" } else { "AES" });
                for (index, (name, cipher)) in keys.iter().enumerate() {
                    let after = sealed.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b":"));
                    match after.map(|sealed| cipher.open(sealed, path)) {
                        Some(Ok(plain)) => return Ok((plain.into(), index > 0)),
                        Some(Err(failed)) => error = failed.into(),
                        None => (),
                    }
                }
                Err(error)
            }
        }
    }

    fn seal(&self, plain: &Bytes, path: &[u8]) -> Result<Bytes, OpenError> {
        let (name, sealed) = match self {
            Self::Identity => return Ok(plain.clone()),
            Self::Kms(followed) => (None, followed.kms.seal(plain, path)?),
            Self::Keys { keys, .. } => match keys.first() {
                Some((name, cipher)) => (Some(name), cipher.seal(plain, path)?),
                None => return Err(OpenError::NoProvider),
            },
        };
        let mut out = self.prefix();
        if let Some(name) = name {
            out.push_str(name);
            out.push(':');
        }
        Ok([out.as_bytes(), &sealed].concat().into())
    }
}

/// Who keeps which resource.
struct Rules {
    rules: Vec<(GroupResource, Vec<Arc<Provider>>)>,
    kms: Vec<Arc<Kms>>,
}

impl Rules {
    async fn build(config: Vec<Rule>) -> Result<Self, EncryptionError> {
        let mut built = Self { rules: Vec::new(), kms: Vec::new() };
        for rule in config {
            let mut providers = Vec::new();
            for provider in rule.providers {
                let provider = provider_of(provider).await?;
                if let Provider::Kms(followed) = &provider {
                    built.kms.push(followed.kms.clone());
                }
                providers.push(Arc::new(provider));
            }
            for resource in rule.resources {
                match built.rules.iter_mut().find(|(known, _)| *known == resource) {
                    Some((_, known)) => known.extend(providers.iter().cloned()),
                    None => built.rules.push((resource, providers.clone())),
                }
            }
        }
        Ok(built)
    }

    /// The most exact rule counts; where there is none, values are kept as they are.
    fn of(&self, group: &str, resource: &str) -> &[Arc<Provider>] {
        let wanted = [(group, resource), (group, "*"), ("*", "*")];
        let find =
            |(group, resource)| self.rules.iter().find(|(known, _)| known.group == group && known.resource == resource);
        wanted.into_iter().find_map(find).map_or(&[], |(_, providers)| providers)
    }

    async fn check(&self) -> Result<(), KmsError> {
        for kms in &self.kms {
            kms.check().await?;
        }
        Ok(())
    }
}

async fn provider_of(config: ProviderConfig) -> Result<Provider, EncryptionError> {
    let (kind, keys) = match config {
        ProviderConfig::Identity => return Ok(Provider::Identity),
        ProviderConfig::Kms { name, endpoint, timeout } => {
            return Ok(Provider::Kms(Kms::start(name, &endpoint, timeout).await));
        }
        ProviderConfig::Keys(kind, keys) => (kind, keys),
    };
    let cipher = |key: config::Key| {
        let size = CipherError::KeySize(key.secret.len());
        let cipher = match kind {
            Kind::AesGcm => Gcm::new(&key.secret).map(Cipher::Gcm),
            Kind::AesCbc => Ok(Cipher::Cbc(key.secret)),
            Kind::Secretbox => key.secret.try_into().map(Cipher::Secretbox).map_err(|_| size),
        };
        let wrong =
            |error| EncryptionError::Config(format!("error while creating cipher for named key {}: {error}", key.name));
        Ok((key.name.clone(), cipher.map_err(wrong)?))
    };
    let keys = keys.into_iter().map(cipher).collect::<Result<_, EncryptionError>>()?;
    Ok(Provider::Keys { kind, keys })
}

/// The store, with what must not be read sealed.
pub(crate) struct Encryption {
    inner: Arc<dyn Store>,
    rules: Arc<Sealing>,
    settings: EncryptionSettings,
}

/// What a watch keeps of it.
struct Sealing {
    current: ArcSwap<Rules>,
    /// What is stored where, of what is built in: group and plural by prefix.
    builtin: HashMap<String, (&'static str, &'static str)>,
    /// Something could not be opened; once it can, everything is read again.
    unread: AtomicBool,
    changed: ArcSwap<CancellationToken>,
    reloads: [AtomicU64; 2],
}

impl Sealing {
    /// The resource that a key belongs to. Others have keys of their own, which are nobody's secret.
    fn resource<'a>(&self, key: &'a str) -> Option<(&'a str, &'a str)> {
        let below = key.strip_prefix(PREFIX)?;
        let mut ends = below.match_indices('/').map(|(at, _)| at);
        let (first, second) = (ends.next()?, ends.next());
        let found = [second, Some(first)].into_iter().flatten().find_map(|end| self.builtin.get(below.get(..end)?));
        if let Some(found) = found {
            return Some(*found);
        }
        // A custom resource: the group has a dot, and the plural comes next.
        let (group, plural) = below.get(..second?)?.split_once('/')?;
        group.contains('.').then_some((group, plural))
    }

    async fn open(&self, key: &[u8], value: &Bytes, ask: Ask) -> Result<(Bytes, bool), OpenError> {
        let rules = self.current.load_full();
        let resource = std::str::from_utf8(key).ok().and_then(|key| self.resource(key));
        let providers = resource.map_or(&[][..], |(group, plural)| rules.of(group, plural));
        if !value.starts_with(SEALED) {
            let identity = providers.iter().position(|provider| matches!(**provider, Provider::Identity));
            return match identity {
                Some(index) => Ok((value.clone(), index > 0)),
                None if providers.is_empty() => Ok((value.clone(), false)),
                None => Err(OpenError::NoProvider),
            };
        }
        let mut error = if providers.is_empty() { OpenError::Identity } else { OpenError::NoProvider };
        for (index, provider) in providers.iter().enumerate().filter(|(_, one)| !matches!(***one, Provider::Identity)) {
            let Some(sealed) = value.strip_prefix(provider.prefix().as_bytes()) else { continue };
            match provider.open(sealed, key, ask).await {
                Ok((plain, stale)) => return Ok((plain, stale || index > 0)),
                Err(failed) => error = failed,
            }
        }
        Err(error)
    }

    /// The pair with its value opened; where that is not possible, with the reason in its place.
    async fn opened(&self, kv: &Arc<KeyValue>, ask: Ask) -> Arc<KeyValue> {
        let value = match self.open(&kv.key, &kv.value, ask).await {
            Ok((value, _)) if value == kv.value => return kv.clone(),
            Ok((value, _)) => value,
            Err(error) => {
                self.unread.store(true, Ordering::Relaxed);
                let is_transient = matches!(&error, OpenError::Kms(error) if error.is_transient());
                unreadable::marked(is_transient, &error.to_string())
            }
        };
        Arc::new(KeyValue { value, ..(**kv).clone() })
    }

    async fn batch(&self, batch: Batch) -> Batch {
        let mut events = Vec::with_capacity(batch.events.len());
        for event in batch.events.iter() {
            let kv = match event.kind {
                // Every resource waits for this.
                EventKind::Put => self.opened(&event.kv, Ask::Once).await,
                _ => event.kv.clone(),
            };
            events.push(Event { kind: event.kind, kv, prev: None });
        }
        Batch { revision: batch.revision, events: events.into() }
    }

    async fn range(&self, mut range: RangeResult) -> RangeResult {
        for kv in range.kvs.iter_mut().filter(|kv| !kv.value.is_empty()) {
            *kv = self.opened(kv, Ask::Again).await;
        }
        range
    }

    fn seal(&self, op: Op) -> Result<Op, StoreError> {
        let Op::Put { key, value, lease } = op else { return Ok(op) };
        let rules = self.current.load();
        let resource = std::str::from_utf8(&key).ok().and_then(|key| self.resource(key));
        let provider = resource.and_then(|(group, plural)| rules.of(group, plural).first());
        let sealed = provider.map_or(Ok(value.clone()), |provider| provider.seal(&value, &key));
        Ok(Op::Put { value: sealed.map_err(|error| StoreError::Sealed(error.to_string()))?, key, lease })
    }
}

impl Encryption {
    pub(crate) async fn start(
        inner: Arc<dyn Store>,
        settings: EncryptionSettings,
    ) -> Result<Arc<Self>, EncryptionError> {
        let unwatchable = |source| EncryptionError::Read { path: settings.path.clone(), source };
        // Before it is read, so that no change is missed.
        let events =
            settings.reload.then(|| FileWatch::new(&settings.path)?.events()).transpose().map_err(unwatchable)?;
        let text = reload::read(&settings.path)?;
        let rules = Rules::build(config::parse(&settings.path, &text).map_err(EncryptionError::Config)?).await?;
        let mut builtin = HashMap::new();
        for info in api::resources::builtin() {
            builtin.entry(info.storage_prefix()).or_insert((info.group.as_str(), info.plural.as_str()));
        }
        let rules = Arc::new(Sealing {
            current: ArcSwap::from_pointee(rules),
            builtin,
            unread: AtomicBool::new(false),
            changed: ArcSwap::default(),
            reloads: Default::default(),
        });
        if let Some(events) = events {
            reload::follow(&rules, events, settings.path.clone(), text);
        }
        Ok(Arc::new(Self { inner, rules, settings }))
    }

    /// There is something to be asked for its health.
    pub(crate) fn has_check(&self) -> bool {
        self.settings.reload || !self.rules.current.load().kms.is_empty()
    }

    /// Whether every KMS plugin is well.
    pub(crate) async fn check(&self) -> bool {
        self.rules.current.load_full().check().await.is_ok()
    }

    /// How many changes of the file were taken over, and how many could not be.
    pub(crate) fn reloads(&self) -> [u64; 2] {
        self.rules.reloads.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// What is stored there would be sealed in another way today.
    pub(crate) async fn is_stale(&self, key: String) -> bool {
        let Ok(found) = self.inner.range(Range::key(key)).await else { return false };
        let Some(kv) = found.kvs.first() else { return false };
        self.rules.open(&kv.key, &kv.value, Ask::Again).await.is_ok_and(|(_, stale)| stale)
    }
}

#[async_trait::async_trait]
impl Store for Encryption {
    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        Ok(self.rules.range(self.inner.range(range).await?).await)
    }

    async fn txn(&self, mut txn: Txn) -> Result<TxnResult, StoreError> {
        let seal = |ops: Vec<Op>| ops.into_iter().map(|op| self.rules.seal(op)).collect::<Result<_, _>>();
        (txn.success, txn.failure) = (seal(txn.success)?, seal(txn.failure)?);
        let mut answer = self.inner.txn(txn).await?;
        for result in &mut answer.results {
            if let OpResult::Range(range) = result {
                *range = self.rules.range(range.clone()).await;
            }
        }
        Ok(answer)
    }

    async fn watch(&self, start: Bytes, end: Option<Bytes>, from: Revision) -> Result<Watch, StoreError> {
        let (rules, changed) = (self.rules.clone(), (**self.rules.changed.load()).clone());
        let opened = self.inner.watch(start, end, from).await?.then(move |batch| {
            let rules = rules.clone();
            async move { Ok(rules.batch(batch?).await) }
        });
        let again = StoreError::Sealed("the keys have changed".into());
        let ended = futures::stream::once(std::future::ready(Err(again)));
        Ok(Watch::new(opened.take_until(changed.cancelled_owned()).chain(ended)))
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.inner.compact(revision).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.inner.revision().await
    }

    async fn size(&self) -> Result<u64, StoreError> {
        self.inner.size().await
    }

    async fn lease_grant(&self, ttl_seconds: i64, id: i64) -> Result<Lease, StoreError> {
        self.inner.lease_grant(ttl_seconds, id).await
    }

    async fn lease_revoke(&self, id: i64) -> Result<Revision, StoreError> {
        self.inner.lease_revoke(id).await
    }

    async fn lease_keep_alive(&self, id: i64) -> Result<Lease, StoreError> {
        self.inner.lease_keep_alive(id).await
    }

    async fn lease_time_to_live(&self, id: i64) -> Result<LeaseStatus, StoreError> {
        self.inner.lease_time_to_live(id).await
    }

    async fn leases(&self) -> Result<Vec<i64>, StoreError> {
        self.inner.leases().await
    }

    /// As it is at rest.
    async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        self.inner.snapshot().await
    }
}
