//! Reads an EncryptionConfiguration and says what is wrong with it, in upstream's words.

use std::time::Duration;

use api::field::{FieldError, Path};
use api::{Object, ObjectExt as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::auth::settings::parse_duration;

/// One entry: these resources are kept by the first of these providers, and read by any.
#[derive(Debug, PartialEq)]
pub(super) struct Rule {
    pub(super) resources: Vec<GroupResource>,
    pub(super) providers: Vec<ProviderConfig>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupResource {
    pub(super) group: String,
    pub(super) resource: String,
}

#[derive(Debug, PartialEq)]
pub(super) enum ProviderConfig {
    Identity,
    Keys(Kind, Vec<Key>),
    Kms { name: String, endpoint: String, timeout: Duration },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    AesGcm,
    AesCbc,
    Secretbox,
}

#[derive(PartialEq)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) secret: Vec<u8>,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({})", self.name)
    }
}

impl GroupResource {
    pub(super) fn parse(text: &str) -> Self {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        Self { group: group.to_owned(), resource: resource.to_owned() }
    }

    fn is_everything(&self) -> bool {
        self.group == "*" && self.resource == "*"
    }

    fn shown(&self) -> String {
        match (self.resource.as_str(), self.group.as_str()) {
            ("*", "") => "*.".to_owned(),
            (resource, "") => resource.to_owned(),
            (resource, group) => format!("{resource}.{group}"),
        }
    }
}

/// The rules of a file, or all that is wrong with it.
pub(super) fn parse(path: &std::path::Path, text: &[u8]) -> Result<Vec<Rule>, String> {
    let parsing = |why: String| format!("error while parsing file: {why}");
    let decoding =
        |why: String| parsing(format!("error decoding encryption provider configuration file {path:?}: {why}"));
    let whole = crate::http::yaml(text).map_err(|error| decoding(error.message))?;
    let whole = whole.as_object().cloned().unwrap_or_default();
    if whole.text(&["kind"]) != "EncryptionConfiguration"
        || !matches!(whole.text(&["apiVersion"]), "apiserver.config.k8s.io/v1" | "v1")
    {
        return Err(decoding("it is no EncryptionConfiguration of apiserver.config.k8s.io/v1".into()));
    }
    let mut reader = Reader::default();
    reader.fields(&whole, "", &["kind", "apiVersion", "resources"]);
    let rules = reader.rules(&whole);
    if !reader.unknown.is_empty() {
        return Err(decoding(format!("strict decoding error: {}", reader.unknown.join(", "))));
    }
    match reader.errors.as_slice() {
        [] => (),
        [one] => return Err(parsing(one.to_string())),
        several => {
            let texts: Vec<String> = several.iter().map(ToString::to_string).collect();
            return Err(parsing(format!("[{}]", texts.join(", "))));
        }
    }
    let unusable = masked(&rules).or_else(|| reader.has_old_kms.then(|| OLD_KMS.to_owned()));
    unusable.map_or(Ok(rules), |why| Err(format!("error while building transformers: {why}")))
}

const OLD_KMS: &str = "KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead.";

/// A later rule that can never apply.
fn masked(rules: &[Rule]) -> Option<String> {
    let mut seen: Vec<&GroupResource> = Vec::new();
    for rule in rules {
        for wanted in &rule.resources {
            let masks = |known: &&&GroupResource| {
                (known.resource == "*" && known.group == wanted.group) || known.is_everything()
            };
            if let Some(earlier) = seen.iter().find(masks) {
                return Some(format!("resource {:?} is masked by earlier rule {:?}", wanted.shown(), earlier.shown()));
            }
            seen.push(wanted);
        }
    }
    None
}

#[derive(Default)]
struct Reader {
    errors: Vec<FieldError>,
    unknown: Vec<String>,
    kms_names: Vec<String>,
    has_old_kms: bool,
}

fn objects(of: &Object, name: &str) -> Vec<Object> {
    let items = of.get(name).and_then(Value::as_array).into_iter().flatten();
    items.map(|item| item.as_object().cloned().unwrap_or_default()).collect()
}

impl Reader {
    fn fields(&mut self, object: &Object, path: &str, known: &[&str]) {
        let dot = if path.is_empty() { "" } else { "." };
        let odd = object.keys().filter(|name| !known.contains(&name.as_str()));
        self.unknown.extend(odd.map(|name| format!("unknown field \"{path}{dot}{name}\"")));
    }

    fn required(&mut self, path: &Path, detail: impl Into<String>) {
        self.errors.push(FieldError::required(path.to_string(), detail));
    }

