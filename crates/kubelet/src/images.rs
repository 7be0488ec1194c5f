//! Images: whether one must be pulled, pulling it with the pod's credentials, back-off after failures.

pub(crate) mod pull_records;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use client::{Drain, Recorder};
use cri::v1::{AuthConfig, ImageSpec, ImageStatusRequest, ListImagesRequest, PodSandboxConfig, PullImageRequest};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, Secret};
use parking_lot::Mutex;
use tonic::Status;

use crate::clock::Clock;
use crate::context::container_reference;
use crate::credentials;
use crate::images::pull_records::{PullRecords, PullSecret};
use crate::pod::backoff::Backoff;
use crate::security::ImageUser;
use crate::spec;

/// An image that is here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Present {
    pub(crate) id: String,
    pub(crate) user: ImageUser,
}

struct Pulled {
    present: Present,
    size: u64,
    /// The secret whose credential pulled it; none if it was pulled anonymously.
    with: Option<PullSecret>,
}

/// The waiting reason and message of a container whose image is not here.
#[derive(Debug, thiserror::Error)]
#[error("{reason}: {message}")]
pub(crate) struct ImageError {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// When a pull is tried again.
    pub(crate) retry_at: Option<Timestamp>,
    /// The pod is being deleted; nothing went wrong.
    pub(crate) cancelled: bool,
}

impl ImageError {
    fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message, retry_at: None, cancelled: false }
    }
}

/// How soon after a failed pull the status turns from the failure to the back-off.
const SHOW_FAILURE: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Failures {
    backoff: Backoff,
    /// The last failure by key, shown while waiting.
    last: HashMap<String, String>,
}

pub(crate) struct Images {
    cri: Arc<dyn cri::Cri>,
    recorder: Recorder,
    clock: Clock,
    failures: Mutex<Failures>,
    records: PullRecords,
}

pub(crate) struct Wanted<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a Container,
    pub(crate) secrets: &'a [Arc<Secret>],
    pub(crate) sandbox: &'a PodSandboxConfig,
    /// Fires when the pod is to end; a pull is not waited for then.
    pub(crate) ending: &'a Drain,
}

impl Images {
    /// `root` is the kubelet's folder, in which the credentials of pulls are recorded.
    pub(crate) fn new(cri: Arc<dyn cri::Cri>, recorder: Recorder, clock: Clock, root: &Path) -> Self {
        Self { cri, recorder, clock, failures: Mutex::default(), records: PullRecords::new(root) }
    }

    /// Takes up the records of pulls that an earlier kubelet left. Call before the first pod.
    pub(crate) async fn recover(&self) -> Result<(), Status> {
        let images = self.cri.list_images(ListImagesRequest::default()).await?.images;
        let named = images.into_iter().map(|image| (image.id, [image.repo_tags, image.repo_digests].concat()));
        self.records.recover(&named.collect::<Vec<_>>(), self.clock.now());
        Ok(())
    }

    /// Makes sure the container's image is here, as its pull policy says.
    pub(crate) async fn ensure(&self, wanted: &Wanted<'_>) -> Result<Present, ImageError> {
        let requested = wanted.container.image.as_deref().unwrap_or_default();
        let reference = container_reference(wanted.pod, &wanted.container.name);
        let image = match with_default_tag(requested) {
            Ok(image) => image,
            Err(error) => {
                let message = format!("Failed to apply default image tag \"{requested}\": {error}");
                self.recorder.warning(&reference, "InspectFailed", message.clone());
                return Err(ImageError::new("InvalidImageName", message));
            }
        };
        let policy = wanted.container.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
        if policy != "Always" {
            match self.present(&image).await {
                Ok(Some(present)) if !self.must_pull(wanted, requested, &image, &present.id) => {
                    let message = format!(
                        "Container image \"{requested}\" already present on machine and can be accessed by the pod"
                    );
                    self.recorder.normal(&reference, "Pulled", message);
                    return Ok(present);
                }
                // An image that the pod may not use is not revealed to it either.
                Ok(_) if policy == "Never" => {
                    let message = format!("Container image \"{requested}\" is not present with pull policy of Never");
                    self.recorder.warning(&reference, "ErrImageNeverPull", message.clone());
                    return Err(ImageError::new("ErrImageNeverPull", message));
                }
                Ok(_) => (),
                Err(status) => {
                    let message = format!("Failed to inspect image \"{image}\": {}", describe(&status));
                    self.recorder.warning(&reference, "InspectFailed", message.clone());
                    return Err(ImageError::new("ImageInspectError", message));
                }
            }
        }
        self.pull(wanted, requested, &image).await
    }

