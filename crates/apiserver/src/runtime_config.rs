//! `--runtime-config`: which versions and resources of the built-in API are served.
//!
//! By default the stable versions are served, the beta and alpha ones are not: upstream's `DefaultAPIResourceConfigSource`. A version
//! that is off is stored and converted as before, but has no path, and no place in discovery and OpenAPI.

use std::collections::BTreeMap;

use api::resources::{self, Resource};

type OfVersion = fn(&str) -> bool;

/// Keys that name many versions. A later one takes precedence over an earlier one.
const KINDS: [(&str, OfVersion); 4] = [
    ("api/all", |_| true),
    ("api/ga", |version| Stability::of(version) == Some(Stability::Ga)),
    ("api/beta", |version| Stability::of(version) == Some(Stability::Beta)),
    ("api/alpha", |version| Stability::of(version) == Some(Stability::Alpha)),
];

/// Why the flag's value is invalid, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeConfigError {
    #[error("invalid runtime-config with only api/all=false")]
    Nothing,
    #[error("runtime-config invalid key {0}")]
    Key(String),
    #[error("unknown api groups {0}")]
    Groups(String),
    #[error("group version {0} that has not been registered")]
    Version(String),
    #[error("invalid value {0}={1}")]
    Kind(String, String),
    #[error("invalid value of {0}: {1}, err: strconv.ParseBool: parsing {1:?}: invalid syntax")]
    Value(String, String),
    #[error("invalid key {0}: group/version/resource and resource is always lowercase plural, not {1:?}")]
    Case(String, String),
}

/// The parsed flag: whether each key is on. The default is an empty flag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig(BTreeMap<String, bool>);

#[derive(PartialEq, Eq)]
enum Stability {
    Ga,
    Beta,
    Alpha,
}

impl Stability {
    /// `v1`, `v1beta2`, `v1alpha3`
    fn of(version: &str) -> Option<Self> {
        let rest = version.strip_prefix('v')?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let split = |word| rest.split_once(word).is_some_and(|(major, minor)| is_number(major) && is_number(minor));
        match rest {
            _ if is_number(rest) => Some(Self::Ga),
            _ if split("beta") => Some(Self::Beta),
            _ if split("alpha") => Some(Self::Alpha),
            _ => None,
        }
    }
}

impl RuntimeConfig {
    /// Of `key=value` pairs.
    pub fn new(pairs: &[String]) -> Result<Self, RuntimeConfigError> {
        let split = |pair: &String| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key.trim().to_owned(), value.trim().to_owned())
        };
        let pairs: BTreeMap<String, String> = pairs.iter().filter(|pair| !pair.is_empty()).map(split).collect();
        if pairs.len() == 1 && pairs.get("api/all").is_some_and(|value| value == "false") {
            return Err(RuntimeConfigError::Nothing);
        }
        let known = resources::builtin();
        let mut unknown = Vec::new();
        for key in pairs.keys().filter(|key| !is_kind(key)) {
            let (group, version, _) = parts(key).ok_or_else(|| RuntimeConfigError::Key(key.clone()))?;
            if !known.iter().any(|resource| resource.group == group) {
                unknown.push(format!("{group}/{version}"));
            }
        }
        if !unknown.is_empty() {
            return Err(RuntimeConfigError::Groups(unknown.join(",")));
        }
        pairs
            .into_iter()
            .map(|(key, value)| Ok((key.clone(), checked(key, value)?)))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether paths lead to a resource of the built-in API. The most exact key decides: the resource's, then its version's, then
    /// `api/alpha`, `api/beta` and `api/ga`, then `api/all`. Without a key the version's stability does.
    pub(crate) fn serves(&self, resource: &Resource) -> bool {
        let version = format!("{}/{}", resource.group, resource.version);
        let own = self.0.get(&format!("{version}/{}", resource.plural)).or_else(|| self.0.get(&version));
        let last = || {
            let kinds = KINDS.iter().rev().filter(|(_, matches)| matches(&resource.version));
            kinds.into_iter().find_map(|(key, _)| self.0.get(*key))
        };
        own.or_else(last).copied().unwrap_or_else(|| is_on_by_default(&resource.version))
    }

    /// Differs between two configurations; empty for the default one.
    pub(crate) fn stamp(&self) -> String {
        self.0.iter().map(|(key, is_on)| format!("{key}={is_on} ")).collect()
    }
}

/// Upstream's rule since v1.24: a new beta or alpha version is never on by default. v1.36 has no older one left that is.
fn is_on_by_default(version: &str) -> bool {
    Stability::of(version) == Some(Stability::Ga)
}

fn is_kind(key: &str) -> bool {
    KINDS.iter().any(|(kind, _)| *kind == key)
}

/// Group, version and, where it is named, the resource.
fn parts(key: &str) -> Option<(&str, &str, Option<&str>)> {
    let mut tokens = key.split('/');
    let (group, version, resource) = (tokens.next()?, tokens.next()?, tokens.next());
    tokens.next().is_none().then_some((group, version, resource))
}

