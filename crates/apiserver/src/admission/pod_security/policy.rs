//! Levels and versions of Pod Security, as labels and configuration name them.

use api::field::FieldError;
use api::{Object, ObjectExt as _};
use serde_json::Value;

const PREFIX: &str = "pod-security.kubernetes.io/";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    #[default]
    Privileged,
    Baseline,
    Restricted,
}

/// A minor version of Kubernetes 1; the latest is later than all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) u32);

pub(super) const LATEST: Version = Version(u32::MAX);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LevelVersion {
    pub(super) level: Level,
    pub(super) version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) enforce: LevelVersion,
    pub(super) audit: LevelVersion,
    pub(super) warn: LevelVersion,
}

impl std::fmt::Display for LevelVersion {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            LATEST => write!(out, "{level}:latest"),
            Version(minor) => write!(out, "{level}:v1.{minor}"),
        }
    }
}

fn level(text: &str) -> Result<Level, &'static str> {
    match text {
        "privileged" => Ok(Level::Privileged),
        "baseline" => Ok(Level::Baseline),
        "restricted" => Ok(Level::Restricted),
        _ => Err("must be one of privileged, baseline, restricted"),
    }
}

fn version(text: &str) -> Result<Version, &'static str> {
    let refused = "must be \"latest\" or \"v1.x\"";
    if text == "latest" {
        return Ok(LATEST);
    }
    let minor = text.strip_prefix("v1.").ok_or(refused)?;
    let canonical = minor == "0" || (!minor.starts_with('0') && minor.bytes().all(|byte| byte.is_ascii_digit()));
    minor.parse().ok().filter(|_| canonical).map(Version).ok_or(refused)
}

impl Default for Policy {
    fn default() -> Self {
        let privileged = LevelVersion { level: Level::Privileged, version: LATEST };
        Self { enforce: privileged, audit: privileged, warn: privileged }
    }
}

impl Policy {
    pub(super) fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|part| part.level == Level::Privileged)
    }

    fn is_like(&self, other: &Self) -> bool {
        let alike =
            |a: LevelVersion, b: LevelVersion| a == b || (a.level == Level::Privileged && b.level == Level::Privileged);
        alike(self.enforce, other.enforce) && alike(self.audit, other.audit) && alike(self.warn, other.warn)
    }

    /// What a namespace's labels make of the defaults; what is wrong with them too.
    pub(super) fn of_namespace(namespace: &Object, defaults: Self) -> (Self, Vec<FieldError>) {
        let mut policy = defaults;
        let mut errors = Vec::new();
        let label = |name: &str| {
            let labels = namespace.at(&["metadata", "labels"]).and_then(Value::as_object)?;
            labels.get(&format!("{PREFIX}{name}")).and_then(Value::as_str)
        };
        let mut refuse = |name: &str, value: &str, why: &str| {
            errors.push(FieldError::invalid(format!("metadata.labels[{PREFIX}{name}]"), value, why));
        };
        let mut enforced = false;
        // What cannot be read is enforced strictly, but neither warned nor audited.
        for (name, part, otherwise) in [
            ("enforce", &mut policy.enforce, Level::Restricted),
            ("audit", &mut policy.audit, Level::Privileged),
            ("warn", &mut policy.warn, Level::Privileged),
        ] {
            if let Some(text) = label(name) {
                part.level = level(text).unwrap_or_else(|why| {
                    refuse(name, text, why);
                    otherwise
                });
                enforced |= name == "enforce" && level(text).is_ok();
            }
            let name = format!("{name}-version");
            if let Some(text) = label(&name) {
                part.version = version(text).unwrap_or_else(|why| {
                    refuse(&name, text, why);
                    LATEST
                });
            }
        }
        // Who only enforces is warned of what will be refused of workloads.
        if label("warn").is_none() && enforced && policy.enforce.level > policy.warn.level {
            policy.warn.level = policy.enforce.level;
            if label("warn-version").is_none() {
                policy.warn.version = policy.enforce.version;
            }
        }
        (policy, errors)
    }
}