    async fn present(&self, image: &str) -> Result<Option<Present>, Status> {
        let request = ImageStatusRequest { image: Some(spec_of(image)), verbose: false };
        let found = self.cri.image_status(request).await?.image;
        Ok(found.map(|image| Present { id: image.id.clone(), user: ImageUser::of(image) }))
    }

    fn must_pull(&self, wanted: &Wanted<'_>, requested: &str, image: &str, id: &str) -> bool {
        let fitting = credentials::matching(image, wanted.secrets.iter().map(AsRef::as_ref));
        let secrets: Vec<PullSecret> = fitting.into_iter().map(|credential| credential.source).collect();
        self.records.must_pull(requested, id, &secrets, self.clock.now())
    }

    async fn pull(&self, wanted: &Wanted<'_>, requested: &str, image: &str) -> Result<Present, ImageError> {
        let reference = container_reference(wanted.pod, &wanted.container.name);
        let key = format!("{}_{image}", spec::uid(wanted.pod));
        let (waits, last) = {
            let failures = self.failures.lock();
            (failures.backoff.waiting_since_update(&key, self.clock.now()), failures.last.get(&key).cloned())
        };
        if let Some(end) = waits {
            let mut message = format!("Back-off pulling image \"{requested}\"");
            self.recorder.normal(&reference, "BackOff", message.clone());
            if let Some(last) = last {
                message = format!("{message}: {last}");
            }
            return Err(ImageError { retry_at: Some(end), ..ImageError::new("ImagePullBackOff", message) });
        }
        self.failures.lock().last.remove(&key);
        if let Err(error) = self.records.begin_pull(requested) {
            let message = format!("Failed to record image pull intent for container image \"{requested}\": {error}");
            self.recorder.warning(&reference, "Failed", message.clone());
            return Err(ImageError {
                retry_at: Some(crate::clock::after(self.clock.now(), SHOW_FAILURE)),
                ..ImageError::new("ErrImagePull", message)
            });
        }
        self.recorder.normal(&reference, "Pulling", format!("Pulling image \"{requested}\""));
        let begun = tokio::time::Instant::now();
        let pulled = wanted.ending.run_until_cancelled(self.try_pull(wanted, image)).await;
        let success = pulled.as_ref().and_then(|pulled| pulled.as_ref().ok());
        let credentials = success.map(|pulled| (pulled.present.id.as_str(), pulled.with.as_ref()));
        self.records.end_pull(requested, credentials, self.clock.now());
        let Some(pulled) = pulled else {
            return Err(ImageError { cancelled: true, ..ImageError::new("ErrImagePull", "pull cancelled".to_owned()) });
        };
        match pulled {
            Ok(Pulled { present, size, .. }) => {
                let took = millis(begun.elapsed());
                let message = format!(
                    "Successfully pulled image \"{requested}\" in {took} ({took} including waiting). Image size: {size} bytes."
                );
                self.recorder.normal(&reference, "Pulled", message);
                self.failures.lock().backoff.forget(&key);
                Ok(present)
            }
            Err(status) => {
                let message = describe(&status);
                self.recorder.warning(&reference, "Failed", format!("Failed to pull image \"{requested}\": {message}"));
                let now = self.clock.now();
                let mut failures = self.failures.lock();
                failures.backoff.next(&key, now, now);
                let reason = if status.message().contains("RegistryUnavailable") {
                    "RegistryUnavailable"
                } else if status.message().contains("SignatureValidationFailed") {
                    "SignatureValidationFailed"
                } else {
                    "ErrImagePull"
                };
                failures.last.insert(key, format!("{reason}: {message}"));
                let retry_at = Some(crate::clock::after(now, SHOW_FAILURE));
                Err(ImageError { retry_at, ..ImageError::new(reason, message) })
            }
        }
    }

