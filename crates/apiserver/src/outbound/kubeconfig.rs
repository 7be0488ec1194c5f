//! Whom to ask, and as whom, as a kubeconfig says: the way upstream configures webhooks of its own, and how it shows itself to
//! those that users configure.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ::http::HeaderValue;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use serde_json::Value;

use super::connect::Trust;
use super::{Address, Identity, Outbound, OutboundError, Place};

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
        let login = Login::read(user, dir).map_err(|error| unusable(format!("{shown}: {error}")))?;
        let trust = match content(cluster, "certificate-authority", dir)? {
            _ if cluster.get("insecure-skip-tls-verify") == Some(&Value::Bool(true)) => Trust::Anybody,
            Some(authority) => Trust::Authorities(authority),
            None => Trust::System,
        };
        let server = text_of(cluster, "server").ok_or_else(|| unusable(format!("{shown}: no server")))?;
        Self::new(server, trust)?.shown_as(login).checked()
    }

    fn shown_as(mut self, login: Login) -> Self {
        (self.identity, self.authorization) = (login.identity, login.authorization);
        self
    }

    /// The same, asked as the one whom these say for it.
    pub(crate) fn logged_in(self, logins: &Logins) -> Self {
        let target = match &self.to {
            Address::Url(url) => Place::of(url).map(|place| place.authority()).unwrap_or_default(),
            Address::Service { namespace, name, port, .. } => format!("{name}.{namespace}.svc:{port}"),
        };
        match logins.of(&target) {
            Some(login) => self.shown_as(login.clone()),
            None => self,
        }
    }
}

/// What a user of a kubeconfig proves to be them with.
#[derive(Clone, Debug, Default)]
struct Login {
    identity: Option<Identity>,
    authorization: Option<HeaderValue>,
}

impl Login {
    fn read(user: &Value, dir: &Path) -> Result<Self, OutboundError> {
        for unknown in ["exec", "auth-provider", "as"] {
            if user.get(unknown).is_some() {
                return Err(unusable(format!("a user with {unknown:?} cannot be used here")));
            }
        }
        let identity = content(user, "client-certificate", dir)?.zip(content(user, "client-key", dir)?);
        let identity = identity.map(|(certificate, key)| identity_of(&certificate, &key)).transpose()?;
        let text = match (text_of(user, "tokenFile"), text_of(user, "token"), text_of(user, "username")) {
            (Some(file), ..) => Some(format!("Bearer {}", String::from_utf8_lossy(&read(&dir.join(file))?).trim())),
            (None, Some(token), _) => Some(format!("Bearer {token}")),
            (None, None, Some(name)) => {
                let password = text_of(user, "password").unwrap_or_default();
                Some(format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))))
            }
            (None, None, None) => None,
        };
        let authorization = text.map(HeaderValue::try_from).transpose();
        let authorization = authorization.map_err(|_| unusable("what the user proves is no header value"))?;
        Ok(Self { identity, authorization })
    }
}

/// As whom to ask others: the users of a kubeconfig, each named after those they are for.
#[derive(Debug, Default)]
pub(crate) struct Logins {
    known: BTreeMap<String, Login>,
    /// For those nobody is named after.
    current: Option<String>,
}

impl Logins {
    pub(crate) fn read(path: &Path) -> Result<Self, OutboundError> {
        let failed = |error: OutboundError| unusable(format!("{}: {error}", path.display()));
        let config = crate::http::yaml(&read(path)?).map_err(|error| failed(unusable(error.message)))?;
        let dir = path.parent().unwrap_or(Path::new("."));
        let mut known = BTreeMap::new();
        for entry in config.get("users").and_then(Value::as_array).into_iter().flatten() {
            let login = Login::read(entry.get("user").unwrap_or(&Value::Null), dir).map_err(failed)?;
            known.insert(text_of(entry, "name").unwrap_or_default().to_owned(), login);
        }
        let context = text_of(&config, "current-context").map(|name| named(&config, "contexts", "context", name));
        let current = context.transpose().map_err(failed)?.and_then(|context| text_of(context, "user"));
        Ok(Self { known, current: current.map(ToOwned::to_owned) })
    }

    /// The one for `host:port`: by its name, by the end of its name, by either without the usual port, or whoever is there.
    fn of(&self, target: &str) -> Option<&Login> {
        let exact_or_end = |target: &str| {
            let ends = target.match_indices('.').filter_map(|(at, _)| target.get(at..));
            let mut names = std::iter::once(target.to_owned()).chain(ends.map(|end| format!("*{end}")));
            names.find_map(|name| self.known.get(&name))
        };
        exact_or_end(target)
            .or_else(|| exact_or_end(target.strip_suffix(":443")?))
            .or_else(|| self.known.get("*"))
            .or_else(|| self.known.get(self.current.as_ref()?))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_is_asked_as_the_user_named_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let users = ["exact.ns.svc:8443", "plain.ns.svc", "*.ns.svc", "*.example.com:444", "*"];
        let users: Vec<String> =
            users.iter().map(|name| format!("- {{name: {name:?}, user: {{token: {name:?}}}}}")).collect();
        let rest = "contexts: [{name: c, context: {user: me}}]\ncurrent-context: c";
        let login = |text: String, target: &str| -> Option<String> {
            std::fs::write(&path, text).unwrap();
            let found = Logins::read(&path).unwrap().of(target)?.authorization.clone()?;
            Some(found.to_str().unwrap().to_owned())
        };
        let all = format!("users:\n{}\n{rest}\n", users.join("\n"));
        for (target, want) in [
            ("exact.ns.svc:8443", "exact.ns.svc:8443"),
            ("plain.ns.svc:443", "plain.ns.svc"),
            ("plain.ns.svc:444", "*"),
            ("other.ns.svc:443", "*.ns.svc"),
            ("a.b.example.com:444", "*.example.com:444"),
            ("10.0.0.1:443", "*"),
        ] {
            assert_eq!(login(all.clone(), target), Some(format!("Bearer {want}")), "{target}");
        }
        let me = format!("users: [{{name: me, user: {{username: u, password: p}}}}]\n{rest}\n");
        assert_eq!(login(me, "a:443").as_deref(), Some("Basic dTpw"));
        assert_eq!(login("users: []\n".into(), "a:443"), None);
        std::fs::write(&path, "users: [{name: a, user: {exec: {command: c}}}]\n").unwrap();
        let refused = Logins::read(&path).unwrap_err().to_string();
        assert!(refused.ends_with("a user with \"exec\" cannot be used here"), "{refused}");
    }
}
