//! Which credentials pulled the images of this node, so that a pod without them cannot run what another pod pulled.
//!
//! Upstream: `pkg/kubelet/images/pullmanager`, feature KubeletEnsureSecretPulledImages (KEP 2535), with its default policy
//! NeverVerifyPreloadedImages. An intent is on disk before a pull begins: an image without intent or record was not pulled by a
//! kubelet, and is free for all. Files and their format are upstream's (`image_manager/pulling`, `image_manager/pulled`).

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// Secrets beyond this number are accepted, but no longer added to a record.
const MAX_SECRETS: usize = 100;

/// A pull secret and a digest of the one credential in it that fits the image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PullSecret {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    #[serde(rename = "credentialHash")]
    pub(crate) credential_hash: String,
}

impl PullSecret {
    fn is_same_object(&self, other: &Self) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Credentials {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<PullSecret>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
}

impl Credentials {
    /// Adds the credentials of a pull that succeeded; `None` are those of an anonymous pull.
    fn add(&mut self, secret: Option<&PullSecret>) {
        match secret {
            _ if self.node_pods_accessible => (),
            None => *self = Self { node_pods_accessible: true, ..Self::default() },
            Some(secret) => {
                let has_room = self.kubernetes_secrets.len() < MAX_SECRETS;
                match self.kubernetes_secrets.iter_mut().find(|known| known.is_same_object(secret)) {
                    Some(known) => known.credential_hash.clone_from(&secret.credential_hash),
                    None if has_room => self.kubernetes_secrets.push(secret.clone()),
                    None => (),
                }
            }
        }
    }

    /// A secret that pulled the image: the same object, also with new content, or another with the same credential.
    fn find(&self, secrets: &[PullSecret]) -> Option<PullSecret> {
        let fits = |secret: &&PullSecret| {
            self.kubernetes_secrets.iter().any(|known| {
                let same_hash = !known.credential_hash.is_empty() && known.credential_hash == secret.credential_hash;
                same_hash || known.is_same_object(secret)
            })
        };
        secrets.iter().find(fits).cloned()
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PulledRecord {
    kind: String,
    api_version: String,
    last_updated_time: Timestamp,
    image_ref: String,
    /// By image name without tag and digest.
    #[serde(default)]
    credential_mapping: BTreeMap<String, Credentials>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Intent {
    kind: String,
    api_version: String,
    image: String,
}

/// The records, on disk. One change at a time: pulls are rare.
pub(crate) struct PullRecords {
    pulling: PathBuf,
    pulled: PathBuf,
    /// Pulls under way, by image.
    intents: Mutex<HashMap<String, usize>>,
}

impl PullRecords {
    pub(crate) fn new(root: &Path) -> Self {
        let root = root.join("image_manager");
        Self { pulling: root.join("pulling"), pulled: root.join("pulled"), intents: Mutex::default() }
    }

    /// Turns intents that a crash left into records, whose credentials are unknown, and forgets the images that are gone.
    /// `images` are those of the runtime: an id, with its names.
    pub(crate) fn recover(&self, images: &[(String, Vec<String>)], now: Timestamp) {
        let _one_at_a_time = self.intents.lock();
        for intent in read_all::<Intent>(&self.pulling) {
            let found = images.iter().find(|(_, names)| names.iter().any(|name| is_same_image(name, &intent.image)));
            let Some((id, _)) = found else { continue };
            if self.change(id, now, |_| ()).is_ok() {
                let _ = fs::remove_file(file_of(&self.pulling, &intent.image));
            }
        }
        for record in read_all::<PulledRecord>(&self.pulled) {
            if !images.iter().any(|(id, _)| *id == record.image_ref) {
                let _ = fs::remove_file(file_of(&self.pulled, &record.image_ref));
            }
        }
    }

    /// Must succeed before the pull begins.
    pub(crate) fn begin_pull(&self, image: &str) -> io::Result<()> {
        let mut intents = self.intents.lock();
        let intent =
            Intent { kind: "ImagePullIntent".to_owned(), api_version: API_VERSION.to_owned(), image: image.to_owned() };
        write(&file_of(&self.pulling, image), &serde_json::to_vec(&intent)?)?;
        *intents.entry(image.to_owned()).or_default() += 1;
        Ok(())
    }

    /// Ends what [`Self::begin_pull`] began. After a success the credentials that pulled are recorded; where that fails, the
    /// intent stays, and so the image stays one that must be verified.
    pub(crate) fn end_pull(&self, image: &str, pulled: Option<(&str, Option<&PullSecret>)>, now: Timestamp) {
        let mut intents = self.intents.lock();
        if let Some((image_ref, secret)) = pulled {
            let recorded = self.change(image_ref, now, |record| {
                record.credential_mapping.entry(without_tag(image).to_owned()).or_default().add(secret);
            });
            if let Err(error) = recorded {
                tracing::error!(image, %error, "cannot record which credentials pulled an image");
                return;
            }
        }
        let left = intents.get(image).map_or(0, |count| count.saturating_sub(1));
        if left > 0 {
            intents.insert(image.to_owned(), left);
        } else {
            intents.remove(image);
            let _ = fs::remove_file(file_of(&self.pulling, image));
        }
    }

    /// Whether a pod must pull an image that is present, to prove that it may.
    pub(crate) fn must_pull(&self, image: &str, image_ref: &str, secrets: &[PullSecret], now: Timestamp) -> bool {
        let intents = self.intents.lock();
        let record = match read::<PulledRecord>(&file_of(&self.pulled, image_ref)) {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(image, %error, "cannot read which credentials pulled an image");
                return true;
            }
        };
        let Some(record) = record else {
            return intents.contains_key(image) || file_of(&self.pulling, image).exists();
        };
        let Some(known) = record.credential_mapping.get(without_tag(image)) else { return true };
        if known.node_pods_accessible {
            return false;
        }
        let Some(secret) = known.find(secrets) else { return true };
        if !known.kubernetes_secrets.contains(&secret) {
            // It fits today by its name or by its credential; both are to fit when one of them changes.
            let _ = self.change(image_ref, now, |record| {
                record.credential_mapping.entry(without_tag(image).to_owned()).or_default().add(Some(&secret));
            });
        }
        false
    }

    fn change(&self, image_ref: &str, now: Timestamp, change: impl FnOnce(&mut PulledRecord)) -> io::Result<()> {
        let path = file_of(&self.pulled, image_ref);
        let mut record = read(&path).ok().flatten().unwrap_or_else(|| PulledRecord {
            kind: "ImagePulledRecord".to_owned(),
            api_version: API_VERSION.to_owned(),
            last_updated_time: now,
            image_ref: image_ref.to_owned(),
            credential_mapping: BTreeMap::new(),
        });
        record.last_updated_time = now;
        change(&mut record);
        write(&path, &serde_json::to_vec(&record)?)
    }
}

/// The file of an image or image reference: a digest, as names hold `/` and `:`.
fn file_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("sha256-{}", hex::encode(Sha256::digest(name.as_bytes()))))
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_all<T: DeserializeOwned>(folder: &Path) -> Vec<T> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| read(&entry.path()).ok().flatten()).collect()
}