    /// Tries every credential that fits, or none if there are none.
    async fn try_pull(&self, wanted: &Wanted<'_>, image: &str) -> Result<Pulled, Status> {
        let fitting = credentials::matching(image, wanted.secrets.iter().map(AsRef::as_ref));
        let mut tries: Vec<(Option<AuthConfig>, Option<PullSecret>)> =
            fitting.into_iter().map(|credential| (Some(credential.auth), Some(credential.source))).collect();
        if tries.is_empty() {
            tries.push((None, None));
        }
        let mut failure = Status::unknown("no credentials");
        for (auth, with) in tries {
            let request =
                PullImageRequest { image: Some(spec_of(image)), auth, sandbox_config: Some(wanted.sandbox.clone()) };
            match self.cri.pull_image(request).await {
                Ok(answer) => {
                    let request = ImageStatusRequest { image: Some(spec_of(image)), verbose: false };
                    let found = self.cri.image_status(request).await?.image.unwrap_or_default();
                    let size = found.size;
                    let id = if found.id.is_empty() { answer.image_ref } else { found.id.clone() };
                    return Ok(Pulled { present: Present { id, user: ImageUser::of(found) }, size, with });
                }
                Err(status) => failure = status,
            }
        }
        Err(failure)
    }

    pub(crate) fn forget_pod(&self, uid: &str) {
        self.failures.lock().last.retain(|key, _| !key.starts_with(uid));
    }
}

fn spec_of(image: &str) -> ImageSpec {
    ImageSpec { image: image.to_owned(), user_specified_image: image.to_owned(), ..Default::default() }
}

/// A runtime's error as upstream's users read it.
pub(crate) fn describe(status: &Status) -> String {
    format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}

fn millis(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis < 1000 { format!("{millis}ms") } else { format!("{}.{:03}s", millis / 1000, millis % 1000) }
}

/// `latest` where the image has neither tag nor digest.
fn with_default_tag(image: &str) -> Result<String, &'static str> {
    if image.is_empty() || image.chars().any(char::is_whitespace) {
        return Err("couldn't parse image name: invalid reference format");
    }
    let name = image.split('@').next().unwrap_or(image);
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.is_empty() {
        return Err("couldn't parse image name: invalid reference format");
    }
    let repository = name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(name, |(before, _)| before);
    let path =
        repository.split_once('/').filter(|(first, _)| first.contains(['.', ':'])).map_or(repository, |(_, p)| p);
    if path.chars().any(|c| c.is_ascii_uppercase()) {
        return Err("couldn't parse image name: invalid reference format: repository name must be lowercase");
    }
    if last.contains(':') || image.contains('@') { Ok(image.to_owned()) } else { Ok(format!("{image}:latest")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_added_only_where_none_is() {
        for (image, want) in [
            ("nginx", Some("nginx:latest")),
            ("nginx:1", Some("nginx:1")),
            ("127.0.0.1:5000/app", Some("127.0.0.1:5000/app:latest")),
            ("r.io/a/b@sha256:00", Some("r.io/a/b@sha256:00")),
            ("Bad", None),
            ("", None),
            ("a b", None),
        ] {
            assert_eq!(with_default_tag(image).ok().as_deref(), want, "{image}");
        }
    }
}
