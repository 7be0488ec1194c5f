//! Who serves: each API server keeps a Lease of its own in `kube-system`, and removes those of servers that are long gone.

use std::sync::Arc;
use std::time::Duration;

use api::{ApiError, Object, ObjectExt as _};
use serde_json::json;

use crate::field_manager::Tracking;
use crate::handlers::{DeleteOptions, Writer};
use crate::server::ApiServer;

const NAMESPACE: &str = "kube-system";
const LABEL: &str = "apiserver.kubernetes.io/identity";
const COMPONENT: &str = "kube-apiserver";
/// Upstream's: so long a server may be silent until it is forgotten.
const LEASE_SECONDS: i64 = 3600;
const RENEWAL: Duration = Duration::from_secs(10);

/// Announces this server and renews that until it drains; the lease stays, for a server that comes back.
pub(crate) fn start(server: &Arc<ApiServer>) {
    server.tasks.spawn(server.drain.clone().run_until_cancelled_owned(keep(server.clone())));
}

async fn keep(server: Arc<ApiServer>) {
    let host = host_name();
    let name = name(&host);
    let holder = format!("{name}_{}", uuid::Uuid::new_v4());
    let mut every = tokio::time::interval(RENEWAL);
    loop {
        every.tick().await;
        let outcome = match renew(&server, &name, &host, &holder).await {
            Ok(()) => forget_gone(&server, &name).await,
            failed => failed,
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "this server's own lease is not renewed");
        }
    }
}

/// The same for every server on a host, whenever it starts; each part is told with its length.
fn name(host: &str) -> String {
    let mut parts = Vec::new();
    for part in [host, COMPONENT] {
        parts.extend(u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes());
        parts.extend(part.as_bytes());
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, &parts);
    format!("apiserver-{}", base32(digest.as_ref().get(..16).unwrap_or_default()))
}

/// Without padding, in small letters.
fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bits: Vec<bool> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1)).collect();
    let value = |chunk: &[bool]| (0..5).fold(0, |value, bit| value * 2 + usize::from(chunk.get(bit) == Some(&true)));
    bits.chunks(5).filter_map(|chunk| ALPHABET.get(value(chunk))).map(|letter| char::from(*letter)).collect()
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

async fn renew(server: &Arc<ApiServer>, name: &str, host: &str, holder: &str) -> Result<(), ApiError> {
    let Some(served) = server.registry.stored("coordination.k8s.io", "leases") else { return Ok(()) };
    let tracking = Tracking::Update(COMPONENT);
    let writer = Writer { server, served, context: None, subresource: "", dry_run: false, tracking };
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now});
    let config = &server.config;
    let own = json!({
        "kind": served.info.kind, "apiVersion": served.info.api_version(), "spec": spec,
        "metadata": {
            "name": name, "namespace": NAMESPACE,
            "labels": {LABEL: COMPONENT, "kubernetes.io/hostname": host},
            "annotations": {"kubernetes.io/peer-advertise-address": format!("{}:{}", config.advertise_address, config.secure_port)},
        },
    });
    let Some(own) = own.as_object() else { return Ok(()) };
    let renewed = |current: &Object| {
        let mut new = current.clone();
        new.insert("spec".into(), spec.clone());
        for part in ["labels", "annotations"] {
            new.metadata().insert(part.into(), own.at(&["metadata", part]).cloned().unwrap_or_default());
        }
        Ok(new)
    };
    match writer.update(NAMESPACE, name, renewed).await {
        Err(error) if error.code == 404 => writer.create(NAMESPACE, own.clone()).await.map(|_| ()),
        renewed => renewed.map(|_| ()),
    }
}

/// Those that nobody has renewed for as long as they said.
async fn forget_gone(server: &Arc<ApiServer>, own: &str) -> Result<(), ApiError> {
    let Some(served) = server.registry.stored("coordination.k8s.io", "leases") else { return Ok(()) };
    let (now, tracking) = (jiff::Timestamp::now(), Tracking::None);
    let writer = Writer { server, served, context: None, subresource: "", dry_run: false, tracking };
    for lease in server.cached_all("coordination.k8s.io", "leases", NAMESPACE) {
        let is_identity = lease.text(&["metadata", "labels", LABEL]) == COMPONENT && lease.name() != own;
        if is_identity && is_over(&lease, now) {
            match writer.delete(NAMESPACE, lease.name(), &DeleteOptions::default()).await {
                Err(error) if error.code == 404 => (),
                deleted => drop(deleted?),
            }
        }
    }
    Ok(())
}

fn is_over(lease: &Object, now: jiff::Timestamp) -> bool {
    let seconds = lease.at(&["spec", "leaseDurationSeconds"]).and_then(serde_json::Value::as_i64).unwrap_or(0);
    let renewed = lease.text(&["spec", "renewTime"]).parse::<jiff::Timestamp>();
    renewed.is_ok_and(|renewed| now.duration_since(renewed).as_secs() > seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_by_its_host() {
        assert_eq!(name("vm"), "apiserver-wlv32tlttr4jl3gtroqexyxapa");
        assert_eq!(base32(b"foobar"), "mzxw6ytboi");
    }

    #[test]
    fn a_lease_is_over_when_it_was_not_renewed_for_as_long_as_it_says() {
        let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
        let lease = json!({"spec": {"leaseDurationSeconds": 60, "renewTime": "2026-01-01T00:00:00.000000Z"}});
        assert!(!is_over(lease.as_object().unwrap(), at("2026-01-01T00:01:00Z")));
        assert!(is_over(lease.as_object().unwrap(), at("2026-01-01T00:01:01Z")));
        assert!(!is_over(json!({"spec": {}}).as_object().unwrap(), at("2026-01-01T00:01:01Z")));
    }
}
