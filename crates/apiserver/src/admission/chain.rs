//! The one table of plugins: their order, which of them are on, and what they are configured with.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::ObjectExt as _;
use serde_json::Value;

use super::{
    Plugin, always_pull_images, certificates, event_rate_limit, image_policy, limit_ranger, namespace,
    node_declared_features, node_restriction, node_taint, placement, pod_resize, pod_security, pods, policy, refusals,
    runtime_class, service_account, storage, webhook,
};
use crate::outbound::Logins;

/// What the flags say.
#[derive(Clone, Debug, Default)]
pub struct AdmissionSettings {
    /// `--enable-admission-plugins`
    pub enable: Vec<String>,
    /// `--disable-admission-plugins`
    pub disable: Vec<String>,
    /// `--admission-control-config-file`, read; what it names by path is read into it.
    pub configuration: Option<Value>,
}

impl AdmissionSettings {
    /// Reads an AdmissionConfiguration; what it names by path is beside it.
    pub fn read(path: &Path) -> Result<Value, AdmissionError> {
        let mut whole = read_yaml(path)?;
        let version = whole.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        let kind = whole.get("kind").and_then(Value::as_str).unwrap_or_default();
        if !matches!(version, "apiserver.config.k8s.io/v1" | "apiserver.k8s.io/v1alpha1")
            || kind != "AdmissionConfiguration"
        {
            let why = format!("{version} {kind} is no AdmissionConfiguration of apiserver.config.k8s.io/v1");
            return Err(AdmissionError::File(path.to_owned(), why));
        }
        for plugin in whole.get_mut("plugins").and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(plugin) = plugin.as_object_mut() else { continue };
            let own = plugin.text(&["path"]).to_owned();
            if !own.is_empty() && plugin.get("configuration").is_none_or(Value::is_null) {
                let beside = path.parent().map_or_else(|| own.clone().into(), |dir| dir.join(&own));
                plugin.insert("configuration".into(), read_yaml(&beside)?);
            }
        }
        Ok(whole)
    }
}

fn read_yaml(path: &Path) -> Result<Value, AdmissionError> {
    let failed = |why: String| AdmissionError::File(path.to_owned(), why);
    let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    crate::http::yaml(&text).map_err(|error| failed(error.message))
}

#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    #[error("unknown admission plugin {0}")]
    Unknown(String),
    #[error("{0} in enable-admission-plugins and disable-admission-plugins overlapped")]
    Both(String),
    #[error("{0} cannot be used: {1}")]
    File(PathBuf, String),
    #[error("the configuration of the admission plugin {0} cannot be used: {1}")]
    Configuration(&'static str, String),
}

type Make = fn(Option<&Value>) -> Result<Box<dyn Plugin>, String>;

/// A plugin as the table has it. Some are done elsewhere in the path of a write, or do nothing, and are only named here.
struct Entry {
    name: &'static str,
    on: bool,
    make: Option<Make>,
}

const fn plugin(name: &'static str, on: bool, make: Make) -> Entry {
    Entry { name, on, make: Some(make) }
}

const fn elsewhere(name: &'static str, on: bool) -> Entry {
    Entry { name, on, make: None }
}

macro_rules! simple {
    ($plugin:expr) => {
        |_| Ok(Box::new($plugin))
    };
}