    fn invalid(&mut self, path: &Path, value: impl Into<Value>, detail: impl Into<String>) {
        self.errors.push(FieldError::invalid(path.to_string(), value, detail));
    }

    fn rules(&mut self, whole: &Object) -> Vec<Rule> {
        let root = Path::new("resources");
        let entries = objects(whole, "resources");
        if entries.is_empty() {
            self.required(&root, "at least one resources is required");
        }
        entries.iter().enumerate().map(|(index, entry)| self.rule(entry, &root.index(index))).collect()
    }

    fn rule(&mut self, entry: &Object, at: &Path) -> Rule {
        self.fields(entry, &at.to_string(), &["resources", "providers"]);
        let (at_resources, at_providers) = (at.child("resources"), at.child("providers"));
        let names = entry.get("resources").and_then(Value::as_array).into_iter().flatten();
        let names: Vec<&str> = names.filter_map(Value::as_str).collect();
        if names.is_empty() {
            self.required(&at_resources, format!("at least one {at_resources} is required"));
        }
        let resources: Vec<GroupResource> = names.iter().map(|name| GroupResource::parse(name)).collect();
        self.overlap(&names, &resources, &at_resources);
        for (index, (name, resource)) in names.iter().zip(&resources).enumerate() {
            if let Some(why) = name_error(name, resource) {
                self.invalid(&at_resources.index(index), *name, why);
            }
        }
        let entries = objects(entry, "providers");
        if entries.is_empty() {
            self.required(&at_providers, format!("at least one {at_providers} is required"));
        }
        let read = |(index, provider)| self.provider(provider, &at_providers.index(index));
        let providers = entries.iter().enumerate().filter_map(read).collect();
        Rule { resources, providers }
    }

    fn overlap(&mut self, names: &[&str], resources: &[GroupResource], at: &Path) {
        let pairs = || {
            let each = resources.iter().enumerate();
            each.flat_map(|(i, one)| resources.iter().skip(i + 1).map(move |other| (one, other)))
        };
        if pairs().any(|(one, other)| one == other) {
            self.invalid(at, json!(names), "the same resource cannot be specified multiple times");
        }
        let overlaps = |(one, other): (&GroupResource, &GroupResource)| {
            let star = one.resource == "*" || other.resource == "*";
            one != other && (one.is_everything() || other.is_everything() || (one.group == other.group && star))
        };
        if pairs().any(overlaps) {
            self.invalid(
                at,
                json!(names),
                "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked",
            );
        }
    }

