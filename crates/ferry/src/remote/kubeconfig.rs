//! What a kubeconfig says: where the API is, whom to believe there, and as whom to come.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use serde_json::{Value, json};

use super::Token;
use crate::pki::Identity;

/// How to reach a server, and as whom.
pub(super) struct Access {
    pub(super) target: Target,
    pub(super) identity: Option<Identity>,
    pub(super) token: Token,
}

/// A server, and how it is known.
#[derive(Clone, Default)]
pub(super) struct Target {
    pub(super) server: Uri,
    /// PEM.
    pub(super) authorities: Vec<u8>,
    pub(super) server_name: Option<String>,
}

/// A kubeconfig, and the folder that relative paths in it are meant from.
pub(crate) struct Kubeconfig {
    config: Value,
    folder: PathBuf,
}

impl Kubeconfig {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let said = || format!("cannot use the kubeconfig {}", path.display());
        let text = std::fs::read_to_string(path).with_context(said)?;
        let config = serde_saphyr::from_str(&text).with_context(said)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(Self { config, folder: folder.to_owned() })
    }

    fn current(&self) -> Result<(&Value, &Value)> {
        let context = text(&self.config, "current-context").context("no current-context")?;
        let context = named(&self.config, "contexts", "context", context)?;
        let cluster = text(context, "cluster").context("the context has no cluster")?;
        let user = match text(context, "user") {
            Some(name) => named(&self.config, "users", "user", name)?,
            None => &Value::Null,
        };
        Ok((named(&self.config, "clusters", "cluster", cluster)?, user))
    }

    pub(super) fn access(&self) -> Result<Access> {
        let (cluster, user) = self.current()?;
        for unknown in ["exec", "auth-provider", "username"] {
            if user.get(unknown).is_some() {
                bail!("a user with {unknown:?} cannot be used here; give a token or a client certificate");
            }
        }
        if cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool) == Some(true) {
            bail!("insecure-skip-tls-verify is not supported; give certificate-authority");
        }
        let token = match (text(user, "token"), text(user, "tokenFile")) {
            (_, Some(file)) => Token::File(self.folder.join(file)),
            (Some(token), None) => Token::Fixed(token.to_owned()),
            (None, None) => Token::None,
        };
        let target = Target {
            server: text(cluster, "server").context("the cluster has no server")?.parse().context("server")?,
            authorities: self.authorities()?,
            server_name: text(cluster, "tls-server-name").map(str::to_owned),
        };
        Ok(Access { target, identity: self.identity()?, token })
    }

    /// Whom to believe, in PEM.
    pub(crate) fn authorities(&self) -> Result<Vec<u8>> {
        Ok(self.content(self.current()?.0, "certificate-authority")?.unwrap_or_default())
    }

    /// The client certificate that its user shows.
    pub(crate) fn identity(&self) -> Result<Option<Identity>> {
        let (_, user) = self.current()?;
        let part = |key: &str| {
            let content = self.content(user, key)?;
            content.map(|pem| String::from_utf8(pem).with_context(|| format!("{key} is not PEM"))).transpose()
        };
        let pair = part("client-certificate")?.zip(part("client-key")?);
        Ok(pair.map(|(certificate, key)| Identity { certificate, key }))
    }

    /// A kubeconfig for the same cluster and for whoever has the certificate and the key in the file `pem`.
    pub(crate) fn for_holder(&self, pem: &Path) -> Result<Value> {
        let mut cluster = self.current()?.0.clone();
        let authority = text(&cluster, "certificate-authority").map(|file| self.folder.join(file));
        if let (Some(file), Some(cluster)) = (authority, cluster.as_object_mut()) {
            cluster.insert("certificate-authority".into(), json!(std::path::absolute(file)?));
        }
        let pem = std::path::absolute(pem)?;
        Ok(json!({
            "apiVersion": "v1", "kind": "Config", "preferences": {}, "current-context": "default-context",
            "clusters": [{"name": "default-cluster", "cluster": cluster}],
            "users": [{"name": "default-auth", "user": {"client-certificate": pem, "client-key": pem}}],
            "contexts": [{"name": "default-context", "context": {
                "cluster": "default-cluster", "user": "default-auth", "namespace": "default",
            }}],
        }))
    }

    /// What `key` names as a file, beside the kubeconfig if not a whole path, or holds itself as `key-data`.
    fn content(&self, value: &Value, key: &str) -> Result<Option<Vec<u8>>> {
        if let Some(data) = text(value, &format!("{key}-data")) {
            return Ok(Some(STANDARD.decode(data).with_context(|| format!("{key}-data is not base64"))?));
        }
        text(value, key).map(|file| super::read(&self.folder.join(file))).transpose()
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str().filter(|text| !text.is_empty())
}