/// In upstream's order. NodeRestriction is on here: without it a node's credentials would reach beyond the node. What upstream
/// turns off with a feature gate that is off by default is known by its name and does nothing.
const TABLE: &[Entry] = &[
    elsewhere("AlwaysAdmit", false),
    plugin("NamespaceAutoProvision", false, simple!(refusals::NamespaceAutoProvision)),
    plugin("NamespaceLifecycle", true, simple!(namespace::Lifecycle)),
    plugin("NamespaceExists", false, simple!(refusals::NamespaceExists)),
    plugin("LimitPodHardAntiAffinityTopology", false, simple!(placement::LimitPodHardAntiAffinityTopology)),
    plugin("LimitRanger", true, simple!(limit_ranger::LimitRanger)),
    plugin("ServiceAccount", true, simple!(service_account::ServiceAccount)),
    plugin("NodeRestriction", true, simple!(node_restriction::NodeRestriction)),
    plugin("TaintNodesByCondition", true, simple!(node_taint::TaintNodesByCondition)),
    plugin("AlwaysPullImages", false, simple!(always_pull_images::AlwaysPullImages)),
    plugin("ImagePolicyWebhook", false, image_policy::ImagePolicyWebhook::plugin),
    plugin("PodSecurity", true, pod_security::PodSecurity::plugin),
    plugin("PodNodeSelector", false, placement::PodNodeSelector::plugin),
    plugin("Priority", true, simple!(pods::Priority)),
    plugin("DefaultTolerationSeconds", true, simple!(pods::DefaultTolerationSeconds)),
    plugin("PodTolerationRestriction", false, placement::PodTolerationRestriction::plugin),
    plugin("EventRateLimit", false, event_rate_limit::EventRateLimit::plugin),
    plugin("ExtendedResourceToleration", false, simple!(placement::ExtendedResourceToleration)),
    plugin("DefaultStorageClass", true, simple!(storage::DefaultStorageClass)),
    plugin("StorageObjectInUseProtection", true, simple!(storage::StorageObjectInUseProtection)),
    elsewhere("PodGroupProtection", true),
    plugin("OwnerReferencesPermissionEnforcement", false, simple!(refusals::OwnerReferencesPermissionEnforcement)),
    plugin("PersistentVolumeClaimResize", true, simple!(storage::PersistentVolumeClaimResize)),
    plugin("RuntimeClass", true, simple!(runtime_class::RuntimeClass)),
    plugin("CertificateApproval", true, simple!(certificates::Approval)),
    plugin("CertificateSigning", true, simple!(certificates::Signing)),
    plugin("ClusterTrustBundleAttest", true, simple!(certificates::ClusterTrustBundleAttest)),
    plugin("CertificateSubjectRestriction", true, simple!(certificates::SubjectRestriction)),
    plugin("DefaultIngressClass", true, simple!(storage::DefaultIngressClass)),
    plugin("DenyServiceExternalIPs", false, simple!(refusals::DenyServiceExternalIps)),
    plugin("PodTopologyLabels", true, simple!(placement::PodTopologyLabels)),
    elsewhere("PodGroupWorkloadExists", true),
    plugin("NodeDeclaredFeatureValidator", true, simple!(node_declared_features::NodeDeclaredFeatureValidator)),
    elsewhere("JobValidation", true),
    plugin("PodResizeValidator", true, simple!(pod_resize::PodResizeValidator)),
    // Asked after all others, and all others once more after it.
    elsewhere(policy::mutating::NAME, true),
    elsewhere(webhook::mutating::NAME, true),
    plugin("ValidatingAdmissionPolicy", true, simple!(policy::validating::ValidatingAdmissionPolicy)),
    plugin("ValidatingAdmissionWebhook", true, simple!(webhook::validating::ValidatingAdmissionWebhook)),
    // Charged in the transaction of the write.
    elsewhere("ResourceQuota", true),
    plugin("AlwaysDeny", false, simple!(refusals::AlwaysDeny)),
];

/// The plugins that are on.
pub(crate) struct Chain {
    names: Vec<&'static str>,
    plugins: Vec<Box<dyn Plugin>>,
    /// As whom the webhooks of a plugin are asked.
    logins: Vec<(&'static str, Arc<Logins>)>,
}

impl Chain {
    pub(crate) fn new(settings: &AdmissionSettings) -> Result<Self, AdmissionError> {
        let known = |name: &str| TABLE.iter().any(|entry| entry.name == name);
        if let Some(name) = settings.enable.iter().chain(&settings.disable).find(|name| !known(name)) {
            return Err(AdmissionError::Unknown(name.clone()));
        }
        if let Some(name) = settings.enable.iter().find(|name| settings.disable.contains(name)) {
            return Err(AdmissionError::Both(name.clone()));
        }
        let listed = |list: &[String], entry: &Entry| list.iter().any(|name| name == entry.name);
        let mut chain = Self { names: Vec::new(), plugins: Vec::new(), logins: Vec::new() };
        for entry in TABLE {
            if listed(&settings.disable, entry) || !(entry.on || listed(&settings.enable, entry)) {
                continue;
            }
            chain.names.push(entry.name);
            let own = configuration(settings, entry.name);
            if entry.name.ends_with("AdmissionWebhook") {
                let logins = logins(own).map_err(|why| AdmissionError::Configuration(entry.name, why))?;
                chain.logins.push((entry.name, Arc::new(logins)));
            }
            if let Some(make) = entry.make {
                let made = make(own);
                chain.plugins.push(made.map_err(|why| AdmissionError::Configuration(entry.name, why))?);
            }
        }
        Ok(chain)
    }

    pub(super) fn plugins(&self) -> impl Iterator<Item = &dyn Plugin> {
        self.plugins.iter().map(|plugin| &**plugin)
    }

    pub(crate) fn logins(&self, name: &str) -> Arc<Logins> {
        let own = self.logins.iter().find(|(plugin, _)| *plugin == name);
        own.map(|(_, logins)| logins.clone()).unwrap_or_default()
    }

    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.names.contains(&name)
    }
}