    fn provider(&mut self, provider: &Object, at: &Path) -> Option<ProviderConfig> {
        const NAMES: [(&str, &str); 5] = [
            ("aesgcm", "AESGCM"),
            ("aescbc", "AESCBC"),
            ("secretbox", "Secretbox"),
            ("identity", "Identity"),
            ("kms", "KMS"),
        ];
        self.fields(provider, &at.to_string(), &NAMES.map(|(name, _)| name));
        let given: Vec<&str> = NAMES
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| provider.get(*name).is_some_and(Value::is_object))
            .collect();
        let [name] = given.as_slice() else {
            // Upstream shows the whole provider, but what is in it may be secret.
            let shown =
                NAMES.map(|(name, field)| format!("{field:?}:{}", if given.contains(&name) { "{}" } else { "null" }));
            let why = match given.is_empty() {
                true => {
                    "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity"
                }
                false => {
                    "more than one provider specified in a single element, should split into different list elements"
                }
            };
            let mut error = FieldError::invalid(at.to_string(), Value::Null, why);
            error.value = format!("{{{}}}", shown.join(","));
            self.errors.push(error);
            return None;
        };
        let at = at.child(name);
        let config = provider.get(*name).and_then(Value::as_object)?;
        Some(match *name {
            "identity" => ProviderConfig::Identity,
            "kms" => return self.kms(config, &at),
            "aesgcm" => ProviderConfig::Keys(Kind::AesGcm, self.keys(config, &at, &[16, 24, 32])),
            "aescbc" => ProviderConfig::Keys(Kind::AesCbc, self.keys(config, &at, &[16, 24, 32])),
            _ => ProviderConfig::Keys(Kind::Secretbox, self.keys(config, &at, &[32])),
        })
    }

    fn keys(&mut self, config: &Object, at: &Path, sizes: &[usize]) -> Vec<Key> {
        self.fields(config, &at.to_string(), &["keys"]);
        let at = at.child("keys");
        let entries = objects(config, "keys");
        if entries.is_empty() {
            self.required(&at, "at least one keys is required");
        }
        let mut keys = Vec::new();
        for (index, key) in entries.iter().enumerate() {
            let at = at.index(index);
            self.fields(key, &at.to_string(), &["name", "secret"]);
            let (name, secret) = (key.text(&["name"]), key.text(&["secret"]));
            if name.is_empty() {
                self.required(&at.child("name"), "name is a mandatory field for a key");
            }
            if secret.is_empty() {
                self.required(&at.child("secret"), "secret is a mandatory field for a key");
                continue;
            }
            match STANDARD.decode(secret) {
                Err(_) => self.invalid(&at.child("secret"), "REDACTED", "secrets must be base64 encoded"),
                Ok(secret) if !sizes.contains(&secret.len()) => {
                    let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
                    let (got, expected) = (secret.len(), sizes.join(" "));
                    let why = format!("secret is not of the expected length, got {got}, expected one of [{expected}]");
                    self.invalid(&at.child("secret"), "REDACTED", why);
                }
                Ok(secret) => keys.push(Key { name: name.to_owned(), secret }),
            }
        }
        keys
    }

    fn kms(&mut self, config: &Object, at: &Path) -> Option<ProviderConfig> {
        self.fields(config, &at.to_string(), &["apiVersion", "name", "cachesize", "endpoint", "timeout"]);
        let (name, endpoint) = (config.text(&["name"]).to_owned(), config.text(&["endpoint"]).to_owned());
        let version = Some(config.text(&["apiVersion"])).filter(|text| !text.is_empty()).unwrap_or("v1");
        let at_name = at.child("name");
        if name.is_empty() {
            self.required(&at_name, "name is a mandatory field for a provider");
        }
        if version != "v1" && name.contains(':') {
            self.invalid(&at_name, name.as_str(), format!("invalid KMS provider name {name}, must not contain ':'"));
        }
        if version != "v1" && self.kms_names.contains(&name) {
            let why = format!("duplicate KMS provider name {name}, names must be unique");
            self.invalid(&at_name, name.as_str(), why);
        }
        self.kms_names.push(name.clone());
        let timeout = match config.get("timeout").and_then(Value::as_str) {
            None => Some(Duration::from_secs(3)),
            Some(text) => parse_duration(text).filter(|timeout| !timeout.is_zero()),
        };
        if timeout.is_none() {
            self.invalid(&at.child("timeout"), config.text(&["timeout"]), "timeout should be a positive value");
        }
        if endpoint.is_empty() {
            self.invalid(&at.child("endpoint"), "", "endpoint is a mandatory field for a kms");
        } else if !endpoint.starts_with("unix:") {
            let scheme = endpoint.split_once(':').map_or("", |(scheme, _)| scheme);
            let why = format!("unsupported scheme {scheme:?} for KMS provider, only unix is supported");
            self.invalid(&at.child("endpoint"), endpoint.as_str(), why);
        }
        if let (true, Some(size)) = (version != "v1", config.get("cachesize")) {
            self.invalid(&at.child("cachesize"), size.clone(), "cachesize is not supported in v2");
        }
        if !matches!(version, "v1" | "v2") {
            let why = "unsupported apiVersion apiVersion for KMS provider, only v1 and v2 are supported";
            self.invalid(&at.child("apiVersion"), version, why);
        }
        self.has_old_kms |= version == "v1";
        Some(ProviderConfig::Kms { name, endpoint, timeout: timeout? })
    }
}

