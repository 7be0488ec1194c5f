//! Whom to ask as the current context of a kubeconfig says: the way upstream configures webhooks of its own.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use serde_json::Value;

use super::connect::Trust;
use super::{Identity, Outbound, OutboundError};

impl Outbound {
    pub(crate) fn from_kubeconfig(path: &Path) -> Result<Self, OutboundError> {
        let shown = path.display().to_string();
        let text = read(path)?;
        let config = crate::http::yaml(&text).map_err(|error| unusable(format!("{shown}: {}", error.message)))?;
        let dir = path.parent().unwrap_or(Path::new("."));
        let current =
            text_of(&config, "current-context").ok_or_else(|| unusable(format!("{shown}: no current-context")))?;
        let context = named(&config, "contexts", "context", current)?;
        let cluster = named(&config, "clusters", "cluster", text_of(context, "cluster").unwrap_or_default())?;
        let nobody = Value::Null;
        let user = match text_of(context, "user") {
            Some(name) => named(&config, "users", "user", name)?,
            None => &nobody,
        };
        for unknown in ["exec", "auth-provider", "username"] {
            if user.get(unknown).is_some() {
                return Err(unusable(format!("{shown}: a user with {unknown:?} cannot be used here")));
            }
        }
        let trust = match content(cluster, "certificate-authority", dir)? {
            _ if cluster.get("insecure-skip-tls-verify") == Some(&Value::Bool(true)) => Trust::Anybody,
            Some(authority) => Trust::Authorities(authority),
            None => Trust::System,
        };
        let identity = content(user, "client-certificate", dir)?.zip(content(user, "client-key", dir)?);
        let identity = identity.map(|(certificate, key)| identity_of(&certificate, &key)).transpose()?;
        let server = text_of(cluster, "server").ok_or_else(|| unusable(format!("{shown}: no server")))?;
        let token = match text_of(user, "tokenFile") {
            Some(file) => Some(String::from_utf8_lossy(&read(&dir.join(file))?).trim().to_owned()),
            None => text_of(user, "token").map(ToOwned::to_owned),
        };
        let mut outbound = Self::new(server, trust)?;
        outbound.identity = identity;
        if let Some(token) = token {
            let token = format!("Bearer {token}").try_into();
            outbound.token = Some(token.map_err(|_| unusable("the token is no header value"))?);
        }
        outbound.checked()
    }
}

fn unusable(why: impl Into<String>) -> OutboundError {
    OutboundError::Config(why.into())
}

/// A certificate and its key in PEM.
fn identity_of(certificate: &[u8], key: &[u8]) -> Result<Identity, OutboundError> {
    let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>();
    let chain = chain.map_err(|_| unusable("the client certificate is not PEM"))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| unusable("the client key is not PEM"))?;
    let key = rustls::crypto::ring::sign::any_supported_type(&key);
    let key = key.map_err(|error| OutboundError::Tls(error.to_string()))?;
    Ok(Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, key))))
}

fn text_of<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str().filter(|text| !text.is_empty())
}

fn named<'a>(config: &'a Value, list: &str, what: &str, name: &str) -> Result<&'a Value, OutboundError> {
    let mut entries = config.get(list).and_then(Value::as_array).into_iter().flatten();
    let entry = entries.find(|entry| text_of(entry, "name") == Some(name)).and_then(|entry| entry.get(what));
    entry.ok_or_else(|| unusable(format!("no {what} is named {name:?}")))
}

fn read(path: &Path) -> Result<Vec<u8>, OutboundError> {
    std::fs::read(path).map_err(|error| OutboundError::Read(path.display().to_string(), error))
}

/// What `key` names as a file, beside the kubeconfig if not a whole path, or holds itself as `key-data`.
fn content(value: &Value, key: &str, dir: &Path) -> Result<Option<Vec<u8>>, OutboundError> {
    if let Some(data) = text_of(value, &format!("{key}-data")) {
        return STANDARD.decode(data).map(Some).map_err(|_| unusable(format!("{key}-data is not base64")));
    }
    text_of(value, key).map(|file| read(&dir.join(file))).transpose()
}