/// PodSecurityConfiguration.
#[derive(Debug, Default)]
pub(super) struct Configuration {
    pub(super) defaults: Policy,
    pub(super) usernames: Vec<String>,
    pub(super) namespaces: Vec<String>,
    pub(super) runtime_classes: Vec<String>,
}

impl Configuration {
    pub(super) fn read(configuration: Option<&Value>) -> Result<Self, String> {
        let Some(whole) = configuration.and_then(Value::as_object) else { return Ok(Self::default()) };
        if whole.text(&["kind"]) != "PodSecurityConfiguration"
            || !whole.text(&["apiVersion"]).starts_with("pod-security.admission.config.k8s.io/")
        {
            return Err("it is no PodSecurityConfiguration of pod-security.admission.config.k8s.io/v1".into());
        }
        let part = |name: &str| -> Result<LevelVersion, String> {
            let text = |field: &str, otherwise: &'static str| match whole.text(&["defaults", field]) {
                "" => otherwise.to_owned(),
                text => text.to_owned(),
            };
            let (level_text, version_text) = (text(name, "privileged"), text(&format!("{name}-version"), "latest"));
            let level = level(&level_text).map_err(|why| format!("defaults.{name}: {why}"))?;
            let version = version(&version_text).map_err(|why| format!("defaults.{name}-version: {why}"))?;
            Ok(LevelVersion { level, version })
        };
        let list = |name: &str| -> Vec<String> {
            let items = whole.at(&["exemptions", name]).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(|item| item.as_str().map(ToOwned::to_owned)).collect()
        };
        Ok(Self {
            defaults: Policy { enforce: part("enforce")?, audit: part("audit")?, warn: part("warn")? },
            usernames: list("usernames"),
            namespaces: list("namespaces"),
            runtime_classes: list("runtimeClasses"),
        })
    }

    /// Tells that the labels of an exempt namespace do nothing.
    pub(super) fn idle_labels(&self, namespace: &Object, policy: &Policy) -> Option<String> {
        if policy.is_privileged() || policy.is_like(&self.defaults) {
            return None;
        }
        let labels = namespace.at(&["metadata", "labels"]).and_then(Value::as_object);
        let has = |name: &str| labels.is_some_and(|labels| labels.contains_key(&format!("{PREFIX}{name}")));
        let parts = [("enforce", policy.enforce), ("audit", policy.audit), ("warn", policy.warn)];
        let told = parts
            .iter()
            .filter(|(name, part)| part.level != Level::Privileged && (has(name) || has(&format!("{name}-version"))));
        let told: Vec<String> = told.map(|(name, part)| format!("{name}={part}")).collect();
        let name = namespace.name();
        Some(format!(
            "namespace {name:?} is exempt from Pod Security, and the policy ({}) will be ignored",
            told.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(labels: Value, want: &str) {
        let mut all = Object::new();
        for (key, value) in labels.as_object().into_iter().flatten() {
            all.insert(format!("{PREFIX}{key}"), value.clone());
        }
        let namespace = json!({"metadata": {"labels": all}});
        let (policy, errors) = Policy::of_namespace(namespace.as_object().unwrap(), Policy::default());
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(format!("{} {} {} {}", policy.enforce, policy.audit, policy.warn, errors.join(";")).trim(), want);
    }

    #[test]
    fn labels_choose_levels() {
        check(json!({}), "privileged:latest privileged:latest privileged:latest");
        check(
            json!({"enforce": "baseline", "enforce-version": "v1.30"}),
            "baseline:v1.30 privileged:latest baseline:v1.30",
        );
        check(
            json!({"enforce": "baseline", "warn": "restricted"}),
            "baseline:latest privileged:latest restricted:latest",
        );
        check(
            json!({"enforce": "odd"}),
            "restricted:latest privileged:latest privileged:latest metadata.labels[pod-security.kubernetes.io/enforce]: \
             Invalid value: \"odd\": must be one of privileged, baseline, restricted",
        );
        check(
            json!({"warn-version": "v1.030"}),
            "privileged:latest privileged:latest privileged:latest metadata.labels[pod-security.kubernetes.io/warn-version]: \
             Invalid value: \"v1.030\": must be \"latest\" or \"v1.x\"",
        );
    }
}
