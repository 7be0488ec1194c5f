//! Whom this server believes, published for servers that stand beside it: `extension-apiserver-authentication`.

use std::sync::Arc;

use api::{ApiError, Object, ObjectExt as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::ensure;
use crate::auth::request_header::RequestHeaderSettings;
use crate::server::ApiServer;

pub(super) const NAME: &str = "extension-apiserver-authentication";
const NAMESPACE: &str = "kube-system";
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

pub(crate) async fn publish(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    let cache = server.registry.stored("", "configmaps").and_then(|served| served.cache.clone());
    let known = cache.and_then(|cache| cache.get(&format!("{NAMESPACE}/{NAME}"))).map(|stored| stored.decode());
    let believed = server.certificates.load();
    let proxies =
        RequestHeaderSettings { client_ca: believed.proxy_ca.clone(), ..server.config.auth.request_header.clone() };
    let data = data(&believed.client_ca, &proxies, known.as_ref());
    if data.as_object().is_some_and(Object::is_empty) {
        return Ok(());
    }
    ensure(server, "", "configmaps", NAMESPACE, json!({"metadata": {"name": NAME}, "data": data})).await
}

/// Other servers of the cluster may believe others: theirs are kept.
fn data(client_ca: &[Vec<u8>], proxies: &RequestHeaderSettings, known: Option<&Object>) -> Value {
    let mut data = known.and_then(|known| known.at(&["data"])?.as_object().cloned()).unwrap_or_default();
    for (field, authorities) in [("client-ca-file", client_ca), ("requestheader-client-ca-file", &proxies.client_ca)] {
        let mut bundle = data.text(&[field]).to_owned();
        for certificate in authorities.iter().map(|der| pem(der)) {
            if !bundle.contains(&certificate) {
                bundle.push_str(&certificate);
            }
        }
        if !bundle.is_empty() {
            data.insert(field.into(), bundle.into());
        }
    }
    if !proxies.client_ca.is_empty() {
        for (field, names) in [
            ("allowed-names", &proxies.allowed_names),
            ("username-headers", &proxies.username_headers),
            ("uid-headers", &proxies.uid_headers),
            ("group-headers", &proxies.group_headers),
            ("extra-headers-prefix", &proxies.extra_headers_prefix),
        ] {
            data.insert(format!("requestheader-{field}"), json!(names).to_string().into());
        }
    }
    data.into()
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
        let nobody = RequestHeaderSettings::default();
        let first = data(std::slice::from_ref(&theirs), &nobody, None);
        let known = json!({"data": first}).as_object().cloned();
        let both = data(&[ours.clone(), theirs.clone()], &nobody, known.as_ref());
        assert_eq!(both["client-ca-file"], json!(format!("{}{}", pem(&theirs), pem(&ours))));
        assert!(pem(&ours).lines().all(|line| line.len() <= 64));
        assert_eq!(data(&[], &nobody, None), json!({}));
        let proxies = RequestHeaderSettings {
            client_ca: vec![ours.clone()],
            allowed_names: vec!["front-proxy-client".into()],
            ..nobody
        };
        let told = data(&[], &proxies, None);
        assert_eq!(told["requestheader-client-ca-file"], json!(pem(&ours)));
        assert_eq!(told["requestheader-allowed-names"], json!("[\"front-proxy-client\"]"));
    }
}
