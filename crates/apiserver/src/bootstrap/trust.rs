//! Whom this server believes, published for servers that stand beside it: `extension-apiserver-authentication`.

use std::sync::Arc;

use api::{ApiError, Object, ObjectExt as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::ensure;
use crate::server::ApiServer;

pub(super) const NAME: &str = "extension-apiserver-authentication";
const NAMESPACE: &str = "kube-system";
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

pub(super) async fn publish(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    let cache = server.registry.stored("", "configmaps").and_then(|served| served.cache.clone());
    let known = cache.and_then(|cache| cache.get(&format!("{NAMESPACE}/{NAME}"))).map(|stored| stored.decode());
    let data = data(&server.config.client_ca, known.as_ref());
    if data.as_object().is_some_and(Object::is_empty) {
        return Ok(());
    }
    ensure(server, "", "configmaps", NAMESPACE, json!({"metadata": {"name": NAME}, "data": data})).await
}

/// Other servers of the cluster may believe others: theirs are kept.
fn data(client_ca: &[Vec<u8>], known: Option<&Object>) -> Value {
    let mut bundle = known.map(|known| known.text(&["data", "client-ca-file"]).to_owned()).unwrap_or_default();
    for certificate in client_ca.iter().map(|der| pem(der)) {
        if !bundle.contains(&certificate) {
            bundle.push_str(&certificate);
        }
    }
    let mut data = known.and_then(|known| known.at(&["data"])).cloned().unwrap_or_else(|| json!({}));
    if let Some(data) = data.as_object_mut().filter(|_| !bundle.is_empty()) {
        data.insert("client-ca-file".into(), bundle.into());
    }
    data
}

fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("{BEGIN}\n{}\n{END}\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authorities_of_all_servers_are_told_once_each() {
        let (ours, theirs) = (vec![1; 60], vec![2; 3]);
        let first = data(std::slice::from_ref(&theirs), None);
        let known = json!({"data": first}).as_object().cloned();
        let both = data(&[ours.clone(), theirs.clone()], known.as_ref());
        assert_eq!(both["client-ca-file"], json!(format!("{}{}", pem(&theirs), pem(&ours))));
        assert!(pem(&ours).lines().all(|line| line.len() <= 64));
        assert_eq!(data(&[], None), json!({}));
    }
}