fn named<'a>(config: &'a Value, list: &str, what: &str, name: &str) -> Result<&'a Value> {
    let mut entries = config.get(list).and_then(Value::as_array).into_iter().flatten();
    let entry = entries.find(|entry| text(entry, "name") == Some(name)).and_then(|entry| entry.get(what));
    entry.with_context(|| format!("no {what} is named {name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(cluster: Value, user: Value, folder: &Path) -> Kubeconfig {
        let config = json!({
            "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": cluster}], "users": [{"name": "u", "user": user}],
        });
        Kubeconfig { config, folder: folder.to_owned() }
    }

    #[test]
    fn a_kubeconfig_says_where_and_as_whom() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.crt"), "authority").unwrap();
        let cluster = json!({"server": "https://x:1/base", "certificate-authority": "ca.crt", "tls-server-name": "y"});
        let user = json!({"client-certificate-data": STANDARD.encode("c"), "client-key-data": STANDARD.encode("k"), "token": "t"});
        let access = config(cluster, user, dir.path()).access().unwrap();
        assert_eq!(access.target.authorities, b"authority");
        assert_eq!(access.target.server_name.as_deref(), Some("y"));
        let identity = access.identity.unwrap();
        assert_eq!((identity.certificate.as_str(), identity.key.as_str()), ("c", "k"));
        assert!(matches!(access.token, Token::Fixed(token) if token == "t"));
        let asked = "/api/v1/pods?watch=1".parse().unwrap();
        assert_eq!(
            super::super::absolute(&access.target.server, &asked).unwrap(),
            "https://x:1/base/api/v1/pods?watch=1"
        );
    }

    #[test]
    fn the_kubeconfig_of_a_node_is_of_the_cluster_it_joined() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.crt"), "authority").unwrap();
        std::fs::write(dir.path().join("own.pem"), "pair").unwrap();
        let cluster = json!({"server": "https://x:1", "certificate-authority": "ca.crt", "tls-server-name": "y"});
        let bootstrap = config(cluster, json!({"token": "secret"}), dir.path());
        let made = bootstrap.for_holder(&dir.path().join("own.pem")).unwrap();
        assert!(!made.to_string().contains("secret"));
        // From wherever it is read.
        let access = Kubeconfig { config: made, folder: "/nowhere".into() }.access().unwrap();
        assert_eq!(access.target.server, "https://x:1/");
        assert_eq!(access.target.authorities, b"authority");
        assert_eq!(access.target.server_name.as_deref(), Some("y"));
        assert_eq!(access.identity.unwrap().key, "pair");
        assert!(matches!(access.token, Token::None));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        check(json!({"server": "https://x"}), json!({"exec": {}}), "a user with \"exec\" cannot be used here");
        check(json!({"server": "https://x", "insecure-skip-tls-verify": true}), json!({}), "is not supported");
        check(json!({}), json!({}), "the cluster has no server");
        check(json!({"server": "https://x"}), json!({"client-key-data": "%"}), "client-key-data is not base64");
        check(json!({"server": "https://x"}), json!({}), "no certificate-authority");
        check(json!({"server": "https://x", "certificate-authority": "gone"}), json!({}), "cannot read");
    }

    #[track_caller]
    fn check(cluster: Value, user: Value, want: &str) {
        let config = config(cluster, user, Path::new("/nowhere"));
        let refused = config.access().and_then(super::super::client).err().map(|error| format!("{error:#}"));
        assert!(refused.as_ref().is_some_and(|said| said.contains(want)), "{want}: {refused:?}");
    }
}
