//! How a node comes by a kubeconfig of its own, when it has only one that anybody may join with.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use kubelet::certificate::{CertificateStore, Leaf, bootstrap};

use crate::remote::{self, Kubeconfig};
use crate::{kubeconfig, pki};

/// Leaves a kubeconfig that is still good alone. Otherwise asks for a certificate as the bootstrap kubeconfig says, waits for it, and
/// writes a kubeconfig that refers to it.
pub(crate) async fn join(own: &Path, with: &Path, node: &str, store: &CertificateStore) -> Result<()> {
    match own.try_exists().with_context(|| format!("cannot look for {}", own.display()))? {
        false => tracing::info!(kubeconfig = ?own, "there is no kubeconfig yet"),
        true => match is_good(own, Timestamp::now()) {
            Ok(()) => return Ok(()),
            Err(error) => {
                tracing::warn!(kubeconfig = ?own, error = format!("{error:#}"), "the kubeconfig is of no use")
            }
        },
    }
    let client = remote::from_kubeconfig(with)?;
    bootstrap(&client, node, store).await.context("this node got no client certificate")?;
    if let Some(parent) = own.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    kubeconfig::write(own, &Kubeconfig::read(with)?.for_holder(&store.current_path())?)
}

/// Whether a kubeconfig has a client certificate that has not ended.
fn is_good(path: &Path, now: Timestamp) -> Result<()> {
    let identity: pki::Identity = Kubeconfig::read(path)?.identity()?.context("it has no client certificate")?;
    let leaf = Leaf::read(identity.certificate.as_bytes()).context("its client certificate is none")?;
    ensure!(!leaf.is_over(now), "its client certificate has ended");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pki::{Identity, Pki};

    #[test]
    fn a_kubeconfig_is_good_while_its_certificate_is() {
        let dir = tempfile::tempdir().unwrap();
        let made = Pki::open(dir.path()).unwrap().client("node", "system:node:a", &["system:nodes"]).unwrap();
        let path = dir.path().join("kubeconfig");
        let check = |days: i64, want: &str| {
            let now = Timestamp::now() + jiff::SignedDuration::from_hours(24 * days);
            let said = is_good(&path, now).map_or_else(|error| format!("{error:#}"), |()| "good".into());
            assert!(said.contains(want), "{want}: {said}");
        };
        check(0, "cannot use the kubeconfig");
        kubeconfig::write(&path, &kubeconfig::document("c", "https://x", "ca", &made)).unwrap();
        check(0, "good");
        check(364, "good");
        check(366, "has ended");
        let odd = Identity { certificate: "c".into(), key: "k".into() };
        kubeconfig::write(&path, &kubeconfig::document("c", "https://x", "ca", &odd)).unwrap();
        check(0, "its client certificate is none");
        let mut token = kubeconfig::document("c", "https://x", "ca", &made);
        token["users"][0]["user"] = json!({"token": "t"});
        kubeconfig::write(&path, &token).unwrap();
        check(0, "it has no client certificate");
    }
}