fn name_error(name: &str, resource: &GroupResource) -> Option<&'static str> {
    Some(match name {
        _ if name.chars().any(char::is_uppercase) => "resource name should not contain capital letters",
        "*" => "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources",
        "apiserveripinfo" | "serviceipallocations" | "servicenodeportallocations" => {
            "resources which do not have REST API/s cannot be encrypted"
        }
        _ if resource.group == "events.k8s.io" => {
            "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config file"
        }
        _ if resource.group == "extensions" => "'extensions' group has been removed and cannot be used for encryption",
        _ if resource.group == "*" && resource.resource != "*" => {
            "encrypting the same resource across groups is not supported"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

    fn file(resources: &str, providers: &str) -> String {
        format!(
            "kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources: [{{resources: {resources}, providers: {providers}}}]"
        )
    }

    #[test]
    fn wrong_files_are_refused_in_upstreams_words() {
        let check = |text: String, want: &str| {
            let error = parse("a.yaml".as_ref(), text.as_bytes()).unwrap_err();
            assert!(error.contains(want), "{text}\n{error}");
        };
        let providers = |text: &str| file("[secrets]", text);
        let resources = |text: &str| file(text, "[{identity: {}}]");
        check("kind: Pod\napiVersion: v1".into(), "it is no EncryptionConfiguration");
        check(
            "kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1".into(),
            "resources: Required value: at least one resources is required",
        );
        check(
            resources("[]"),
            "resources[0].resources: Required value: at least one resources[0].resources is required",
        );
        check(
            resources("[Secrets]"),
            "resources[0].resources[0]: Invalid value: \"Secrets\": resource name should not contain capital",
        );
        check(resources("['*']"), "use '*.' to encrypt all the resources");
        check(resources("[pods.*]"), "encrypting the same resource across groups is not supported");
        check(resources("[events.events.k8s.io]"), "Use 'events' instead");
        check(resources("[secrets, '*.']"), "Invalid value: [\"secrets\",\"*.\"]: using overlapping resources");
        check(resources("[secrets, '*.*']"), "using overlapping resources");
        check(resources("[secrets, secrets]"), "the same resource cannot be specified multiple times");
        check(
            providers("[]"),
            "resources[0].providers: Required value: at least one resources[0].providers is required",
        );
        check(
            providers("[{}]"),
            "resources[0].providers[0]: Invalid value: {\"AESGCM\":null,\"AESCBC\":null,\"Secretbox\":null,\"Identity\":null,\"KMS\":null}: provider does not contain any of the expected providers",
        );
        check(providers("[{identity: {}, aescbc: {}}]"), "more than one provider specified in a single element");
        check(
            providers("[{aescbc: {}}]"),
            "resources[0].providers[0].aescbc.keys: Required value: at least one keys is required",
        );
        check(
            providers("[{aescbc: {keys: [{secret: c2hvcnQ=}]}}]"),
            "aescbc.keys[0].name: Required value: name is a mandatory field for a key",
        );
        check(
            providers("[{secretbox: {keys: [{name: a, secret: c2hvcnQ=}]}}]"),
            "secretbox.keys[0].secret: Invalid value: \"REDACTED\": secret is not of the expected length, got 5, expected one of [32]",
        );
        check(
            providers("[{aesgcm: {keys: [{name: a, secret: '!'}]}}]"),
            "Invalid value: \"REDACTED\": secrets must be base64 encoded",
        );
        check(
            providers("[{identity: {}, odd: 1}]"),
            "error decoding encryption provider configuration file \"a.yaml\": strict decoding error: unknown field \"resources[0].providers[0].odd\"",
        );
        let kms = |more: &str| providers(&format!("[{{kms: {{{more}}}}}]"));
        check(kms("name: a, endpoint: 'unix:///a'"), "error while building transformers: KMSv1 is deprecated");
        check(
            kms("apiVersion: v2, name: 'a:b', endpoint: 'unix:///a'"),
            "invalid KMS provider name a:b, must not contain ':'",
        );
        check(kms("apiVersion: v2, name: a, endpoint: 'tcp:///a'"), "unsupported scheme \"tcp\" for KMS provider");
        check(kms("apiVersion: v2, name: a, endpoint: 'unix:///a', cachesize: 3"), "cachesize is not supported in v2");
        check(kms("apiVersion: v2, name: a, endpoint: 'unix:///a', timeout: 0s"), "timeout should be a positive value");
        check(kms("apiVersion: v3, name: a, endpoint: 'unix:///a'"), "only v1 and v2 are supported");
        let twice = "{kms: {apiVersion: v2, name: a, endpoint: 'unix:///a'}}";
        check(providers(&format!("[{twice}, {twice}]")), "duplicate KMS provider name a, names must be unique");
        let masked = "resources: [{resources: ['*.apps'], providers: [{identity: {}}]}, {resources: [deployments.apps], providers: [{identity: {}}]}]";
        check(
            format!("kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\n{masked}"),
            "resource \"deployments.apps\" is masked by earlier rule \"*.apps\"",
        );
    }

    #[test]
    fn a_right_file_is_read() {
        let text = file(
            "[secrets, '*.apps']",
            &format!(
                "[{{aescbc: {{keys: [{{name: one, secret: {KEY}}}]}}}}, {{kms: {{apiVersion: v2, name: k, endpoint: 'unix:///k', timeout: 1s}}}}, {{identity: {{}}}}]"
            ),
        );
        let rules = parse("a.yaml".as_ref(), text.as_bytes()).unwrap();
        let key = Key { name: "one".into(), secret: b"0123456789abcdef0123456789abcdef".to_vec() };
        let kms =
            ProviderConfig::Kms { name: "k".into(), endpoint: "unix:///k".into(), timeout: Duration::from_secs(1) };
        let providers = vec![ProviderConfig::Keys(Kind::AesCbc, vec![key]), kms, ProviderConfig::Identity];
        let resources = ["secrets", "*.apps"].map(GroupResource::parse).to_vec();
        assert_eq!(rules, [Rule { resources, providers }]);
    }
}
