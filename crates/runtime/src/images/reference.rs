//! Image names: parsing, and the defaults that make `nginx` mean `docker.io/library/nginx:latest`.

use std::fmt;
use std::str::FromStr;

use super::digest::Digest;

/// Images under this registry are made on this machine; nothing is ever pulled from it.
pub(crate) const LOCAL_REGISTRY: &str = "ferry.local";
const DEFAULT_REGISTRY: &str = "docker.io";

/// A whole image name. At least one of `tag` and `digest` is set.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    pub registry: String,
    pub repository: String,
    pub tag: Option<String>,
    pub digest: Option<Digest>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("invalid image reference {name:?}: {reason}")]
pub struct ReferenceError {
    name: String,
    reason: &'static str,
}

impl Reference {
    /// `registry/repository`, the part before tag and digest.
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// What to ask a registry for; a digest wins over a tag.
    pub fn selector(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => "latest".to_owned(),
        }
    }

    /// The name with its tag and without digest, if it has a tag.
    pub fn tagged(&self) -> Option<String> {
        self.tag.as_ref().map(|tag| format!("{}:{tag}", self.name()))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(name: &str) -> Result<Self, ReferenceError> {
        let fail = |reason| ReferenceError { name: name.to_owned(), reason };
        let (rest, digest) = match name.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse().map_err(|_| fail("the digest is malformed"))?)),
            None => (name, None),
        };
        let (registry, path) = split_registry(rest);
        let (repository, tag) = match path.rsplit_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (path, None),
        };
        if !is_registry(registry) {
            return Err(fail("the registry must be a host name with an optional port"));
        }
        if !repository.split('/').all(is_path_component) {
            return Err(fail("the repository must be lowercase letters, digits and separators"));
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(fail("the tag is malformed"));
        }
        let repository = match repository.contains('/') || registry != DEFAULT_REGISTRY {
            true => repository.to_owned(),
            false => format!("library/{repository}"),
        };
        let tag = match (tag, &digest) {
            (None, None) => Some("latest".to_owned()),
            (tag, _) => tag.map(str::to_owned),
        };
        Ok(Self { registry: registry.to_owned(), repository, tag, digest })
    }
}

fn split_registry(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some((first, rest)) if first == "localhost" || first.contains(['.', ':']) => {
            (if first == "index.docker.io" { DEFAULT_REGISTRY } else { first }, rest)
        }
        _ => (DEFAULT_REGISTRY, name),
    }
}

fn is_registry(name: &str) -> bool {
    let (host, port) = match name.rsplit_once(':') {
        Some((host, port)) if !name.ends_with(']') => (host, Some(port)),
        _ => (name, None),
    };
    let plain = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')),
    };
    plain && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

fn is_path_component(part: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    edge(part.chars().next())
        && edge(part.chars().last())
        && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-'))
}

fn is_tag(tag: &str) -> bool {
    (1..=128).contains(&tag.len())
        && tag.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        && !tag.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn names_get_registry_namespace_and_tag() {
        check("nginx", "docker.io/library/nginx:latest");
        check("nginx:1.27", "docker.io/library/nginx:1.27");
        check("bitnami/redis", "docker.io/bitnami/redis:latest");
        check("index.docker.io/library/a:b", "docker.io/library/a:b");
        check("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10");
        check("localhost/x", "localhost/x:latest");
        check("127.0.0.1:5000/a/b:v1", "127.0.0.1:5000/a/b:v1");
        check("ferry.local/hello", "ferry.local/hello:latest");
        check(&format!("a@{SHA}"), &format!("docker.io/library/a@{SHA}"));
        check(&format!("a:b@{SHA}"), &format!("docker.io/library/a:b@{SHA}"));
    }

    #[test]
    fn malformed_names_are_refused() {
        for name in ["", "A", "a b", "a:", "a:b:c/d", "a@sha256:12", "/a", "a//b", "a:-x", "a@md5:00"] {
            assert!(name.parse::<Reference>().is_err(), "{name}");
        }
    }

    #[track_caller]
    fn check(name: &str, want: &str) {
        assert_eq!(name.parse::<Reference>().expect(name).to_string(), want);
    }
}
