//! The first certificate of a node, for one that has only what everybody may join with.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::KeyPair;

use super::request::{RequestError, Template};
use super::store::{self, CertificateStore, StoreError};

/// A person may have to approve it.
const PATIENCE: Duration = Duration::from_secs(3600);

#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Asks as `client` for the node's client certificate, waits for it and keeps it in `store`.
///
/// # Errors
/// It was not issued, or could not be kept.
pub async fn bootstrap(client: &kube::Client, node: &str, store: &CertificateStore) -> Result<(), BootstrapError> {
    let path = store.key_path();
    let known = store::read(&path)?.and_then(|pem| KeyPair::from_pem(&pem).ok());
    let key = match known {
        Some(key) => key,
        None => {
            let key = KeyPair::generate().map_err(RequestError::Make)?;
            store.write(&path, &key.serialize_pem())?;
            key
        }
    };
    let template = Template::client(node);
    let asked = template.ask(client, Some(&template.digested_name(&key)), &key, PATIENCE).await;
    if let Ok(pem) = &asked {
        store.update(pem, Timestamp::now())?;
    }
    if !matches!(asked, Err(RequestError::Refused(_) | RequestError::Late(_))) {
        // Issued or turned down: in either case nothing more will come for this key.
        let _ = std::fs::remove_file(&path);
    }
    Ok(asked.map(drop)?)
}

#[cfg(test)]
mod tests {
    use super::super::leaf::Leaf;
    use super::super::testing::Authority;
    use super::*;

    #[tokio::test]
    async fn a_node_that_starts_again_finds_what_it_asked_for() {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::hesitating(600));
        let store = CertificateStore::client(folder.path());
        let own = authority.client();
        let first = tokio::spawn({
            let (client, store) = (own.clone(), store.clone());
            async move { bootstrap(&client, "n", &store).await }
        });
        authority.until_asked(1).await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(store.key_path().exists());
        authority.approve();
        bootstrap(&own, "n", &store).await.unwrap();
        assert_eq!(authority.names().len(), 1, "one request: {:?}", authority.names());
        assert!(authority.names()[0].starts_with("node-csr-"));
        let leaf = Leaf::read(store.current().unwrap().unwrap().as_bytes()).unwrap();
        assert_eq!((leaf.common_name.as_str(), leaf.organizations), ("system:node:n", vec!["system:nodes".to_owned()]));
        assert!(!store.key_path().exists());
    }
}