/// What a WebhookAdmissionConfiguration says of who asks.
fn logins(own: Option<&Value>) -> Result<Logins, String> {
    let text = |field: &str| own.and_then(|own| own.get(field)?.as_str()).unwrap_or_default();
    // Without them webhooks would not be asked at all.
    if !text("staticManifestsDir").is_empty() {
        return Err("staticManifestsDir is not supported".into());
    }
    match Path::new(text("kubeConfigFile")) {
        path if path.as_os_str().is_empty() => Ok(Logins::default()),
        path if path.is_relative() => {
            Err(format!("kubeConfigFile: Invalid value: {path:?}: must be an absolute file path"))
        }
        path => Logins::read(path).map_err(|error| error.to_string()),
    }
}

fn configuration<'a>(settings: &'a AdmissionSettings, name: &str) -> Option<&'a Value> {
    let plugins = settings.configuration.as_ref()?.get("plugins")?.as_array()?;
    let own = plugins.iter().filter_map(Value::as_object).find(|plugin| plugin.text(&["name"]) == name)?;
    own.get("configuration")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(enable: &[&str], disable: &[&str], want: Result<&[&str], &str>) {
        let list = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let settings = AdmissionSettings { enable: list(enable), disable: list(disable), configuration: None };
        let chain = Chain::new(&settings);
        match (chain, want) {
            (Ok(chain), Ok(names)) => {
                for name in names {
                    assert_eq!(chain.is_on(name.trim_start_matches('!')), !name.starts_with('!'), "{name}");
                }
            }
            (Err(error), Err(why)) => assert_eq!(error.to_string(), why),
            (chain, want) => panic!("{:?} instead of {want:?}", chain.map(|chain| chain.names)),
        }
    }

    #[test]
    fn what_webhooks_would_be_asked_with_is_not_passed_over() {
        let own = |configuration: Value| AdmissionSettings {
            configuration: Some(serde_json::json!({"plugins": [
                {"name": "MutatingAdmissionWebhook", "configuration": configuration},
            ]})),
            ..AdmissionSettings::default()
        };
        let check = |configuration: Value, want: Option<&str>| {
            let error = Chain::new(&own(configuration)).err().map(|error| error.to_string());
            let want = want.map(|why| {
                format!("the configuration of the admission plugin MutatingAdmissionWebhook cannot be used: {why}")
            });
            assert_eq!(error, want);
        };
        check(serde_json::json!({"kubeConfigFile": ""}), None);
        check(serde_json::json!({"staticManifestsDir": "/a"}), Some("staticManifestsDir is not supported"));
        let relative = "kubeConfigFile: Invalid value: \"a\": must be an absolute file path";
        check(serde_json::json!({"kubeConfigFile": "a"}), Some(relative));
        let missing = "/no/such/file cannot be read: No such file or directory (os error 2)";
        check(serde_json::json!({"kubeConfigFile": "/no/such/file"}), Some(missing));
    }

    /// As upstream documents it; the order decides who sees whose changes.
    const ON_BY_DEFAULT: &str = "NamespaceLifecycle LimitRanger ServiceAccount NodeRestriction TaintNodesByCondition \
        PodSecurity Priority DefaultTolerationSeconds DefaultStorageClass StorageObjectInUseProtection PodGroupProtection \
        PersistentVolumeClaimResize RuntimeClass CertificateApproval CertificateSigning ClusterTrustBundleAttest \
        CertificateSubjectRestriction DefaultIngressClass PodTopologyLabels PodGroupWorkloadExists \
        NodeDeclaredFeatureValidator JobValidation PodResizeValidator MutatingAdmissionPolicy MutatingAdmissionWebhook \
        ValidatingAdmissionPolicy ValidatingAdmissionWebhook ResourceQuota";

    #[test]
    fn upstreams_plugins_are_there_in_upstreams_order() {
        let chain = Chain::new(&AdmissionSettings::default()).unwrap();
        assert_eq!(chain.names.join(" "), ON_BY_DEFAULT);
        assert_eq!(TABLE.len(), 41);
        for entry in TABLE {
            let settings = AdmissionSettings { disable: vec![entry.name.into()], ..AdmissionSettings::default() };
            assert!(!Chain::new(&settings).unwrap().is_on(entry.name), "{}", entry.name);
        }
    }

    #[test]
    fn flags_turn_plugins_on_and_off() {
        check(&[], &[], Ok(&["NamespaceLifecycle", "ResourceQuota", "!AlwaysAdmit"]));
        check(&["AlwaysAdmit"], &["Priority"], Ok(&["AlwaysAdmit", "!Priority", "ServiceAccount"]));
        check(&["Wrong"], &[], Err("unknown admission plugin Wrong"));
        check(
            &["Priority"],
            &["Priority"],
            Err("Priority in enable-admission-plugins and disable-admission-plugins overlapped"),
        );
    }
}