/// Durable when it returns: a record that is lost opens an image to everybody.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(folder)?;
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    File::open(folder)?.sync_all()
}

/// An image's name without tag and digest.
fn without_tag(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or(image);
    name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(name, |(name, _)| name)
}

/// Whether the name that a runtime has for an image is the one a pod used: `nginx` is `docker.io/library/nginx:latest`.
fn is_same_image(full: &str, used: &str) -> bool {
    full == used
        || full.strip_suffix(used).is_some_and(|registry| ["docker.io/", "docker.io/library/"].contains(&registry))
        || (!used.contains('@') && without_tag(used) == used && is_same_image(full, &format!("{used}:latest")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, hash: &str) -> PullSecret {
        PullSecret {
            uid: format!("uid-{name}"),
            namespace: "n".to_owned(),
            name: name.to_owned(),
            credential_hash: hash.to_owned(),
        }
    }

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;
    const IMAGE: &str = "r.io/team/app:1";

    fn pulled_by(records: &PullRecords, secret: Option<&PullSecret>) {
        records.begin_pull(IMAGE).expect("an intent");
        records.end_pull(IMAGE, Some(("sha256:1", secret)), NOW);
    }

    #[test]
    fn an_image_is_free_only_for_the_credentials_that_pulled_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let records = PullRecords::new(folder.path());
        let must = |secrets: &[PullSecret]| records.must_pull(IMAGE, "sha256:1", secrets, NOW);
        assert!(!must(&[]), "an image that no kubelet pulled is free");
        pulled_by(&records, Some(&secret("a", "h1")));
        assert!(must(&[]), "no credentials");
        assert!(must(&[secret("b", "h2")]), "other credentials");
        assert!(!must(&[secret("b", "h2"), secret("a", "h1")]), "the secret itself");
        assert!(!must(&[secret("c", "h1")]), "another secret with the same credential");
        assert!(!must(&[secret("a", "rotated")]), "the secret with new content");
        assert!(!must(&[secret("d", "rotated")]), "whose credential counts from then on");
        assert!(records.must_pull("other.io/app:1", "sha256:1", &[secret("a", "h1")], NOW), "another name");
        assert!(!PullRecords::new(folder.path()).must_pull(IMAGE, "sha256:1", &[secret("a", "rotated")], NOW));
        pulled_by(&records, None);
        assert!(!must(&[]), "pulled anonymously");
    }

    #[test]
    fn an_interrupted_pull_leaves_an_image_that_must_be_verified() {
        let folder = tempfile::tempdir().expect("a folder");
        PullRecords::new(folder.path()).begin_pull("nginx").expect("an intent");
        let records = PullRecords::new(folder.path());
        assert!(records.must_pull("nginx", "sha256:1", &[], NOW));
        let images = [("sha256:1".to_owned(), vec!["docker.io/library/nginx:latest".to_owned()])];
        records.recover(&images, NOW);
        assert!(!file_of(&records.pulling, "nginx").exists());
        assert!(records.must_pull("nginx", "sha256:1", &[], NOW));
        records.recover(&[], NOW);
        assert!(
            !records.must_pull("nginx", "sha256:1", &[], NOW),
            "the image is gone, and what comes with its id is new"
        );
    }

    #[test]
    fn a_failed_pull_and_a_damaged_record_open_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let records = PullRecords::new(folder.path());
        pulled_by(&records, Some(&secret("a", "h1")));
        records.begin_pull(IMAGE).expect("an intent");
        records.end_pull(IMAGE, None, NOW);
        assert!(records.must_pull(IMAGE, "sha256:1", &[], NOW));
        fs::write(file_of(&records.pulled, "sha256:1"), "{").expect("written");
        assert!(records.must_pull(IMAGE, "sha256:1", &[secret("a", "h1")], NOW));
    }

    #[test]
    fn names_are_compared_without_tags() {
        for (image, want) in [
            ("nginx", "nginx"),
            ("nginx:1", "nginx"),
            ("127.0.0.1:5000/app", "127.0.0.1:5000/app"),
            ("127.0.0.1:5000/app:1@sha256:00", "127.0.0.1:5000/app"),
        ] {
            assert_eq!(without_tag(image), want);
        }
    }
}