fn checked(key: String, value: String) -> Result<bool, RuntimeConfigError> {
    if is_kind(&key) {
        return match value.as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(RuntimeConfigError::Kind(key, value)),
        };
    }
    let (group, version, resource) = parts(&key).ok_or_else(|| RuntimeConfigError::Key(key.clone()))?;
    if !resources::builtin().iter().any(|known| known.group == group && known.version == version) {
        let shown = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        return Err(RuntimeConfigError::Version(shown));
    }
    let is_on = match value.as_str() {
        "" | "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
        "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
        _ => return Err(RuntimeConfigError::Value(key, value)),
    };
    match resource.filter(|resource| resource.to_lowercase() != *resource) {
        Some(resource) => Err(RuntimeConfigError::Case(key.clone(), resource.to_owned())),
        None => Ok(is_on),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Upstream's lists of v1.36, by whether they are on; `apiextensions.k8s.io` and `apiregistration.k8s.io` are lists of their own there.
    #[test]
    fn the_default_is_upstreams() {
        let on = [
            "admissionregistration.k8s.io/v1",
            "apiextensions.k8s.io/v1",
            "apiregistration.k8s.io/v1",
            "apps/v1",
            "authentication.k8s.io/v1",
            "authorization.k8s.io/v1",
            "autoscaling/v1",
            "autoscaling/v2",
            "batch/v1",
            "certificates.k8s.io/v1",
            "coordination.k8s.io/v1",
            "discovery.k8s.io/v1",
            "events.k8s.io/v1",
            "flowcontrol.apiserver.k8s.io/v1",
            "networking.k8s.io/v1",
            "node.k8s.io/v1",
            "policy/v1",
            "rbac.authorization.k8s.io/v1",
            "resource.k8s.io/v1",
            "scheduling.k8s.io/v1",
            "storage.k8s.io/v1",
            "v1",
        ];
        let off = [
            "admissionregistration.k8s.io/v1alpha1",
            "admissionregistration.k8s.io/v1beta1",
            "certificates.k8s.io/v1alpha1",
            "certificates.k8s.io/v1beta1",
            "coordination.k8s.io/v1alpha2",
            "coordination.k8s.io/v1beta1",
            "internal.apiserver.k8s.io/v1alpha1",
            "networking.k8s.io/v1beta1",
            "resource.k8s.io/v1alpha3",
            "resource.k8s.io/v1beta1",
            "resource.k8s.io/v1beta2",
            "scheduling.k8s.io/v1alpha2",
            "storage.k8s.io/v1beta1",
            "storagemigration.k8s.io/v1beta1",
        ];
        let config = RuntimeConfig::default();
        let versions = |is_on: bool| -> BTreeSet<String> {
            let of_them = resources::builtin().iter().filter(|resource| config.serves(resource) == is_on);
            of_them.map(Resource::api_version).collect()
        };
        assert_eq!(versions(true), on.map(ToOwned::to_owned).into());
        assert_eq!(versions(false), off.map(ToOwned::to_owned).into());
    }

    #[test]
    fn all_of_the_api_can_be_served() {
        let config = RuntimeConfig::new(&["api/all=true".to_owned()]).unwrap();
        assert!(resources::builtin().iter().all(|resource| config.serves(resource)));
    }

    #[test]
    fn the_most_exact_key_decides() {
        const BETA: &str = "resource.k8s.io/v1beta1/resourceslices";
        check("", BETA, Ok(false));
        check("api/all=true", BETA, Ok(true));
        check("api/beta=true", BETA, Ok(true));
        check("api/alpha=true", BETA, Ok(false));
        check("api/all=true,api/beta=false", BETA, Ok(false));
        check("api/all=true,api/beta=false", "resource.k8s.io/v1/resourceslices", Ok(true));
        check("api/ga=false,api/beta=true", "resource.k8s.io/v1/resourceslices", Ok(false));
        check("api/beta=true,resource.k8s.io/v1beta1=false", BETA, Ok(false));
        check("resource.k8s.io/v1beta1/resourceslices", BETA, Ok(true));
        check("resource.k8s.io/v1beta1/resourceslices", "resource.k8s.io/v1beta1/deviceclasses", Ok(false));
        check("api/all=false,api/ga=true", "apps/v1/deployments", Ok(true));
        check("api/all=false,api/ga=true", "scheduling.k8s.io/v1alpha2/workloads", Ok(false));
        check("api/beta=false,resource.k8s.io/v1beta1", "resource.k8s.io/v1beta1/deviceclasses", Ok(true));
        let one = "resource.k8s.io/v1beta1=false,resource.k8s.io/v1beta1/deviceclasses=true";
        check(one, "resource.k8s.io/v1beta1/deviceclasses", Ok(true));
        check(one, "resource.k8s.io/v1beta1/resourceslices", Ok(false));
    }

    #[test]
    fn invalid_keys_and_values_get_upstreams_errors() {
        check("api/all=false", "apps/v1/deployments", Err("invalid runtime-config with only api/all=false"));
        check("v1", "apps/v1/deployments", Err("runtime-config invalid key v1"));
        check("odd/v1,nope/v2", "apps/v1/deployments", Err("unknown api groups nope/v2,odd/v1"));
        check("apps/v9", "apps/v1/deployments", Err("group version apps/v9 that has not been registered"));
        check("api/ga=1", "apps/v1/deployments", Err("invalid value api/ga=1"));
        check(
            "apps/v1=odd",
            "apps/v1/deployments",
            Err("invalid value of apps/v1: odd, err: strconv.ParseBool: parsing \"odd\": invalid syntax"),
        );
        check(
            "apps/v1/Deployments",
            "apps/v1/deployments",
            Err(
                "invalid key apps/v1/Deployments: group/version/resource and resource is always lowercase plural, not \"Deployments\"",
            ),
        );
    }

    #[track_caller]
    fn check(flag: &str, resource: &str, want: Result<bool, &str>) {
        let pairs: Vec<String> = flag.split(',').map(ToOwned::to_owned).collect();
        let found = resources::builtin().iter().find(|r| format!("{}/{}/{}", r.group, r.version, r.plural) == resource);
        let got = RuntimeConfig::new(&pairs).map(|config| config.serves(found.unwrap()));
        assert_eq!(got.map_err(|error| error.to_string()), want.map_err(ToOwned::to_owned), "{flag}");
    }
}
