//! Registry credentials from image pull secrets.

use base64::Engine;
use cri::v1::AuthConfig;
use k8s_openapi::api::core::v1::Secret;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::images::pull_records::PullSecret;

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: std::collections::BTreeMap<String, Entry>,
}

#[derive(Default, Deserialize)]
struct Entry {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    auth: String,
    #[serde(default, rename = "identitytoken")]
    identity_token: String,
    #[serde(default, rename = "registrytoken")]
    registry_token: String,
}

/// A credential that fits an image, and the secret it is from.
pub(crate) struct Credential {
    pub(crate) auth: AuthConfig,
    pub(crate) source: PullSecret,
}

/// All credentials in `secrets` that fit the image, the longest path first.
pub(crate) fn matching<'a>(image: &str, secrets: impl IntoIterator<Item = &'a Secret>) -> Vec<Credential> {
    let repository = repository_of(image);
    let mut found: Vec<(usize, Credential)> = Vec::new();
    for secret in secrets {
        for (server, entry) in entries(secret) {
            if covers(&server, &repository) {
                let length = normalize(&server).len();
                let auth = auth(server, entry);
                let source = source(secret, &auth);
                found.push((length, Credential { auth, source }));
            }
        }
    }
    found.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    found.into_iter().map(|(_, credential)| credential).collect()
}

fn source(secret: &Secret, auth: &AuthConfig) -> PullSecret {
    // Lengths go in too, so that no two credentials are digested as the same bytes.
    let mut digest = Sha256::new();
    for part in [&auth.username, &auth.password, &auth.auth, &auth.identity_token, &auth.registry_token] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part.as_bytes());
    }
    PullSecret {
        uid: secret.metadata.uid.clone().unwrap_or_default(),
        namespace: secret.metadata.namespace.clone().unwrap_or_default(),
        name: secret.metadata.name.clone().unwrap_or_default(),
        credential_hash: hex::encode(digest.finalize()),
    }
}

fn entries(secret: &Secret) -> Vec<(String, Entry)> {
    let data = |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.as_slice());
    if let Some(bytes) = data(".dockerconfigjson") {
        return serde_json::from_slice::<DockerConfig>(bytes)
            .map(|config| config.auths.into_iter().collect())
            .unwrap_or_default();
    }
    if let Some(bytes) = data(".dockercfg") {
        let parsed: Option<std::collections::BTreeMap<String, Entry>> = serde_json::from_slice(bytes).ok();
        return parsed.into_iter().flatten().collect();
    }
    Vec::new()
}

fn auth(server_address: String, entry: Entry) -> AuthConfig {
    let (mut username, mut password) = (entry.username, entry.password);
    let decoded = base64::engine::general_purpose::STANDARD.decode(entry.auth.trim()).ok();
    if let Some((user, pass)) = decoded.and_then(|bytes| {
        let text = String::from_utf8(bytes).ok()?;
        text.split_once(':').map(|(user, pass)| (user.to_owned(), pass.trim_end_matches('\0').to_owned()))
    }) {
        (username, password) = (user, pass);
    }
    AuthConfig {
        username,
        password,
        server_address,
        identity_token: entry.identity_token,
        registry_token: entry.registry_token,
        ..Default::default()
    }
}

/// `registry/path` of an image, with the default registry spelled out.
fn repository_of(image: &str) -> String {
    let name = image.split('@').next().unwrap_or(image);
    let name = match name.rsplit_once(':') {
        Some((before, tag)) if !tag.contains('/') => before,
        _ => name,
    };
    let first = name.split('/').next().unwrap_or_default();
    let has_registry = name.contains('/') && (first.contains(['.', ':']) || first == "localhost");
    match (has_registry, name.contains('/')) {
        (true, _) => name.to_owned(),
        (false, true) => format!("docker.io/{name}"),
        (false, false) => format!("docker.io/library/{name}"),
    }
}

fn normalize(server: &str) -> String {
    let bare = server.trim_start_matches("https://").trim_start_matches("http://");
    let bare = bare.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches("/v2");
    if bare == "index.docker.io" { "docker.io".to_owned() } else { bare.to_owned() }
}

/// A host may begin with `*.` for one label; a path must be a prefix by whole parts.
fn covers(server: &str, repository: &str) -> bool {
    let server = normalize(server);
    let (host, path) = server.split_once('/').unwrap_or((&server, ""));
    let (registry, name) = repository.split_once('/').unwrap_or((repository, ""));
    let host_fits = match host.strip_prefix("*.") {
        Some(rest) => registry.split_once('.').is_some_and(|(_, tail)| tail == rest),
        None => host == registry,
    };
    host_fits && (path.is_empty() || name == path || name.starts_with(&format!("{path}/")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(server: &str, image: &str, want: bool) {
        let config =
            json!({ "auths": { server: { "auth": base64::engine::general_purpose::STANDARD.encode("u:p:q") } } });
        let secret = Secret {
            data: Some([(".dockerconfigjson".to_owned(), k8s_openapi::ByteString(config.to_string().into()))].into()),
            ..Default::default()
        };
        let found = matching(image, [&secret]);
        assert_eq!(
            found.first().map(|found| (found.auth.username.as_str(), found.auth.password.as_str())),
            want.then_some(("u", "p:q")),
            "{server} {image}"
        );
    }

    #[test]
    fn credentials_fit_by_registry_and_path() {
        check("registry.example.com", "registry.example.com/team/app:1", true);
        check("https://registry.example.com/v1/", "registry.example.com/app@sha256:00", true);
        check("registry.example.com", "other.example.com/app", false);
        check("*.example.com", "a.example.com/app", true);
        check("*.example.com", "a.b.example.com/app", false);
        check("r.io/team", "r.io/team/app", true);
        check("r.io/team", "r.io/teams/app", false);
        check("https://index.docker.io/v1/", "nginx", true);
        check("docker.io", "library/nginx:1", true);
        check("127.0.0.1:5000", "127.0.0.1:5000/app", true);
    }
}
